//! What is promised of the relay on any store (P2, P5, P6).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postbox_core::{
    Delivery, DispatchError, Dispatcher, EventId, Relay, RelayHandle, Settings, Store, Topic,
};

use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, TOPIC, claim, enqueue, event, events, exhausted, published, quick, state};
use crate::{eventually, skipped};

/// Starts a relay of a store with one dispatcher for everything.
pub fn run(store: impl Store, sink: impl Dispatcher, settings: Settings) -> RelayHandle {
    Relay::builder(store).dispatcher(sink).settings(settings).build().expect("a relay").spawn()
}

/// Starts one that works alone.
pub fn start<S: Subject>(subject: &S, sink: &Scripted, settings: Settings) -> RelayHandle {
    run(subject.store(true), sink.clone(), settings)
}

/// Waits until all of these arrived at least once.
pub async fn arrived(sink: &Scripted, events: &[EventId]) {
    let wanted: HashSet<_> = events.iter().copied().collect();
    eventually("all events to arrive", PATIENCE, async || {
        let seen: HashSet<_> = sink.arrived().into_iter().collect();
        wanted.is_subset(&seen)
    })
    .await;
}

/// P2 and P6 without trouble, singly and in batches.
pub async fn everything_is_delivered_once<S: Subject>(subject: &S) {
    for batch in [1, 50] {
        let ids = enqueue(subject, events(1_000)).await;
        let sink = Scripted::ok().in_batches(batch);
        let relay = start(subject, &sink, quick());
        arrived(&sink, &ids).await;
        relay.shutdown().await.unwrap();
        assert_eq!(sink.arrived().len(), ids.len(), "each once");
        for id in &ids[..10] {
            let row = state(subject, *id).await;
            assert!(row.published && !row.locked && row.attempts == 1);
        }
        assert!(sink.most_running() <= 16, "at most `concurrency`");
    }
}

/// Retries wait for their backoff; after the last attempt an event is dead, and visible.
pub async fn failures_back_off_and_die_at_the_limit<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(2)).await;
    let bad = ids[0];
    let sink = Scripted::new(move |d| if d.meta.event_id == bad { Act::Retry } else { Act::Ok });
    let settings = Settings { max_attempts: 4, ..quick() };
    let relay = Relay::builder(subject.store(true)).dispatcher(sink.clone()).settings(settings);
    let relay = relay.build().unwrap().spawn();
    eventually("the event to die", PATIENCE, async || {
        state(subject, bad).await.attempts == 4 && !state(subject, bad).await.locked
    })
    .await;
    relay.shutdown().await.unwrap();
    let row = state(subject, bad).await;
    if subject.features().full {
        assert!(row.dead);
        assert_eq!(row.log_lines, 4);
    }
    assert!(row.last_error.unwrap().contains("try again"));
    assert_eq!(sink.tries(bad), 4);
    assert_eq!(
        sink.seen().iter().filter(|d| d.meta.event_id == bad).map(|d| d.meta.attempts).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    assert!(state(subject, ids[1]).await.published);
}

/// Permanent failures spend no more attempts.
pub async fn a_reject_and_a_missing_route_are_dead_at_once<S: Subject>(subject: &S) {
    let lost = event(Topic::from_static("crm.contact.added.v1"), 0).build().unwrap();
    let ids = enqueue(subject, vec![event(TOPIC, 1).build().unwrap(), lost]).await;
    let sink = Scripted::new(|_| Act::Reject);
    let mut relay =
        Relay::builder(subject.store(true)).route("org.**", sink.clone()).settings(quick()).build().unwrap();
    let report = relay.run_once().await.unwrap();
    assert_eq!((report.claimed, report.dead), (2, 2));
    assert_eq!(sink.seen().len(), 1);
    let [rejected, unroutable] = [state(subject, ids[0]).await, state(subject, ids[1]).await];
    assert!(rejected.dead && rejected.last_error.unwrap().starts_with("OUTBOX_REJECTED: never"));
    assert!(unroutable.dead && unroutable.last_error.unwrap().starts_with("OUTBOX_UNROUTABLE"));
    relay.close().await;
    let mut next = Relay::builder(subject.store(true)).dispatcher(sink.clone()).build().unwrap();
    assert_eq!(next.run_once().await.unwrap().claimed, 0);
}

/// P5: errors, panics and hangs in front of others.
pub async fn poison_holds_up_nobody<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(100)).await;
    let poison = [ids[0], ids[1], ids[2]];
    let sink = Scripted::new(move |d| match poison.iter().position(|id| *id == d.meta.event_id) {
        Some(0) => Act::Retry,
        Some(1) => Act::Panic,
        Some(_) => Act::Hang,
        None => Act::Ok,
    });
    let settings = Settings { max_attempts: 2, dispatch_timeout: Duration::from_millis(300), ..quick() };
    let relay = start(subject, &sink, settings);
    arrived(&sink, &ids[3..]).await;
    let dead = async |id: EventId| {
        let row = state(subject, id).await;
        !row.published && !row.locked && row.attempts == 2
    };
    for id in poison {
        eventually("the poison to die", PATIENCE, async || dead(id).await).await;
    }
    relay.shutdown().await.unwrap();
    let errors = [0, 1, 2].map(|n| state(subject, poison[n]));
    let [error, panic, hang] = errors;
    assert!(error.await.last_error.unwrap().contains("try again"));
    assert!(panic.await.last_error.unwrap().contains("OUTBOX_PANIC: dispatcher panicked: a scripted panic"));
    assert!(hang.await.last_error.unwrap().contains("OUTBOX_TIMEOUT"));
    assert_eq!(sink.arrived().len(), 97);
}

/// Ten of them in front: they are dead at once, and the rest arrive (hazard 43).
pub async fn undecodable_rows_in_front_are_buried<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table has no column that can be undecodable");
    }
    let ids = enqueue(subject, events(30)).await;
    for id in &ids[..10] {
        subject.spoil(*id).await;
    }
    let sink = Scripted::ok();
    let relay = start(subject, &sink, Settings { batch_size: 10, ..quick() });
    arrived(&sink, &ids[10..]).await;
    relay.shutdown().await.unwrap();
    for id in &ids[..10] {
        let row = state(subject, *id).await;
        assert!(row.dead && row.attempts == 1 && row.last_error.unwrap().starts_with("OUTBOX_UNDECODABLE"));
    }
    assert_eq!(sink.seen().len(), 20);
}

/// The unreported ones of a batch that panicked run again singly, uncharged.
pub async fn a_batch_that_panics_runs_again_one_by_one<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(20)).await;
    let bad = ids[10];
    let sink =
        Scripted::new(move |d| if d.meta.event_id == bad { Act::Panic } else { Act::Ok }).in_batches(20);
    let settings = Settings { max_attempts: 1, ..quick() };
    let relay = start(subject, &sink, settings);
    let good: Vec<_> = ids.iter().copied().filter(|id| *id != bad).collect();
    arrived(&sink, &good).await;
    for id in &good {
        published(subject, *id).await;
        assert_eq!(state(subject, *id).await.attempts, 1, "uncharged");
    }
    eventually("the panicking one to be dead", PATIENCE, async || exhausted(subject, bad, 1).await).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), 19, "what was reported before the panic is not sent again");
}

/// Counts how often one of the suspects ran alone, and a hundred for each time it did not.
struct Watch(Arc<AtomicUsize>, Arc<AtomicUsize>, [EventId; 2], Scripted);
impl Dispatcher for Watch {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let others = self.0.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        if self.2.contains(&delivery.meta.event_id) {
            let together = others > 0 || self.0.load(Ordering::SeqCst) > 1;
            self.1.fetch_add(if together { 100 } else { 1 }, Ordering::SeqCst);
        }
        self.0.fetch_sub(1, Ordering::SeqCst);
        self.3.dispatch(delivery).await
    }
}

/// With nothing else in flight (hazard 21).
pub async fn a_suspect_is_dispatched_alone<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(300)).await;
    let suspects = [ids[3], ids[150]];
    let dying = subject.store(false);
    let mut claimed = 0;
    while claimed < 300 {
        let claim = claim(&dying, 100).await;
        claimed += claim.rows.len();
    }
    for id in suspects {
        subject.expire_lease(id).await;
    }
    let fresh = enqueue(subject, events(200)).await;
    let alone = Arc::new(AtomicUsize::new(0));
    let (running, count) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&alone));
    let sink = Scripted::ok();
    let watch = Watch(running, count, suspects, sink.clone());
    let relay = Relay::builder(subject.store(true))
        .dispatcher(watch)
        .settings(Settings { lock_ttl: Duration::from_mins(1), ..quick() });
    let relay = relay.build().unwrap().spawn();
    arrived(&sink, &[&fresh[..], &suspects[..]].concat()).await;
    relay.shutdown().await.unwrap();
    assert_eq!(alone.load(Ordering::SeqCst), 2);
    assert_eq!(sink.arrived().len(), 202, "rows with a live lease are left alone");
}

/// `run_once` by hand.
pub async fn run_once_reports_what_it_did<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(5)).await;
    let (fail, stuck) = (ids[0], ids[4]);
    let other = subject.store(false);
    let sink = Scripted::new(move |d| if d.meta.event_id == fail { Act::Retry } else { Act::Ok });
    // A row that another relay claimed and died of.
    let rows = claim(&other, 5).await.rows;
    let back = rows.iter().filter(|row| row.delivery.meta.event_id != stuck).map(|row| {
        postbox_core::store::Settlement::new(
            row.lease.clone(),
            postbox_core::store::Verdict::Release { after: None, reason: None },
        )
    });
    postbox_core::Store::settle(&other, &back.collect::<Vec<_>>()).await.unwrap();
    subject.expire_lease(stuck).await;
    let mut relay =
        Relay::builder(subject.store(true)).dispatcher(sink.clone()).settings(quick()).build().unwrap();
    let report = relay.run_once().await.unwrap();
    assert_eq!((report.claimed, report.delivered, report.retried), (5, 4, 1), "four, then the suspect");
    assert_eq!(sink.arrived().last(), Some(&stuck));
    relay.close().await;
}

/// An error, not a hang.
pub async fn what_was_closed_is_not_started_again<S: Subject>(subject: &S) {
    let mut relay = Relay::builder(subject.store(true)).dispatcher(Scripted::ok()).build().unwrap();
    relay.run_once().await.unwrap();
    relay.close().await;
    let error = relay.run_once().await.unwrap_err();
    assert_eq!(error.code(), postbox_core::Code::Closed);
    assert_eq!(relay.run().await.unwrap_err().code(), postbox_core::Code::Closed);
}

/// P6: a stop in full flight causes no duplicate.
pub async fn a_stop_finishes_what_runs_and_repeats_nothing<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(500)).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(3)));
    for _ in 0..5 {
        let before = sink.arrived().len();
        let relay = start(subject, &sink, quick());
        eventually("some to arrive", PATIENCE, async || sink.arrived().len() >= (before + 40).min(500)).await;
        relay.shutdown().await.unwrap();
    }
    let relay = start(subject, &sink, quick());
    arrived(&sink, &ids).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), 500);
    assert!(sink.seen().iter().all(|delivery| delivery.meta.attempts == 1), "nothing was charged for a stop");
}

/// What runs longer than `drain_timeout` goes back uncharged.
pub async fn a_stop_releases_what_does_not_finish_uncharged<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(1)).await;
    let sink = Scripted::new(|_| Act::Hang);
    let settings = Settings {
        drain_timeout: Duration::from_millis(50),
        dispatch_timeout: Duration::from_secs(2),
        ..quick()
    };
    let relay = start(subject, &sink, settings);
    eventually("it to run", PATIENCE, async || !sink.seen().is_empty()).await;
    relay.shutdown().await.unwrap();
    let row = state(subject, ids[0]).await;
    assert!(!row.locked && !row.published && row.due && row.attempts == 0);
}

/// The memory bound: payloads in flight, by bytes.
pub async fn payloads_in_flight_are_bounded<S: Subject>(subject: &S) {
    struct Weigh(Arc<AtomicUsize>, Arc<AtomicUsize>, Scripted);
    impl Dispatcher for Weigh {
        async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
            let now = self.0.fetch_add(delivery.payload.len(), Ordering::SeqCst) + delivery.payload.len();
            self.1.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.0.fetch_sub(delivery.payload.len(), Ordering::SeqCst);
            self.2.dispatch(delivery).await
        }
    }
    // Text that compresses a hundred times: what counts is its size in memory, not in the table.
    let big = "x".repeat(200_000);
    let ids = enqueue(subject, (0..60).map(|_| event(TOPIC, 0).json(&big).build().unwrap()).collect()).await;
    let (most, sink) = (Arc::new(AtomicUsize::new(0)), Scripted::ok());
    let weigh = Weigh(Arc::default(), Arc::clone(&most), sink.clone());
    let settings = Settings { max_in_flight_bytes: 1 << 20, concurrency: 100, ..quick() };
    let relay =
        Relay::builder(subject.store(true)).dispatcher(weigh).settings(settings).build().unwrap().spawn();
    arrived(&sink, &ids).await;
    relay.shutdown().await.unwrap();
    let most = most.load(Ordering::SeqCst);
    assert!(most <= (1 << 20) + 200_010, "{most} bytes in flight");
    assert!(most > 400_000, "and not one by one: {most}");
}

/// W3C trace context, as it was written.
pub async fn trace_context_passes_through<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table has no columns for trace context");
    }
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let record = event(TOPIC, 1).trace(parent, Some("vendor=1".into())).build().unwrap();
    let ids = enqueue(subject, vec![record]).await;
    let sink = Scripted::ok();
    let relay = start(subject, &sink, quick());
    arrived(&sink, &ids).await;
    relay.shutdown().await.unwrap();
    let meta = sink.seen()[0].meta.clone();
    assert_eq!((meta.traceparent.as_deref(), meta.tracestate.as_deref()), (Some(parent), Some("vendor=1")));
}

/// At most 2048 bytes, no control characters, no credentials, nothing from the payload (hazard 49).
pub async fn the_last_error_is_short_and_clean<S: Subject>(subject: &S) {
    struct Leak;
    impl Dispatcher for Leak {
        async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
            let postbox_core::Payload::Json(json) = &delivery.payload else { return Ok(()) };
            let text = format!("\0\n{} at https://user:hunter2@host/ {}", json.as_str(), "ü".repeat(5_000));
            Err(DispatchError::reject(text))
        }
    }
    let record =
        postbox_core::Record::builder(TOPIC).json(&serde_json::json!({"card": "4111-1111-1111"})).build();
    let ids = enqueue(subject, vec![record.unwrap()]).await;
    let mut relay = Relay::builder(subject.store(true)).dispatcher(Leak).settings(quick()).build().unwrap();
    relay.run_once().await.unwrap();
    relay.close().await;
    let error = state(subject, ids[0]).await.last_error.unwrap();
    assert!(error.len() <= 2048 && error.len() > 1900, "{} bytes", error.len());
    assert!(!error.chars().any(char::is_control));
    assert!(
        !error.contains("hunter2") && !error.contains("4111") && error.contains("https://***@host/"),
        "{error}"
    );
}
