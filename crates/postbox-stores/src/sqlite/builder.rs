//! What a [`SqliteStore`] is built from.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use postbox_core::TableName;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tokio::sync::{Mutex, OnceCell};

use super::claim::ClaimState;
use super::link::Link;
use super::store::{Inner, SqliteStore};
use crate::builder::StoreBuilder;
use crate::ordered::News;

/// Builds a [`SqliteStore`].
pub type SqliteStoreBuilder = StoreBuilder<SqliteConnectOptions>;

impl SqliteStoreBuilder {
    /// Makes the store; nothing is opened yet.
    pub fn build(self) -> SqliteStore {
        let (options, settings) = self.finish();
        SqliteStore(Arc::new(Inner {
            label: settings.table.to_string().into(),
            reader: Link::new(options.clone()),
            writer: Link::new(options),
            opened: OnceCell::new(),
            state: Mutex::new(ClaimState::new(settings.order)),
            news: News::default(),
            seen: AtomicI64::new(0),
            settings,
        }))
    }
}

impl SqliteStore {
    /// Starts to build a store with its own connections.
    pub fn builder(options: SqliteConnectOptions, table: TableName) -> SqliteStoreBuilder {
        StoreBuilder::new(options, table)
    }

    /// A store with the defaults, that opens the file that a pool does (but takes no connection from it).
    pub fn new(pool: &SqlitePool, table: TableName) -> Self {
        Self::builder((*pool.connect_options()).clone(), table).build()
    }
}
