//! Order under everything at once: several relays, failures, kills and leases that run out, judged by the oracle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox_core::{
    Backoff, Delivery, DispatchError, Dispatcher, EventId, Inspect as _, Relay, RelayHandle, Settings,
};

use super::order::{BLOCK, aggregate_of, of};
use super::{Subject, enqueue, quick};
use crate::{Oracle, eventually, skipped};

const EVENTS: usize = 3_000;
const AGGREGATES: usize = 40;
const RELAYS: usize = 3;
const KILLS: usize = 8;
const STALLS: usize = 60;
const BATCH: usize = 12;

/// Delivers to the oracle; one of twenty fails before, one of fifty after it has arrived, one of thirty takes a while.
#[derive(Clone)]
struct Judged {
    oracle: Arc<Oracle>,
    /// How many arrived without an answer.
    unanswered: Arc<AtomicUsize>,
    /// What was last begun, to have its lease run out.
    latest: Arc<Mutex<HashMap<String, EventId>>>,
}

impl Dispatcher for Judged {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let (meta, aggregate) = (&delivery.meta, aggregate_of(delivery));
        self.latest.lock().expect("unpoisoned").insert(aggregate.clone(), meta.event_id);
        if fastrand::u8(..20) == 0 {
            return Err(DispatchError::retry("it fails now and then"));
        }
        let pause = if fastrand::u8(..30) == 0 { 120 } else { 1 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.oracle.delivered_in(meta.event_id.0, aggregate, meta.sequence);
        if fastrand::u8(..50) == 0 {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            return Err(DispatchError::retry("it arrived, but nobody knows"));
        }
        Ok(())
    }
}

fn relay<S: Subject>(subject: &S, sink: &Judged) -> RelayHandle {
    let settings = Settings {
        batch_size: BATCH,
        concurrency: 8,
        lock_ttl: Duration::from_millis(900),
        dispatch_timeout: Duration::from_millis(600),
        backoff: Backoff::fixed(Duration::from_millis(30)),
        max_attempts: 1_000,
        ..quick()
    };
    let relay = Relay::builder(subject.ordered_store(BLOCK, false)).dispatcher(sink.clone());
    relay.settings(settings).build().expect("a relay").spawn()
}

/// Nothing is lost, nothing is out of order, nothing waits for ever.
pub async fn aggregates_keep_their_order_whatever_happens<S: Subject>(subject: &S) {
    if !subject.features().order {
        return skipped("this store keeps no order");
    }
    let oracle = Arc::new(Oracle::new().ordered());
    let sink = Judged { oracle: Arc::clone(&oracle), unanswered: Arc::default(), latest: Arc::default() };
    let mut relays: Vec<RelayHandle> = (0..RELAYS).map(|_| relay(subject, &sink)).collect();
    let trouble = async {
        for round in 0..KILLS * STALLS {
            let arrived = oracle.deliveries();
            let next = EVENTS * round / (KILLS * STALLS);
            eventually("deliveries", Duration::from_mins(3), async || {
                oracle.deliveries() >= next.min(EVENTS)
            })
            .await;
            if round % STALLS == STALLS - 1 {
                relays.remove(0).kill();
                relays.push(relay(subject, &sink));
            } else if round % KILLS == 0 {
                let latest = sink.latest.lock().expect("unpoisoned").values().copied().collect::<Vec<_>>();
                if let Some(event) = fastrand::choice(&latest) {
                    subject.expire_lease(*event).await;
                }
            }
            assert!(oracle.deliveries() >= arrived);
        }
    };
    let writing = async {
        for batch in 0..EVENTS / 50 {
            let records = (0..50).map(|n| of(&format!("{}", fastrand::usize(..AGGREGATES)), batch * 50 + n));
            for id in enqueue(subject, records.collect()).await {
                oracle.committed(id.0);
            }
        }
    };
    tokio::join!(trouble, writing);
    let admin = subject.admin();
    eventually("nothing to be pending", Duration::from_mins(3), async || {
        let counts = admin.counts().await.expect("counts");
        counts.pending == 0 && counts.scheduled == 0
    })
    .await;
    for relay in relays {
        relay.shutdown().await.expect("a stop");
    }
    oracle.expect_dead([]);
    // What a relay had in flight when it was killed, what had its lease run out, and what arrived without an answer.
    let repeated = KILLS * 4 * BATCH + STALLS * BATCH + sink.unanswered.load(Ordering::Relaxed);
    let report = oracle.verdict(repeated).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!((report.delivered, report.dead), (EVENTS, 0));
}
