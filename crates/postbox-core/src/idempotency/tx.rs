//! [`IdempotencyTx`]: the caller's open transaction, in which a call is finished.

use std::error::Error;
use std::future::Future;

use super::{StoredResponse, Ticket};
use crate::code::Code;
use crate::transaction::{Driver, OutboxTransaction};

/// An open transaction of some driver, in which a call can be finished. `Driver` marks the driver as with
/// [`OutboxTx`](crate::OutboxTx): it is always inferred.
///
/// # Errors
/// As the driver. The transaction cannot go on then: its caller rolls it back.
///
/// # Cancel safety
/// Not cancel safe: a dropped call leaves the statement's result unknown. Its caller rolls the transaction back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    label = "a call must be finished in the transaction that has its effect",
    note = "begin one and pass `&mut tx` (sqlx): an answer that is stored on its own connection can exist without the effect, \
            or the effect without it"
)]
pub trait IdempotencyTx<Driver>: Sized {
    /// The driver's error.
    type Error: Error + Send + Sync + 'static;

    /// Stores the answer if the call is still the ticket's; else changes nothing and answers false.
    fn finish(self, finish: Finish<'_>) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// What to store.
#[derive(Debug, Clone, Copy)]
pub struct Finish<'a> {
    /// The right to.
    pub ticket: &'a Ticket,
    /// The answer.
    pub response: &'a StoredResponse,
}

/// The same of the transactions of a driver that Postbox opens itself. Implemented on the driver's marker.
///
/// # Cancel safety
/// As [`IdempotencyTx`].
pub trait IdempotencyDriver: Driver {
    /// As [`IdempotencyTx::finish`].
    fn finish(
        tx: &mut Self::Transaction,
        finish: Finish<'_>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

impl<D: IdempotencyDriver> IdempotencyTx<D> for &mut OutboxTransaction<D> {
    type Error = D::Error;

    async fn finish(self, finish: Finish<'_>) -> Result<bool, D::Error> {
        D::finish(self, finish).await
    }
}

/// Why a call was not finished.
#[derive(Debug, thiserror::Error)]
pub enum FinishError<E: Error + 'static> {
    /// Somebody else has taken the call over: this transaction must be rolled back.
    #[error("{}: the call was taken over while it ran", Code::IdempotencyLost)]
    Lost,
    /// The database refused it.
    #[error("the answer could not be stored")]
    Database(#[source] E),
}

impl<E: Error + 'static> FinishError<E> {
    /// Whether somebody else has taken the call over.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost)
    }
}
