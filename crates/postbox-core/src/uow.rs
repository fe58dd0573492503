//! [`UnitOfWork`]: aggregates hand over their events when their data is committed.

use std::error::Error;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::journal::Journal;
use crate::outbox::{EnqueueError, Outbox};
use crate::record::{IntoRecord, RecordBuilder};
use crate::transaction::{CommitError, Driver, OutboxTransaction};
use crate::tx::{Inserted, Insertion, OutboxTx, Receipt};

/// Something that events happen to, and that keeps them until they are committed.
///
/// ```
/// use postbox_core::{Aggregate, Event, PendingEvents, Topic};
///
/// # #[derive(serde::Serialize)]
/// # struct OrderPaid { order_id: u64 }
/// # impl Event for OrderPaid { const TOPIC: Topic = Topic::from_static("shop.order.paid.v1"); }
/// struct Order {
///     id: u64,
///     paid: bool,
///     events: PendingEvents,
/// }
///
/// impl Order {
///     fn pay(&mut self) {
///         self.paid = true;
///         self.events.push(OrderPaid { order_id: self.id });
///     }
/// }
///
/// impl Aggregate for Order {
///     fn pending_events(&mut self) -> &mut PendingEvents {
///         &mut self.events
///     }
/// }
/// ```
pub trait Aggregate {
    /// Where it keeps its events.
    fn pending_events(&mut self) -> &mut PendingEvents;
}

/// Events that have happened and are not committed yet, in order.
///
/// Each has its identity and its time from the moment it is pushed, so that it is the same event however often its commit
/// is tried.
#[derive(Debug, Clone, Default)]
pub struct PendingEvents(Vec<RecordBuilder>);

impl PendingEvents {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something has happened: an event, an enum of them, or a record builder with headers, a tenant or a delay.
    pub fn push(&mut self, event: impl IntoRecord) {
        self.0.push(event.into_builder().pinned());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes them all out, to enqueue them by hand.
    pub fn take(&mut self) -> Vec<RecordBuilder> {
        std::mem::take(&mut self.0)
    }
}

/// A transaction that commits data together with the events of the aggregates it tracks, or neither.
///
/// It derefs to the driver's transaction; with sqlx, a statement of yours runs on `&mut **uow`. An event that belongs to no
/// aggregate is enqueued with `outbox.enqueue(&mut uow, event)`.
///
/// ```
/// # use postbox_core::testing::{MemoryOutbox, assert_enqueued};
/// # use postbox_core::{Aggregate, Event, PendingEvents, Topic};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPaid { order_id: u64 }
/// # impl Event for OrderPaid { const TOPIC: Topic = Topic::from_static("shop.order.paid.v1"); }
/// # #[derive(Default)]
/// # struct Order { id: u64, events: PendingEvents }
/// # impl Order { fn pay(&mut self) { self.events.push(OrderPaid { order_id: self.id }); } }
/// # impl Aggregate for Order { fn pending_events(&mut self) -> &mut PendingEvents { &mut self.events } }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (pool, outbox) = (&MemoryOutbox::new(), MemoryOutbox::new());
/// # let (mut order, mut invoice) = (Order { id: 7, ..Default::default() }, Order::default());
/// let mut uow = outbox.unit_of_work(pool).await?;
/// order.pay();
/// // … save the order and the invoice in this transaction …
/// uow.track(&mut order);
/// uow.track(&mut invoice);
/// uow.commit().await?; // data and events, or neither
/// # assert_enqueued!(pool, OrderPaid { order_id: 7 });
/// # Ok(())
/// # }
/// ```
///
/// Events leave their aggregates only when the commit has worked. After an error, a rollback or a drop they are all
/// still there, the same events with the same ids: if the answer to the commit was lost, trying again does not double
/// them.
#[must_use = "dropped, it is rolled back: end it with `commit`"]
pub struct UnitOfWork<'a, D: Driver> {
    outbox: Outbox,
    tx: OutboxTransaction<D>,
    tracked: Vec<&'a mut (dyn Aggregate + Send)>,
}

impl<'a, D: Driver> UnitOfWork<'a, D> {
    pub(crate) fn new(outbox: Outbox, tx: OutboxTransaction<D>) -> Self {
        Self { outbox, tx, tracked: Vec::new() }
    }

    /// Has the aggregate's events enqueued at the commit: those of the aggregate that was tracked first come first. Track it when
    /// you are done with it; it is yours again when the unit of work has ended.
    pub fn track(&mut self, aggregate: &'a mut (impl Aggregate + Send)) {
        self.tracked.push(aggregate);
    }

    /// The transaction itself.
    pub fn transaction(&mut self) -> &mut OutboxTransaction<D> {
        &mut self.tx
    }

    /// Enqueues the events of all tracked aggregates, in one round trip per chunk, and commits; answers a receipt for each.
    ///
    /// # Errors
    /// When an event breaks a limit, a hook or the database refuses them, or the commit fails. Nothing was committed then,
    /// unless the error is [`CommitError::Unknown`].
    ///
    /// # Cancel safety
    /// Dropped before COMMIT is sent, everything is rolled back; while it is under way, the result is unknown. The aggregates
    /// keep their events in both cases.
    pub async fn commit(self) -> Result<Vec<Receipt>, UnitOfWorkError<D::Error>> {
        let Self { outbox, mut tx, mut tracked } = self;
        let events: Vec<RecordBuilder> =
            tracked.iter_mut().flat_map(|aggregate| aggregate.pending_events().0.clone()).collect();
        let receipts = match outbox.enqueue_all(&mut tx, events).await {
            Ok(receipts) => receipts,
            Err(error) => {
                // What the rollback answers changes nothing: no COMMIT was sent.
                let _ = tx.rollback().await;
                return Err(error.into());
            }
        };
        tx.commit().await?;
        for aggregate in tracked {
            aggregate.pending_events().0.clear();
        }
        Ok(receipts)
    }

    /// Rolls everything back; the aggregates keep their events.
    ///
    /// # Errors
    /// As the driver; it is rolled back all the same.
    ///
    /// # Cancel safety
    /// Dropped, it still rolls back.
    pub async fn rollback(self) -> Result<(), D::Error> {
        self.tx.rollback().await
    }
}

impl<D: Driver> Deref for UnitOfWork<'_, D> {
    type Target = D::Transaction;
    fn deref(&self) -> &D::Transaction {
        &self.tx
    }
}

impl<D: Driver> DerefMut for UnitOfWork<'_, D> {
    fn deref_mut(&mut self) -> &mut D::Transaction {
        &mut self.tx
    }
}

#[diagnostic::do_not_recommend]
impl<D: Driver> OutboxTx<D> for &mut UnitOfWork<'_, D> {
    type Error = D::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, D::Error> {
        OutboxTx::insert(&mut self.tx, insertion).await
    }

    fn journal(&self) -> Option<Journal> {
        Some(self.tx.journal())
    }
}

impl<D: Driver> fmt::Debug for UnitOfWork<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnitOfWork").field("tracked", &self.tracked.len()).finish_non_exhaustive()
    }
}

/// Why a unit of work was not committed, or may not have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnitOfWorkError<E: Error + 'static> {
    /// The events could not be enqueued; everything was rolled back.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError<E>),
    /// The commit failed.
    #[error(transparent)]
    Commit(#[from] CommitError<E>),
}

#[cfg(test)]
mod tests;
