//! What the relay does: how fast it drains a backlog, and how soon after its commit an event is dispatched. The product's own
//! relay, with the settings of the configuration, in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postbox_core::store::Standing;
use postbox_core::{
    Code, Delivery, DispatchError, Dispatcher, Inspect as _, Outbox, Receipts, Relay, RelayHandle, TableName,
};
use postbox_sinks::NullSink;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::enqueue::joined;
use super::figures::{Measured, Step, Times};
use super::progress::End;
use super::run::{Halt, Run};
use super::wanted::Wanted;
use super::writer::Writer;
use crate::assemble;
use crate::report::{Failure, Problem};

/// What comes first pays for connections and plans.
const WARM_UP: Duration = Duration::from_millis(500);
/// Events that were written and not yet dispatched, at most.
const MOST_UNDER_WAY: usize = 100_000;
/// How often it is asked whether the relay works yet, or is far behind.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Delivers the backlog to nowhere.
pub(super) async fn drain(run: &mut Run<'_>) -> Result<Measured, Halt> {
    let events = run.wanted.events;
    let mut progress = run.progress(Step::Drain, End::Events(events));
    let sight = Arc::new(Sight::new(events));
    let wal = run.site.wal().await;
    let relay = Running::start(run, Arc::clone(&sight))?;
    let all = async {
        relay.reached().await?;
        let started = Instant::now();
        relay.unless_ended(sight.all_seen()).await?;
        Ok(started)
    };
    let started = run.watched(&mut progress, &sight.seen, all).await?;
    // It settles what was dispatched before it ends.
    run.unless_stopped(relay.stop()).await?;
    let took = started.elapsed();
    let wal = run.site.wal().await.zip(wal).map(|(after, before)| after.saturating_sub(before));
    run.unless_stopped(none_left(run)).await?;
    Ok(Measured { step: Step::Drain, events, took, times: None, with_commit: None, wal })
}

/// Events at a rate, each in a transaction, and the time from its commit to its dispatch.
pub(super) async fn latency(run: &mut Run<'_>) -> Result<Measured, Halt> {
    let rate = run.wanted.rate;
    let step = Step::Latency { rate };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small and positive"
    )]
    let of_span = |span: Duration| (span.as_secs_f64() * rate as f64).ceil() as u64;
    let (warm_up, events) = (of_span(WARM_UP), of_span(run.wanted.time));
    let mut progress = run.progress(step, End::Events(warm_up + events));
    let writers = run.wanted.most_connections().min(warm_up + events);
    let writers = run.unless_stopped(run.site.writers(writers)).await?;
    let sight = Arc::new(Sight::new(warm_up + events));
    let relay = Running::start(run, Arc::clone(&sight))?;
    let schedule = Arc::new(Schedule { next: AtomicU64::new(0), warm_up, all: warm_up + events, rate });
    let (wanted, outbox) = (Arc::clone(&run.wanted), run.outbox());
    let all = async {
        relay.reached().await?;
        let written = write_all(writers, outbox, wanted, Arc::clone(&schedule), Arc::clone(&sight));
        let took = relay.unless_ended(written).await??;
        relay.unless_ended(sight.all_seen()).await?;
        Ok(took)
    };
    let took = run.watched(&mut progress, &sight.seen, all).await?;
    run.unless_stopped(relay.stop()).await?;
    run.unless_stopped(none_left(run)).await?;
    let (times, with_commit) = sight.times();
    Ok(Measured {
        step,
        events: times.count(),
        took,
        times: Some(times),
        with_commit: Some(with_commit),
        wal: None,
    })
}

/// When which event is written.
struct Schedule {
    next: AtomicU64,
    /// The first ones do not count.
    warm_up: u64,
    all: u64,
    rate: u64,
}

/// Writes at the rate; who is late catches up. Answers how long it took to write those that count.
async fn write_all(
    writers: Vec<Writer>,
    outbox: Outbox,
    wanted: Arc<Wanted>,
    schedule: Arc<Schedule>,
    sight: Arc<Sight>,
) -> Result<Duration, Failure> {
    let started = tokio::time::Instant::now();
    #[allow(clippy::cast_precision_loss, reason = "a time")]
    let due = move |number: u64, rate: u64| started + Duration::from_secs_f64(number as f64 / rate as f64);
    let mut tasks = JoinSet::new();
    for mut writer in writers {
        let (outbox, wanted) = (outbox.clone(), Arc::clone(&wanted));
        let (schedule, sight) = (Arc::clone(&schedule), Arc::clone(&sight));
        tasks.spawn(async move {
            loop {
                let number = schedule.next.fetch_add(1, Ordering::Relaxed);
                if number >= schedule.all {
                    return Ok::<_, Failure>(());
                }
                tokio::time::sleep_until(due(number, schedule.rate)).await;
                // A relay that falls far behind holds the writers up, not this program's memory.
                while sight.under_way() >= MOST_UNDER_WAY {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                let id = Uuid::now_v7();
                let counts = number >= schedule.warm_up;
                if counts {
                    sight.expect(id);
                }
                let called = writer.write(&outbox, [wanted.event(id, number)]).await;
                let called = called.map_err(|error| Problem::of_enqueue(outbox.table(), error))?;
                if counts {
                    sight.committed(id, called, Instant::now());
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        joined(ended)?;
    }
    Ok(due(schedule.warm_up, schedule.rate).elapsed())
}

/// Everything must have arrived.
async fn none_left(run: &Run<'_>) -> Result<(), Failure> {
    let counts = run.site.database.admin(&run.site.table, &run.call.config).counts().await;
    let counts = counts.map_err(|error| run.site.problem(&error))?;
    let left = counts.pending + counts.scheduled + counts.dead;
    if left == 0 {
        return Ok(());
    }
    let message = format!(
        "{left} events were not delivered: the relay lost its connection, or somebody changed the table"
    );
    Err(Problem::new(Code::DatabaseError, message).next("run it again, and look at the server's log").into())
}

/// A relay in its task; one that is dropped is killed.
struct Running {
    relay: Option<RelayHandle>,
    table: TableName,
}

impl Running {
    fn start(run: &Run<'_>, sight: Arc<Sight>) -> Result<Self, Failure> {
        let (config, table) = (&run.call.config, run.site.table.clone());
        let name = format!("bench:{}", std::process::id());
        // Its events are nobody's.
        let mut everybody = config.clone();
        everybody.relay.tenants.clear();
        let store = assemble::store(&everybody, &run.site.database, &table, &name)?;
        let relay = Relay::builder(store)
            .settings(assemble::settings(config, &name))
            .dispatcher(Seeing(sight))
            .build();
        let relay = relay.map_err(|error| Problem::of_relay(&table, &error))?.spawn();
        Ok(Self { relay: Some(relay), table })
    }

    /// Until it works on the table.
    async fn reached(&self) -> Result<(), Failure> {
        let Some(relay) = &self.relay else { return Ok(()) };
        let health = relay.health();
        let reached = async {
            while health.now().standing != Standing::Active {
                tokio::time::sleep(ASK_AGAIN).await;
            }
        };
        self.unless_ended(reached).await
    }

    async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let Some(relay) = &self.relay else { return Ok(work.await) };
        tokio::select! {
            done = work => Ok(done),
            () = relay.ended() => {
                let why = relay.health().now().error.unwrap_or_else(|| "it has ended".to_owned());
                Err(Problem::new(Code::DatabaseError, format!("the relay of {}: {why}", self.table)).into())
            }
        }
    }

    async fn stop(mut self) -> Result<(), Failure> {
        let Some(relay) = self.relay.take() else { return Ok(()) };
        relay.shutdown().await.map_err(|error| Problem::of_relay(&self.table, &error).into())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(relay) = self.relay.take() {
            relay.kill();
        }
    }
}

/// What is known of an event that is under way.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    /// When its commit was called, and when it was done.
    committed: Option<(Instant, Instant)>,
    dispatched: Option<Instant>,
}

/// What the sink has seen. Holds only what is under way.
struct Sight {
    seen: AtomicU64,
    wanted: u64,
    enough: Notify,
    flights: Mutex<Flights>,
}

struct Flights {
    under_way: HashMap<Uuid, Flight>,
    times: Times,
    with_commit: Times,
}

impl Sight {
    fn new(wanted: u64) -> Self {
        let flights = Flights { under_way: HashMap::new(), times: Times::new(), with_commit: Times::new() };
        Self { seen: AtomicU64::new(0), wanted, enough: Notify::new(), flights: Mutex::new(flights) }
    }

    async fn all_seen(&self) {
        while self.seen.load(Ordering::Acquire) < self.wanted {
            self.enough.notified().await;
        }
    }

    /// This one is about to be written.
    fn expect(&self, event: Uuid) {
        self.flights(|flights| flights.under_way.insert(event, Flight::default()));
    }

    fn under_way(&self) -> usize {
        self.flights(|flights| flights.under_way.len())
    }

    fn committed(&self, event: Uuid, called: Instant, done: Instant) {
        self.flights(|flights| flights.note(event, |flight| flight.committed = Some((called, done))));
    }

    fn dispatched(&self, batch: &[Delivery], now: Instant) {
        self.flights(|flights| {
            for delivery in batch {
                let event = delivery.meta.event_id.0;
                flights.note(event, |flight| flight.dispatched = flight.dispatched.or(Some(now)));
            }
        });
        let before = self.seen.fetch_add(batch.len() as u64, Ordering::AcqRel);
        if before + batch.len() as u64 >= self.wanted {
            self.enough.notify_one();
        }
    }

    /// What it took from commit to dispatch, and from the call of commit.
    fn times(&self) -> (Times, Times) {
        self.flights(|flights| {
            (
                std::mem::replace(&mut flights.times, Times::new()),
                std::mem::replace(&mut flights.with_commit, Times::new()),
            )
        })
    }

    fn flights<T>(&self, with: impl FnOnce(&mut Flights) -> T) -> T {
        with(&mut self.flights.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Flights {
    fn note(&mut self, event: Uuid, note: impl FnOnce(&mut Flight)) {
        let Some(flight) = self.under_way.get_mut(&event) else { return };
        note(flight);
        if let Flight { committed: Some((called, done)), dispatched: Some(dispatched) } = *flight {
            self.under_way.remove(&event);
            // It may be dispatched before the writer has heard of its commit: that is no time at all.
            self.times.add(dispatched.saturating_duration_since(done));
            self.with_commit.add(dispatched.saturating_duration_since(called));
        }
    }
}

/// The null sink, watched.
struct Seeing(Arc<Sight>);

impl Dispatcher for Seeing {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        self.0.dispatched(std::slice::from_ref(delivery), Instant::now());
        NullSink.dispatch(delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        self.0.dispatched(batch, Instant::now());
        NullSink.dispatch_batch(batch, receipts).await;
    }

    fn batch_limit(&self) -> usize {
        NullSink.batch_limit()
    }
}
