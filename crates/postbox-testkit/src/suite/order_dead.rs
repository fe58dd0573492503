//! What is promised of order when an event dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::cleaner::{Sweep as _, SweepRequest};
use postbox_core::{DeadFilter, DeadLetters as _, Inspect as _, OnDead, Order, Relay};

use super::order::{BLOCK, OTHER, arrived_of, of, some_of, start, unordered};
use super::relay::arrived;
use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, TOPIC, enqueue, event, quick, state};
use crate::eventually;

const SKIP: Order = Order::Aggregate(OnDead::Skip);

/// `block`: until somebody replays it. A dead event that blocks is seen, and not cleaned.
pub async fn a_dead_event_blocks_its_aggregate_until_it_is_replayed<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("a", 4)).await;
    let lone = enqueue(subject, some_of("lone", 1)).await;
    let (bad, well) = (mine[1], Arc::new(AtomicBool::new(false)));
    let is_well = Arc::clone(&well);
    let dies = [bad, lone[0]];
    let sink = Scripted::new(move |d| {
        let well = is_well.load(Ordering::SeqCst);
        if dies.contains(&d.meta.event_id) && !well { Act::Reject } else { Act::Ok }
    });
    let relay = start(subject, BLOCK, &sink, quick());
    for event in dies {
        eventually("it to be dead", PATIENCE, async || state(subject, event).await.dead).await;
    }
    let others = enqueue(subject, some_of("b", 20)).await;
    arrived(&sink, &others).await;
    eventually("followers to be given back", PATIENCE, async || {
        let (one, two) = (state(subject, mine[2]).await, state(subject, mine[3]).await);
        !one.locked && !two.locked && one.attempts + two.attempts == 0
    })
    .await;
    assert_eq!(arrived_of(&sink, &mine), mine[..1], "blocked");

    let admin = subject.admin();
    let counts = admin.counts().await.unwrap();
    assert_eq!((counts.blocked, counts.dead), (1, 2), "{counts:?}");
    for event in dies {
        subject.make_older(event, Duration::from_hours(2)).await;
    }
    let hour = Duration::from_hours(1);
    let clean = SweepRequest {
        retention: hour,
        dead_retention: Some(hour),
        batch: 100,
        max_attempts: 25,
        dead_letters: false,
    };
    while admin.sweep(&clean).await.unwrap() != postbox_core::cleaner::Swept::Deleted(0) {}
    assert!(subject.row(bad).await.is_some(), "it blocks an aggregate: kept");
    assert!(subject.row(lone[0]).await.is_none(), "it blocks nobody");

    well.store(true, Ordering::SeqCst);
    let filter = DeadFilter::default();
    assert_eq!(admin.replay_all(&filter, 10, "tester").await.unwrap(), 1);
    arrived(&sink, &mine).await;
    assert_eq!(arrived_of(&sink, &mine), mine, "in order, once each");
    eventually("nothing to be blocked", PATIENCE, async || admin.counts().await.unwrap().blocked == 0).await;
    relay.shutdown().await.unwrap();
}

/// `skip`: the others go on without it, when it is known to be dead.
pub async fn a_dead_event_is_skipped_where_that_is_asked_for<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("a", 6)).await;
    subject.spoil(mine[3]).await;
    let bad = mine[1];
    let sink = Scripted::new(move |d| if d.meta.event_id == bad { Act::Reject } else { Act::Ok });
    let relay = start(subject, SKIP, &sink, quick());
    let rest = [mine[0], mine[2], mine[4], mine[5]];
    arrived(&sink, &rest).await;
    assert_eq!(arrived_of(&sink, &mine), rest);
    assert!(state(subject, bad).await.dead && state(subject, mine[3]).await.dead);
    relay.shutdown().await.unwrap();
}

/// Rows that are no events, that have no route or no attempts left, block as any dead event does.
pub async fn what_dies_without_a_dispatch_blocks_too<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let undecodable = enqueue(subject, some_of("a", 3)).await;
    subject.spoil(undecodable[1]).await;
    let unroutable = event(OTHER, 1).aggregate("thing", "b").build().unwrap();
    let unroutable = enqueue(subject, vec![of("b", 0), unroutable, of("b", 2)]).await;
    let exhausted = enqueue(subject, some_of("c", 3)).await;
    subject.set_attempts(exhausted[1], 25).await;
    let sink = Scripted::ok();
    let relay = Relay::builder(subject.ordered_store(BLOCK, true)).route(TOPIC.as_str(), sink.clone());
    let relay = relay.settings(quick()).build().unwrap().spawn();
    for mine in [&undecodable, &unroutable, &exhausted] {
        eventually("it to be dead", PATIENCE, async || state(subject, mine[1]).await.dead).await;
        arrived(&sink, &mine[..1]).await;
    }
    let others = enqueue(subject, some_of("d", 5)).await;
    arrived(&sink, &others).await;
    relay.shutdown().await.unwrap();
    for mine in [&undecodable, &unroutable, &exhausted] {
        assert_eq!(arrived_of(&sink, mine), mine[..1]);
        let row = state(subject, mine[2]).await;
        assert!(row.attempts == 0 && !row.locked, "{row:?}");
    }
}
