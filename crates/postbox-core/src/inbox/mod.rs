//! [`Inbox`]: the receiving side's memory of what it has worked on, so that a message that comes again has no effect again.
//!
//! [`message`](MessageId) is how a message is known, [`retention`](InboxRetention) how long it is remembered,
//! [`admin`](InboxAdmin) what operators see of it.

mod admin;
mod message;
mod name;
mod retention;
mod tx;

pub use admin::{InboxAdmin, InboxEntry, InboxFilter, InboxKey, InboxKeyError, InboxPage, InboxRequest};
pub use message::{MessageId, MessageIdError};
pub use name::{ConsumerName, ConsumerNameError};
pub use retention::{InboxRetention, InboxRetentionError};
pub use tx::{InboxDriver, InboxTable, InboxTrouble, InboxTx, Recording};

use std::collections::HashSet;
use std::sync::Arc;

use crate::code::Code;
use crate::table::TableName;
use crate::telemetry::{DEFAULT_TOPIC_LABELS, Telemetry};

/// The inbox of a module: `<module>_inbox` beside `<module>_outbox`. Cheap to clone; holds no connection.
///
/// Record a message in the transaction that has its effect. Of all that record the same message for the same consumer, one is
/// told [`Seen::First`], and only that one goes on:
///
/// ```
/// # use postbox_core::{ConsumerName, Event, EventId, Inbox, Outbox, Seen, Topic, testing::MemoryOutbox};
/// # #[derive(serde::Serialize)]
/// # struct StockReduced { order_id: i64 }
/// # impl Event for StockReduced { const TOPIC: Topic = Topic::from_static("stock.item.reduced.v1"); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = MemoryOutbox::new();
/// # let event_id = EventId::new();
/// static STOCK: ConsumerName = ConsumerName::from_static("stock"); // checked when it is compiled
///
/// let outbox = Outbox::new("stock_outbox".parse()?);
/// let inbox = outbox.inbox(); // the table stock_inbox
///
/// # for _ in 0..2 {
/// // For each message that arrives, as often as it does:
/// let mut tx = outbox.begin(&pool).await?;
/// match inbox.record(&mut tx, &STOCK, event_id).await? {
///     Seen::First => {
///         // … reduce the stock …
///         outbox.enqueue(&mut tx, StockReduced { order_id: 7 }).await?;
///         tx.commit().await?; // the effect, the memory of it and the next event: all of them, or none
///     }
///     Seen::Before => tx.rollback().await?,
/// }
/// // Acknowledge the message now, not before.
/// # }
/// # assert_eq!(pool.records().len(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Those that race
///
/// Who records a message while another's transaction with it is open waits for that one's end. After its commit it is told
/// `Before`, after its rollback `First`. So keep such transactions short, and give the database a `lock_timeout` where a
/// consumer may hang.
///
/// On PostgreSQL this is so under READ COMMITTED, the default. Under REPEATABLE READ and SERIALIZABLE the one that waited gets
/// [`RecordError::Conflict`] instead: do the whole transaction again. On SQLite begin with the write lock, as
/// [`Outbox::begin`](crate::Outbox::begin) does.
///
/// # What it cannot do
///
/// It covers effects in its own database, those that commit with it. An e-mail that the handler sends is not taken back by
/// a rollback. And it only knows what it remembers: see [`InboxRetention`].
#[derive(Debug, Clone)]
#[must_use = "an inbox does nothing until messages are recorded"]
pub struct Inbox {
    table: Arc<InboxTable>,
    telemetry: Telemetry,
}

/// Whether a consumer has had a message before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a message that was seen before must have no effect"]
pub enum Seen {
    /// It is new: have its effect in this transaction.
    First,
    /// Its effect was committed, or is part of this transaction: have none.
    Before,
}

impl Seen {
    /// Whether the message is new.
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First)
    }
}

impl Inbox {
    /// The inbox of a module, by the name of its outbox table: `public.shop_outbox` has `public.shop_inbox`.
    pub fn new(outbox: TableName) -> Self {
        let table = InboxTable::new(outbox, true);
        let telemetry = Telemetry::new("outbox", &table.to_string(), DEFAULT_TOPIC_LABELS);
        Self { table: Arc::new(table), telemetry }
    }

    /// With the prefix and the database that the metrics of the outbox have.
    pub(crate) fn beside(outbox: TableName, prepared: bool, like: &Telemetry) -> Self {
        let table = InboxTable::new(outbox, prepared);
        let telemetry = like.with_table(&table.to_string());
        Self { table: Arc::new(table), telemetry }
    }

    /// Keeps no statement prepared; see [`Outbox::unprepared`](crate::Outbox::unprepared).
    pub fn unprepared(mut self) -> Self {
        self.table = Arc::new(InboxTable::new(self.table.outbox().clone(), false));
        self
    }

    /// Metrics under another prefix than `outbox`.
    pub fn metrics_prefix(mut self, prefix: &str) -> Self {
        self.telemetry = self.telemetry.with_prefix(prefix);
        self
    }

    /// The table.
    pub fn table(&self) -> &InboxTable {
        &self.table
    }

    /// Records a message for a consumer in the caller's transaction, and says whether it is the first time.
    ///
    /// The id is an [`EventId`](crate::EventId), a `Uuid`, or a [`MessageId`] made of what the broker's message has.
    ///
    /// # Errors
    /// When the database refuses it: [`RecordError`] tells what to do. The transaction is then aborted, as after any failed
    /// statement; nothing was recorded.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call leaves the statement's result unknown. Roll the transaction back.
    pub async fn record<D, T: InboxTx<D>>(
        &self,
        tx: T,
        consumer: &ConsumerName,
        message: impl Into<MessageId>,
    ) -> Result<Seen, RecordError<T::Error>> {
        let message = message.into();
        let new = self.write(tx, consumer, &[message.as_str()]).await?;
        let seen = if new.is_empty() { Seen::Before } else { Seen::First };
        self.telemetry.processed(consumer, usize::from(seen.is_first()), usize::from(!seen.is_first()));
        Ok(seen)
    }

    /// Records any number of messages in one statement; one answer each, in order. Of an id that is there twice the first is
    /// `First`, if it is new, and the other `Before`.
    ///
    /// Two transactions that record the same messages in one call each never wait for each other in a circle, whatever the order
    /// in which they have them: rows are written in the order of the ids. Several calls in one transaction can.
    ///
    /// ```
    /// # use postbox_core::{ConsumerName, EventId, Inbox, MessageId, Seen, testing::MemoryOutbox};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = MemoryOutbox::new();
    /// # let inbox = Inbox::new("stock_outbox".parse()?);
    /// let stock: ConsumerName = "stock".parse()?;
    /// let batch = [MessageId::new("order-1")?, MessageId::new("order-2")?, MessageId::new("order-1")?];
    /// let mut tx = pool.begin().await?;
    /// let seen = inbox.record_all(&mut tx, &stock, &batch).await?;
    /// assert_eq!(seen, [Seen::First, Seen::First, Seen::Before]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`record`](Self::record).
    ///
    /// # Cancel safety
    /// As [`record`](Self::record).
    pub async fn record_all<D, T: InboxTx<D>>(
        &self,
        tx: T,
        consumer: &ConsumerName,
        messages: &[MessageId],
    ) -> Result<Vec<Seen>, RecordError<T::Error>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut sorted: Vec<&str> = messages.iter().map(MessageId::as_str).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let new = self.write(tx, consumer, &sorted).await?;
        let mut new: HashSet<&str> = new.iter().map(String::as_str).collect();
        let first = new.len();
        let seen =
            |message: &MessageId| if new.remove(message.as_str()) { Seen::First } else { Seen::Before };
        let seen: Vec<Seen> = messages.iter().map(seen).collect();
        self.telemetry.processed(consumer, first, seen.len() - first);
        Ok(seen)
    }

    async fn write<D, T: InboxTx<D>>(
        &self,
        mut tx: T,
        consumer: &ConsumerName,
        messages: &[&str],
    ) -> Result<Vec<String>, RecordError<T::Error>> {
        if !tx.is_open() {
            return Err(RecordError::NoTransaction);
        }
        let recording = Recording { table: &self.table, consumer: consumer.as_str(), messages };
        tx.record(recording).await.map_err(|error| match T::trouble(&error) {
            InboxTrouble::Aborted => RecordError::Aborted(error),
            InboxTrouble::Conflict => RecordError::Conflict(error),
            InboxTrouble::Missing => {
                let (table, outbox) = (self.table.to_string(), self.table.outbox().to_string());
                RecordError::Missing { table, outbox, source: error }
            }
            InboxTrouble::Other => RecordError::Database(error),
        })
    }
}

/// Why a message was not recorded. The transaction cannot go on: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError<E: std::error::Error + 'static> {
    /// An earlier statement of the transaction failed, and its error was ignored.
    #[error(
        "{}: an earlier statement of this transaction failed, so that nothing more can be done in it; roll it back",
        Code::TransactionAborted
    )]
    Aborted(#[source] E),
    /// Another transaction got in the way: the same transaction, from its beginning, may work.
    #[error(
        "{}: another transaction with this message got in the way; roll back and do the whole transaction again",
        Code::TransactionConflict
    )]
    Conflict(#[source] E),
    /// There is no such table.
    #[error(
        "{}: {table} does not exist: make it with `postbox migrate up --inbox --table {outbox}`",
        Code::InboxMissing
    )]
    Missing {
        /// The inbox.
        table: String,
        /// The outbox of its module.
        outbox: String,
        /// The driver's error.
        source: E,
    },
    /// No transaction is open on the connection; nothing was sent to the database. Most drivers have a type of their own for
    /// transactions, and this cannot happen.
    #[error(
        "{}: a message must be recorded in the transaction that has its effect, and none is open",
        Code::NoTransaction
    )]
    NoTransaction,
    /// The database refused it for another reason.
    #[error("{}: the message could not be recorded", Code::DatabaseError)]
    Database(#[source] E),
}

impl<E: std::error::Error + 'static> RecordError<E> {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Aborted(_) => Code::TransactionAborted,
            Self::Conflict(_) => Code::TransactionConflict,
            Self::Missing { .. } => Code::InboxMissing,
            Self::NoTransaction => Code::NoTransaction,
            Self::Database(_) => Code::DatabaseError,
        }
    }

    /// Whether the whole transaction, done again, may work.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }
}
