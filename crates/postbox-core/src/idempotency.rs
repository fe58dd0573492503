//! Idempotency keys: a call that is repeated runs once, and every repeat gets the answer of the first.
//!
//! A store ([`IdempotencyStore`]) remembers calls in the table `<module>_idempotency`. [`begin`](IdempotencyStore::begin) says
//! what is to be done with a call: run it, with a [`Ticket`] that proves the right to; give the stored answer; or refuse. Who
//! runs it ends it with [`finish`](IdempotencyStore::finish), with [`Ticket::finish_in`] in the transaction of its effect, or with
//! [`abandon`](IdempotencyStore::abandon). The layer for tower and axum in `postbox-web` does all of this.
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use postbox_core::StoreError;
//! use postbox_core::idempotency::{Begun, Call, IdempotencyStore, StoredResponse};
//!
//! # async fn order(store: impl IdempotencyStore, call: Arc<Call>) -> Result<Option<StoredResponse>, StoreError> {
//! match store.begin(&call, Duration::from_secs(30)).await? {
//!     Begun::Run(ticket) => {
//!         // … the effect, within the lease …
//!         let answer = StoredResponse::new(201).body("done");
//!         // False: it took longer, and somebody else has run it again.
//!         Ok(store.finish(&ticket, &answer).await?.then_some(answer))
//!     }
//!     Begun::Replay(answer) => Ok(Some(answer)),
//!     Begun::Busy { .. } | Begun::Mismatch => Ok(None), // ask again later; never ask so again
//! }
//! # }
//! ```

mod call;
mod response;
mod tx;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub use call::{Call, CallError, Fingerprint};
pub use response::StoredResponse;
pub use tx::{Finish, FinishError, IdempotencyDriver, IdempotencyTx};

use crate::store::StoreError;
use crate::table::TableName;
use crate::transaction::OutboxTransaction;

/// Where calls are remembered. Cheap to clone. All times are the database's.
///
/// # Cancel safety
/// What is dropped was done or not. With the same ticket all of it can be asked again, and twice is as once.
pub trait IdempotencyStore: Clone + Send + Sync + 'static {
    /// The driver of the transactions in which a call can be finished.
    type Driver: IdempotencyDriver;

    /// The table's name, for logs and metrics.
    fn table(&self) -> &str;

    /// Asks what is to be done with a call. If it is to be run, the right to do so lasts as long as the lease, unless it is
    /// [extended](Self::extend).
    ///
    /// A call that somebody began and neither finished nor extended in time is handed to the next who asks, with a new ticket:
    /// the old one can then neither finish nor abandon it.
    ///
    /// # Errors
    /// When the table is missing or the database fails. Nothing may be run then.
    ///
    /// # Cancel safety
    /// Dropped, the call may have been begun without anybody to run it: it is free again when the lease has run out.
    fn begin(
        &self,
        call: &Arc<Call>,
        lease: Duration,
    ) -> impl Future<Output = Result<Begun, StoreError>> + Send;

    /// Makes the lease last so long from now. False if the call is not this ticket's any more.
    ///
    /// # Errors
    /// When the database fails; the lease is then as it was, or renewed.
    fn extend(
        &self,
        ticket: &Ticket,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Stores the answer, in a transaction of its own. False if the call is not this ticket's any more: nothing was stored.
    /// Called again with the same ticket, it changes nothing.
    ///
    /// # Errors
    /// When the database fails; the answer may be stored or not.
    fn finish(
        &self,
        ticket: &Ticket,
        response: &StoredResponse,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Forgets a call that runs, so that a repeat runs it again. False if the call is not this ticket's any more, or finished.
    ///
    /// # Errors
    /// When the database fails; the call is then forgotten, or free when its lease has run out.
    fn abandon(&self, ticket: &Ticket) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Opens a transaction in which a call can be finished together with its effect and its events.
    ///
    /// # Errors
    /// As the driver.
    fn transaction(&self)
    -> impl Future<Output = Result<OutboxTransaction<Self::Driver>, StoreError>> + Send;
}

/// What is to be done with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "only a call that it says to run may be run"]
pub enum Begun {
    /// Run it.
    Run(Ticket),
    /// Somebody is running it.
    Busy {
        /// How long that one's lease lasts at most, unless it is extended.
        remaining: Duration,
    },
    /// It was run: this is its answer.
    Replay(StoredResponse),
    /// The key was used for another call before.
    Mismatch,
}

/// The right to run a call and to say how it ended. It fences: once somebody else has taken the call over, it is worth
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    call: Arc<Call>,
    table: Arc<IdempotencyTable>,
    token: Uuid,
    taken_over: bool,
}

/// A table of remembered calls, and how it is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyTable {
    /// The outbox table that it stands beside.
    pub outbox: TableName,
    /// Whether a driver may keep statements prepared on the session.
    pub prepared: bool,
}

impl Ticket {
    /// A new ticket; for stores.
    pub fn new(call: &Arc<Call>, table: &Arc<IdempotencyTable>, token: Uuid, taken_over: bool) -> Self {
        Self { call: Arc::clone(call), table: Arc::clone(table), token, taken_over }
    }

    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Where the call is remembered.
    pub fn table(&self) -> &IdempotencyTable {
        &self.table
    }

    /// What tells this ticket from all others.
    pub fn token(&self) -> Uuid {
        self.token
    }

    /// Whether somebody began the call before and never ended it: he crashed, or is slower than his lease. What he did outside of
    /// a transaction may have happened.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// Stores the answer in the caller's transaction: effect, events and answer are there together, or none of them is.
    ///
    /// Make it the last statement before COMMIT. Whoever asks for this call then waits for the commit, and an error that was
    /// ignored before comes to light here.
    ///
    /// ```
    /// # use postbox_core::idempotency::{IdempotencyTx, StoredResponse, Ticket};
    /// # async fn finish<D, T: IdempotencyTx<D>>(ticket: Ticket, tx: T) -> Result<(), Box<dyn std::error::Error>> {
    /// // With sqlx, `tx` is `&mut tx`.
    /// ticket.finish_in(tx, &StoredResponse::new(201).body("done")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`FinishError::Lost`] if somebody else has taken the call over. Roll back in any case: whatever was written in this
    /// transaction must not be committed.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call leaves the statement's result unknown. Roll the transaction back.
    pub async fn finish_in<D, T: IdempotencyTx<D>>(
        &self,
        tx: T,
        response: &StoredResponse,
    ) -> Result<(), FinishError<T::Error>> {
        match tx.finish(Finish { ticket: self, response }).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(FinishError::Lost),
            Err(error) => Err(FinishError::Database(error)),
        }
    }
}
