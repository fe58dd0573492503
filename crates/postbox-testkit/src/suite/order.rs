//! What is promised of order: first deliveries of an aggregate by sequence, whatever fails, with any number of relays (P4).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::store::{ClaimMode, ClaimRequest, Claimed, Settlement, Verdict};
use postbox_core::{Delivery, EventId, OnDead, Order, Record, Relay, RelayHandle, Settings, Store, Topic};

use super::relay::arrived;
use super::script::{Act, Scripted};
use super::watch::Watch;
use super::{PATIENCE, Subject, TOPIC, claim, enqueue, event, published, quick, request, state};
use crate::{eventually, skipped};

pub(super) const BLOCK: Order = Order::Aggregate(OnDead::Block);
pub(super) const OTHER: Topic = Topic::from_static("org.thing.changed.v1");

pub(super) fn unordered<S: Subject>(subject: &S) -> bool {
    let unordered = !subject.features().order;
    if unordered {
        skipped("this store keeps no order");
    }
    unordered
}

/// An event of an aggregate.
pub(super) fn of(aggregate: &str, n: usize) -> Record {
    event(TOPIC, n).aggregate("thing", aggregate).build().expect("an event")
}

pub(super) fn some_of(aggregate: &str, number: usize) -> Vec<Record> {
    (0..number).map(|n| of(aggregate, n)).collect()
}

pub(super) fn start<S: Subject>(
    subject: &S,
    order: Order,
    sink: &Scripted,
    settings: Settings,
) -> RelayHandle {
    let relay = Relay::builder(subject.ordered_store(order, true)).dispatcher(sink.clone());
    relay.settings(settings).build().expect("a relay").spawn()
}

/// Of which aggregate it is.
pub(super) fn aggregate_of(delivery: &Delivery) -> String {
    delivery.meta.aggregate.as_ref().map(|aggregate| aggregate.id.clone()).unwrap_or_default()
}

fn ids(rows: &[Claimed]) -> Vec<EventId> {
    rows.iter().map(|row| row.delivery.meta.event_id).collect()
}

/// Those of these events that arrived, in the order in which they did.
pub(super) fn arrived_of(sink: &Scripted, events: &[EventId]) -> Vec<EventId> {
    sink.arrived().into_iter().filter(|event| events.contains(event)).collect()
}

async fn settle<S: Store>(store: &S, row: &Claimed, verdict: Verdict) {
    let settlement = Settlement::new(row.lease.clone(), verdict);
    assert!(store.settle(&[settlement]).await.expect("a settle").lost.is_empty());
}

fn later() -> Verdict {
    Verdict::Retry { after: Duration::from_hours(1), reason: postbox_core::redact::Summary::new("no", 64) }
}

/// Without trouble, singly and in batches, with one relay and with several: in order, once each, and never two of one aggregate
/// at a time.
pub async fn the_events_of_an_aggregate_arrive_in_order<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    for (batch, relays) in [(1, 1), (20, 1), (5, 3)] {
        let records = (0..600).map(|n| of(&format!("{}", n * n % 31), n)).collect();
        let all = enqueue(subject, records).await;
        let sink =
            Scripted::new(|d| Act::Slow(Duration::from_micros(d.meta.sequence.unsigned_abs() % 7 * 300)));
        let sink = sink.in_batches(batch);
        let watch = Watch::new(&sink);
        let relays: Vec<_> = (0..relays)
            .map(|_| {
                let settings = Settings { batch_size: 30, ..quick() };
                let relay =
                    Relay::builder(subject.ordered_store(BLOCK, relays == 1)).dispatcher(watch.clone());
                relay.settings(settings).build().unwrap().spawn()
            })
            .collect();
        arrived(&sink, &all).await;
        for relay in relays {
            relay.shutdown().await.unwrap();
        }
        assert_eq!(sink.arrived().len(), all.len(), "each once");
        let mut last = HashMap::new();
        for delivery in sink.seen() {
            let before = last.insert(aggregate_of(&delivery), delivery.meta.sequence);
            assert!(
                before < Some(delivery.meta.sequence),
                "dispatched out of order: {delivery:?} after {before:?}"
            );
        }
        let overlaps = watch.overlaps();
        assert!(overlaps.is_empty(), "two of one aggregate at a time: {overlaps:?}");
    }
}

/// A retry holds back its own aggregate, uncharged, and nobody else.
pub async fn a_retry_holds_back_the_rest_of_its_aggregate<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("a", 5)).await;
    let others = enqueue(subject, some_of("b", 5)).await;
    let free = enqueue(subject, super::events(5)).await;
    // The same names, of another type and of another tenant, are other aggregates.
    let kind = event(TOPIC, 1).aggregate("other", "a").build().unwrap();
    let tenant = event(TOPIC, 1).aggregate("thing", "a").tenant(uuid::Uuid::from_u128(7)).build().unwrap();
    let alike = enqueue(subject, vec![kind, tenant]).await;
    let bad = mine[1];
    let sink = Scripted::new(move |d| {
        let fails = d.meta.event_id == bad && d.meta.attempts < 3;
        if fails { Act::Retry } else { Act::Ok }
    });
    let settings = Settings { backoff: postbox_core::Backoff::fixed(Duration::from_hours(1)), ..quick() };
    let relay = start(subject, BLOCK, &sink, settings);
    for tried in 1..3 {
        arrived(&sink, &[&others[..], &free, &alike].concat()).await;
        eventually("the failure to be written", PATIENCE, async || {
            let row = state(subject, bad).await;
            row.attempts == tried && !row.locked
        })
        .await;
        let more = enqueue(subject, some_of("b", 5)).await;
        arrived(&sink, &more).await;
        for event in &mine[2..] {
            let row = state(subject, *event).await;
            assert!(!row.locked && !row.published && row.attempts == 0, "held back and uncharged: {row:?}");
            assert_eq!(sink.tries(*event), 0, "nobody overtakes");
        }
        subject.make_older(bad, Duration::from_hours(2)).await;
    }
    arrived(&sink, &mine).await;
    published(subject, mine[4]).await;
    relay.shutdown().await.unwrap();
    assert_eq!(arrived_of(&sink, &mine), mine, "in order, once each");
    assert_eq!((state(subject, bad).await.attempts, state(subject, mine[4]).await.attempts), (3, 1));
}

/// An event that is scheduled for later comes before what was written after it.
pub async fn a_scheduled_event_holds_back_what_is_behind_it<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let scheduled = event(TOPIC, 0).aggregate("thing", "a").delay(Duration::from_hours(1)).build().unwrap();
    let mine = enqueue(subject, vec![scheduled, of("a", 1), of("a", 2)]).await;
    let sink = Scripted::ok();
    let relay = start(subject, BLOCK, &sink, quick());
    for _ in 0..3 {
        let others = enqueue(subject, some_of("b", 3)).await;
        arrived(&sink, &others).await;
    }
    assert!(arrived_of(&sink, &mine).is_empty());
    assert_eq!(state(subject, mine[1]).await.attempts, 0);
    subject.make_older(mine[0], Duration::from_hours(2)).await;
    arrived(&sink, &mine).await;
    relay.shutdown().await.unwrap();
    assert_eq!(arrived_of(&sink, &mine), mine);
}

/// A claim begins with the first that waits, and leaves out no one in between.
pub async fn only_the_first_of_an_aggregate_can_be_claimed<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("a", 3)).await;
    let other = event(OTHER, 3).aggregate("thing", "a").build().unwrap();
    let last = enqueue(subject, vec![other]).await;
    let (one, two) = (subject.ordered_store(BLOCK, false), subject.ordered_store(BLOCK, false));
    let first = claim(&one, 1).await.rows;
    assert_eq!(ids(&first), mine[..1]);
    assert!(claim(&two, 10).await.rows.is_empty(), "the first is in flight");
    settle(&one, &first[0], later()).await;
    assert!(claim(&one, 10).await.rows.is_empty() && claim(&two, 10).await.rows.is_empty(), "it backs off");
    subject.make_older(mine[0], Duration::from_hours(2)).await;

    let without = ClaimRequest { exclude: [TOPIC].into(), ..request(ClaimMode::Waiting, 10) };
    assert!(two.claim(without).await.unwrap().rows.is_empty(), "the first is left out, so are the others");
    let probe = ClaimMode::Probe([OTHER].into());
    assert!(two.claim(request(probe, 1)).await.unwrap().rows.is_empty(), "nor does a probe overtake");

    let rows = eventually("them to be claimed", PATIENCE, async || {
        let rows = claim(&two, 10).await.rows;
        (!rows.is_empty()).then_some(rows)
    });
    let rows = rows.await;
    assert_eq!(ids(&rows), [&mine[..], &last].concat());
    let strand = rows[0].strand;
    assert!(strand.is_some() && rows.iter().all(|row| row.strand == strand), "one strand");
    settle(&two, &rows[0], Verdict::Delivered).await;
    assert!(claim(&one, 10).await.rows.is_empty(), "the second is in flight");
    // What is given back together can be claimed together.
    for row in rows[1..].iter().rev() {
        settle(&two, row, Verdict::Release { after: None, reason: None }).await;
    }
    let rows = eventually("the rest to be claimed", PATIENCE, async || {
        let rows = claim(&one, 10).await.rows;
        (!rows.is_empty()).then_some(rows)
    });
    assert_eq!(ids(&rows.await), [&mine[1..], &last].concat());
}

/// After a crash the first comes back alone, then the next (hazard 21).
pub async fn expired_leases_of_an_aggregate_come_back_one_by_one<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("a", 3)).await;
    let (dies, lives) = (subject.ordered_store(BLOCK, false), subject.ordered_store(BLOCK, false));
    assert_eq!(ids(&claim(&dies, 10).await.rows), mine);
    for event in &mine[1..] {
        subject.expire_lease(*event).await;
    }
    let waiting = claim(&lives, 10).await;
    assert!(waiting.rows.is_empty() && !waiting.suspects, "the first is still in flight");
    assert!(lives.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows.is_empty());
    subject.expire_lease(mine[0]).await;
    for event in &mine {
        let suspects = eventually("suspects to be seen", PATIENCE, async || {
            let waiting = claim(&lives, 10).await;
            assert!(waiting.rows.is_empty(), "none of them is claimed with others");
            waiting.suspects
        });
        suspects.await;
        let rows = lives.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows;
        assert_eq!(ids(&rows), [*event]);
        assert!(lives.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows.is_empty(), "one at a time");
        settle(&lives, &rows[0], Verdict::Delivered).await;
    }
}

/// Another relay has taken over what runs here: nothing follows it from here.
pub async fn a_lost_lease_lets_nobody_overtake<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("a", 3)).await;
    let (first, sink) = (mine[0], Scripted::ok());
    let watch = Watch::new(&sink).gated(&[first]);
    // The lease is renewed, and found to be lost, well before the dispatch is given up.
    let settings =
        Settings { lock_ttl: Duration::from_secs(6), dispatch_timeout: Duration::from_secs(4), ..quick() };
    let relay = Relay::builder(subject.ordered_store(BLOCK, false)).dispatcher(watch.clone());
    let relay = relay.settings(settings).build().unwrap().spawn();
    eventually("the first to run", PATIENCE, async || sink.tries(first) == 1).await;
    // Somebody else delivers it, and is at work on the second.
    let other = subject.ordered_store(BLOCK, false);
    let take = async |event: EventId| {
        eventually("its lease to be taken over", PATIENCE, async || {
            subject.expire_lease(event).await;
            let rows = other.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows;
            rows.into_iter().next()
        })
        .await
    };
    let row = take(first).await;
    settle(&other, &row, Verdict::Delivered).await;
    let second = take(mine[1]).await;
    eventually("the third to be given back", PATIENCE, async || {
        let row = state(subject, mine[2]).await;
        !row.locked && row.attempts == 0
    })
    .await;
    watch.open(1);
    let others = enqueue(subject, some_of("b", 5)).await;
    arrived(&sink, &others).await;
    assert_eq!((sink.tries(mine[1]), sink.tries(mine[2])), (0, 0), "nobody overtakes the second");
    settle(&other, &second, Verdict::Delivered).await;
    arrived(&sink, &mine[2..]).await;
    assert_eq!(sink.tries(mine[1]), 0, "it was delivered elsewhere");
    relay.shutdown().await.unwrap();
}

/// An aggregate with very many events, each of which takes its time, holds up nobody (P5).
pub async fn a_long_and_slow_aggregate_holds_up_nobody<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    for aggregate in ["slow-1", "slow-2", "slow-3", "slow-4"] {
        enqueue(subject, some_of(aggregate, 100)).await;
    }
    let others = enqueue(subject, (0..100).map(|n| of(&format!("quick-{}", n % 20), n)).collect()).await;
    let sink = Scripted::new(|d| {
        let slow = aggregate_of(d).starts_with("slow");
        if slow { Act::Slow(Duration::from_secs(3)) } else { Act::Ok }
    });
    let settings = Settings {
        batch_size: 20,
        dispatch_timeout: Duration::from_secs(20),
        lock_ttl: Duration::from_mins(1),
        drain_timeout: Duration::ZERO,
        ..quick()
    };
    let relay = start(subject, BLOCK, &sink, settings);
    arrived(&sink, &others).await;
    relay.shutdown().await.unwrap();
}

/// What waits behind another goes back uncharged when the relay is paused or stopped.
pub async fn a_pause_and_a_stop_give_back_what_waits_behind_others<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let mine = enqueue(subject, some_of("a", 4)).await;
    let sink = Scripted::ok();
    let watch = Watch::new(&sink).gated(&mine[..2]);
    let relay = || {
        let settings = Settings {
            drain_timeout: Duration::ZERO,
            dispatch_timeout: Duration::from_secs(20),
            lock_ttl: Duration::from_mins(1),
            ..quick()
        };
        let relay = Relay::builder(subject.ordered_store(BLOCK, true)).dispatcher(watch.clone());
        relay.settings(settings).build().unwrap().spawn()
    };
    let given_back = async |events: &[EventId]| {
        for event in events {
            eventually("it to be given back", PATIENCE, async || {
                let row = state(subject, *event).await;
                !row.locked && row.attempts == 0
            })
            .await;
        }
    };
    let running = relay();
    eventually("the first to run", PATIENCE, async || sink.tries(mine[0]) == 1).await;
    subject.pause(true).await;
    given_back(&mine[1..]).await;
    assert!(!state(subject, mine[0]).await.published, "it still runs");
    watch.open(1);
    published(subject, mine[0]).await;
    subject.pause(false).await;
    eventually("the second to run", PATIENCE, async || sink.tries(mine[1]) == 1).await;
    running.shutdown().await.unwrap();
    given_back(&mine[1..]).await;
    watch.open(9);
    let running = relay();
    arrived(&sink, &mine).await;
    running.shutdown().await.unwrap();
    assert_eq!(arrived_of(&sink, &mine), mine);
}

/// A destination that is down holds back an aggregate whose other events go elsewhere.
pub async fn an_outage_holds_back_the_aggregate_everywhere<S: Subject>(subject: &S) {
    if unordered(subject) {
        return;
    }
    let of_other = |n: usize| event(OTHER, n).aggregate("thing", "a").build().unwrap();
    let mine = enqueue(subject, vec![of("a", 0), of_other(1), of("a", 2), of_other(3), of("a", 4)]).await;
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let sink = Scripted::new(move |d| {
        let up = is_up.load(Ordering::SeqCst) || d.meta.topic != OTHER;
        if up { Act::Ok } else { Act::Unavailable }
    });
    let relay = Relay::builder(subject.ordered_store(BLOCK, true)).settings(quick());
    let relay = relay.route(OTHER.as_str(), sink.clone()).route(TOPIC.as_str(), sink.clone());
    let relay = relay.build().unwrap().spawn();
    eventually("some probes", PATIENCE, async || sink.tries(mine[1]) > 3).await;
    let others = enqueue(subject, some_of("b", 10)).await;
    arrived(&sink, &others).await;
    assert_eq!(arrived_of(&sink, &mine), mine[..1]);
    let row = state(subject, mine[2]).await;
    assert!(row.attempts == 0 && !row.published, "{row:?}");
    up.store(true, Ordering::SeqCst);
    arrived(&sink, &mine).await;
    relay.shutdown().await.unwrap();
    assert_eq!(arrived_of(&sink, &mine), mine, "one after another, across both");
}
