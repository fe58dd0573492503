//! Transactions that Postbox opens itself, so that it knows how they end.

use postbox_core::{
    CommitError, Driver, EventId, Guarded, Inserted, Insertion, OutboxPool, OutboxTable, OutboxTransaction,
};
use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, Sqlite, Transaction};
use uuid::Uuid;

use super::error::result_code;
use super::store::COMMITTED;
use super::tx::{SqlxSqlite, insert};
use crate::table::Template;
use crate::tx::commit;

/// What [`Outbox::begin`](postbox_core::Outbox::begin) opens on a [`SqlitePool`].
pub type SqliteOutboxTransaction = OutboxTransaction<SqlxSqlite>;

impl OutboxPool<SqlxSqlite> for &SqlitePool {
    async fn begin(self) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
        super::begin(self).await
    }
}

impl Driver for SqlxSqlite {
    type Transaction = Transaction<'static, Sqlite>;
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
        let rows: Vec<(String, i64)> =
            rows.iter().map(|(event, sequence)| (event.0.simple().to_string(), *sequence)).collect();
        let rows = serde_json::to_string(&rows).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let sql = Template::of(&table.name, '"').fill(include_str!("sql/guard.sql"));
        let missing = sqlx::query_scalar::<_, Uuid>(AssertSqlSafe(sql)).bind(rows).fetch_all(&mut **tx);
        let missing = missing.await?.into_iter().map(EventId).collect();
        // FULL is 2; below it, a loss of power may take the commit back. Costs no trip: the database is in this process.
        let synchronous = sqlx::query_scalar::<_, i64>("PRAGMA synchronous").fetch_one(&mut **tx).await?;
        Ok(Guarded { missing, durable: synchronous >= 2 })
    }

    async fn commit(tx: Self::Transaction) -> Result<(), CommitError<sqlx::Error>> {
        commit(tx, certain).await?;
        COMMITTED.notify_waiters();
        Ok(())
    }

    async fn rollback(mut tx: Self::Transaction) -> Result<(), sqlx::Error> {
        // One that SQLite has ended by itself, or somebody by hand, cannot be rolled back: then it is begun once more. Of one that goes on
        // this is an error, and changes nothing.
        let _ = sqlx::raw_sql("BEGIN").execute(&mut *tx).await;
        tx.rollback().await
    }
}

/// Whether the error of a COMMIT means that nothing was committed: somebody held a lock, the disk was full, or a deferred
/// constraint was broken. What an error of the disk has left behind, only the next start of the database can tell.
fn certain(error: &sqlx::Error) -> bool {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const FULL: i32 = 13;
    const CONSTRAINT: i32 = 19;
    result_code(error).is_some_and(|code| matches!(code & 0xff, BUSY | LOCKED | FULL | CONSTRAINT))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postbox_core::Outbox;
    use sqlx::sqlite::SqlitePoolOptions;
    use tempfile::TempDir;

    use super::*;

    async fn one_connection() -> (TempDir, SqlitePool, Outbox) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        let options = super::super::connect_options(&url).unwrap().create_if_missing(true);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        (folder, pool, Outbox::new("shop_outbox".parse().unwrap()))
    }

    /// As it does when the disk is full. The driver takes its connection for one that is in a transaction still.
    #[tokio::test]
    async fn a_transaction_that_sqlite_has_ended_spoils_no_connection() {
        let (_folder, pool, outbox) = one_connection().await;
        let ended = async || {
            let mut tx = outbox.begin(&pool).await.unwrap();
            sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await.unwrap();
            tx
        };
        ended().await.rollback().await.unwrap();
        drop(ended().await);
        ended().await.commit().await.unwrap_err();
        let mut tx = outbox.begin(&pool).await.unwrap();
        sqlx::raw_sql("CREATE TABLE a (a)").execute(&mut **tx).await.unwrap();
        tx.rollback().await.unwrap();
        let found = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM sqlite_schema").fetch_one(&pool);
        assert_eq!(found.await.unwrap(), 0, "what goes on is rolled back");
    }

    #[tokio::test]
    async fn a_commit_wakes_the_relays_of_its_process() {
        let (_folder, pool, outbox) = one_connection().await;
        let mut woken = std::pin::pin!(COMMITTED.notified());
        woken.as_mut().enable();
        outbox.begin(&pool).await.unwrap().rollback().await.unwrap();
        outbox.begin(&pool).await.unwrap().commit().await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), woken).await.unwrap();
    }
}
