//! Handlers that take the transaction of their call.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::client::read_to;
use crate::shop::Shop;

pub(crate) async fn order_event_and_answer_are_one_commit<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("tea");
    let first = ask.send().await;
    assert_eq!((first.status, first.body.as_str()), (201, "1: tea"));
    let second = ask.send().await;
    assert!(second.is_replayed() && second.body == first.body && second.status == 201, "{second:?}");
    assert_eq!((shop.books().await, shop.handled()), ((1, 1), 1));
}

pub(crate) async fn what_fails_is_rolled_back_and_runs_again<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("fails at first");
    assert_eq!(ask.send().await.status, 500);
    assert_eq!(shop.books().await, (0, 0));
    assert_eq!(ask.send().await.status, 201);
    assert_eq!((shop.books().await, shop.handled()), ((1, 1), 2));
    assert!(ask.send().await.is_replayed());
}

pub(crate) async fn a_refusal_is_stored_without_an_effect<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("refused");
    for replayed in [false, true] {
        let answer = ask.send().await;
        assert_eq!((answer.status, answer.body.as_str(), answer.is_replayed()), (422, "1", replayed));
    }
    assert_eq!(shop.books().await, (0, 0));
}

pub(crate) async fn a_success_without_a_commit_is_told_as_a_failure<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("forgotten");
    for number in 1..=2 {
        assert_eq!(ask.send().await.problem(), (500, "IDEMPOTENCY_NOT_COMMITTED".to_owned()));
        assert_eq!((shop.books().await, shop.handled()), ((0, 0), number));
    }
}

/// Drivers report a COMMIT that the server turned into a ROLLBACK as success.
pub(crate) async fn an_error_that_was_ignored_is_not_committed<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("ignored");
    let answer = ask.send().await;
    if shop.errors_abort() {
        assert_eq!((answer.status, shop.books().await), (500, (0, 0)));
        assert!(!ask.send().await.is_replayed());
    } else {
        assert_eq!((answer.status, shop.books().await), (201, (1, 1)));
    }
}

pub(crate) async fn what_was_rolled_back_on_purpose_is_an_answer_like_any_other<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("not wanted");
    for replayed in [false, true] {
        let answer = ask.send().await;
        assert_eq!((answer.body.as_str(), answer.is_replayed()), ("1: nothing to do", replayed));
    }
    assert_eq!(shop.books().await, (0, 0));
}

pub(crate) async fn without_a_key_it_is_an_ordinary_transaction<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").body("tea");
    for number in 1..=2 {
        let answer = ask.send().await;
        assert_eq!((answer.body, shop.books().await), (format!("{number}: tea"), (number, number)));
    }
    assert_eq!(shop.ask("/orders").body("refused").send().await.status, 422);
    assert_eq!(shop.books().await, (2, 2));
}

pub(crate) async fn a_large_answer_is_committed_and_not_kept<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("big");
    assert_eq!(ask.send().await.body, "z".repeat(5_000));
    assert_eq!(ask.send().await.problem(), (410, "IDEMPOTENCY_ANSWER_NOT_KEPT".to_owned()));
    assert_eq!((shop.books().await, shop.handled()), ((1, 1), 1));
}

/// Its transaction is over when the answer begins: on SQLite nobody else could place an order meanwhile.
pub(crate) async fn an_order_whose_answer_has_no_end_is_committed<S: Shop>(shop: &S) {
    let ask = shop.ask("/orders").key("k").body("endless");
    let mut first = ask.start().await;
    read_to(&mut first, "begun").await;
    assert_eq!(shop.books().await, (1, 1));
    assert_eq!(ask.send().await.problem(), (410, "IDEMPOTENCY_ANSWER_NOT_KEPT".to_owned()));
    assert_eq!(shop.ask("/orders").key("other").body("tea").send().await.status, 201);
    assert_eq!(shop.books().await, (2, 2));
}

/// The first has written everything but its COMMIT when its lease runs out: one of the others places the order, and the first
/// cannot any more. (On SQLite the first holds the only write lock: there the others have to wait for it, and it is the one.)
pub(crate) async fn of_16_callers_with_a_crash_in_the_middle_one_order_is_placed<S: Shop>(shop: &S) {
    let (ask, floor) = (Arc::new(shop.ask("/orders").key("k").body("gate")), &shop.door().floor);
    let send = |ask: &Arc<crate::client::Ask>| {
        let ask = Arc::clone(ask);
        async move { ask.send().await }
    };
    let slow = tokio::spawn(send(&ask));
    floor.are_at_gate(1).await;
    if shop.writers_overlap() {
        shop.expire("k").await;
    } else {
        floor.gate.add_permits(1);
    }
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let ask = Arc::clone(&ask);
        callers.spawn(async move { ask.insist().await });
    }
    let answers = callers.join_all().await;
    assert!(answers.windows(2).all(|two| two[0].body == two[1].body), "{answers:?}");
    let slow_answer = if shop.writers_overlap() {
        floor.gate.add_permits(1);
        assert_eq!(answers[0].body, "2: gate", "one of them took it over");
        409
    } else {
        201
    };
    assert_eq!(slow.await.unwrap().status, slow_answer);
    assert_eq!(shop.books().await, (1, 1));
    assert_eq!(ask.send().await.body, answers[0].body);
}
