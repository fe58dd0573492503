//! What is promised when sinks, threads, relays or operators interfere.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postbox_core::store::Standing;
use postbox_core::{Backoff, Inspect as _, Relay, Settings, Store as _, Topic};

use super::relay::{arrived, run, start};
use super::script::{Act, Scripted};
use super::{PATIENCE, Subject, TOPIC, claim, enqueue, event, events, exhausted, published, quick, state};
use crate::{eventually, skipped};

const OTHER: Topic = Topic::from_static("crm.contact.added.v1");

/// Down for longer than all attempts would last (hazard 27).
pub async fn an_outage_costs_no_attempt_and_no_other_sink<S: Subject>(subject: &S) {
    let records =
        (0..400).map(|n| event(if n % 2 == 0 { TOPIC } else { OTHER }, n).build().unwrap()).collect();
    let ids = enqueue(subject, records).await;
    let (waiting, others): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    let [waiting, others] =
        [waiting, others].map(|ids| ids.into_iter().map(|(_, id)| *id).collect::<Vec<_>>());
    let up = Arc::new(AtomicBool::new(false));
    let tries = Arc::new(AtomicUsize::new(0));
    let (is_up, count) = (Arc::clone(&up), Arc::clone(&tries));
    let down = Scripted::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        if is_up.load(Ordering::SeqCst) { Act::Ok } else { Act::Unavailable }
    });
    let well = Scripted::ok();
    let settings = Settings { max_attempts: 3, ..quick() };
    let relay = Relay::builder(subject.store(true))
        .route("org.**", down.clone())
        .route("**", well.clone())
        .settings(settings)
        .build()
        .unwrap()
        .spawn();
    arrived(&well, &others).await;
    // Many more probes than there are attempts.
    eventually("many probes", PATIENCE, async || tries.load(Ordering::SeqCst) > 30).await;
    up.store(true, Ordering::SeqCst);
    arrived(&down, &waiting).await;
    for id in [waiting[0], waiting[100], waiting[199]] {
        published(subject, id).await;
        assert_eq!(state(subject, id).await.attempts, 1, "no attempt was burnt");
    }
    relay.shutdown().await.unwrap();
    assert_eq!(down.arrived().len(), 200);
}

/// One of several sinks that has as much as it may have goes on as soon as some of that is settled: the relay here looks by itself
/// only every ten minutes.
pub async fn a_full_sink_goes_on_when_it_has_less<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(300)).await;
    let (slow, other) = (Scripted::new(|_| Act::Slow(Duration::from_millis(2))), Scripted::ok());
    let settings = Settings { batch_size: 10, poll_interval: Duration::from_mins(10), ..quick() };
    let relay = Relay::builder(subject.store(true))
        .route("org.**", slow.clone())
        .route("**", other)
        .settings(settings)
        .build()
        .unwrap()
        .spawn();
    arrived(&slow, &ids).await;
    relay.shutdown().await.unwrap();
    assert_eq!(slow.arrived().len(), ids.len(), "each once");
}

/// What its destination keeps waiting is not what somebody scheduled: it is late, and its row says why.
pub async fn an_outage_is_seen_in_the_table<S: Subject>(subject: &S) {
    let id = enqueue(subject, events(1)).await[0];
    subject.make_older(id, Duration::from_mins(5)).await;
    let sink = Scripted::new(|_| Act::Unavailable);
    // The next probe is far away: the event is put off until then.
    let relay =
        start(subject, &sink, Settings { circuit: Backoff::fixed(Duration::from_hours(1)), ..quick() });
    eventually("the event to be put off", PATIENCE, async || {
        let row = state(subject, id).await;
        !row.due && !row.locked && row.attempts == 0
    })
    .await;
    let error = state(subject, id).await.last_error.unwrap_or_default();
    assert!(error.starts_with("OUTBOX_UNAVAILABLE: down"), "{error}");
    let counts = subject.admin().counts().await.unwrap();
    assert_eq!((counts.pending, counts.scheduled), (1, 0), "{counts:?}");
    assert!(counts.oldest_pending_age >= Duration::from_mins(4), "{counts:?}");
    relay.shutdown().await.unwrap();
}

/// Nothing came back from a batch: the destination is down, the events are innocent.
pub async fn a_sink_that_hangs_in_batches_is_down_not_guilty<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(50)).await;
    let hang = Arc::new(AtomicBool::new(true));
    let hanging = Arc::clone(&hang);
    let sink = Scripted::new(move |_| if hanging.load(Ordering::SeqCst) { Act::Hang } else { Act::Ok })
        .in_batches(50);
    let settings = Settings { max_attempts: 3, dispatch_timeout: Duration::from_millis(100), ..quick() };
    let relay = start(subject, &sink, settings);
    // The batch, and more probes than there are attempts.
    eventually("probes to hang", PATIENCE, async || sink.seen().len() > 6).await;
    hang.store(false, Ordering::SeqCst);
    arrived(&sink, &ids).await;
    relay.shutdown().await.unwrap();
    for id in ids {
        let row = state(subject, id).await;
        assert!(row.published && row.attempts == 1, "no attempt was burnt: {row:?}");
    }
}

/// A handler that blocks its thread (hazard 23).
pub async fn a_blocked_thread_times_out<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(10)).await;
    let bad = ids[0];
    let sink =
        Scripted::new(
            move |d| {
                if d.meta.event_id == bad { Act::Block(Duration::from_secs(2)) } else { Act::Ok }
            },
        );
    let settings = Settings { max_attempts: 1, dispatch_timeout: Duration::from_millis(200), ..quick() };
    let relay = start(subject, &sink, settings);
    arrived(&sink, &ids[1..]).await;
    eventually("the blocked one to be dead", PATIENCE, async || exhausted(subject, bad, 1).await).await;
    assert!(state(subject, bad).await.last_error.unwrap().contains("OUTBOX_TIMEOUT"));
    relay.shutdown().await.unwrap();
}

/// Single active, and the take-over.
pub async fn one_relay_works_the_other_takes_over<S: Subject>(subject: &S) {
    let first = enqueue(subject, events(50)).await;
    let (a, b) = (Scripted::ok(), Scripted::ok());
    let leader = start(subject, &a, quick());
    arrived(&a, &first).await;
    let standby = start(subject, &b, quick());
    let second = enqueue(subject, events(50)).await;
    arrived(&a, &second).await;
    assert_eq!(b.seen().len(), 0, "the standby stands by");
    eventually("the standby to be well", PATIENCE, async || standby.health().problem().is_none()).await;
    leader.shutdown().await.unwrap();
    let third = enqueue(subject, events(50)).await;
    arrived(&b, &third).await;
    standby.shutdown().await.unwrap();
    assert_eq!(a.arrived().len() + b.arrived().len(), 150, "no duplicates");
}

/// An orderly stop leaves the place, and nobody waits for its time to be over.
pub async fn who_closes_leaves_its_place_at_once<S: Subject>(subject: &S) {
    let (first, second) = (subject.store(true), subject.store(true));
    assert_eq!(claim(&first, 1).await.standing, Standing::Active);
    assert_eq!(claim(&second, 1).await.standing, Standing::Standby);
    first.close().await;
    assert_eq!(claim(&second, 1).await.standing, Standing::Active);
}

/// `single_active = false`.
pub async fn many_relays_share_a_table<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(600)).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(1)));
    let relays: Vec<_> = (0..3)
        .map(|_| run(subject.store(false), sink.clone(), Settings { batch_size: 20, ..quick() }))
        .collect();
    arrived(&sink, &ids).await;
    for relay in relays {
        relay.shutdown().await.unwrap();
    }
    assert_eq!(sink.arrived().len(), 600);
    assert_eq!(sink.arrived().into_iter().collect::<HashSet<_>>().len(), 600);
}

/// One that joins takes its part at once, and nobody misses one that leaves.
pub async fn relays_that_come_and_go_share_what_is_left<S: Subject>(subject: &S) {
    let sinks: [Scripted; 3] =
        std::array::from_fn(|_| Scripted::new(|_| Act::Slow(Duration::from_millis(5))));
    let start = |sink: &Scripted| {
        let settings = Settings { batch_size: 10, concurrency: 4, ..quick() };
        run(subject.store(false), sink.clone(), settings)
    };
    let shares = || sinks.each_ref().map(|sink| sink.arrived().len());
    let mut written = enqueue(subject, events(300)).await.len();
    let (first, second) = (start(&sinks[0]), start(&sinks[1]));
    eventually("both to work", PATIENCE, async || shares()[0] > 0 && shares()[1] > 0).await;
    let third = start(&sinks[2]);
    // It takes its time to connect, and there must be something left then.
    while shares()[2] == 0 {
        written += enqueue(subject, events(100)).await.len();
    }
    let before = shares();
    written += enqueue(subject, events(600)).await.len();
    eventually("all of it", PATIENCE, async || shares().iter().sum::<usize>() >= written).await;
    let since = std::array::from_fn::<usize, 3, _>(|n| shares()[n] - before[n]);
    let total: usize = since.iter().sum();
    assert!(since.iter().all(|share| share * 9 > total), "a third of an even share at least: {since:?}");
    first.shutdown().await.unwrap();
    let left = shares()[0];
    written += enqueue(subject, events(200)).await.len();
    eventually("the rest", PATIENCE, async || shares().iter().sum::<usize>() >= written).await;
    for relay in [second, third] {
        relay.shutdown().await.unwrap();
    }
    assert_eq!((shares().iter().sum::<usize>(), shares()[0]), (written, left), "each once");
}

/// Read at every claim and tick, by every relay.
pub async fn a_pause_stops_delivery_and_outlives_relays<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table cannot be paused");
    }
    let first = enqueue(subject, events(10)).await;
    let sink = Scripted::ok();
    let relay = start(subject, &sink, quick());
    arrived(&sink, &first).await;
    subject.pause(true).await;
    eventually("the relay to notice", PATIENCE, async || relay.health().now().standing == Standing::Paused)
        .await;
    let second = enqueue(subject, events(10)).await;
    relay.shutdown().await.unwrap();
    let relay = start(subject, &sink, quick());
    eventually("the next relay to notice", PATIENCE, async || {
        relay.health().now().standing == Standing::Paused
    })
    .await;
    assert_eq!(sink.arrived().len(), 10);
    eventually("a paused relay to be well", PATIENCE, async || relay.health().problem().is_none()).await;
    subject.pause(false).await;
    arrived(&sink, &second).await;
    relay.shutdown().await.unwrap();
}

/// Waiting inside the batch must not eat the lease (hazard 2).
pub async fn leases_are_renewed_while_handlers_run<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(6)).await;
    // One at a time: the last waits for longer than a lease lasts. Leases are renewed twice before they end, so a machine that
    // stands still for two seconds proves nothing against us.
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(900)));
    let settings = Settings {
        concurrency: 1,
        lock_ttl: Duration::from_secs(4),
        dispatch_timeout: Duration::from_millis(2600),
        ..quick()
    };
    let a = run(subject.store(false), sink.clone(), settings.clone());
    eventually("the first to work", PATIENCE, async || !sink.seen().is_empty()).await;
    let b = run(subject.store(false), sink.clone(), settings);
    arrived(&sink, &ids).await;
    a.shutdown().await.unwrap();
    b.shutdown().await.unwrap();
    assert_eq!(sink.seen().len(), 6, "nobody took what was being worked on");
}
