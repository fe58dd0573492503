//! What a [`PgStore`] is built from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32};

use postbox_core::TableName;
use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::sync::{Mutex, Notify, OnceCell};

use super::claim::ClaimState;
use super::durable::Durable;
use super::link::Link;
use super::signal::Heard;
use super::store::{Inner, PgStore};
use crate::builder::StoreBuilder;
use crate::strategy::Strategy;

/// Builds a [`PgStore`].
pub type PgStoreBuilder = StoreBuilder<PgConnectOptions>;

impl PgStoreBuilder {
    /// How rows are claimed.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.settings.strategy = strategy;
        self
    }

    /// Makes the store; nothing is connected yet.
    pub fn build(self) -> PgStore {
        let (options, settings) = self.finish();
        let link = || Link::new(options.clone());
        PgStore(Arc::new(Inner {
            label: settings.table.to_string().into(),
            settings,
            claims: link(),
            settles: link(),
            dead: link(),
            journals: link(),
            window: std::sync::Mutex::default(),
            durable: Durable::default(),
            settled: Notify::new(),
            opened: OnceCell::new(),
            state: Mutex::new(ClaimState::new()),
            max_attempts: AtomicI32::new(25),
            heard: Heard::default(),
            unsure: AtomicBool::new(false),
            busy: std::sync::Mutex::default(),
            renewed: std::sync::Mutex::default(),
        }))
    }
}

impl PgStore {
    /// Starts to build a store with its own connections.
    pub fn builder(options: PgConnectOptions, table: TableName) -> PgStoreBuilder {
        StoreBuilder::new(options, table)
    }

    /// A store with the defaults, that connects to where a pool does (but takes no connection from it).
    pub fn new(pool: &PgPool, table: TableName) -> Self {
        Self::builder((*pool.connect_options()).clone(), table).build()
    }
}
