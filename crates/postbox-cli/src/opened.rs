//! [`Opened`]: a store that tells when it was first reached, so that the program says "up" when it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::store::{Claim, ClaimRequest, Lease, Settled, Settlement, Store};
use postbox_core::{StoreError, StoreErrorKind};

/// Whether a relay's store was reached.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsOpen(Arc<AtomicBool>);

impl IsOpen {
    /// Whether it was.
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A store that writes one line to the log when it is first reached.
#[derive(Debug, Clone)]
pub(crate) struct Opened<S> {
    store: S,
    announcement: Arc<str>,
    is_open: IsOpen,
}

impl<S> Opened<S> {
    /// Announces the store with this line.
    pub(crate) fn new(store: S, announcement: String) -> Self {
        Self { store, announcement: announcement.into(), is_open: IsOpen::default() }
    }

    /// To be asked while the relay runs.
    pub(crate) fn is_open(&self) -> IsOpen {
        self.is_open.clone()
    }
}

impl<S: Store> Store for Opened<S> {
    fn table(&self) -> &str {
        self.store.table()
    }

    async fn open(&self) -> Result<(), StoreError> {
        self.store.open().await?;
        if !self.is_open.0.swap(true, Ordering::Relaxed) {
            tracing::info!("{}", self.announcement);
        }
        Ok(())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        self.store.claim(request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>, admit: usize) -> Result<Settled, StoreError> {
        self.store.settle(settlements, admit).await
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Vec<Lease>, StoreError> {
        self.store.extend(leases).await
    }

    async fn wait(&self, at_most: Duration) {
        self.store.wait(at_most).await;
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

/// Tries until the answer is good, or one that will not get better; a database that is away is waited for.
pub(crate) async fn wait_for<T, F>(table: &str, mut ask: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match ask().await {
            Err(error) if error.kind() != StoreErrorKind::Refused => {
                tracing::warn!(table, %error, "the table cannot be looked at, trying again");
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            answer => return answer,
        }
    }
}
