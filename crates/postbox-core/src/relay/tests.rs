//! The loop itself, step by step, on a store that has no end of events.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::code::Code;
use crate::dispatcher::{Delivery, DispatchError, Dispatcher};
use crate::event::{EventId, Payload};
use crate::hot::delivery_for_tests;
use crate::letter::Requirements;
use crate::record::Record;
use crate::redact::Summary;
use crate::relay::claim::Asked;
use crate::relay::engine::Engine;
use crate::relay::lease::Stage;
use crate::relay::unit::{End, Ended};
use crate::relay::{Backoff, Relay};
use crate::store::{
    Buried, Claim, ClaimMode, ClaimRequest, Claimed, Lease, Renewed, Settled, Settlement, Standing, Store,
    StoreError, StoreErrorKind,
};
use crate::testing::{FailingDispatcher, MemoryOutbox, delivery};
use crate::topic::Topic;

mod dead;
mod fan;
mod late;

/// A store whose claims bring what it is told; it settles whatever it gets.
#[derive(Clone)]
struct Stub<F> {
    claim: F,
    /// Whether there is a table.
    there: Arc<AtomicBool>,
}

impl<F> fmt::Debug for Stub<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stub")
    }
}

fn stub<F, R>(claim: F) -> Stub<F>
where
    F: Fn(ClaimRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Claim> + Send,
{
    Stub { claim, there: Arc::new(AtomicBool::new(true)) }
}

impl<F, R> Store for Stub<F>
where
    F: Fn(ClaimRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Claim> + Send,
{
    fn table(&self) -> &'static str {
        "stub_outbox"
    }
    async fn open(&self) -> Result<(), StoreError> {
        let missing = || StoreError::new(Code::TableMissing, StoreErrorKind::Refused, "missing on purpose");
        if self.there.load(Ordering::SeqCst) { Ok(()) } else { Err(missing()) }
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        Ok((self.claim)(request).await)
    }
    async fn settle(&self, _: &[Settlement]) -> Result<Settled, StoreError> {
        Ok(Settled::default())
    }
    async fn extend(&self, _: Vec<Lease>) -> Result<Renewed, StoreError> {
        Ok(Renewed::default())
    }
    async fn wait(&self, at_most: Duration) {
        tokio::time::sleep(at_most).await;
    }
    async fn close(&self) {}
}

/// So many new events, for the active relay.
fn active(events: usize) -> Claim {
    let claimed = |n: usize| {
        let delivery = delivery("shop.order.placed.v1", &(n + 1).to_string());
        let (row, since) = (delivery.meta.event_id.0, delivery.meta.created_at);
        let lease = Lease { row, attempts: 1, token: "t".into(), since };
        let (age, strand, sinks_done) = (Duration::ZERO, None, Vec::new());
        Claimed { lease, delivery: Box::new(delivery), age, strand, sinks_done }
    };
    let rows = (0..events).map(claimed).collect();
    Claim { standing: Standing::Active, rows, ..Claim::default() }
}

/// One event for each claim.
fn endless() -> impl Store + fmt::Debug {
    stub(|_| async { active(1) })
}

/// The sink of this lane goes down.
fn goes_down(engine: &mut Engine<impl Store>, lane: usize) {
    let (lease, delivery) = delivery_for_tests();
    let (event_id, topic) = (delivery.meta.event_id, delivery.meta.topic);
    let end = End::Unavailable { error: Summary::new("down", 100) };
    let ended = Ended { lease, event_id, topic, probe: false, took: Duration::ZERO, end };
    engine.note_circuit(lane, &ended, tokio::time::Instant::now());
}

/// Somebody has locked the suspects: each claim sees them, and gets none.
#[tokio::test(start_paused = true)]
async fn a_run_by_hand_does_not_wait_for_suspects_that_cannot_be_had() {
    let store = stub(|_| async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Claim { suspects: true, ..active(0) }
    });
    let relay = Relay::builder(store).dispatcher(FailingDispatcher::times(0)).build();
    let run = tokio::time::timeout(Duration::from_mins(1), async { relay.unwrap().run_once().await });
    assert_eq!(run.await.unwrap().unwrap().claimed, 0);
}

/// Whatever becomes due between two looks at the clock is done at once, and not when something else happens.
#[tokio::test(start_paused = true)]
async fn the_loop_does_not_sleep_over_its_next_claim() {
    let relay = Relay::builder(endless()).dispatcher(FailingDispatcher::times(0)).build().unwrap();
    let mut engine = relay.engine;
    engine.standing = Standing::Active;
    engine.next_claim = tokio::time::Instant::now() + Duration::from_millis(20);
    engine.next_beat = engine.next_claim;
    let looked = engine.start_work();
    assert!(engine.claiming.is_none(), "not yet");
    tokio::time::advance(Duration::from_millis(30)).await;
    let turn = tokio::time::timeout(Duration::from_secs(5), engine.turn(looked)).await;
    assert!(turn.is_ok(), "it sleeps until leases are to be renewed");
    engine.start_work();
    assert!(engine.claiming.is_some());
}

/// What goes back so that suspects have the relay for themselves is written down at once: nothing else would wake the loop for it.
#[tokio::test(start_paused = true)]
async fn what_goes_back_for_suspects_is_settled_at_once() {
    let relay = Relay::builder(endless()).dispatcher(FailingDispatcher::times(0)).build().unwrap();
    let mut engine = relay.engine;
    let now = tokio::time::Instant::now();
    engine.claimed(now, &Asked::Rows(ClaimMode::Waiting), Ok(Claim { suspects: true, ..active(1) }));
    engine.next_beat = now + Duration::from_secs(1);
    engine.start_work();
    assert!(engine.suspects.turn, "they have their turn");
    assert!(engine.settling.is_some());
}

/// One that has used up its attempts is buried and brings no row; those behind it are not left for the next run.
#[tokio::test(start_paused = true)]
async fn a_run_by_hand_goes_through_all_suspects() {
    let asked = Arc::new(AtomicUsize::new(0));
    let store = stub(move |request| {
        let asked = Arc::clone(&asked);
        async move {
            if request.mode != ClaimMode::Suspect {
                return Claim { suspects: true, ..active(0) };
            }
            let buried = || Buried { topic: "a.b.c.v1".into(), event_id: EventId::new(), sequence: 1 };
            match asked.fetch_add(1, Ordering::SeqCst) {
                0 => Claim { buried: vec![buried()], ..active(0) },
                1 => active(1),
                _ => active(0),
            }
        }
    });
    let mut relay = Relay::builder(store).dispatcher(FailingDispatcher::times(0)).build().unwrap();
    let report = relay.run_once().await.unwrap();
    assert_eq!((report.dead, report.delivered), (1, 1));
}

/// Nobody else finds out whether a sink is back.
#[tokio::test(start_paused = true)]
async fn a_run_by_hand_probes_a_sink_that_was_down() {
    let (memory, wait) = (MemoryOutbox::new(), Duration::from_secs(1));
    let mut tx = memory.begin().await.unwrap();
    let event = Record::builder(Topic::from_static("shop.order.placed.v1")).json(&1);
    memory.enqueue(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
    let relay = Relay::builder(memory.store()).dispatcher(FailingDispatcher::unavailable(1));
    let mut relay = relay.set(|settings| settings.circuit = Backoff::fixed(wait)).build().unwrap();
    assert_eq!(relay.run_once().await.unwrap().released, 1);
    assert_eq!(relay.run_once().await.unwrap().claimed, 0, "it is left alone");
    tokio::time::advance(wait).await;
    memory.clock().advance(wait);
    assert_eq!(relay.run_once().await.unwrap().delivered, 1);
}

/// A route says where at its sink an event goes; one that lacks a value for it is dead and goes nowhere.
#[tokio::test(start_paused = true)]
async fn a_route_gives_events_their_destination() {
    for (template, expected) in
        [("events.{topic}", Some("events.shop.order.placed.v1")), ("{aggregate_id}", None)]
    {
        let relay = Relay::builder(endless()).dispatcher(FailingDispatcher::times(0)).destination(template);
        let mut engine = relay.build().unwrap().engine;
        engine.standing = Standing::Active;
        let now = tokio::time::Instant::now();
        engine.claimed(now, &Asked::Rows(ClaimMode::Waiting), Ok(active(1)));
        let queued = engine.lanes[0].queue.front(|_| true).map(|item| item.delivery.destination.clone());
        assert_eq!(queued, expected.map(|text| Some(Arc::from(text))));
        assert_eq!(engine.held.values().any(|held| held.stage == Stage::Settling), expected.is_none());
    }
    let wrong = Relay::builder(endless()).dispatcher(FailingDispatcher::times(0)).destination("{tpoic}");
    assert_eq!(wrong.build().unwrap_err().code(), Code::RouteInvalid);
    let early = Relay::builder(endless()).destination("x").dispatcher(FailingDispatcher::times(0));
    assert_eq!(early.build().unwrap_err().code(), Code::ConfigInvalid);
}

/// Two events, once; every lease is lost at its renewal.
#[derive(Clone, Default)]
struct Losing(Arc<AtomicBool>);

impl Store for Losing {
    fn table(&self) -> &'static str {
        "losing_outbox"
    }
    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn require(&self, _: Requirements) -> Result<(), StoreError> {
        Ok(())
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        let first = request.limit > 0 && !self.0.swap(true, Ordering::SeqCst);
        Ok(active(if first { 2 } else { 0 }))
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        Ok(Settled { lost: settlements.iter().map(|s| s.lease.row).collect(), ..Settled::default() })
    }
    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        Ok(Renewed { lost: leases, ..Renewed::default() })
    }
    async fn wait(&self, at_most: Duration) {
        tokio::time::sleep(at_most).await;
    }
    async fn close(&self) {}
}

/// Each event's is moved several times.
#[test]
fn a_settlement_is_small() {
    assert!(size_of::<Settlement>() <= 128, "{}", size_of::<Settlement>());
}

/// Remembers what it saw and answers some of it.
#[derive(Clone)]
struct Answers(&'static str, Arc<Mutex<Vec<String>>>);

impl Dispatcher for Answers {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let Payload::Json(json) = &delivery.payload else { panic!("bytes") };
        self.1.lock().unwrap().push(json.as_str().to_owned());
        if json.as_str() == self.0 { Ok(()) } else { std::future::pending().await }
    }
}

/// One sink has the event, the other has it in its queue, and the lease is lost: whoever has it now will see to the other.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_second_sink_is_not_sent_after_the_lease_is_lost() {
    let (a, b) = (Answers("1", Arc::default()), Answers("", Arc::default()));
    let relay = Relay::builder(Losing::default()).fan_out("**", [("a", a.clone()), ("b", b.clone())]);
    let relay = relay.set(|settings| settings.concurrency = 1).build().unwrap().spawn();
    // Longer than the renewal at 20 s and the timeout at 30 s, which frees the second sink's only slot.
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!(*a.1.lock().unwrap(), ["1", "2"]);
    assert_eq!(*b.1.lock().unwrap(), ["1"]);
    relay.kill();
}

/// What cannot work is refused when it is built, or at the start by a store that cannot do it.
#[tokio::test]
async fn routes_to_several_sinks_are_checked() {
    let sink = || FailingDispatcher::times(0);
    let two = || Relay::builder(endless()).sink("a", sink()).sink("b", sink());
    assert!(two().route_to_all("**", ["a", "b"]).build().is_ok());
    for (builder, part) in [
        (two().route_to_all("**", ["a", "c"]), "the sink \"c\", which does not exist"),
        (two().route_to_all("**", ["a", "b", "a"]), "names the sink \"a\" twice"),
        (two().route_to_all("**", [""; 0]), "leads to no sink"),
        (two().sink("a", sink()).route_to("**", "a"), "two sinks are named \"a\""),
        (two().fan_out("**", [("b", sink())]), "two sinks are named \"b\""),
        (two().sink("x\u{1f}y", sink()).route_to("**", "a"), "cannot be the name of a sink"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let several = two().route_to_all("**", ["a", "b"]);
    let letters = two().route_to("**", "a").dead_letters("b", sink());
    let redrive =
        two().route_to("**", "a").set(|settings| settings.redrive_after = Some(Duration::from_secs(1)));
    for builder in [several, letters, redrive] {
        let error = builder.build().unwrap().run_once().await.unwrap_err();
        assert_eq!(error.code(), crate::Code::ConfigUnsupported, "{error}");
    }
}

/// With one database, whoever started it shall hear of it; with several, the others must not end for it.
#[tokio::test(start_paused = true)]
async fn a_table_that_is_missing_ends_a_relay_or_is_waited_for() {
    let store = stub(|_| async { active(0) });
    store.there.store(false, Ordering::SeqCst);
    let builder = || Relay::builder(store.clone()).dispatcher(FailingDispatcher::times(0));
    let error = builder().build().unwrap().run().await.unwrap_err();
    assert_eq!(error.code(), Code::TableMissing);

    let relay = builder().database("orders").patient().build().unwrap().spawn();
    let health = relay.health();
    let told = "the relay of stub_outbox in orders cannot work: OUTBOX_TABLE_MISSING: missing on purpose";
    crate::until::until("the refusal", || health.problem().as_deref() == Some(told)).await;
    store.there.store(true, Ordering::SeqCst);
    health.opened().await;
    assert_eq!(health.problem(), None);
    relay.shutdown().await.unwrap();
}

/// Takes each event in this time.
#[derive(Debug, Clone)]
struct Takes(Duration);

impl Dispatcher for Takes {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        tokio::time::sleep(self.0).await;
        Ok(())
    }
}

/// Counts what it has sent, ten seconds after it was asked to.
#[derive(Debug, Clone, Default)]
struct Late(Arc<AtomicUsize>);

impl Dispatcher for Late {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// What a run that was dropped has started goes on, until the relay gives up its table: it may end then, and is settled; what takes longer
/// than `drain_timeout` is cut off, for another one to send.
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_by_a_relay_that_is_closed() {
    for (closes, drain_timeout, sent, delivered) in [(false, 5, 1, 0), (true, 5, 0, 0), (true, 20, 1, 1)] {
        let sink = Late::default();
        let relay = Relay::builder(endless()).dispatcher(sink.clone());
        let relay = relay.set(|settings| settings.drain_timeout = Duration::from_secs(drain_timeout));
        let mut relay = relay.build().unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(1), relay.run_once()).await.is_err());
        if closes {
            relay.close().await;
            assert!(!relay.engine.is_at_work());
        }
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(sink.0.load(Ordering::SeqCst), sent, "closed: {closes}");
        assert_eq!(relay.engine.report.delivered, delivered, "closed: {closes}");
    }
}

/// Looking for the events of others takes little of the time of a sink that is quick; of one that is slow it takes none, and may take what it wants.
#[tokio::test(start_paused = true)]
async fn a_long_backlog_of_one_sink_is_not_looked_through_all_the_time_for_another() {
    let mut looks = Vec::new();
    for takes in [Duration::from_millis(10), Duration::from_secs(3)] {
        // A long backlog of one topic, through which it takes two seconds to look for others.
        let detours = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&detours);
        let store = stub(move |request| {
            let counted = Arc::clone(&counted);
            async move {
                if request.exclude.is_empty() {
                    return Claim { more: true, ..active(request.limit) };
                }
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(2)).await;
                active(0)
            }
        });
        let relay = Relay::builder(store)
            .route("shop.**", Takes(takes))
            .route("**", Takes(takes))
            .build()
            .unwrap()
            .spawn();
        tokio::time::sleep(Duration::from_mins(1)).await;
        relay.kill();
        looks.push(detours.load(Ordering::SeqCst));
    }
    assert!((2..=4).contains(&looks[0]), "two seconds of each twenty-two: {looks:?}");
    assert!(looks[1] > 12, "as often as the relay looks: {looks:?}");
}
