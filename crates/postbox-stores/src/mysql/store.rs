//! ④ [`MySqlStore`]: what a relay asks of its table, and what is looked at before it starts. `claim.rs` claims rows, `settling.rs` writes what
//! became of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use postbox_core::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements};
use postbox_core::store::{Claim, ClaimRequest, Lease, Renewed, Settled, Settlement, Store};
use postbox_core::{Order, StoreError};
use tokio::sync::{Mutex, OnceCell};

use super::claim::ClaimState;
use super::clock::Clock;
use super::leader::lock_name;
use super::link::Link;
use super::ordered::expect_order;
use super::schema::{TableShape, is_ordered, locate, names};
use super::statements::Statements;
use super::version::Server;
use super::wake::Watch;
use super::window::Window;
use super::{history, strategy};
use crate::builder::Settings;
use crate::ordered::News;

/// An outbox table in MySQL or MariaDB, for one relay.
///
/// It holds up to five connections of its own: one claims, one settles meanwhile, one looks for commits, one holds the lock of the
/// active relay, and one writes down what that has in flight, if it owns the table.
#[derive(Debug, Clone)]
pub struct MySqlStore(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) label: Arc<str>,
    pub(super) claims: Link,
    pub(super) settles: Link,
    /// Writes down what an owner has in flight.
    pub(super) journals: Link,
    pub(super) watch: Link,
    /// Holds the lock, and does nothing else.
    pub(super) session: Link,
    pub(super) opened: OnceCell<Opened>,
    pub(super) state: Mutex<ClaimState>,
    /// Where order is kept.
    pub(super) news: News,
    pub(super) clock: Clock,
    pub(super) seen: Watch,
    /// What an owner has in flight.
    pub(super) window: std::sync::Mutex<Window>,
    /// Rows that somebody else had locked when they were last to be settled.
    pub(super) locked: std::sync::Mutex<HashSet<i64>>,
    /// The answer to the last settle of an owner's rows was lost.
    pub(super) unsure: AtomicBool,
}

/// What is known of the table once it was looked at.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) statements: Statements,
    /// The table's key in `postbox_relay`.
    pub(super) key: String,
    /// The name of the active relay's lock.
    pub(super) lock: String,
}

impl Opened {
    /// Whether the relay owns the table.
    pub(super) fn owns(&self) -> bool {
        self.statements.own.is_some()
    }
}

impl Inner {
    pub(super) async fn opened(&self) -> Result<&Opened, StoreError> {
        self.opened.get_or_try_init(|| self.look()).await
    }

    /// Looks at the server and the table in it.
    async fn look(&self) -> Result<Opened, StoreError> {
        let mut link = self.claims.take().await?;
        let connection = &mut link.connection;
        Server::expect(connection).await?;
        let (schema, table) = locate(connection, &self.settings.table).await?;
        TableShape::expect(connection, &schema, &table).await?;
        let names = names(connection, &schema, &table).await?;
        let sent = history::look(connection, &schema, &table, self.settings.history).await?;
        if self.settings.order != Order::None {
            expect_order(is_ordered(&names), &table)?;
        }
        if self.settings.tenants.apart() {
            let indexed = !names.fill("{{by_tenants_waiting}}").is_empty();
            self.settings.check_tenants(&table, indexed)?;
        }
        let owns = strategy::owns(&self.settings, &table)?;
        let owned = owns.then(|| table.table());
        let opened = Opened {
            statements: Statements::new(&names, &sent, &self.settings.tenants, owned),
            key: table.table().to_owned(),
            lock: lock_name("relay", &schema, &table),
        };
        self.check_others(connection, &opened).await?;
        link.keep();
        Ok(opened)
    }
}

impl Store for MySqlStore {
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
        self.0.extend_all(leases).await
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
        self.0.let_go(leases);
        if self.0.settings.order != Order::None {
            self.0.news.lost(leases);
        }
    }

    /// Looks for commits of others every 10 ms at first, and every 40 ms after a while in vain.
    async fn wait(&self, at_most: Duration) {
        self.0.wait(at_most).await;
    }

    async fn close(&self) {
        self.0.resign().await;
        for link in [&self.0.claims, &self.0.settles, &self.0.journals, &self.0.watch, &self.0.session] {
            link.close().await;
        }
    }
}
