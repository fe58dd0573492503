//! [`OutboxTransaction`]: a transaction that Postbox opened, and therefore knows the end of.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};

use crate::code::Code;
use crate::event::EventId;
use crate::hook::After;
use crate::journal::{InDoubt, Journal, Open};
use crate::tx::{Inserted, Insertion, OutboxTable, OutboxTx};

/// A pool on which [`Outbox::begin`](crate::Outbox::begin) can open a transaction. Implemented on borrows.
///
/// # Cancel safety
/// As the driver's own `begin`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a pool on which Postbox can begin a transaction",
    label = "pass a reference to your pool",
    note = "`outbox.begin(&pool)` takes a `&sqlx::PgPool`, a `&sqlx::MySqlPool` or a `&sqlx::SqlitePool`"
)]
pub trait OutboxPool<D: Driver> {
    /// Opens a transaction that can write at once.
    fn begin(self) -> impl Future<Output = Result<D::Transaction, D::Error>> + Send;
}

/// What Postbox has to be able to do with the transactions of a driver that it opens itself. Implemented on the marker
/// of the driver's [`OutboxTx`].
///
/// # Cancel safety
/// Not cancel safe, except [`rollback`](Self::rollback): a dropped statement has an unknown result, a dropped COMMIT may have happened.
pub trait Driver: Sized + 'static {
    /// An open transaction; dropped, it is rolled back.
    type Transaction: Send;
    /// The driver's error.
    type Error: Error + Send + Sync + 'static;

    /// As [`OutboxTx::insert`].
    fn insert(
        tx: &mut Self::Transaction,
        insertion: Insertion<'_>,
    ) -> impl Future<Output = Result<Vec<Inserted>, Self::Error>> + Send;

    /// Looks, before COMMIT, whether these rows, by event and sequence, are there as the transaction sees it. One
    /// statement. An error says that the transaction is not alive any more.
    fn guard(
        tx: &mut Self::Transaction,
        table: &OutboxTable,
        rows: &[(EventId, i64)],
    ) -> impl Future<Output = Result<Guarded, Self::Error>> + Send;

    /// Commits. The error says whether it is certain that nothing was committed.
    fn commit(tx: Self::Transaction) -> impl Future<Output = Result<(), CommitError<Self::Error>>> + Send;

    /// Rolls back.
    fn rollback(tx: Self::Transaction) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// What a look before COMMIT has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarded {
    /// Rows that are not there any more: somebody took them back.
    pub missing: Vec<EventId>,
    /// Whether this commit survives a crash of the server.
    pub durable: bool,
}

/// A transaction that [`Outbox::begin`](crate::Outbox::begin) opened. It is the driver's own transaction (it derefs to
/// it), and it tells the hooks of its outboxes how it ended.
///
/// ```
/// # use postbox_core::{Outbox, Record, Topic, testing::MemoryOutbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (outbox, pool) = (Outbox::new("shop_outbox".parse()?), &MemoryOutbox::new());
/// # let event = Record::builder(Topic::from_static("shop.order.placed.v1")).json(&7);
/// let mut tx = outbox.begin(pool).await?;
/// // … business writes; with sqlx, a statement of yours runs on `&mut **tx` …
/// outbox.enqueue(&mut tx, event).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// Enqueue with `&mut tx`. With `&mut *tx`, the driver's own transaction, an event is written just as well, but this one
/// does not hear of it, and after-commit hooks do not run for it.
///
/// Dropped without [`commit`](Self::commit), it is rolled back, and `after_rollback` runs in a task of the current
/// runtime; where there is none, a warning is logged instead.
#[must_use = "dropped, it is rolled back: end it with `commit`"]
pub struct OutboxTransaction<D: Driver> {
    // In this order: the driver's own goes first when both are dropped.
    tx: D::Transaction,
    open: Open,
}

impl<D: Driver> OutboxTransaction<D> {
    pub(crate) fn new(tx: D::Transaction) -> Self {
        Self { tx, open: Open::default() }
    }

    /// Begins a transaction as [`Outbox::begin`](crate::Outbox::begin) does, where no outbox is at hand.
    ///
    /// # Errors
    /// As the driver.
    ///
    /// # Cancel safety
    /// As the driver's own `begin`; with sqlx, dropping it is safe.
    pub async fn begin(pool: impl OutboxPool<D>) -> Result<Self, D::Error> {
        Ok(Self::new(pool.begin().await?))
    }

    /// Where to note what was written; for types that wrap it and implement [`OutboxTx`] themselves.
    pub fn journal(&self) -> Journal {
        self.open.0.clone()
    }

    /// Commits, hands hot events to their handlers, then runs `after_commit` of all hooks and waits for them (not for
    /// the handlers).
    ///
    /// Where hooks or the hot path wait for the end, one statement before COMMIT makes sure that their events are still
    /// there: an error that somebody ignored makes PostgreSQL answer COMMIT with a ROLLBACK that drivers report as success,
    /// and `ROLLBACK TO SAVEPOINT` takes rows back behind everybody's back. Without them that statement is saved.
    ///
    /// # Errors
    /// [`CommitError::RolledBack`] if nothing was committed, `after_rollback` has run then;
    /// [`CommitError::Unknown`] if the answer was lost, and neither stage runs.
    ///
    /// # Cancel safety
    /// Dropped before COMMIT is sent, it rolls back and `after_rollback` runs. Dropped while COMMIT is under way, the
    /// result is unknown. Hooks that have begun run to their end.
    pub async fn commit(self) -> Result<(), CommitError<D::Error>> {
        let Self { mut tx, open } = self;
        let rows = open.0.rows();
        if rows.is_empty() {
            return D::commit(tx).await;
        }
        let mut guarded = Vec::with_capacity(rows.len());
        for (table, rows) in rows {
            match D::guard(&mut tx, &table, &rows).await {
                Ok(found) => guarded.push(found),
                Err(error) => {
                    // Whether this is answered or not: no COMMIT was sent.
                    let _ = D::rollback(tx).await;
                    open.0.take().tell(After::Rollback).await;
                    return Err(CommitError::RolledBack(error));
                }
            }
        }
        let doubt = InDoubt::new(open.0.split(&guarded));
        let result = D::commit(tx).await;
        match &result {
            Ok(()) => doubt.known(After::Commit).await,
            Err(CommitError::RolledBack(_)) => doubt.known(After::Rollback).await,
            Err(CommitError::Unknown(_)) => drop(doubt),
        }
        result
    }

    /// Rolls back, then runs `after_rollback` of all hooks and waits for them.
    ///
    /// # Errors
    /// As the driver. The transaction is rolled back all the same, at the latest when the database has noticed that
    /// its connection is gone.
    ///
    /// # Cancel safety
    /// Dropped, it still rolls back, and the hooks run.
    pub async fn rollback(self) -> Result<(), D::Error> {
        let Self { tx, open } = self;
        let result = D::rollback(tx).await;
        open.0.take().tell(After::Rollback).await;
        result
    }
}

impl<D: Driver> Deref for OutboxTransaction<D> {
    type Target = D::Transaction;
    fn deref(&self) -> &D::Transaction {
        &self.tx
    }
}

impl<D: Driver> DerefMut for OutboxTransaction<D> {
    fn deref_mut(&mut self) -> &mut D::Transaction {
        &mut self.tx
    }
}

impl<D: Driver> OutboxTx<D> for &mut OutboxTransaction<D> {
    type Error = D::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, D::Error> {
        D::insert(&mut self.tx, insertion).await
    }

    fn journal(&self) -> Option<Journal> {
        Some(OutboxTransaction::journal(self))
    }
}

impl<D: Driver> fmt::Debug for OutboxTransaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OutboxTransaction").field(&self.open).finish()
    }
}

/// Why a transaction did not commit, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum CommitError<E: Error + 'static> {
    /// Nothing was committed: the transaction had failed before, or the database refused the commit.
    #[error("{}: the transaction was rolled back, nothing was committed", Code::RolledBack)]
    RolledBack(#[source] E),
    /// The answer was lost: it was committed or not. Look for the data before you do it again; events that are enqueued
    /// again with the same `event_id` are not doubled.
    #[error("{}: no answer to the commit, so it may have happened or not", Code::CommitUnknown)]
    Unknown(#[source] E),
}

impl<E: Error + 'static> CommitError<E> {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::RolledBack(_) => Code::RolledBack,
            Self::Unknown(_) => Code::CommitUnknown,
        }
    }
}
