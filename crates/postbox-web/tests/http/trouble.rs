//! Callers that come at once, hang up, and handlers that panic or take too long.

use std::sync::Arc;
use std::time::Duration;

use postbox_testkit::eventually;
use tokio::task::JoinSet;

use crate::client::Answer;
use crate::shop::Shop;

const PATIENCE: Duration = Duration::from_mins(1);

fn still_running(answer: &Answer) -> bool {
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    answer.problem() == (409, "IDEMPOTENCY_STILL_RUNNING".to_owned()) && (1..=30).contains(&seconds)
}

pub(crate) async fn while_the_first_runs_repeats_wait<S: Shop>(shop: &S) {
    let (ask, floor) = (shop.ask("/gate").key("k"), &shop.door().floor);
    let first = tokio::spawn({
        let ask = ask.clone();
        async move { ask.send().await }
    });
    floor.are_at_gate(1).await;
    assert!(still_running(&ask.send().await));
    floor.gate.add_permits(1);
    assert_eq!(first.await.unwrap().body, "1");
    let repeat = ask.send().await;
    assert!(repeat.is_replayed() && repeat.body == "1", "{repeat:?}");
    assert_eq!(shop.handled(), 1);
}

pub(crate) async fn a_caller_who_goes_away_does_not_cut_the_handler_off<S: Shop>(shop: &S) {
    let (ask, door) = (shop.ask("/gate").key("k"), shop.door());
    let stream = ask.start().await;
    door.floor.are_at_gate(1).await;
    drop(stream);
    // The server has noticed it: whoever asks is told that the handler still runs.
    assert!(still_running(&ask.send().await));
    door.floor.gate.add_permits(1);
    door.idle().await;
    let repeat = ask.send().await;
    assert!(repeat.is_replayed() && repeat.body == "1", "{repeat:?}");
    assert_eq!(shop.handled(), 1);
}

pub(crate) async fn a_panic_releases_the_key<S: Shop>(shop: &S) {
    let ask = shop.ask("/panic").key("k");
    assert_eq!(ask.try_send().await, None, "as without the layer");
    let second = ask.send().await;
    assert_eq!((second.status, second.body.as_str(), second.is_replayed()), (200, "2", false));
    assert!(ask.send().await.is_replayed());
}

pub(crate) async fn a_lease_is_renewed_while_the_handler_runs<S: Shop>(shop: &S) {
    let (ask, floor) = (shop.ask("/quick").key("k"), &shop.door().floor);
    let first = tokio::spawn({
        let ask = ask.clone();
        async move { ask.send().await }
    });
    floor.are_at_gate(1).await;
    let until = shop.lease_until("k").await;
    eventually("the lease to be renewed past its first end", PATIENCE, async || {
        shop.lease_until("k").await > until + 1_000_000
    })
    .await;
    assert!(still_running(&ask.send().await), "nobody takes it over");
    floor.gate.add_permits(1);
    assert_eq!((first.await.unwrap().body.as_str(), shop.handled()), ("1", 1));
}

/// The fence of a take-over (hazard 46).
pub(crate) async fn who_was_taken_over_is_told_so<S: Shop>(shop: &S) {
    let (ask, floor) = (shop.ask("/gate").key("k"), &shop.door().floor);
    let send = || {
        let ask = ask.clone();
        tokio::spawn(async move { ask.send().await })
    };
    let slow = send();
    floor.are_at_gate(1).await;
    shop.expire("k").await;
    let next = send();
    floor.are_at_gate(1).await;
    assert_eq!(shop.handled(), 2, "it was taken over");
    // The first in, first out of the gate.
    floor.gate.add_permits(1);
    assert_eq!(slow.await.unwrap().problem(), (409, "IDEMPOTENCY_TAKEN_OVER".to_owned()));
    floor.gate.add_permits(1);
    assert_eq!(next.await.unwrap().body, "2");
    assert_eq!(ask.send().await.body, "2", "one answer counts");
}

/// Calls with one key that come at once (hazard 46).
pub(crate) async fn of_16_callers_one_is_served_by_the_handler<S: Shop>(shop: &S) {
    let ask = Arc::new(shop.ask("/echo").key("k").body("tea"));
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let ask = Arc::clone(&ask);
        callers.spawn(async move { ask.insist().await });
    }
    let answers = callers.join_all().await;
    assert!(answers.iter().all(|answer| answer.body == "1: tea"), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| !answer.is_replayed()).count(), 1);
    assert_eq!(shop.handled(), 1);
}
