//! What a [`Postbox`](postbox_core::Postbox) needs of a `SqlitePool`, looked at before anything is started.

use postbox_core::embed::{Needs, StoreOptions};
use postbox_core::{Code, Layout, PostboxPool, Settings, StoreError, StoreErrorKind, TableName};
use sqlx::sqlite::SqlitePool;

use super::error::classify;
use super::{SqliteAdmin, SqliteStore, SqlxSqlite};
use crate::table::with_next_step;

impl PostboxPool<SqlxSqlite> for SqlitePool {
    type Store = SqliteStore;
    type Sweep = SqliteAdmin;

    fn store(&self, table: &TableName, settings: &Settings, options: StoreOptions) -> SqliteStore {
        let store = SqliteStore::builder((*self.connect_options()).clone(), table.clone());
        store.embedded(options, &settings.name).build()
    }

    fn sweep(&self, table: &TableName, _: &Settings) -> SqliteAdmin {
        SqliteAdmin::new(self, table.clone())
    }

    async fn examine(&self, table: &TableName, needs: Needs) -> Result<Layout, StoreError> {
        let layout = SqliteAdmin::new(self, table.clone()).layout().await;
        let layout = layout.map_err(|error| with_next_step(error, table))?;
        if needs.hot && needs.durable {
            expect_durable(self, table).await?;
        }
        Ok(layout)
    }
}

/// Events that are handled right after their commit must not be taken back by a loss of power (hazard 33). FULL is 2.
async fn expect_durable(pool: &SqlitePool, table: &TableName) -> Result<(), StoreError> {
    let synchronous: i64 =
        sqlx::query_scalar("PRAGMA synchronous").fetch_one(pool).await.map_err(classify)?;
    if synchronous >= 2 {
        return Ok(());
    }
    let message = format!(
        "the pool that writes {table} commits with PRAGMA synchronous below FULL, so a loss of power may take back what was \
         handled already: connect with sqlite::connect_options, or with SqliteSynchronous::Full, leave the hot path out, or \
         accept the risk with HotPath::allow_asynchronous_commit"
    );
    Err(StoreError::new(Code::ConfigInvalid, StoreErrorKind::Refused, message))
}
