//! What a [`MySqlStore`] is built from.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use postbox_core::TableName;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool};
use tokio::sync::{Mutex, OnceCell};

use super::claim::ClaimState;
use super::clock::Clock;
use super::link::Link;
use super::store::{Inner, MySqlStore};
use super::wake::Watch;
use crate::builder::StoreBuilder;
use crate::ordered::News;
use crate::strategy::Strategy;

/// Builds a [`MySqlStore`].
pub type MySqlStoreBuilder = StoreBuilder<MySqlConnectOptions>;

impl MySqlStoreBuilder {
    /// How rows are claimed: by ownership where that is possible, by default. All relays of a table must do it in the same way.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.settings.strategy = strategy;
        self
    }

    /// Makes the store; nothing is opened yet.
    pub fn build(self) -> MySqlStore {
        let (options, settings) = self.finish();
        let link = || Link::new(options.clone());
        MySqlStore(Arc::new(Inner {
            label: settings.table.to_string().into(),
            claims: link(),
            journals: link(),
            settles: link(),
            watch: link(),
            session: Link::lasting(options.clone()),
            opened: OnceCell::new(),
            state: Mutex::new(ClaimState::new(settings.order)),
            news: News::default(),
            clock: Clock::default(),
            seen: Watch::default(),
            window: std::sync::Mutex::default(),
            locked: std::sync::Mutex::default(),
            unsure: AtomicBool::new(false),
            settings,
        }))
    }
}

impl MySqlStore {
    /// Starts to build a store with its own connections.
    pub fn builder(options: MySqlConnectOptions, table: TableName) -> MySqlStoreBuilder {
        StoreBuilder::new(options, table)
    }

    /// A store with the defaults, that connects where a pool does (but takes no connection from it).
    pub fn new(pool: &MySqlPool, table: TableName) -> Self {
        Self::builder((*pool.connect_options()).clone(), table).build()
    }
}
