//! What is not run.

use crate::client::Ask;
use crate::shop::Shop;

/// A key belongs to one content and one route (hazard 46).
pub(crate) async fn another_body_path_or_query_is_another_request<S: Shop>(shop: &S) {
    let reused = (422, "IDEMPOTENCY_KEY_REUSED".to_owned());
    assert_eq!(shop.ask("/things/1?a=b").key("k").body("tea").send().await.status, 201);
    for (path, body) in [
        ("/things/1?a=b", "coffee"),
        ("/things/2?a=b", "tea"),
        ("/things/1?a=c", "tea"),
        ("/things/1", "tea"),
    ] {
        assert_eq!(shop.ask(path).key("k").body(body).send().await.problem(), reused, "{path} {body}");
    }
    assert!(shop.ask("/things/1?a=b").key("k").body("tea").send().await.is_replayed());
    assert_eq!(shop.handled(), 1);
    // Another route, or another method, has keys of its own.
    assert_eq!(shop.ask("/echo").key("k").body("coffee").send().await.status, 201);
    let patch = Ask::new(&shop.door().address, "PATCH", "/things/1?a=b").key("k").body("tea");
    assert_eq!((patch.send().await.status, shop.handled()), (201, 3));
}

/// What is nested sees its own part of the path only: the rest of it tells calls apart all the same (hazard 46).
pub(crate) async fn what_stands_before_a_nested_router_is_part_of_its_paths<S: Shop>(shop: &S) {
    let ask = |path: &str| shop.ask(path).key("k").body("tea");
    assert_eq!(ask("/shops/1/things").send().await.status, 201);
    assert_eq!(ask("/shops/2/things").send().await.problem(), (422, "IDEMPOTENCY_KEY_REUSED".to_owned()));
    assert!(ask("/shops/1/things").send().await.is_replayed());
    // Two services have keys of their own.
    for (path, answer) in [("/tea/things", "2: tea"), ("/rice/things", "3: tea")] {
        assert_eq!(ask(path).send().await.body, answer, "{path}");
        assert!(ask(path).send().await.is_replayed(), "{path}");
    }
}

pub(crate) async fn a_key_that_is_missing_or_wrong_is_refused<S: Shop>(shop: &S) {
    let missing = shop.ask("/required").send().await;
    assert_eq!(missing.problem(), (400, "IDEMPOTENCY_KEY_MISSING".to_owned()));
    assert!(missing.body.contains("https://shop.example/problems/key-missing"), "{missing:?}");
    let invalid = (400, "IDEMPOTENCY_KEY_INVALID".to_owned());
    for key in ["", "\"\"", "\"open", "two words", &"k".repeat(256)] {
        for path in ["/required", "/echo"] {
            assert_eq!(shop.ask(path).key(key).send().await.problem(), invalid, "{key:?}");
        }
    }
    assert_eq!(shop.ask("/echo").key("a").key("b").send().await.problem(), invalid);
    assert_eq!(shop.handled(), 0);
    assert_eq!(shop.ask("/required").key("k").send().await.status, 201);
}

pub(crate) async fn a_body_that_is_too_large_is_refused<S: Shop>(shop: &S) {
    let ask = shop.ask("/echo").key("k");
    let large = ask.clone().body("x".repeat(10_001)).send().await;
    assert_eq!(large.problem(), (413, "IDEMPOTENCY_BODY_TOO_LARGE".to_owned()));
    assert_eq!(shop.handled(), 0);
    // The key is still free.
    assert_eq!(ask.body("x".repeat(10_000)).send().await.status, 201);
}

pub(crate) async fn a_caller_who_is_not_known_is_refused<S: Shop>(shop: &S) {
    let nobody = shop.ask("/echo").key("k").account("").send().await;
    assert_eq!(nobody.problem(), (401, "IDEMPOTENCY_PRINCIPAL_UNKNOWN".to_owned()));
    assert_eq!(shop.handled(), 0);
}

pub(crate) async fn without_the_table_nothing_runs<S: Shop>(shop: &S) {
    shop.drop_table().await;
    let answer = shop.ask("/echo").key("k").send().await;
    assert_eq!(answer.problem(), (503, "IDEMPOTENCY_STORE_UNAVAILABLE".to_owned()));
    assert_eq!((answer.header("retry-after"), shop.handled()), (Some("1"), 0));
    assert_eq!(shop.ask("/echo").send().await.status, 201, "without a key nothing is needed");
}
