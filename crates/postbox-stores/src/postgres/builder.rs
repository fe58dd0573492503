//! What a [`PgStore`] can be told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::time::Duration;

use postbox_core::store::Tenants;
use postbox_core::{History, Order, TableName};
use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::sync::{Mutex, Notify, OnceCell};
use uuid::Uuid;

use super::claim::ClaimState;
use super::durable::Durable;
use super::link::Link;
use super::signal::Heard;
use super::store::{Inner, PgStore};
use crate::strategy::{LEADER_TTL, Strategy};

/// Builds a [`PgStore`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct PgStoreBuilder {
    options: PgConnectOptions,
    direct: Option<PgConnectOptions>,
    table: TableName,
    single_active: bool,
    strategy: Strategy,
    order: Order,
    history: History,
    tenants: Tenants,
    name: String,
    leader_ttl: Duration,
}

impl PgStoreBuilder {
    /// How rows are claimed.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// What becomes of the rows of events that were delivered (they are kept). All relays of a table should do the same.
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Whether only one relay works on the table at a time (the default).
    pub fn single_active(mut self, single: bool) -> Self {
        self.single_active = single;
        self
    }

    /// The relay's name, for people: a host or pod name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// In what order events are delivered (none, by default). By aggregate it needs a table that was migrated `--ordered`, or
    /// with `--order-index` where an aggregate's writers wait for each other by themselves.
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

    /// Where to reach the database itself, if the other address is a transaction pooler (`OUTBOX_DIRECT_URL`): all
    /// connections of the relay go there.
    pub fn direct(mut self, options: PgConnectOptions) -> Self {
        self.direct = Some(options);
        self
    }

    /// After how long without a sign of life the active relay loses its place (15 s, and at least five times its
    /// `poll_interval`, at which signs of life are given).
    pub fn leader_ttl(mut self, ttl: Duration) -> Self {
        self.leader_ttl = ttl;
        self
    }

    /// Makes the store; nothing is connected yet.
    pub fn build(self) -> PgStore {
        let options = self.direct.unwrap_or(self.options);
        let name: String = self.name.chars().filter(|c| !c.is_control()).take(64).collect();
        PgStore(Arc::new(Inner {
            label: self.table.to_string().into(),
            table: self.table,
            claims: Link::new(options.clone()),
            settles: Link::new(options.clone()),
            beside: Link::new(options.clone()),
            journals: Link::new(options),
            single_active: self.single_active,
            strategy: self.strategy,
            order: self.order,
            history: self.history,
            tenants: self.tenants,
            window: std::sync::Mutex::default(),
            durable: Durable::default(),
            settled: Notify::new(),
            holder: format!("{name}/{}", Uuid::now_v7().simple()),
            leader_ttl: self.leader_ttl,
            opened: OnceCell::new(),
            state: Mutex::new(ClaimState::new()),
            max_attempts: AtomicI32::new(25),
            heard: Heard::default(),
            unsure: AtomicBool::new(false),
            renewed: std::sync::Mutex::default(),
        }))
    }
}

impl PgStore {
    /// Starts to build a store with its own connections.
    pub fn builder(options: PgConnectOptions, table: TableName) -> PgStoreBuilder {
        let name = format!("pid-{}", std::process::id());
        PgStoreBuilder {
            options,
            direct: None,
            table,
            single_active: true,
            strategy: Strategy::Auto,
            order: Order::None,
            history: History::Keep,
            tenants: Tenants::default(),
            name,
            leader_ttl: LEADER_TTL,
        }
    }

    /// A store with the defaults, that connects to where a pool does (but takes no connection from it).
    pub fn new(pool: &PgPool, table: TableName) -> Self {
        Self::builder((*pool.connect_options()).clone(), table).build()
    }
}
