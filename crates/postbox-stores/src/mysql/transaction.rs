//! Transactions that Postbox opens itself, so that it knows how they end.

use std::collections::HashSet;

use postbox_core::{
    CommitError, Driver, EventId, Guarded, Inserted, Insertion, OutboxPool, OutboxTable, OutboxTransaction,
};
use sqlx::mysql::MySqlPool;
use sqlx::{AssertSqlSafe, MySql, Row as _, Transaction};
use uuid::Uuid;

use super::clause::{bind_list, with_list};
use super::error::{DEADLOCK, error_number};
use super::tx::{SqlxMySql, insert};
use super::wake::COMMITTED;
use crate::table::Template;
use crate::tx::commit;

/// What [`Outbox::begin`](postbox_core::Outbox::begin) opens on a [`MySqlPool`].
pub type MySqlOutboxTransaction = OutboxTransaction<SqlxMySql>;

/// Whether a commit survives a crash of the server.
pub(super) const DURABLE: &str = "@@GLOBAL.innodb_flush_log_at_trx_commit = 1";

/// So many rows are looked for by one statement.
const PART: usize = 1000;

impl OutboxPool<SqlxMySql> for &MySqlPool {
    async fn begin(self) -> Result<Transaction<'static, MySql>, sqlx::Error> {
        MySqlPool::begin(self).await
    }
}

impl Driver for SqlxMySql {
    type Transaction = Transaction<'static, MySql>;
    type Error = sqlx::Error;

    async fn insert(
        tx: &mut Self::Transaction,
        insertion: Insertion<'_>,
    ) -> Result<Vec<Inserted>, sqlx::Error> {
        insert(&mut **tx, insertion).await
    }

    async fn guard(
        tx: &mut Self::Transaction,
        table: &OutboxTable,
        rows: &[(EventId, i64)],
    ) -> Result<Guarded, sqlx::Error> {
        let sql = format!(
            "SELECT sequence, event_id, {DURABLE} FROM {{{{table}}}} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>)"
        );
        let sql = Template::of(&table.name, '`').fill(&sql);
        let (mut there, mut durable) = (HashSet::with_capacity(rows.len()), true);
        for part in rows.chunks(PART) {
            let sequences: Vec<i64> = part.iter().map(|(_, sequence)| *sequence).collect();
            let query = sqlx::query(AssertSqlSafe(with_list(&sql, part.len()))).persistent(table.prepared);
            for row in bind_list(query, &sequences).fetch_all(&mut **tx).await? {
                there.insert((EventId(row.try_get::<Uuid, _>(1)?), row.try_get::<i64, _>(0)?));
                durable &= row.try_get::<bool, _>(2)?;
            }
        }
        let missing = rows.iter().filter(|row| !there.contains(*row)).map(|(event, _)| *event).collect();
        Ok(Guarded { missing, durable })
    }

    async fn commit(tx: Self::Transaction) -> Result<(), CommitError<sqlx::Error>> {
        commit(tx, certain).await?;
        COMMITTED.notify_waiters();
        Ok(())
    }

    async fn rollback(tx: Self::Transaction) -> Result<(), sqlx::Error> {
        tx.rollback().await
    }
}

/// Whether the error of a COMMIT means that nothing was committed: a cluster has found that another node was first, and says
/// so like of a deadlock.
fn certain(error: &sqlx::Error) -> bool {
    const OTHERS_WERE_FIRST: u16 = 3101;
    matches!(error_number(error), Some(DEADLOCK | OTHERS_WERE_FIRST))
}
