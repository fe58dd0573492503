//! Order in the engine, on a table in memory and on a store that loses leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::dispatcher::{Delivery, DispatchError, Dispatcher};
use crate::hot::HotPath;
use crate::record::Record;
use crate::relay::{Backoff, Relay, Settings};
use crate::store::{
    Claim, ClaimMode, ClaimRequest, Claimed, Lease, OnDead, Order, Renewed, Settled, Settlement, Standing,
    Store, StoreError, Verdict,
};
use crate::testing::{MemoryOutbox, delivery};
use crate::until::until;

const BLOCK: Order = Order::Aggregate(OnDead::Block);

async fn enqueue(memory: &MemoryOutbox, aggregates: impl IntoIterator<Item = usize>) {
    let topic = crate::Topic::from_static("shop.order.placed.v1");
    let record = |(n, aggregate): (usize, usize)| {
        Record::builder(topic.clone()).json(&n).aggregate("order", aggregate).build().unwrap()
    };
    let records: Vec<Record> = aggregates.into_iter().enumerate().map(record).collect();
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue_all(&mut tx, records).await.unwrap();
    tx.commit().await.unwrap();
}

/// Remembers what arrived; may fail.
#[derive(Clone, Default)]
struct Sink {
    arrived: Arc<Mutex<Vec<i64>>>,
    fails: Arc<AtomicBool>,
    rejects: Arc<Mutex<Vec<i64>>>,
    /// Never ends.
    hangs: Arc<Mutex<Vec<i64>>>,
}

impl Sink {
    fn arrived(&self) -> Vec<i64> {
        self.arrived.lock().unwrap().clone()
    }
}

impl Dispatcher for Sink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let sequence = delivery.meta.sequence;
        if self.fails.load(Ordering::SeqCst) {
            return Err(DispatchError::retry("not yet"));
        }
        if self.rejects.lock().unwrap().contains(&sequence) {
            return Err(DispatchError::reject("never"));
        }
        if self.hangs.lock().unwrap().contains(&sequence) {
            std::future::pending::<()>().await;
        }
        self.arrived.lock().unwrap().push(sequence);
        Ok(())
    }
}

fn quick() -> Settings {
    Settings {
        poll_interval: Duration::from_millis(10),
        concurrency: 8,
        batch_size: 20,
        ..Settings::default()
    }
}

#[tokio::test]
async fn aggregates_keep_their_order_and_do_not_wait_for_each_other() {
    let memory = MemoryOutbox::new().ordered(BLOCK);
    enqueue(&memory, (0..500).map(|n| n * n % 7)).await;
    let sink = Sink::default();
    let relay =
        Relay::builder(memory.store()).dispatcher(sink.clone()).settings(quick()).build().unwrap().spawn();
    until("all to arrive", || sink.arrived().len() == 500).await;
    relay.shutdown().await.unwrap();
    let mut last = HashMap::new();
    for sequence in sink.arrived() {
        let n = usize::try_from(sequence).unwrap() - 1;
        assert!(last.insert(n * n % 7, sequence) < Some(sequence));
    }
}

#[tokio::test]
async fn what_is_held_back_is_neither_tried_nor_charged() {
    let memory = MemoryOutbox::new().ordered(BLOCK);
    enqueue(&memory, [1, 1, 1]).await;
    let sink = Sink::default();
    sink.fails.store(true, Ordering::SeqCst);
    let drained = memory.drain(sink.clone()).await;
    assert_eq!((drained.retried(), drained.0.len()), (1, 1), "{drained:?}");
    sink.fails.store(false, Ordering::SeqCst);
    assert_eq!(memory.drain(sink.clone()).await.0.len(), 0, "it backs off");
    memory.clock().advance(Duration::from_secs(1));
    let drained = memory.drain(sink.clone()).await;
    assert_eq!(drained.0.iter().map(|tried| tried.attempts).collect::<Vec<_>>(), [2, 1, 1]);
    assert_eq!(sink.arrived(), [1, 2, 3]);
}

#[tokio::test]
async fn a_dead_event_blocks_or_is_skipped() {
    for (on_dead, arrives) in [(OnDead::Block, vec![1, 5]), (OnDead::Skip, vec![1, 3, 4, 5])] {
        let memory = MemoryOutbox::new().ordered(Order::Aggregate(on_dead));
        enqueue(&memory, [1, 1, 1, 1, 2]).await;
        let sink = Sink::default();
        sink.rejects.lock().unwrap().push(2);
        assert_eq!(memory.drain(sink.clone()).await.dead(), 1);
        let mut arrived = sink.arrived();
        arrived.sort_unstable();
        assert_eq!(arrived, arrives, "{on_dead:?}");
    }
}

#[tokio::test]
async fn the_hot_path_takes_nothing_of_an_ordered_table() {
    let memory = MemoryOutbox::new().ordered(BLOCK);
    let (path, sink) = (HotPath::new(), Sink::default());
    let relay = Relay::builder(memory.store()).hot(&path).dispatcher(sink.clone()).settings(quick());
    let relay = relay.build().unwrap().spawn();
    enqueue(&memory, [1]).await;
    until("it to arrive", || sink.arrived().len() == 1).await;
    assert_eq!(path.remaining(), 0);
    relay.shutdown().await.unwrap();
}

/// Three events of one strand, once; renewals say that a lease is lost.
#[derive(Clone)]
struct Losing {
    rows: Arc<Mutex<Vec<Claimed>>>,
    lost: Arc<Mutex<Vec<Lease>>>,
    settled: Arc<Mutex<Vec<(i64, Verdict)>>>,
    /// How many each settle was of.
    settles: Arc<Mutex<Vec<usize>>>,
    order: Order,
}

impl Losing {
    fn new(lost: &[usize]) -> Self {
        let rows: Vec<Claimed> = (1..=3)
            .map(|sequence| {
                let mut delivery = delivery("shop.order.placed.v1", "1");
                delivery.meta.sequence = sequence;
                let (row, since) =
                    (uuid::Uuid::from_u128(sequence.cast_unsigned().into()), delivery.meta.created_at);
                let lease = Lease { row, attempts: 1, token: "t".into(), since };
                Claimed {
                    lease,
                    delivery: Box::new(delivery),
                    age: Duration::ZERO,
                    strand: Some(7),
                    sinks_done: Vec::new(),
                }
            })
            .collect();
        let lost = lost.iter().map(|n| rows[*n].lease.clone()).collect();
        Self {
            rows: Arc::new(Mutex::new(rows)),
            lost: Arc::new(Mutex::new(lost)),
            settled: Arc::default(),
            settles: Arc::default(),
            order: BLOCK,
        }
    }

    fn settled(&self) -> Vec<(i64, Verdict)> {
        let mut settled = self.settled.lock().unwrap().clone();
        settled.sort_by_key(|(sequence, _)| *sequence);
        settled
    }
}

impl Store for Losing {
    fn table(&self) -> &'static str {
        "losing_outbox"
    }
    fn order(&self) -> Order {
        self.order
    }
    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        let wanted = request.mode == ClaimMode::Waiting && request.limit > 0;
        let rows = if wanted { std::mem::take(&mut *self.rows.lock().unwrap()) } else { Vec::new() };
        Ok(Claim { standing: Standing::Active, rows, ..Claim::default() })
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let row = |one: &Settlement| (one.lease.row.as_u64_pair().1.cast_signed(), one.verdict.clone());
        self.settled.lock().unwrap().extend(settlements.iter().map(row));
        self.settles.lock().unwrap().push(settlements.len());
        Ok(Settled::default())
    }
    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        let lost = self.lost.lock().unwrap();
        let lost = leases.into_iter().filter(|lease| lost.contains(lease)).collect();
        Ok(Renewed { lost, ..Renewed::default() })
    }
    async fn wait(&self, at_most: Duration) {
        tokio::time::sleep(at_most).await;
    }
    async fn close(&self) {}
}

const BACK: Verdict = Verdict::Release { after: None, reason: None };

/// The first runs and does not end, those behind it wait. Whichever of them is lost: those that are not go back, since they
/// could overtake what another relay dispatches.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_sends_back_what_waits() {
    for (lost, back) in [(0, vec![2, 3]), (1, vec![3]), (2, vec![2])] {
        let (store, sink) = (Losing::new(&[lost]), Sink::default());
        sink.hangs.lock().unwrap().push(1);
        let settings = Settings {
            dispatch_timeout: Duration::from_secs(50),
            lock_ttl: Duration::from_secs(90),
            ..quick()
        };
        let relay = Relay::builder(store.clone())
            .dispatcher(sink.clone())
            .settings(settings)
            .build()
            .unwrap()
            .spawn();
        tokio::time::sleep(Duration::from_secs(40)).await;
        let expected: Vec<_> = back.into_iter().map(|sequence| (sequence, BACK)).collect();
        assert_eq!(store.settled(), expected, "lost: {lost}");
        relay.kill();
    }
}

/// A head that fails takes those behind it along, in one settle and after itself.
#[tokio::test(start_paused = true)]
async fn those_behind_a_failure_go_back_with_it() {
    let (store, sink) = (Losing::new(&[]), Sink::default());
    sink.fails.store(true, Ordering::SeqCst);
    let settings = Settings { backoff: Backoff::fixed(Duration::from_secs(5)), ..quick() };
    let relay =
        Relay::builder(store.clone()).dispatcher(sink.clone()).settings(settings).build().unwrap().spawn();
    until("it to be settled", || !store.settled().is_empty()).await;
    let settled = store.settled();
    assert!(matches!(settled[0], (1, Verdict::Retry { .. })), "{settled:?}");
    assert_eq!(settled[1..], [(2, BACK), (3, BACK)]);
    relay.kill();
}

/// The first of a strand is not settled alone while the others are about to arrive; and not kept waiting for one that takes its time.
#[tokio::test(start_paused = true)]
async fn what_arrives_in_quick_succession_is_settled_together() {
    for (slow, settles) in [(None, vec![3]), (Some(3), vec![2])] {
        let (store, sink) = (Losing::new(&[]), Sink::default());
        sink.hangs.lock().unwrap().extend(slow);
        let relay =
            Relay::builder(store.clone()).dispatcher(sink.clone()).settings(quick()).build().unwrap().spawn();
        let wanted: usize = settles.iter().sum();
        until("them to be settled", || store.settled().len() == wanted).await;
        assert_eq!(*store.settles.lock().unwrap(), settles);
        relay.kill();
    }
}
