//! ④ [`SqliteStore`]: what a relay asks of its table, and what is looked at before it starts. `claim.rs` claims rows, `settling.rs` writes what
//! became of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Claim, ClaimRequest, Lease, Renewed, Settled, Settlement, Store};
use postbox_core::{Order, StoreError};
use tokio::sync::{Mutex, Notify, OnceCell};
use tokio::time::Instant;

use super::claim::{ClaimState, data_version};
use super::history;
use super::link::Link;
use super::ordered::expect_order;
use super::schema::{TableShape, in_main, is_ordered, names};
use super::statements::Statements;
use crate::builder::Settings;
use crate::ordered::News;

/// Tells the relays of this process that it has committed events: they look at once. Whoever commits elsewhere, or by a
/// transaction of the driver's own, is found by looking.
pub(super) static COMMITTED: Notify = Notify::const_new();

/// How often a waiting relay looks whether anybody has committed anything. A look costs microseconds.
const LOOK: Duration = Duration::from_millis(10);

/// An outbox table in SQLite, for one relay.
///
/// It holds two connections of its own: one that writes, and one that looks meanwhile.
#[derive(Debug, Clone)]
pub struct SqliteStore(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) label: Arc<str>,
    pub(super) reader: Link,
    pub(super) writer: Link,
    pub(super) opened: OnceCell<Opened>,
    pub(super) state: Mutex<ClaimState>,
    /// Where order is kept.
    pub(super) news: News,
    /// The version of the data that the last claim saw, as the reader counts it.
    pub(super) seen: AtomicI64,
}

/// What is known of the table once it was looked at.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) statements: Statements,
    /// The table's key in `postbox_relay`.
    pub(super) key: String,
    /// Locked by the active relay.
    pub(super) lock_file: PathBuf,
}

impl Inner {
    pub(super) async fn opened(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.look()).await
    }

    /// Looks at the file and the table in it.
    async fn look(&self) -> Result<Opened, StoreError> {
        let table = in_main(&self.settings.table)?;
        let mut reader = self.reader.take().await?;
        let lock_file = format!("{}.postbox-{table}.lock", reader.file().await?);
        TableShape::expect(&mut reader.connection, &table).await?;
        let names = names(&mut reader.connection, &table).await?;
        let sent = history::look(&mut reader.connection, &table, self.settings.history).await?;
        if self.settings.order != Order::None {
            expect_order(is_ordered(&names), &table)?;
        }
        if self.settings.tenants.apart() {
            let indexed = !names.fill("{{by_tenants_waiting}}").is_empty();
            self.settings.check_tenants(&table, indexed)?;
        }
        reader.keep();
        self.writer.expect_writable().await?;
        Ok(Opened {
            statements: Statements::new(&names, &sent, &self.settings.tenants),
            key: table.to_string(),
            lock_file: lock_file.into(),
        })
    }

    /// Whether another connection has committed since the last claim looked.
    async fn changed(&self) -> Result<bool, StoreError> {
        let mut reader = self.reader.take().await?;
        let version = data_version(&mut reader.connection).await?;
        // Each connection counts for itself.
        let changed = reader.fresh || version != self.seen.load(Ordering::Relaxed);
        reader.keep();
        Ok(changed)
    }
}

impl Store for SqliteStore {
    fn table(&self) -> &str {
        &self.0.label
    }

    fn order(&self) -> Order {
        self.0.settings.order
    }

    fn fair_tenants(&self) -> bool {
        self.0.settings.tenants.fair
    }

    async fn open(&self) -> Result<(), StoreError> {
        self.0.opened().await.map(|_| ())
    }

    /// A table that was migrated can do all of it.
    async fn require(&self, _wanted: Requirements) -> Result<(), StoreError> {
        self.0.opened().await.map(|_| ())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        self.0.claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.0.settle(settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        self.0.extend(&leases).await
    }

    async fn letters(&self, request: LetterRequest) -> Result<Vec<Letter>, StoreError> {
        self.0.letters(request).await
    }

    async fn settle_letters(&self, letters: Vec<(Lease, LetterVerdict)>) -> Result<Settled, StoreError> {
        self.0.settle_letters(&letters).await
    }

    async fn redrive(&self, request: Redrive) -> Result<u64, StoreError> {
        self.0.redrive(&request).await
    }

    fn forget(&self, leases: &[Lease]) {
        if self.0.settings.order != Order::None {
            self.0.news.lost(leases);
        }
    }

    /// Looks for commits of others, in this process and in any other, a hundred times a second.
    async fn wait(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until.min(Instant::now() + LOOK)) => {}
                () = COMMITTED.notified() => {}
                // What was behind a row that is settled now can be claimed.
                () = self.0.news.came() => return,
            }
            if Instant::now() >= until {
                return;
            }
            match self.0.changed().await {
                Ok(false) => {}
                Ok(true) => return,
                // For the next claim to tell, when its time has come.
                Err(_) => return tokio::time::sleep_until(until).await,
            }
        }
    }

    async fn close(&self) {
        self.0.resign().await;
        self.0.reader.close().await;
        self.0.writer.close().await;
    }
}
