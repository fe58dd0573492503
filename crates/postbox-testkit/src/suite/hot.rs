//! What is promised of the hot path: events are handled right after their commit by the process that wrote them, and
//! whatever goes wrong with that, they are delivered all the same.

use std::collections::HashSet;
use std::time::Duration;

use postbox_core::{EventId, HotPath, Outbox, Relay, RelayHandle, RelayHealth, Settings};

use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, TOPIC, event, events, published, quick, state};
use crate::{eventually, skipped};

/// A bare table has no place for a token, and a plain writer is not allowed to lease.
const NONE: &str = "no hot path here";

/// A relay that delivers everything else: whatever it gets was claimed.
async fn leader<S: Subject>(subject: &S) -> (Scripted, RelayHandle) {
    let sink = Scripted::ok();
    let relay = Relay::builder(subject.store(true)).dispatcher(sink.clone()).settings(quick());
    let relay = relay.build().unwrap().spawn();
    active(&relay.health()).await;
    (sink, relay)
}

async fn active(health: &RelayHealth) {
    let look = async || health.now().standing == postbox_core::store::Standing::Active;
    eventually("an active relay", PATIENCE, look).await;
}

/// A relay with the end of a hot path, and the outbox with its beginning.
async fn hot<S: Subject>(
    subject: &S,
    path: &HotPath,
    sink: &Scripted,
    settings: Settings,
) -> (Outbox, RelayHandle) {
    let relay = Relay::builder(subject.store(true)).hot(path).dispatcher(sink.clone()).settings(settings);
    let relay = relay.build().unwrap().spawn();
    eventually("the path to be open", PATIENCE, async || path.remaining() > 0).await;
    (subject.outbox().hot(path), relay)
}

/// Writes events in one transaction that commits.
async fn commit<S: Subject>(subject: &S, outbox: &Outbox, number: usize) -> Vec<EventId> {
    let mut tx = subject.open(outbox).await;
    let receipts = outbox.enqueue_all(&mut tx, events(number)).await.unwrap();
    tx.commit().await.unwrap();
    receipts.iter().map(|receipt| receipt.event_id).collect()
}

/// The path is as empty as at the start.
async fn is_empty(path: &HotPath, capacity: usize) {
    eventually("every place to be free again", PATIENCE, async || path.remaining() == capacity).await;
}

/// Handled by the process that wrote it, whoever leads; its row is written twice: born leased, and settled.
pub async fn a_committed_event_is_handled_where_it_was_written<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (claimed, leader) = leader(subject).await;
    let (path, sink) = (HotPath::new(), Scripted::ok());
    let (outbox, relay) = hot(subject, &path, &sink, quick()).await;
    let mut tx = subject.open(&outbox).await;
    let id = outbox.enqueue(&mut tx, event(TOPIC, 1).header("a", "b")).await.unwrap().event_id;
    assert_eq!(sink.seen().len(), 0, "not before its commit");
    tx.commit().await.unwrap();
    published(subject, id).await;
    assert_eq!((sink.arrived(), claimed.arrived()), (vec![id], Vec::new()));
    let meta = &sink.seen()[0].meta;
    assert_eq!((meta.attempts, meta.headers.get("a").map(String::as_str)), (1, Some("b")));
    let row = state(subject, id).await;
    assert!(row.attempts == 1 && !row.locked && row.log_lines == 0, "{row:?}");
    // Many at once, and what is scheduled for later goes the way over the table.
    let ids = commit(subject, &outbox, 100).await;
    for id in &ids {
        published(subject, *id).await;
    }
    assert_eq!((sink.arrived().len(), claimed.arrived().len()), (101, 0));
    let mut tx = subject.open(&outbox).await;
    let later = event(TOPIC, 2).delay(Duration::from_millis(50));
    let later = outbox.enqueue(&mut tx, later).await.unwrap().event_id;
    tx.commit().await.unwrap();
    published(subject, later).await;
    assert_eq!(claimed.arrived(), [later]);
    is_empty(&path, 1000).await;
    relay.shutdown().await.unwrap();
    assert_eq!(path.remaining(), 0, "nobody is there any more");
    let id = commit(subject, &outbox, 1).await[0];
    published(subject, id).await;
    assert_eq!(claimed.arrived(), [later, id]);
    leader.shutdown().await.unwrap();
}

/// What was rolled back is handled by nobody, however that came about.
pub async fn what_does_not_exist_is_not_handled<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (path, sink) = (HotPath::new(), Scripted::ok());
    let (outbox, relay) = hot(subject, &path, &sink, quick()).await;
    let mut tx = subject.open(&outbox).await;
    outbox.enqueue_all(&mut tx, events(5)).await.unwrap();
    assert_eq!(path.remaining(), 995);
    tx.rollback().await.unwrap();
    is_empty(&path, 1000).await;
    let mut tx = subject.open(&outbox).await;
    outbox.enqueue_all(&mut tx, events(5)).await.unwrap();
    drop(tx);
    is_empty(&path, 1000).await;
    // A savepoint takes a row back behind everybody's back.
    let mut tx = subject.open(&outbox).await;
    let kept = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    subject.run_in(&mut tx, "SAVEPOINT s").await.unwrap();
    outbox.enqueue(&mut tx, event(TOPIC, 2)).await.unwrap();
    subject.run_in(&mut tx, "ROLLBACK TO SAVEPOINT s").await.unwrap();
    tx.commit().await.unwrap();
    published(subject, kept).await;
    // An error that nobody minded makes the server answer COMMIT with a ROLLBACK.
    if subject.errors_abort() {
        let mut tx = subject.open(&outbox).await;
        outbox.enqueue(&mut tx, event(TOPIC, 3)).await.unwrap();
        subject.run_in(&mut tx, "SELECT 1 / 0").await.unwrap_err();
        tx.commit().await.unwrap_err();
    }
    // A duplicate writes nothing, and is not handled again, as long as the first is there.
    if subject.history().recognises_duplicates() {
        let mut tx = subject.open(&outbox).await;
        let again = event(TOPIC, 1).event_id(kept.0);
        outbox.enqueue(&mut tx, again).await.unwrap();
        tx.commit().await.unwrap();
    }
    let last = commit(subject, &outbox, 1).await[0];
    published(subject, last).await;
    is_empty(&path, 1000).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.seen().iter().map(|d| d.meta.event_id).collect::<Vec<_>>(), [kept, last]);
}

/// A row that was born leased, taken back and written again without a place: it is the new one that counts, also where it has
/// the old one's number.
pub async fn what_was_taken_back_and_written_again_is_handled_once<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    for hooked in [false, true] {
        let (path, sink) = (HotPath::bounded(1, 1 << 20), Scripted::ok());
        let (outbox, relay) = hot(subject, &path, &sink, quick()).await;
        let outbox = if hooked { outbox.hook(super::hooks::Noting::default()) } else { outbox };
        let record = event(TOPIC, 1).build().unwrap();
        let mut tx = subject.open(&outbox).await;
        subject.run_in(&mut tx, "SAVEPOINT s").await.unwrap();
        outbox.enqueue(&mut tx, record.clone()).await.unwrap();
        subject.run_in(&mut tx, "ROLLBACK TO SAVEPOINT s").await.unwrap();
        outbox.enqueue(&mut tx, record.clone()).await.unwrap();
        tx.commit().await.unwrap();
        published(subject, record.event_id).await;
        is_empty(&path, 1).await;
        relay.shutdown().await.unwrap();
        assert_eq!(sink.tries(record.event_id), 1, "with hooks: {hooked}");
    }
}

/// A burst that is far too large, with handlers that are slow: nothing is lost, nothing comes twice, and what has no place
/// goes the way over the table.
pub async fn a_full_path_loses_nothing<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (path, sink) =
        (HotPath::bounded(16, 1 << 20), Scripted::new(|_| Act::Slow(Duration::from_millis(1))));
    let (outbox, relay) = hot(subject, &path, &sink, quick()).await;
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.extend(commit(subject, &outbox, 100).await);
        assert!(path.remaining() <= 16);
    }
    eventually("everything to arrive", PATIENCE, async || sink.arrived().len() >= ids.len()).await;
    for id in &ids {
        published(subject, *id).await;
    }
    relay.shutdown().await.unwrap();
    let arrived = sink.arrived();
    assert_eq!(arrived.len(), 5_000, "nothing twice");
    assert_eq!(arrived.iter().collect::<HashSet<_>>(), ids.iter().collect::<HashSet<_>>());
    // An event that is larger than all the room there is has no place either.
    let small = HotPath::bounded(16, 4);
    let (outbox, relay) = hot(subject, &small, &sink, quick()).await;
    let id = commit(subject, &outbox, 1).await[0];
    published(subject, id).await;
    assert_eq!(small.remaining(), 16);
    relay.shutdown().await.unwrap();
}

/// A transaction that takes half the lease goes the way over the table, uncharged, and at once.
pub async fn a_late_commit_goes_the_way_over_the_table<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (path, sink) = (HotPath::new(), Scripted::ok());
    let settings =
        Settings { lock_ttl: Duration::from_secs(6), dispatch_timeout: Duration::from_secs(2), ..quick() };
    let (outbox, relay) = hot(subject, &path, &sink, settings).await;
    let mut tx = subject.open(&outbox).await;
    let id = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    // The point is that this much time passes.
    tokio::time::sleep(Duration::from_millis(3100)).await;
    tx.commit().await.unwrap();
    published(subject, id).await;
    assert_eq!((sink.arrived(), state(subject, id).await.attempts), (vec![id], 1));
    is_empty(&path, 1000).await;
    relay.shutdown().await.unwrap();
}

/// Failures, timeouts and panics of a hot event are those of any other.
pub async fn a_hot_event_that_fails_is_tried_again<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    for act in [Act::Retry, Act::Panic, Act::Hang, Act::Unavailable] {
        let (path, sink) = (
            HotPath::new(),
            Scripted::new(move |delivery| if delivery.meta.attempts == 1 { act } else { Act::Ok }),
        );
        let first = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let sink = match act {
            // An outage spends no attempt: the same one comes again.
            Act::Unavailable => Scripted::new(move |_| {
                if first.swap(false, std::sync::atomic::Ordering::SeqCst) {
                    Act::Unavailable
                } else {
                    Act::Ok
                }
            }),
            _ => sink,
        };
        let (outbox, relay) = hot(subject, &path, &sink, quick()).await;
        let id = commit(subject, &outbox, 1).await[0];
        published(subject, id).await;
        let row = state(subject, id).await;
        let charged = i32::from(act != Act::Unavailable);
        assert_eq!((row.attempts, sink.tries(id), sink.arrived().len()), (1 + charged, 2, 1), "{act:?}");
        is_empty(&path, 1000).await;
        relay.shutdown().await.unwrap();
    }
}

/// A pause stops hot handlers too, and a stop gives back what waits, uncharged.
pub async fn a_pause_and_a_stop_hold_for_hot_events<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (path, sink) = (HotPath::new(), Scripted::ok());
    let (outbox, relay) = hot(subject, &path, &sink, quick()).await;
    subject.pause(true).await;
    let paused = async || relay.health().now().standing == postbox_core::store::Standing::Paused;
    eventually("the relay to see the pause", PATIENCE, paused).await;
    let id = commit(subject, &outbox, 1).await[0];
    eventually("the event to be given back", PATIENCE, async || !state(subject, id).await.locked).await;
    assert_eq!((sink.seen().len(), state(subject, id).await.attempts), (0, 0));
    subject.pause(false).await;
    published(subject, id).await;
    relay.shutdown().await.unwrap();
    let path = HotPath::new();
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(200)));
    let settings = Settings { concurrency: 1, ..quick() };
    let (outbox, relay) = hot(subject, &path, &sink, settings).await;
    active(&relay.health()).await;
    let ids = commit(subject, &outbox, 20).await;
    eventually("one to run", PATIENCE, async || !sink.seen().is_empty()).await;
    relay.shutdown().await.unwrap();
    let arrived: HashSet<EventId> = sink.arrived().into_iter().collect();
    for id in ids {
        let row = state(subject, id).await;
        let done = arrived.contains(&id);
        assert_eq!((row.published, row.locked, row.attempts), (done, false, i32::from(done)), "{row:?}");
    }
}

/// A relay that stands by handles what its own process writes, so a pause must reach it, too.
pub async fn a_pause_reaches_those_that_stand_by<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (claimed, leader) = leader(subject).await;
    // Paused from the start: nothing may slip through before the first look at the table.
    subject.pause(true).await;
    let (path, sink) = (HotPath::new(), Scripted::ok());
    let relay = Relay::builder(subject.store(true)).hot(&path).dispatcher(sink.clone()).settings(quick());
    let relay = relay.build().unwrap().spawn();
    relay.health().opened().await;
    let outbox = subject.outbox().hot(&path);
    let first = commit(subject, &outbox, 1).await[0];
    subject.pause(false).await;
    published(subject, first).await;
    assert_eq!((sink.seen().len(), claimed.arrived()), (0, vec![first]));
    // And while it runs. A transaction that was open before gets its events back, uncharged.
    eventually("the path to be open", PATIENCE, async || path.remaining() > 0).await;
    let mut tx = subject.open(&outbox).await;
    let before = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    assert_eq!(path.remaining(), 999);
    if subject.writers_overlap() {
        subject.pause(true).await;
        eventually("the path to be closed", PATIENCE, async || path.remaining() == 0).await;
        tx.commit().await.unwrap();
        eventually("the event to be given back", PATIENCE, async || !state(subject, before).await.locked)
            .await;
        assert_eq!((sink.tries(before), state(subject, before).await.attempts), (0, 0));
    } else {
        tx.commit().await.unwrap();
        published(subject, before).await;
        subject.pause(true).await;
        eventually("the path to be closed", PATIENCE, async || path.remaining() == 0).await;
    }
    let during = commit(subject, &outbox, 1).await[0];
    assert!(!state(subject, during).await.locked);
    subject.pause(false).await;
    for id in [before, during] {
        published(subject, id).await;
    }
    eventually("the path to be open again", PATIENCE, async || path.remaining() == 1000).await;
    relay.shutdown().await.unwrap();
    leader.shutdown().await.unwrap();
}

/// A suspect is alone in its relay, hot events wait for it; but not a moment longer.
pub async fn hot_events_wait_for_a_suspect_and_no_longer<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let suspect = super::enqueue(subject, events(1)).await[0];
    let dead = subject.store(false);
    assert_eq!(super::claim(&dead, 1).await.rows.len(), 1);
    subject.expire_lease(suspect).await;
    let slow = move |delivery: &postbox_core::Delivery| {
        if delivery.meta.event_id == suspect { Act::Slow(Duration::from_millis(500)) } else { Act::Ok }
    };
    let (path, sink) = (HotPath::new(), Scripted::new(slow));
    // So long that neither a look at the table nor a renewal helps.
    let settings = Settings {
        poll_interval: PATIENCE * 2,
        lock_ttl: PATIENCE * 6,
        dispatch_timeout: PATIENCE,
        ..quick()
    };
    let (outbox, relay) = hot(subject, &path, &sink, settings).await;
    eventually("the suspect to run", PATIENCE, async || sink.tries(suspect) == 1).await;
    let id = commit(subject, &outbox, 1).await[0];
    published(subject, id).await;
    assert_eq!(sink.arrived(), [suspect, id]);
    relay.shutdown().await.unwrap();
}

/// A stop waits for transactions that hold places, as it waits for handlers: their events are given back, and do not
/// have to wait until a lease runs out that nobody holds any more.
pub async fn a_stop_waits_for_transactions_that_are_open<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (path, sink) = (HotPath::new(), Scripted::ok());
    let (outbox, relay) = hot(subject, &path, &sink, quick()).await;
    let mut tx = subject.open(&outbox).await;
    let id = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    let stopping = tokio::spawn(relay.shutdown());
    eventually("the path to be closed", PATIENCE, async || path.remaining() == 0).await;
    tx.commit().await.unwrap();
    stopping.await.unwrap().unwrap();
    let row = state(subject, id).await;
    assert_eq!((row.locked, row.attempts, row.published, sink.seen().len()), (false, 0, false, 0));
}

/// Between two runs by hand nobody handles anything: no row is born leased.
pub async fn runs_by_hand_lease_nothing<S: Subject>(subject: &S) {
    if !subject.has_hot_path() {
        return skipped(NONE);
    }
    let (path, sink) = (HotPath::new(), Scripted::ok());
    let relay = Relay::builder(subject.store(true)).hot(&path).dispatcher(sink.clone()).settings(quick());
    let mut relay = relay.build().unwrap();
    relay.run_once().await.unwrap();
    let id = commit(subject, &subject.outbox().hot(&path), 1).await[0];
    assert!(!state(subject, id).await.locked);
    assert_eq!(relay.run_once().await.unwrap().delivered, 1);
    assert_eq!(sink.arrived(), [id]);
    relay.close().await;
}
