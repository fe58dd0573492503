//! ② Enqueue: events are written in the caller's own transaction, or not at all.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::code::Code;
use crate::event::{EventError, EventId, Limits, RecordDefaults, TenantId};
use crate::hook::{After, Hooks, WriterHook, Written};
use crate::hot::{HotPath, Places};
use crate::inbox::Inbox;
use crate::journal::Hot;
use crate::record::{IntoRecord, Record};
use crate::table::TableName;
use crate::telemetry::Telemetry;
use crate::transaction::{Driver, OutboxPool, OutboxTransaction};
use crate::tx::{Birth, Enqueued, Inserted, Insertion, Layout, OutboxTable, OutboxTx, Receipt};
use crate::uow::UnitOfWork;

/// The writing side of one outbox table. Cheap to clone; holds no connection.
///
/// ```
/// # use postbox_core::{Event, Outbox, OutboxTx};
/// # async fn enqueue<D, T: OutboxTx<D>>(tx: T, created: impl Event) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::new("public.org_outbox".parse()?);
/// // In the transaction that wrote the organization; with sqlx, `tx` is `&mut tx`.
/// let receipt = outbox.enqueue(tx, created).await?;
/// println!("{} exists once the transaction commits", receipt.event_id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "an outbox does nothing until events are enqueued"]
pub struct Outbox {
    table: Arc<OutboxTable>,
    defaults: RecordDefaults,
    telemetry: Telemetry,
    hooks: Hooks,
    hot: Option<HotPath>,
}

impl Outbox {
    /// The outbox of a migrated table.
    pub fn new(table: TableName) -> Self {
        Self::with_layout(table, Layout::Full)
    }

    /// The outbox of a table that has only the twelve standard columns; events that need more are refused.
    pub fn bare(table: TableName) -> Self {
        Self::with_layout(table, Layout::Bare)
    }

    fn with_layout(name: TableName, layout: Layout) -> Self {
        let telemetry = Telemetry::new("outbox", &name.to_string(), crate::telemetry::DEFAULT_TOPIC_LABELS);
        Self {
            table: Arc::new(OutboxTable { name, layout, prepared: true, wakes: true }),
            defaults: RecordDefaults::default(),
            telemetry,
            hooks: Hooks::default(),
            hot: None,
        }
    }

    /// The same for a table with other columns.
    pub(crate) fn with(mut self, layout: Layout) -> Self {
        self.table = Arc::new(OutboxTable { layout, ..(*self.table).clone() });
        self
    }

    /// Keeps no statement prepared: for writers behind a transaction pooler that does not know prepared statements (PgBouncer
    /// before 1.21, or without `max_prepared_statements`). Costs one more round trip for each call.
    pub fn unprepared(mut self) -> Self {
        self.table = Arc::new(OutboxTable { prepared: false, ..(*self.table).clone() });
        self
    }

    /// Wakes no relay: events are found when one looks again, at its `poll_interval`. For writers that prepare their transactions
    /// (two-phase commit), which PostgreSQL refuses after a NOTIFY.
    pub fn quiet(mut self) -> Self {
        self.table = Arc::new(OutboxTable { wakes: false, ..(*self.table).clone() });
        self
    }

    /// The tenant of events that name none.
    pub fn default_tenant(mut self, tenant: impl Into<TenantId>) -> Self {
        self.defaults.tenant_id = tenant.into();
        self
    }

    /// Other limits than the usual ones.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.defaults.limits = limits;
        self
    }

    /// Metrics under another prefix than `outbox`.
    pub fn metrics_prefix(mut self, prefix: &str) -> Self {
        self.telemetry = self.telemetry.with_prefix(prefix);
        self
    }

    /// The name of the database, where a process works on several: a label of its metrics.
    pub fn database(mut self, name: &str) -> Self {
        self.telemetry = self.telemetry.with_database(name);
        self
    }

    /// Adds a hook. Hooks run in the order in which they were added.
    pub fn hook(mut self, hook: impl WriterHook) -> Self {
        self.hooks.add(hook);
        self
    }

    /// Has events handled right after their commit by a relay of this process that has the other end of this path.
    ///
    /// It is for events that are due at once, in transactions that [`begin`](Self::begin) opened. All others, and those
    /// that find the path full, go the way over the table.
    pub fn hot(mut self, path: &HotPath) -> Self {
        self.hot = Some(path.clone());
        self
    }

    /// The inbox of the same module, for messages that arrive: `<module>_inbox`, which `postbox migrate up --inbox` makes.
    pub fn inbox(&self) -> Inbox {
        Inbox::beside(self.table.name.clone(), self.table.prepared, &self.telemetry)
    }

    /// The table's name.
    pub fn table(&self) -> &TableName {
        &self.table.name
    }

    /// Writes one event in the caller's transaction. It exists if and only if that transaction commits.
    ///
    /// A repeated `event_id` writes nothing and answers [`Duplicate`](crate::Enqueued::Duplicate); an event that a hook
    /// took out answers [`Suppressed`](crate::Enqueued::Suppressed).
    ///
    /// # Errors
    /// When the event breaks a limit or a hook fails (nothing was sent), or the database refuses it (the transaction is
    /// then aborted, as after any failed statement).
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call leaves the statement's result unknown. Roll the transaction back.
    pub async fn enqueue<D, T: OutboxTx<D>>(
        &self,
        mut tx: T,
        event: impl IntoRecord,
    ) -> Result<Receipt, EnqueueError<T::Error>> {
        if !tx.is_open() {
            return Err(EnqueueError::NoTransaction);
        }
        let record = event.into_record(&self.defaults)?;
        let receipts = if self.is_plain() {
            self.insert(tx, std::slice::from_ref(&record)).await?
        } else {
            self.write(tx, vec![record]).await?
        };
        receipts.into_iter().next().ok_or(EnqueueError::NoReceipt)
    }

    /// Writes any number of events, in one round trip per chunk; one receipt each, in order.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); if one event is refused, none is sent.
    ///
    /// # Cancel safety
    /// As [`enqueue`](Self::enqueue).
    pub async fn enqueue_all<D, T: OutboxTx<D>, E: IntoRecord>(
        &self,
        mut tx: T,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<Receipt>, EnqueueError<T::Error>> {
        if !tx.is_open() {
            return Err(EnqueueError::NoTransaction);
        }
        let records = events
            .into_iter()
            .map(|event| event.into_record(&self.defaults))
            .collect::<Result<Vec<Record>, EventError>>()?;
        if records.is_empty() {
            return Ok(Vec::new());
        }
        if self.is_plain() { self.insert(tx, &records).await } else { self.write(tx, records).await }
    }

    /// Whether nobody has to hear of what is written.
    fn is_plain(&self) -> bool {
        self.hooks.is_empty() && self.hot.is_none()
    }

    /// Begins a transaction that knows how it ends, so that after-commit hooks run and hot events are handled. It derefs to
    /// the driver's own.
    ///
    /// On SQLite it holds the write lock from the start (`BEGIN IMMEDIATE`).
    ///
    /// # Errors
    /// As the driver.
    ///
    /// # Cancel safety
    /// As the driver's own `begin`; with sqlx, dropping it is safe.
    pub async fn begin<D: Driver>(&self, pool: impl OutboxPool<D>) -> Result<OutboxTransaction<D>, D::Error> {
        Ok(OutboxTransaction::new(pool.begin().await?))
    }

    /// Begins a unit of work: a transaction that enqueues the events of the aggregates it tracks when it commits.
    ///
    /// # Errors
    /// As the driver.
    ///
    /// # Cancel safety
    /// As [`begin`](Self::begin).
    pub async fn unit_of_work<'a, D: Driver>(
        &self,
        pool: impl OutboxPool<D>,
    ) -> Result<UnitOfWork<'a, D>, D::Error> {
        Ok(UnitOfWork::new(self.clone(), self.begin(pool).await?))
    }

    /// Writes events between their hooks.
    async fn write<D, T: OutboxTx<D>>(
        &self,
        tx: T,
        mut records: Vec<Record>,
    ) -> Result<Vec<Receipt>, EnqueueError<T::Error>> {
        let asked: Vec<EventId> = records.iter().map(|record| record.event_id).collect();
        self.hooks.before(&mut records).await.map_err(|error| EnqueueError::Hook(error.into_inner()))?;
        let limits = &self.defaults.limits;
        let records = records
            .into_iter()
            .map(|record| record.checked(limits))
            .collect::<Result<Vec<Record>, EventError>>()?;
        let journal = tx.journal();
        let mut places = match (&journal, &self.hot, self.table.layout) {
            (Some(_), Some(path), Layout::Full) => Places::reserve(path, &records),
            _ => None,
        };
        let birth = places.as_ref().map(Places::birth);
        let inserted =
            if records.is_empty() { Vec::new() } else { self.insert_with(tx, &records, birth).await? };
        let receipts: Vec<Receipt> = inserted.iter().map(|inserted| inserted.receipt).collect();
        let answer = answer(asked, &receipts);
        let mut written = Vec::with_capacity(records.len());
        let mut hot = Hot { path: self.hot.clone(), ..Hot::default() };
        for (place, (record, inserted)) in records.into_iter().zip(inserted).enumerate() {
            let Enqueued::Written(sequence) = inserted.receipt.enqueued else { continue };
            let born = places.as_mut().and_then(|places| places.born(place, inserted.leased));
            hot.born.extend(born.map(|born| (record.event_id, born)));
            written.push(Written { record, sequence });
        }
        if !written.is_empty() {
            // First of all: whatever happens to this call from here on, the transaction knows what it has written.
            if let Some(journal) = &journal {
                journal.written_again(&self.table, &written);
            }
            match journal {
                Some(journal) if self.hooks.is_empty() && !hot.born.is_empty() => {
                    journal.note(&self.table, &self.hooks, written, hot);
                    return Ok(answer);
                }
                Some(journal) if !self.hooks.is_empty() => {
                    journal.note(&self.table, &self.hooks, written.clone(), hot);
                }
                _ => {}
            }
            self.hooks.after(After::Write, &self.table.name.to_string(), &written).await;
        }
        Ok(answer)
    }

    async fn insert<D, T: OutboxTx<D>>(
        &self,
        tx: T,
        records: &[Record],
    ) -> Result<Vec<Receipt>, EnqueueError<T::Error>> {
        let inserted = self.insert_with(tx, records, None).await?;
        Ok(inserted.into_iter().map(|inserted| inserted.receipt).collect())
    }

    async fn insert_with<D, T: OutboxTx<D>>(
        &self,
        tx: T,
        records: &[Record],
        birth: Option<Birth<'_>>,
    ) -> Result<Vec<Inserted>, EnqueueError<T::Error>> {
        if self.table.layout == Layout::Bare {
            records.iter().try_for_each(fits_bare)?;
        }
        let insertion = Insertion { table: &self.table, records, birth };
        let inserted = tx.insert(insertion).await.map_err(EnqueueError::Database)?;
        for record in records {
            self.telemetry.enqueued(&record.topic);
        }
        Ok(inserted)
    }
}

/// A receipt for each event that the caller gave, whatever hooks have made of the list.
fn answer(asked: Vec<EventId>, receipts: &[Receipt]) -> Vec<Receipt> {
    if asked.iter().eq(receipts.iter().map(|receipt| &receipt.event_id)) {
        return receipts.to_vec();
    }
    let mut by_event: HashMap<EventId, VecDeque<Receipt>> = HashMap::new();
    for receipt in receipts {
        by_event.entry(receipt.event_id).or_default().push_back(*receipt);
    }
    let of = |event_id| {
        let receipt = by_event.get_mut(&event_id).and_then(VecDeque::pop_front);
        receipt.unwrap_or(Receipt { event_id, enqueued: Enqueued::Suppressed })
    };
    asked.into_iter().map(of).collect()
}

/// A bare table has no place for these: refusing is better than losing them without a word. Trace context is
/// dropped, as the seed's own tables do.
fn fits_bare(record: &Record) -> Result<(), EventError> {
    let extra = [
        ("aggregate", record.aggregate.is_some()),
        ("headers", !record.headers.is_empty()),
        ("schema_id", record.schema_id.is_some()),
        ("routing_key", record.routing_key.is_some()),
        ("metadata", record.metadata.is_some()),
        ("payload_raw", matches!(record.payload, crate::Payload::Bytes { .. })),
    ];
    match extra.into_iter().find(|(_, needed)| *needed) {
        Some((field, _)) => Err(EventError::NoColumn { field }),
        None => Ok(()),
    }
}

/// Why an event was not enqueued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError<E: std::error::Error + 'static> {
    /// The event breaks a limit; nothing was sent to the database.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A hook failed; nothing was sent to the database.
    #[error("{}: a hook refused the events", Code::HookFailed)]
    Hook(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database refused it.
    #[error("the event could not be written")]
    Database(#[source] E),
    /// No transaction is open on the connection; nothing was sent to the database. Most drivers have a type of their own for
    /// transactions, and this cannot happen.
    #[error(
        "{}: an event must be written in the transaction that writes your data, and none is open",
        Code::NoTransaction
    )]
    NoTransaction,
    /// The store answered without a receipt, which its contract forbids.
    #[error("the store gave no receipt")]
    NoReceipt,
}

impl<E: std::error::Error + 'static> EnqueueError<E> {
    /// The same with the database's error as another type.
    pub fn map_database<F: std::error::Error + 'static>(
        self,
        change: impl FnOnce(E) -> F,
    ) -> EnqueueError<F> {
        match self {
            Self::Event(error) => EnqueueError::Event(error),
            Self::Hook(error) => EnqueueError::Hook(error),
            Self::Database(error) => EnqueueError::Database(change(error)),
            Self::NoTransaction => EnqueueError::NoTransaction,
            Self::NoReceipt => EnqueueError::NoReceipt,
        }
    }
}
