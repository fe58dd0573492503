//! What repeats get.

use crate::client::{Ask, read_to};
use crate::shop::Shop;

pub(crate) async fn a_repeat_gets_the_same_answer_and_nothing_runs<S: Shop>(shop: &S) {
    let ask = shop.ask("/echo").key("\"order-7\"").body("tea");
    let first = ask.send().await;
    assert_eq!((first.status, first.body.as_str(), first.is_replayed()), (201, "1: tea", false));
    assert!(first.headers.contains_key("set-cookie") && first.headers.contains_key("x-request-id"));
    let second = ask.send().await;
    assert!(second.is_replayed(), "{second:?}");
    assert_eq!((first.status, &first.body), (second.status, &second.body));
    for name in ["location", "content-type", "content-length"] {
        assert_eq!(first.header(name), second.header(name), "{name}");
    }
    for name in ["set-cookie", "x-request-id"] {
        assert_eq!(second.header(name), None, "{name} belongs to the first caller");
    }
    assert_eq!(second, ask.send().await, "and so on");
    assert_eq!(shop.handled(), 1);
}

pub(crate) async fn quotes_make_no_other_key<S: Shop>(shop: &S) {
    let key = "8e03978e-40d5-43e8-bc93-6894a57f9324";
    let quoted = shop.ask("/echo").key(&format!("\"{key}\"")).send().await;
    let bare = shop.ask("/echo").key(key).send().await;
    assert!(bare.is_replayed() && quoted.body == bare.body, "{bare:?}");
}

/// Else one caller would be given another's answer (hazard 46).
pub(crate) async fn two_principals_have_keys_of_their_own<S: Shop>(shop: &S) {
    for (account, answer) in
        [("acme", "1: tea"), ("zenith", "2: tea"), ("acme", "1: tea"), ("zenith", "2: tea")]
    {
        let ask = shop.ask("/echo").key("same").account(account).body("tea");
        assert_eq!(ask.send().await.body, answer, "{account}");
    }
    // Also with another body, which would be a mismatch with a key of one's own.
    let third = shop.ask("/echo").key("same").account("third").body("coffee").send().await;
    assert_eq!((third.status, shop.handled()), (201, 3));
}

pub(crate) async fn what_is_final_is_stored_and_what_is_not_runs_again<S: Shop>(shop: &S) {
    for (status, stored) in [
        (200, true),
        (204, true),
        (303, true),
        (404, true),
        (409, true),
        (422, true),
        (401, false),
        (408, false),
        (425, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let before = shop.handled();
        let ask = shop.ask(&format!("/status/{status}")).key(&format!("k{status}"));
        assert_eq!(ask.send().await.status, status);
        let second = ask.send().await;
        let expected = if stored { (status, true, before + 1) } else { (200, false, before + 2) };
        assert_eq!((second.status, second.is_replayed(), shop.handled()), expected);
    }
}

pub(crate) async fn what_a_layer_is_told_decides_about_keys_headers_and_statuses<S: Shop>(shop: &S) {
    let ask = shop.ask("/picky").key("four").body("tea");
    let (first, second) = (ask.send().await, ask.send().await);
    assert!(second.is_replayed() && second.header("x-request-id") == Some("1"), "{second:?}");
    assert!(first.headers.contains_key("set-cookie") && !second.headers.contains_key("set-cookie"), "never");
    for key in ["one", "ninecount"] {
        let refused = shop.ask("/picky").key(key).send().await;
        assert_eq!(refused.problem(), (400, "IDEMPOTENCY_KEY_INVALID".to_owned()), "{key}");
    }
    for (status, repeated) in [(503, 503), (404, 200)] {
        let ask = shop.ask(&format!("/picky/{status}")).key(&format!("k-{status}"));
        let (first, second) = (ask.send().await, ask.send().await);
        assert_eq!(
            (first.status, second.status, second.is_replayed()),
            (status, repeated, status == repeated)
        );
    }
}

pub(crate) async fn an_answer_that_is_too_large_is_not_kept_and_not_run_again<S: Shop>(shop: &S) {
    for (number, path, piece) in [(1, "/big", "x"), (2, "/stream", "y")] {
        let ask = shop.ask(path).key("k");
        let first = ask.send().await;
        assert_eq!((first.status, first.body), (200, piece.repeat(5_000)), "the first caller gets it");
        let second = ask.send().await;
        assert_eq!(second.problem(), (410, "IDEMPOTENCY_ANSWER_NOT_KEPT".to_owned()));
        assert!(second.is_replayed() && second.body.contains("\"original_status\":200"), "{second:?}");
        assert_eq!(second.header("location"), (path == "/big").then_some("/things/big"));
        assert_eq!(shop.handled(), number, "nothing runs again");
    }
}

/// Else a call would last for as long as somebody listens, and repeats would be told to wait.
pub(crate) async fn an_answer_without_an_end_is_given_and_not_kept<S: Shop>(shop: &S) {
    let ask = shop.ask("/endless").key("k");
    let mut first = ask.start().await;
    let heard = read_to(&mut first, "begun").await;
    assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
    let second = ask.send().await;
    assert_eq!(second.problem(), (410, "IDEMPOTENCY_ANSWER_NOT_KEPT".to_owned()));
    // What is a stream by its type is one however short it is.
    let ask = shop.ask("/events").key("k");
    assert_eq!(ask.send().await.body, "data: 1\n\n");
    assert_eq!(ask.send().await.problem(), (410, "IDEMPOTENCY_ANSWER_NOT_KEPT".to_owned()));
    assert_eq!(shop.handled(), 2, "nothing runs again");
}

pub(crate) async fn calls_without_a_key_and_other_methods_pass<S: Shop>(shop: &S) {
    for number in 1..=2 {
        assert_eq!(shop.ask("/echo").body("tea").send().await.body, format!("{number}: tea"));
    }
    for number in 3..=4 {
        let get = Ask::new(&shop.door().address, "GET", "/echo").key("k").send().await;
        assert_eq!((get.status, get.body), (201, format!("{number}: ")));
    }
    // A caller who is not known may call without a key, and a body may be as large as it likes.
    let large = shop.ask("/echo").account("").body("x".repeat(20_000)).send().await;
    assert_eq!((large.status, shop.handled()), (201, 5));
}
