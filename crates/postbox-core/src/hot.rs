//! [`HotPath`]: events are handled right after their commit by the process that wrote them.
//!
//! A hot event's row is born leased, so that no relay claims it and no claim is written: its life is two writes, insert and
//! settle. Whatever goes wrong (no room, a commit that took long or whose result is unknown, a crash), the row is an
//! ordinary one whose lease is given back or runs out: the relay delivers it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use uuid::Uuid;

use crate::dispatcher::{Delivery, Meta};
use crate::event::Availability;
use crate::record::Record;
use crate::store::{Lease, Token};
use crate::telemetry::Telemetry;
use crate::tx::Birth;

/// Events that may be on the hot path at a time: queued, dispatched, being settled.
const CAPACITY: usize = 1000;
/// And their bytes.
const MAX_BYTES: usize = 16 << 20;

/// The way from an outbox straight to the handlers of a relay in the same process. Give it to
/// [`PostboxBuilder::hot`](crate::PostboxBuilder::hot), or to an outbox and a relay of the same table, with
/// [`Outbox::hot`](crate::Outbox::hot) and [`RelayBuilder::hot`](crate::RelayBuilder::hot).
///
/// ```
/// # use postbox_core::{Dispatcher, HotPath, Outbox, Relay, RelayError, Store};
/// # fn both(store: impl Store, outbox: Outbox, sink: impl Dispatcher) -> Result<(), RelayError> {
/// let path = HotPath::new();
/// let outbox = outbox.hot(&path);
/// let relay = Relay::builder(store).hot(&path).dispatcher(sink).build()?;
/// assert_eq!(path.remaining(), 0); // nothing is taken before the relay runs
/// # Ok(())
/// # }
/// ```
///
/// It is bounded in number and in bytes. When it is full, events go the way over the table: enqueue never fails for it,
/// a warning is logged and `outbox_hot_dropped_total` counts them.
///
/// It needs the transaction that [`Outbox::begin`](crate::Outbox::begin) opened: only that knows of its commit. Where the relay's
/// store keeps an [`Order`](crate::Order), there are no places: only the table knows what is before an event.
#[derive(Clone)]
pub struct HotPath(Arc<Gate>);

struct Gate {
    capacity: usize,
    max_bytes: usize,
    allow_asynchronous: bool,
    used: AtomicUsize,
    bytes: AtomicUsize,
    /// When the last warning was given: one per second is enough.
    warned: Mutex<Option<Instant>>,
    relay: OnceLock<Attached>,
    sender: UnboundedSender<HotEvent>,
    receiver: Mutex<Option<UnboundedReceiver<HotEvent>>>,
}

/// What the relay at the other end says about itself.
struct Attached {
    table: Arc<str>,
    lock_ttl: Duration,
    /// Locks the rows that are born for it.
    token: Token,
    open: AtomicBool,
    telemetry: Telemetry,
}

impl Default for HotPath {
    fn default() -> Self {
        Self::new()
    }
}

impl HotPath {
    /// A path for at most 1000 events and 16 MiB.
    pub fn new() -> Self {
        Self::bounded(CAPACITY, MAX_BYTES)
    }

    /// A path for at most so many events and bytes.
    pub fn bounded(events: usize, bytes: usize) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self(Arc::new(Gate {
            capacity: events,
            max_bytes: bytes,
            allow_asynchronous: false,
            used: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            warned: Mutex::new(None),
            relay: OnceLock::new(),
            sender,
            receiver: Mutex::new(Some(receiver)),
        }))
    }

    /// Also takes events whose transaction commits asynchronously (`synchronous_commit = off`): a crash of the server
    /// may then take back what was handled already. Without this they go the way over the table.
    ///
    /// To be called before the path is given to anybody.
    #[must_use]
    pub fn allow_asynchronous_commit(mut self) -> Self {
        if let Some(gate) = Arc::get_mut(&mut self.0) {
            gate.allow_asynchronous = true;
        }
        self
    }

    /// How many more events it would take now; none before a relay has looked at its table, when it is stopping, while the table is
    /// paused, or where order is kept.
    pub fn remaining(&self) -> usize {
        if self.attached().is_none() {
            return 0;
        }
        self.0.capacity.saturating_sub(self.0.used.load(Ordering::Relaxed))
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn allows_asynchronous(&self) -> bool {
        self.0.allow_asynchronous
    }

    fn attached(&self) -> Option<&Attached> {
        self.0.relay.get().filter(|relay| relay.open.load(Ordering::Acquire))
    }

    /// The token that rows are born with; none if there is nobody to handle them.
    pub(crate) fn token(&self) -> Option<Token> {
        self.attached().map(|relay| relay.token.clone())
    }

    /// A place for an event of so many bytes. An event that is larger than all the room there is has none either.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Slot> {
        let relay = self.attached()?;
        let gate = &self.0;
        let slot = Slot { gate: Arc::clone(gate), bytes };
        let used = gate.used.fetch_add(1, Ordering::Relaxed);
        let total = gate.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used < gate.capacity && total <= gate.max_bytes {
            return Some(slot);
        }
        drop(slot);
        relay.telemetry.hot_dropped();
        let mut warned = gate.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
            *warned = Some(Instant::now());
            tracing::warn!(
                table = &*relay.table,
                capacity = gate.capacity,
                "the hot queue is full: events go the way over the table"
            );
        }
        None
    }

    /// Hands committed events over.
    pub(crate) fn admit(&self, events: impl Iterator<Item = (Born, Record, i64)>) {
        let Some(relay) = self.0.relay.get() else { return };
        let mut in_time = 0;
        for (Born { row, at, slot, durable }, record, sequence) in events {
            let late = !durable || at.elapsed() > relay.lock_ttl / 2;
            in_time += usize::from(!late);
            let lease = Lease {
                row,
                attempts: 1,
                token: relay.token.clone(),
                since: OffsetDateTime::now_utc() - at.elapsed(),
            };
            let delivery = delivery(record, sequence, Arc::clone(&relay.table), lease.since);
            // A relay that has stopped takes nothing: the lease runs out then.
            let _ = self.0.sender.send(HotEvent { lease, delivery, born: at, late, slot });
        }
        relay.telemetry.hot_enqueued(in_time);
    }

    /// Makes a relay the one that handles what comes; only the first can be.
    pub(crate) fn attach(&self, table: &str, lock_ttl: Duration, telemetry: &Telemetry) -> Option<HotEnd> {
        let receiver = self.0.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let token = format!("hot/{}", Uuid::now_v7().simple()).into();
        let attached = Attached {
            table: table.into(),
            lock_ttl,
            token,
            open: AtomicBool::new(false),
            telemetry: telemetry.clone(),
        };
        self.0.relay.set(attached).ok()?;
        Some(HotEnd { path: self.clone(), receiver })
    }
}

impl fmt::Debug for HotPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotPath").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

/// What the relay holds of the path.
#[derive(Debug)]
pub(crate) struct HotEnd {
    path: HotPath,
    pub(crate) receiver: UnboundedReceiver<HotEvent>,
}

impl HotEnd {
    /// Whether rows are born leased from now on.
    pub(crate) fn open(&self, open: bool) {
        if let Some(relay) = self.path.0.relay.get() {
            relay.open.store(open, Ordering::Release);
        }
    }

    /// How many places are taken.
    pub(crate) fn used(&self) -> usize {
        self.path.0.used.load(Ordering::Relaxed)
    }
}

impl Drop for HotEnd {
    fn drop(&mut self) {
        self.open(false);
    }
}

/// A place on the path, free again when it is dropped.
pub(crate) struct Slot {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gate.used.fetch_sub(1, Ordering::Relaxed);
        self.gate.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} bytes)", self.bytes)
    }
}

/// Places for the events of one enqueue, as far as there are any.
pub(crate) struct Places {
    token: Token,
    leased: Vec<bool>,
    slots: Vec<Option<Slot>>,
    at: Instant,
}

impl Places {
    /// None, if not one event has a place.
    pub(crate) fn reserve(path: &HotPath, records: &[Record]) -> Option<Self> {
        let token = path.token()?;
        let slot = |record: &Record| match record.available {
            Availability::Now => path.reserve(record.payload.len()),
            Availability::At(_) | Availability::After(_) => None,
        };
        let slots: Vec<Option<Slot>> = records.iter().map(slot).collect();
        let leased: Vec<bool> = slots.iter().map(Option::is_some).collect();
        let some = leased.contains(&true);
        some.then(|| Self { token, leased, slots, at: Instant::now() })
    }

    pub(crate) fn birth(&self) -> Birth<'_> {
        Birth { token: &self.token, leased: &self.leased }
    }

    /// The row of a record that was written; where it was not leased after all, its place is free again.
    pub(crate) fn born(&mut self, record: usize, row: Option<Uuid>) -> Option<Born> {
        let slot = self.slots.get_mut(record)?.take()?;
        Some(Born { row: row?, at: self.at, slot, durable: true })
    }
}

/// A row that was born leased, until it is known whether it exists.
#[derive(Debug)]
pub(crate) struct Born {
    pub(crate) row: Uuid,
    /// Before it was written: the lease is not older.
    pub(crate) at: Instant,
    pub(crate) slot: Slot,
    /// Whether its commit survives a crash of the server.
    pub(crate) durable: bool,
}

/// An event that was committed, on its way to its handlers.
#[derive(Debug)]
pub(crate) struct HotEvent {
    pub(crate) lease: Lease,
    pub(crate) delivery: Delivery,
    pub(crate) born: Instant,
    /// Too late to be handled here with a good part of its lease left: it goes back.
    pub(crate) late: bool,
    pub(crate) slot: Slot,
}

/// The event as a claim would have read it.
fn delivery(record: Record, sequence: i64, table: Arc<str>, created_at: OffsetDateTime) -> Delivery {
    let record = record.into_fields();
    Delivery {
        meta: Meta {
            table,
            event_id: record.event_id,
            tenant_id: record.tenant_id,
            topic: record.topic,
            sequence,
            attempts: 1,
            aggregate: record.aggregate,
            headers: record.headers,
            occurred_at: record.occurred_at,
            created_at,
            schema_id: record.schema_id,
            schema_version: record.schema_version,
            routing_key: record.routing_key,
            metadata: record.metadata,
            traceparent: record.traceparent,
            tracestate: record.tracestate,
        },
        payload: record.payload,
        destination: None,
    }
}

/// Any event, with any lease.
#[cfg(test)]
pub(crate) fn delivery_for_tests() -> (Lease, Delivery) {
    use crate::record::IntoRecord as _;
    let topic = crate::Topic::from_static("shop.order.placed.v1");
    let record = Record::builder(topic).json(&1).into_record(&crate::RecordDefaults::default()).unwrap();
    let since = OffsetDateTime::UNIX_EPOCH;
    let lease = Lease { row: Uuid::now_v7(), attempts: 1, token: "t".into(), since };
    (lease, delivery(record, 1, "shop_outbox".into(), since))
}

#[cfg(test)]
mod tests;
