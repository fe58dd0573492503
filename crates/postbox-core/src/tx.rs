//! [`OutboxTx`]: the caller's open transaction, whatever the driver.

use std::future::Future;

use uuid::Uuid;

use crate::event::EventId;
use crate::journal::Journal;
use crate::record::Record;
use crate::table::TableName;

/// An open transaction of some driver, into which events can be written.
///
/// Taken by value and implemented on borrows, so that drivers keep their own error types and a pool, which is not a
/// transaction, does not compile. `Driver` is a marker that each implementation brings along and that callers never
/// see: with it, a crate can implement this trait for the types of a driver, neither of which is its own.
///
/// # Errors
/// As the driver. The transaction cannot go on then: its caller rolls it back.
///
/// # Cancel safety
/// Not cancel safe: a dropped call leaves the statement's result unknown. Its caller rolls the transaction back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    label = "an event must be written in the transaction that writes your data",
    note = "begin one and pass `&mut tx`: an event that is written on its own connection can exist without your data, or \
            your data without it"
)]
pub trait OutboxTx<Driver>: Sized {
    /// The driver's error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Writes the records into the table; one answer each, in order. Repeated event ids write nothing.
    fn insert(
        self,
        insertion: Insertion<'_>,
    ) -> impl Future<Output = Result<Vec<Inserted>, Self::Error>> + Send;

    /// Whether a transaction is open. Always, unless the driver has one type for connections with and without: then nothing is
    /// written, and the caller is told.
    fn is_open(&mut self) -> bool {
        true
    }

    /// Where to note what was written, in a transaction that will know how it ended: the one that
    /// [`Outbox::begin`](crate::Outbox::begin) opened. None in a driver's own.
    fn journal(&self) -> Option<Journal> {
        None
    }
}

/// What to write.
#[derive(Debug, Clone, Copy)]
pub struct Insertion<'a> {
    /// Where to.
    pub table: &'a OutboxTable,
    /// The events.
    pub records: &'a [Record],
    /// Which rows are born leased, if any.
    pub birth: Option<Birth<'a>>,
}

/// Rows that are written with `locked_at` (the time of the statement, not of the transaction: hazard 4), `attempts = 1` and
/// this token, so that no relay claims them: their own process will handle them.
#[derive(Debug, Clone, Copy)]
pub struct Birth<'a> {
    /// Goes into `locked_by`.
    pub token: &'a str,
    /// For each record, whether its row is leased.
    pub leased: &'a [bool],
}

impl Insertion<'_> {
    /// Whether the row of this record, by its place, is born leased.
    pub fn is_leased(&self, record: usize) -> bool {
        self.birth.is_some_and(|birth| birth.leased.get(record).copied().unwrap_or(false))
    }
}

/// What was written for one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// What its writer is told.
    pub receipt: Receipt,
    /// The row as [`Lease::row`](crate::store::Lease::row) names it, if it was born leased.
    pub leased: Option<Uuid>,
}

impl From<Receipt> for Inserted {
    fn from(receipt: Receipt) -> Self {
        Self { receipt, leased: None }
    }
}

/// A table to write to, and what columns it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    /// Its name.
    pub name: TableName,
    /// Its columns.
    pub layout: Layout,
    /// Whether a driver may keep statements prepared on the session.
    pub prepared: bool,
    /// Whether a relay that sleeps hears of a commit, or finds what was written when it looks again.
    pub wakes: bool,
}

/// Which columns an outbox table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// All of them: what `postbox migrate up` makes.
    Full,
    /// Only the twelve standard ones.
    Bare,
}

/// What became of one enqueued event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The event.
    pub event_id: EventId,
    /// What was written.
    pub enqueued: Enqueued,
}

/// Whether an enqueue wrote a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// A new row with this sequence.
    Written(i64),
    /// Nothing: the event id is in the table already, with this sequence.
    Duplicate(i64),
    /// Nothing: a hook suppressed the event.
    Suppressed,
}

impl Receipt {
    /// The row's sequence, new or first; none for a suppressed event.
    pub fn sequence(&self) -> Option<i64> {
        match self.enqueued {
            Enqueued::Written(sequence) | Enqueued::Duplicate(sequence) => Some(sequence),
            Enqueued::Suppressed => None,
        }
    }
}
