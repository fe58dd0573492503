//! [`Session`]: what the layer and the handler of one call know of each other.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use postbox_core::idempotency::{IdempotencyDriver, IdempotencyStore, Ticket};
use postbox_core::{OutboxTransaction, StoreError};

use crate::builder::Settings;
use crate::layer::Shared;

type Beginning<D> = Pin<Box<dyn Future<Output = Result<OutboxTransaction<D>, StoreError>> + Send>>;

/// Goes with the request, so that an [`IdempotentTx`](crate::IdempotentTx) can be made of it.
pub(crate) struct Session<D: IdempotencyDriver> {
    pub(crate) ticket: Option<Ticket>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) stage: Stage,
    begin: Arc<dyn Fn() -> Beginning<D> + Send + Sync>,
}

impl<D: IdempotencyDriver> Session<D> {
    pub(crate) fn new<S: IdempotencyStore<Driver = D>>(shared: &Shared<S>, ticket: Ticket) -> Self {
        Self { ticket: Some(ticket), ..Self::without_call(shared) }
    }

    /// For a call without a key: a transaction is one all the same.
    pub(crate) fn without_call<S: IdempotencyStore<Driver = D>>(shared: &Shared<S>) -> Self {
        let store = shared.store.clone();
        let begin = move || -> Beginning<D> {
            let store = store.clone();
            Box::pin(async move { store.transaction().await })
        };
        Self {
            ticket: None,
            settings: Arc::clone(&shared.settings),
            stage: Stage::default(),
            begin: Arc::new(begin),
        }
    }

    pub(crate) async fn begin(&self) -> Result<OutboxTransaction<D>, StoreError> {
        (self.begin)().await
    }
}

impl<D: IdempotencyDriver> Clone for Session<D> {
    fn clone(&self) -> Self {
        Self {
            ticket: self.ticket.clone(),
            settings: Arc::clone(&self.settings),
            stage: self.stage.clone(),
            begin: Arc::clone(&self.begin),
        }
    }
}

impl<D: IdempotencyDriver> fmt::Debug for Session<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// How far the transaction of a call has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage(Arc<AtomicU8>);

/// See [`Stage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum At {
    /// The handler has not asked for it, or has rolled it back on purpose.
    Unused = 0,
    /// It is open, or was dropped, or its commit failed.
    Open = 1,
    /// Effect, events and answer are there.
    Committed = 2,
    /// Somebody else has taken the call over.
    Lost = 3,
}

impl Stage {
    pub(crate) fn set(&self, at: At) {
        self.0.store(at as u8, Ordering::Release);
    }

    pub(crate) fn get(&self) -> At {
        match self.0.load(Ordering::Acquire) {
            0 => At::Unused,
            2 => At::Committed,
            3 => At::Lost,
            _ => At::Open,
        }
    }

    /// Opens it; false if it was opened before.
    pub(crate) fn open(&self) -> bool {
        let (from, to) = (At::Unused as u8, At::Open as u8);
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
