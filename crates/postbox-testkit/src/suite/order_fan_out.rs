//! What is promised of order on a route to several sinks: none gets ahead of another within an aggregate, and no aggregate waits for
//! another's.

use postbox_core::Record;

use super::fan_out::{outage, slow, start_with};
use super::order::{BLOCK, arrived_of, of, some_of, unordered};
use super::relay::arrived;
use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, TOPIC, enqueue, event, quick, state};
use crate::eventually;

/// Each of an aggregate of its own.
fn apart(number: usize) -> Vec<Record> {
    let one = |n| event(TOPIC, n).aggregate("apart", uuid::Uuid::new_v4()).build().expect("an event");
    (0..number).map(one).collect()
}

/// What one sink fails at, no sink gets the next of; each gets all of them in order, and once.
pub async fn in_order_a_sink_that_fails_holds_the_aggregate_everywhere<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("held", 4)).await;
    let others = enqueue(subject, (0..20).map(|n| of(&format!("free-{n}"), n)).collect()).await;
    let first = mine[0];
    let a = Scripted::ok();
    let b = Scripted::new(move |d| match d.meta.attempts {
        1..4 if d.meta.event_id == first => Act::Retry,
        _ => Act::Ok,
    });
    let relay = start_with(subject.ordered_store(BLOCK, true), a.clone(), b.clone(), quick());
    eventually("b to fail", PATIENCE, async || b.tries(first) > 1).await;
    arrived(&b, &others).await;
    if b.tries(first) < 4 {
        assert_eq!(arrived_of(&a, &mine), mine[..1], "the next waits for b, at a as well");
    }
    arrived(&b, &mine).await;
    arrived(&a, &mine).await;
    relay.shutdown().await.unwrap();
    assert_eq!((arrived_of(&a, &mine), arrived_of(&b, &mine)), (mine.clone(), mine.clone()));
    let row = state(subject, first).await;
    assert!(row.attempts == 4 && a.tries(first) == 1, "{row:?}");
    assert_eq!(state(subject, mine[1]).await.attempts, 1, "what was held back is not charged");
}

/// P5: aggregates that one sink lacks wait for it in the table, untouched but by probes, and the other sink gets all that is new.
pub async fn in_order_an_outage_of_one_sink_holds_up_no_other<S: Subject>(subject: &S) {
    if !unordered(subject) {
        outage(subject, subject.ordered_store(BLOCK, true), apart).await;
    }
}

/// P5: nor does one that is slow.
pub async fn in_order_a_slow_sink_does_not_slow_the_other<S: Subject>(subject: &S) {
    if !unordered(subject) {
        slow(subject, subject.ordered_store(BLOCK, true), apart).await;
    }
}
