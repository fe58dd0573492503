//! What a [`Postbox`](postbox_core::Postbox) needs of a `MySqlPool`, looked at before anything is started.

use postbox_core::embed::{Needs, StoreOptions};
use postbox_core::{Code, Layout, PostboxPool, Settings, StoreError, StoreErrorKind, TableName};
use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlPool;

use super::error::classify;
use super::transaction::DURABLE;
use super::{MySqlAdmin, MySqlStore, SqlxMySql};
use crate::table::with_next_step;

impl PostboxPool<SqlxMySql> for MySqlPool {
    type Store = MySqlStore;
    type Sweep = MySqlAdmin;

    fn store(&self, table: &TableName, settings: &Settings, options: StoreOptions) -> MySqlStore {
        let store = MySqlStore::builder((*self.connect_options()).clone(), table.clone());
        store.embedded(options, &settings.name).build()
    }

    fn sweep(&self, table: &TableName, _: &Settings) -> MySqlAdmin {
        MySqlAdmin::new(self, table.clone())
    }

    async fn examine(&self, table: &TableName, needs: Needs) -> Result<Layout, StoreError> {
        let layout = MySqlAdmin::new(self, table.clone()).layout().await;
        let layout = layout.map_err(|error| with_next_step(error, table))?;
        if needs.hot && needs.durable {
            expect_durable(self, table).await?;
        }
        Ok(layout)
    }
}

/// Events that are handled right after their commit must not be taken back by a crash of the server (hazard 33).
async fn expect_durable(pool: &MySqlPool, table: &TableName) -> Result<(), StoreError> {
    let durable = sqlx::query_scalar::<_, bool>(AssertSqlSafe(format!("SELECT {DURABLE}")));
    if durable.fetch_one(pool).await.map_err(classify)? {
        return Ok(());
    }
    let message = format!(
        "the server of {table} commits with innodb_flush_log_at_trx_commit other than 1, so a crash may take back what was handled \
         already: set it to 1, leave the hot path out, or accept the risk with HotPath::allow_asynchronous_commit"
    );
    Err(StoreError::new(Code::ConfigInvalid, StoreErrorKind::Refused, message))
}
