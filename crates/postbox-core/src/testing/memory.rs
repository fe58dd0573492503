//! [`MemoryOutbox`]: an outbox table in memory, with transactions.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use time::OffsetDateTime;
use tokio::sync::Notify;
use uuid::Uuid;

use super::clock::FakeClock;
use super::drain::Tried;
use super::inbox::Memories;
use crate::event::{Availability, EventId, Payload, TenantId};
use crate::outbox::Outbox;
use crate::receive::Receive;
use crate::record::Record;
use crate::redact::Summary;
use crate::store::{Order, Token};
use crate::table::TableName;
use crate::transaction::{CommitError, Driver, Guarded, OutboxPool, OutboxTransaction};
use crate::tx::{Enqueued, Inserted, Insertion, OutboxTable, OutboxTx, Receipt};

/// An outbox whose table is in memory: for tests of code that enqueues and of code that handles. Clones share the table.
///
/// It is an [`Outbox`] (it derefs to it), so code under test takes it as one, and a pool for
/// [`Outbox::begin`](crate::Outbox::begin). Relays run on its [`store`](Self::store), most easily by
/// [`drain`](Self::drain).
#[derive(Debug, Clone)]
pub struct MemoryOutbox {
    outbox: Outbox,
    pub(super) table: Table,
}

impl MemoryOutbox {
    /// An empty table, `test_outbox`.
    #[allow(clippy::expect_used, clippy::missing_panics_doc, reason = "a name that does parse")]
    pub fn new() -> Self {
        let name: TableName = "test_outbox".parse().expect("a table name");
        Self::of(Outbox::new(name))
    }

    /// An empty table for an outbox with hooks, limits or a tenant of its own.
    pub fn of(outbox: Outbox) -> Self {
        let name = Arc::from(outbox.table().to_string());
        let clock = FakeClock::new();
        let (content, changed, order, tenants) = (Arc::default(), Arc::default(), Order::None, Vec::new());
        Self { outbox, table: Table { name, clock, content, changed, order, tenants } }
    }

    /// Relays of this table deliver in this order. Relays of clones that were made before are not told.
    #[must_use]
    pub fn ordered(mut self, order: Order) -> Self {
        self.table.order = order;
        self
    }

    /// The clock of the "database": delays, retries and leases go by it.
    pub fn clock(&self) -> &FakeClock {
        &self.table.clock
    }

    /// Opens a transaction. Its events are there when it has committed.
    ///
    /// # Errors
    /// Never; the signature is that of a real pool.
    ///
    /// # Cancel safety
    /// Does not wait for anything.
    pub async fn begin(&self) -> Result<OutboxTransaction<Memory>, MemoryError> {
        self.outbox.begin(self).await
    }

    /// The events that were committed, in order.
    pub fn records(&self) -> Vec<Record> {
        self.table.lock().rows.iter().map(|row| row.record.clone()).collect()
    }

    /// The events of one type, or of an enum of them, that were committed, in order.
    ///
    /// # Panics
    /// When the payload of one does not have the type's shape.
    pub fn events<E: Receive>(&self) -> Vec<E> {
        let of_type = |record: &Record| {
            if !E::TOPICS.contains(&record.topic) {
                return None;
            }
            let Payload::Json(json) = &record.payload else { panic!("{} has no JSON payload", record.topic) };
            let event = E::receive(&record.topic, json);
            Some(event.unwrap_or_else(|error| panic!("{error}; the payload is {}", json.as_str())))
        };
        self.records().iter().filter_map(of_type).collect()
    }

    /// Events of transactions that are still open.
    pub fn uncommitted(&self) -> usize {
        self.table.lock().uncommitted
    }

    /// The next enqueue fails as a database would fail it, and the transaction with it.
    pub fn fail_next_write(&self) {
        self.table.lock().trouble.write = true;
    }

    /// The next commit is refused and rolled back.
    pub fn fail_next_commit(&self) {
        self.table.lock().trouble.commit = true;
    }

    /// The next commit happens, but its answer is lost.
    pub fn lose_next_commit(&self) {
        self.table.lock().trouble.answer = true;
    }
}

impl Default for MemoryOutbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for MemoryOutbox {
    type Target = Outbox;
    fn deref(&self) -> &Outbox {
        &self.outbox
    }
}

/// The table itself.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) name: Arc<str>,
    pub(super) clock: FakeClock,
    content: Arc<Mutex<Content>>,
    pub(super) changed: Arc<Notify>,
    /// In what order a relay on it delivers.
    pub(super) order: Order,
    /// Whose events it delivers; everybody's, if it is empty.
    pub(super) tenants: Vec<TenantId>,
}

#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) rows: Vec<Row>,
    ids: HashMap<EventId, i64>,
    last_sequence: i64,
    uncommitted: usize,
    trouble: Trouble,
    /// What an inbox has seen: committed, or by a transaction that is open.
    pub(super) inbox: Memories,
    last_transaction: u64,
    /// What was settled since the drain under way began.
    pub(super) tried: Vec<Tried>,
    /// The drain under way, and how many there were: no event is tried twice in one.
    pub(super) drain: Option<u64>,
    pub(super) drains: u64,
}

#[derive(Debug, Default)]
struct Trouble {
    write: bool,
    commit: bool,
    answer: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) id: Uuid,
    pub(super) record: Record,
    pub(super) sequence: i64,
    pub(super) created_at: OffsetDateTime,
    pub(super) available_at: OffsetDateTime,
    pub(super) attempts: i32,
    pub(super) lock: Option<(Token, OffsetDateTime)>,
    pub(super) state: State,
    pub(super) drained_in: Option<u64>,
    /// The sinks that have confirmed it.
    pub(super) sinks_done: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Waits,
    Published,
    Dead(Summary),
}

impl Table {
    pub(super) fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks transactions of a [`MemoryOutbox`] as a driver of the outbox.
#[derive(Debug)]
pub struct Memory;

/// An open transaction of a [`MemoryOutbox`]; dropped, it is rolled back.
#[derive(Debug)]
pub struct MemoryTransaction {
    pub(super) table: Table,
    pub(super) number: u64,
    staged: Vec<Row>,
    pub(super) failed: bool,
}

/// What a [`MemoryOutbox`] was told to fail with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(&'static str);

/// Of a transaction in which something failed before.
pub(super) const FAILED: MemoryError = MemoryError("the transaction has failed");

impl MemoryTransaction {
    fn write(&mut self, records: &[Record]) -> Result<Vec<Receipt>, MemoryError> {
        let mut rows = self.table.lock();
        if std::mem::take(&mut rows.trouble.write) {
            self.failed = true;
        }
        if self.failed {
            return Err(FAILED);
        }
        let now = self.table.clock.now();
        let mut receipts = Vec::with_capacity(records.len());
        for record in records {
            let event_id = record.event_id;
            let staged = self.staged.iter().find(|row| row.record.event_id == event_id);
            let known = rows.ids.get(&event_id).copied().or(staged.map(|row| row.sequence));
            let enqueued = known.map_or_else(
                || {
                    rows.last_sequence += 1;
                    rows.uncommitted += 1;
                    Enqueued::Written(rows.last_sequence)
                },
                Enqueued::Duplicate,
            );
            if let Enqueued::Written(sequence) = enqueued {
                let available_at = match record.available {
                    Availability::Now => now,
                    Availability::At(at) => at,
                    Availability::After(delay) => now + delay,
                };
                self.staged.push(Row {
                    id: Uuid::now_v7(),
                    record: record.clone(),
                    sequence,
                    created_at: now,
                    available_at,
                    attempts: 0,
                    lock: None,
                    state: State::Waits,
                    drained_in: None,
                    sinks_done: Vec::new(),
                });
            }
            receipts.push(Receipt { event_id, enqueued });
        }
        Ok(receipts)
    }

    /// Takes back what was written last, as `ROLLBACK TO SAVEPOINT` does behind the outbox's back.
    #[cfg(test)]
    pub(crate) fn take_back_last(&mut self) {
        if self.staged.pop().is_some() {
            self.table.lock().uncommitted -= 1;
        }
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        let mut rows = self.table.lock();
        rows.uncommitted -= self.staged.len();
        if rows.inbox.roll_back(self.number) {
            drop(rows);
            self.table.changed.notify_waiters();
        }
    }
}

#[diagnostic::do_not_recommend]
impl OutboxTx<Memory> for &mut MemoryTransaction {
    type Error = MemoryError;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, MemoryError> {
        <Memory as Driver>::insert(self, insertion).await
    }
}

#[diagnostic::do_not_recommend]
impl OutboxPool<Memory> for &MemoryOutbox {
    async fn begin(self) -> Result<MemoryTransaction, MemoryError> {
        let mut content = self.table.lock();
        content.last_transaction += 1;
        let number = content.last_transaction;
        drop(content);
        Ok(MemoryTransaction { table: self.table.clone(), number, staged: Vec::new(), failed: false })
    }
}

impl Driver for Memory {
    type Transaction = MemoryTransaction;
    type Error = MemoryError;

    async fn insert(
        tx: &mut MemoryTransaction,
        insertion: Insertion<'_>,
    ) -> Result<Vec<Inserted>, MemoryError> {
        // Never leased: whoever drains this table wants to see all of it.
        Ok(tx.write(insertion.records)?.into_iter().map(Inserted::from).collect())
    }

    async fn guard(
        tx: &mut MemoryTransaction,
        _: &OutboxTable,
        rows: &[(EventId, i64)],
    ) -> Result<Guarded, MemoryError> {
        if tx.failed {
            return Err(FAILED);
        }
        let there = |wanted: &(EventId, i64)| {
            tx.staged.iter().any(|row| (row.record.event_id, row.sequence) == *wanted)
        };
        let missing = rows.iter().filter(|row| !there(row)).map(|(event, _)| *event).collect();
        Ok(Guarded { missing, durable: true })
    }

    async fn commit(mut tx: MemoryTransaction) -> Result<(), CommitError<MemoryError>> {
        let mut rows = tx.table.lock();
        if std::mem::take(&mut rows.trouble.commit) || tx.failed {
            drop(rows);
            return Err(CommitError::RolledBack(MemoryError("the commit was refused")));
        }
        let lost = std::mem::take(&mut rows.trouble.answer);
        let staged = std::mem::take(&mut tx.staged);
        rows.uncommitted -= staged.len();
        rows.inbox.commit(tx.number);
        for row in staged {
            // Of two transactions with the same event, the first one that commits has written it.
            let first = *rows.ids.entry(row.record.event_id).or_insert(row.sequence);
            if first == row.sequence {
                rows.rows.push(row);
            }
        }
        drop(rows);
        tx.table.changed.notify_waiters();
        if lost { Err(CommitError::Unknown(MemoryError("the answer was lost"))) } else { Ok(()) }
    }

    async fn rollback(_: MemoryTransaction) -> Result<(), MemoryError> {
        Ok(())
    }
}
