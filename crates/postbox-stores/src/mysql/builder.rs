//! What a [`MySqlStore`] can be told.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use postbox_core::store::Tenants;
use postbox_core::{History, Order, TableName};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool};
use tokio::sync::{Mutex, Notify, OnceCell};
use uuid::Uuid;

use super::claim::ClaimState;
use super::clock::Clock;
use super::link::Link;
use super::store::{Inner, MySqlStore};
use super::wake::Watch;
use crate::strategy::{LEADER_TTL, Strategy};

/// Builds a [`MySqlStore`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct MySqlStoreBuilder {
    options: MySqlConnectOptions,
    table: TableName,
    single_active: bool,
    strategy: Strategy,
    history: History,
    name: String,
    leader_ttl: Duration,
    order: Order,
    tenants: Tenants,
}

impl MySqlStoreBuilder {
    /// Whether only one relay works on the table at a time (the default).
    pub fn single_active(mut self, single: bool) -> Self {
        self.single_active = single;
        self
    }

    /// How rows are claimed: by ownership where that is possible, by default. All relays of a table must do it in the same way.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// What becomes of the rows of events that were delivered (they are kept). All relays of a table should do the same.
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// The relay's name, for people: a host or pod name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// After how long without a sign of life the active relay loses its place, if its session still exists (15 s, and at
    /// least five times its `poll_interval`, at which signs of life are given).
    pub fn leader_ttl(mut self, ttl: Duration) -> Self {
        self.leader_ttl = ttl;
        self
    }

    /// In what order events are delivered (none, by default). By aggregate, it needs the indexes that `migrate up
    /// --order-index` adds.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Whose events the relay is for, and whether they share it (everybody's, as they come). Both need the index that `migrate up`
    /// adds with `--fair-tenants` or `--tenants`; only some needs `single_active(false)`.
    pub fn tenants(mut self, mut tenants: Tenants) -> Self {
        tenants.only.sort_unstable();
        tenants.only.dedup();
        self.tenants = tenants;
        self
    }

    /// Makes the store; nothing is opened yet.
    pub fn build(self) -> MySqlStore {
        let name: String = self.name.chars().filter(|c| !c.is_control()).take(64).collect();
        let link = || Link::new(self.options.clone());
        MySqlStore(Arc::new(Inner {
            label: self.table.to_string().into(),
            table: self.table,
            claims: link(),
            journals: link(),
            settles: link(),
            watch: link(),
            session: Link::lasting(self.options.clone()),
            single_active: self.single_active,
            strategy: self.strategy,
            history: self.history,
            holder: format!("{name}/{}", Uuid::now_v7().simple()),
            leader_ttl: self.leader_ttl,
            order: self.order,
            tenants: self.tenants,
            opened: OnceCell::new(),
            state: Mutex::new(ClaimState::new(self.order)),
            news: std::sync::Mutex::default(),
            turned: Notify::new(),
            clock: Clock::default(),
            seen: Watch::default(),
            window: std::sync::Mutex::default(),
            unsure: AtomicBool::new(false),
        }))
    }
}

impl MySqlStore {
    /// Starts to build a store with its own connections.
    pub fn builder(options: MySqlConnectOptions, table: TableName) -> MySqlStoreBuilder {
        let name = format!("pid-{}", std::process::id());
        MySqlStoreBuilder {
            options,
            table,
            single_active: true,
            strategy: Strategy::Auto,
            order: Order::None,
            history: History::Keep,
            name,
            leader_ttl: LEADER_TTL,
            tenants: Tenants::default(),
        }
    }

    /// A store with the defaults, that connects where a pool does (but takes no connection from it).
    pub fn new(pool: &MySqlPool, table: TableName) -> Self {
        Self::builder((*pool.connect_options()).clone(), table).build()
    }
}
