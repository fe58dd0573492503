//! What is promised of a route to several sinks: each gets every event, none a second time because of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::{
    Backoff, Browse as _, DeadLetters as _, Delivery, DispatchError, Dispatcher, EventId, HotPath, Record,
    Relay, RelayHandle, Settings, Store,
};
use tokio::sync::watch;

use super::relay::arrived;
use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, enqueue, events, published, quick, state};
use crate::{eventually, skipped};

pub(super) const BARE: &str = "a bare table cannot remember which sinks have confirmed";

/// Starts a relay that sends everything to two sinks.
pub(super) fn start<S: Subject>(
    subject: &S,
    a: impl Dispatcher + Clone,
    b: impl Dispatcher + Clone,
    settings: Settings,
) -> RelayHandle {
    start_with(subject.store(true), a, b, settings)
}

pub(super) fn start_with(
    store: impl Store,
    a: impl Dispatcher + Clone,
    b: impl Dispatcher + Clone,
    settings: Settings,
) -> RelayHandle {
    let relay = Relay::builder(store).sink("a", a).sink("b", b);
    relay.route_to_all("**", ["a", "b"]).settings(settings).build().unwrap().spawn()
}

/// The sinks that the row says have confirmed.
pub(super) async fn done<S: Subject>(subject: &S, event: EventId) -> Vec<String> {
    subject.admin().show(event, false).await.unwrap().unwrap().sinks_done.unwrap_or_default()
}

/// A sink that is down until it is not.
fn switched(act: Act) -> (Arc<AtomicBool>, Scripted) {
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    (up, Scripted::new(move |_| if is_up.load(Ordering::SeqCst) { Act::Ok } else { act }))
}

/// A sink that answers nobody before it is opened.
#[derive(Clone)]
struct Gated(Scripted, watch::Receiver<bool>);

impl Dispatcher for Gated {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let mut open = self.1.clone();
        open.wait_for(|open| *open).await.expect("a gate");
        self.0.dispatch(delivery).await
    }
}

/// Without trouble: singly and in batches, one write for both.
pub async fn every_sink_gets_every_event_once<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(400)).await;
    let (a, b) = (Scripted::ok(), Scripted::ok().in_batches(50));
    let relay = start(subject, a.clone(), b.clone(), quick());
    for id in &ids {
        published(subject, *id).await;
    }
    relay.shutdown().await.unwrap();
    for sink in [&a, &b] {
        arrived(sink, &ids).await;
        assert_eq!(sink.arrived().len(), ids.len(), "each once");
    }
    let row = state(subject, ids[7]).await;
    assert!(row.attempts == 1 && !row.locked && done(subject, ids[7]).await.is_empty(), "{row:?}");
}

/// P6: what one sink fails at, the other does not get again; it is one attempt of the event each time.
pub async fn a_sink_that_has_confirmed_is_not_sent_to_again<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(20)).await;
    let a = Scripted::ok().in_batches(7);
    let b = Scripted::new(|d| match d.meta.attempts {
        1 => Act::Retry,
        2 => Act::Panic,
        _ => Act::Ok,
    });
    let relay = start(subject, a.clone(), b.clone(), quick());
    for id in &ids {
        published(subject, *id).await;
        assert_eq!((a.tries(*id), b.tries(*id), state(subject, *id).await.attempts), (1, 3, 3));
        assert_eq!(done(subject, *id).await, ["a"], "as it was when b failed");
    }
    relay.shutdown().await.unwrap();
    // Sent again on purpose, all get it again.
    let which = postbox_core::Published::Events { event_ids: vec![ids[0]] };
    assert_eq!(subject.admin().replay_published(&which, 10, "tester").await.unwrap(), [ids[0]]);
    assert!(done(subject, ids[0]).await.is_empty());
    let (c, d) = (Scripted::ok(), Scripted::ok());
    let relay = start(subject, c.clone(), d.clone(), quick());
    published(subject, ids[0]).await;
    assert_eq!((c.tries(ids[0]), d.tries(ids[0])), (1, 1));
    relay.shutdown().await.unwrap();
}

/// P5: while one is down the other gets everything, also what is new; what only the first one lacks waits in the table and
/// is not touched but by probes.
pub async fn an_outage_of_one_sink_holds_up_no_other<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    outage(subject, subject.store(true), events).await;
}

/// Of events that do not wait for each other.
pub(super) async fn outage<S: Subject>(subject: &S, store: S::Store, events: impl Fn(usize) -> Vec<Record>) {
    let mut ids = enqueue(subject, events(100)).await;
    let (a, (up, b)) = (Scripted::ok(), switched(Act::Unavailable));
    let circuit = Backoff::fixed(Duration::from_millis(300));
    let relay = start_with(store, a.clone(), b.clone(), Settings { max_attempts: 3, circuit, ..quick() });
    arrived(&a, &ids).await;
    ids.extend(enqueue(subject, events(50)).await);
    arrived(&a, &ids).await;
    for id in &ids {
        eventually("the row to wait for b alone", PATIENCE, async || {
            done(subject, *id).await == ["a"] && !state(subject, *id).await.locked
        })
        .await;
    }
    let row = state(subject, ids[9]).await;
    assert!(row.attempts == 0 && !row.published && !row.dead, "{row:?}");
    let error = row.last_error.unwrap_or_default();
    assert!(error.starts_with("OUTBOX_UNAVAILABLE: down") && error.ends_with("[b]"), "{error}");
    // Long after all of them are due again.
    let versions = async || {
        let mut versions = Vec::new();
        for id in &ids {
            versions.push(state(subject, *id).await.version);
        }
        versions
    };
    // Counted from before the first look, which may take long: rows of probes that come meanwhile change, too.
    let probes = b.seen().len();
    let before = versions().await;
    let looked = b.seen().len();
    eventually("more probes", PATIENCE, async || b.seen().len() >= looked + 5).await;
    let changed = before.iter().zip(versions().await).filter(|(old, new)| *old != new).count();
    let probes = b.seen().len() - probes;
    assert!(changed <= probes + 1, "{changed} rows were written for {probes} probes");
    up.store(true, Ordering::SeqCst);
    for id in &ids {
        published(subject, *id).await;
        assert_eq!((a.tries(*id), state(subject, *id).await.attempts), (1, 1));
    }
    relay.shutdown().await.unwrap();
    assert_eq!(b.arrived().len(), ids.len(), "each once");
}

/// P5: nor does one that is slow; what it has no room for waits in the table.
pub async fn a_slow_sink_does_not_slow_the_other<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    slow(subject, subject.store(true), events).await;
}

/// Of events that do not wait for each other.
pub(super) async fn slow<S: Subject>(subject: &S, store: S::Store, events: impl Fn(usize) -> Vec<Record>) {
    // Many more than a lane holds.
    let ids = enqueue(subject, events(300)).await;
    let (gate, open) = watch::channel(false);
    let (a, b) = (Scripted::ok(), Scripted::ok());
    let (batch_size, concurrency) = (10, 4);
    let (dispatch_timeout, lock_ttl) = (PATIENCE, PATIENCE * 2);
    let settings = Settings { batch_size, concurrency, dispatch_timeout, lock_ttl, ..quick() };
    let relay = start_with(store, a.clone(), Gated(b.clone(), open), settings);
    arrived(&a, &ids).await;
    assert_eq!(b.arrived(), [], "the gate is shut");
    gate.send_replace(true);
    for id in &ids {
        published(subject, *id).await;
    }
    relay.shutdown().await.unwrap();
    assert_eq!((a.arrived().len(), b.arrived().len()), (ids.len(), ids.len()), "each once");
}

/// One reject is a reject; a replay sends to the rest.
pub async fn what_one_sink_rejects_is_dead_and_replayed_to_the_rest<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let id = enqueue(subject, events(1)).await[0];
    let (a, (mended, b)) = (Scripted::ok(), switched(Act::Reject));
    let relay = start(subject, a.clone(), b.clone(), quick());
    eventually("the event to die", PATIENCE, async || state(subject, id).await.dead).await;
    assert_eq!(done(subject, id).await, ["a"]);
    let error = state(subject, id).await.last_error.unwrap_or_default();
    assert!(error.starts_with("OUTBOX_REJECTED: never") && error.ends_with("[b]"), "{error}");
    mended.store(true, Ordering::SeqCst);
    assert!(subject.admin().replay(id, "tester").await.unwrap());
    published(subject, id).await;
    relay.shutdown().await.unwrap();
    assert_eq!((a.tries(id), b.arrived().len()), (1, 1));
}

/// An attempt is given back only if no sink has failed: else an event could be tried for ever.
pub async fn a_failure_is_charged_though_another_sink_is_down<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let id = enqueue(subject, events(1)).await[0];
    let (a, b) = (Scripted::new(|_| Act::Retry), Scripted::new(|_| Act::Unavailable));
    let relay = start(subject, a.clone(), b.clone(), Settings { max_attempts: 3, ..quick() });
    eventually("the event to die", PATIENCE, async || state(subject, id).await.dead).await;
    relay.shutdown().await.unwrap();
    let row = state(subject, id).await;
    assert!(row.attempts == 3 && a.tries(id) == 3 && row.log_lines == 3, "{row:?}");
    assert!(row.last_error.unwrap_or_default().starts_with("OUTBOX_DISPATCH_FAILED: try again"));
}

/// A stop in the middle writes down who has confirmed; a crash in the middle repeats at most that.
pub async fn a_stop_remembers_who_has_confirmed_and_a_crash_loses_nothing<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let id = enqueue(subject, events(1)).await[0];
    let (a, hung) = (Scripted::ok(), Scripted::new(|_| Act::Hang));
    let (drain_timeout, dispatch_timeout, lock_ttl) = (Duration::from_millis(50), PATIENCE, PATIENCE * 2);
    let settings = Settings { drain_timeout, dispatch_timeout, lock_ttl, ..quick() };
    let both = async |a: &Scripted| {
        eventually("both to be asked", PATIENCE, async || a.arrived().len() + hung.seen().len() == 2).await;
    };
    let relay = start(subject, a.clone(), hung.clone(), settings.clone());
    both(&a).await;
    relay.shutdown().await.unwrap();
    let row = state(subject, id).await;
    assert!(!row.locked && row.attempts == 0, "{row:?}");
    assert_eq!(done(subject, id).await, ["a"]);

    // Killed with another one in the same place: it is a suspect, and both get it.
    let other = enqueue(subject, events(1)).await[0];
    let (a, b) =
        (Scripted::ok(), Scripted::new(move |d| if d.meta.event_id == other { Act::Hang } else { Act::Ok }));
    let relay = start(subject, a.clone(), b.clone(), settings);
    arrived(&b, &[id]).await;
    published(subject, id).await;
    eventually("the other to be asked", PATIENCE, async || a.tries(other) + b.tries(other) == 2).await;
    assert_eq!(a.tries(id), 0, "a has it since before the stop");
    relay.kill();
    let lease = async || {
        if state(subject, other).await.locked {
            subject.expire_lease(other).await;
        }
    };
    lease().await;
    let (c, d) = (Scripted::ok(), Scripted::ok());
    let quick_leader = start(subject, c.clone(), d.clone(), quick());
    published(subject, other).await;
    quick_leader.shutdown().await.unwrap();
    assert_eq!((c.tries(other), d.tries(other)), (1, 1));
}

/// What one relay learned of an event, the next one that has it knows.
pub async fn many_relays_share_a_table_with_fan_out<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(300)).await;
    let (a, b) = (
        Scripted::new(
            |d| if d.meta.sequence % 5 == 0 && d.meta.attempts == 1 { Act::Retry } else { Act::Ok },
        ),
        Scripted::new(|d| if d.meta.sequence % 3 == 0 && d.meta.attempts < 3 { Act::Retry } else { Act::Ok }),
    );
    let relay = |_| {
        let relay = Relay::builder(subject.store(false)).settings(Settings { batch_size: 10, ..quick() });
        relay.fan_out("**", [("a", a.clone()), ("b", b.clone())]).build().unwrap().spawn()
    };
    let relays: Vec<RelayHandle> = (0..3).map(relay).collect();
    for id in &ids {
        published(subject, *id).await;
    }
    for relay in relays {
        relay.shutdown().await.unwrap();
    }
    assert_eq!((a.arrived().len(), b.arrived().len()), (ids.len(), ids.len()), "each once");
    arrived(&a, &ids).await;
    arrived(&b, &ids).await;
}

/// Straight from the commit, with the same rules.
pub async fn a_hot_event_goes_to_every_sink<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped("no hot path here");
    }
    let path = HotPath::new();
    let a = Scripted::ok();
    let b = Scripted::new(|d| if d.meta.attempts == 1 { Act::Retry } else { Act::Ok });
    let relay = Relay::builder(subject.store(true)).hot(&path).settings(quick());
    let relay = relay.fan_out("**", [("a", a.clone()), ("b", b.clone())]).build().unwrap().spawn();
    eventually("the path to be open", PATIENCE, async || path.remaining() > 0).await;
    let outbox = subject.outbox().hot(&path);
    let mut tx = subject.open(&outbox).await;
    let receipts = outbox.enqueue_all(&mut tx, events(10)).await.unwrap();
    tx.commit().await.unwrap();
    for receipt in &receipts {
        published(subject, receipt.event_id).await;
        assert_eq!((a.tries(receipt.event_id), b.tries(receipt.event_id)), (1, 2));
    }
    relay.shutdown().await.unwrap();
}
