//! Transactions that Postbox opens itself, so that it knows how they end.

use postbox_core::{
    CommitError, Driver, EventId, Guarded, Inserted, Insertion, OutboxPool, OutboxTable, OutboxTransaction,
};
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use uuid::Uuid;

use super::signal;
use super::tx::{SqlxPostgres, insert};
use crate::table::Template;
use crate::tx::commit;

/// What [`Outbox::begin`](postbox_core::Outbox::begin) opens on a [`PgPool`].
pub type PgOutboxTransaction = OutboxTransaction<SqlxPostgres>;

impl OutboxPool<SqlxPostgres> for &PgPool {
    async fn begin(self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        PgPool::begin(self).await
    }
}

impl Driver for SqlxPostgres {
    type Transaction = Transaction<'static, Postgres>;
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
        let (ids, sequences): (Vec<Uuid>, Vec<i64>) =
            rows.iter().map(|(event, sequence)| (event.0, *sequence)).unzip();
        let sql = Template::of(&table.name, '"').fill(include_str!("sql/guard.sql"));
        let guard = sqlx::query_as(AssertSqlSafe(sql)).bind(ids).bind(sequences).persistent(table.prepared);
        let (missing, durable): (Vec<Uuid>, bool) = guard.fetch_one(&mut **tx).await?;
        Ok(Guarded { missing: missing.into_iter().map(EventId).collect(), durable })
    }

    async fn commit(tx: Self::Transaction) -> Result<(), CommitError<sqlx::Error>> {
        let committed = commit(tx, certain).await;
        if !matches!(committed, Err(CommitError::RolledBack(_))) {
            signal::give();
        }
        committed
    }

    async fn rollback(tx: Self::Transaction) -> Result<(), sqlx::Error> {
        tx.rollback().await
    }
}

/// Whether the error of a COMMIT means that nothing was committed. The server says so by an ordinary ERROR: a deferred
/// constraint, a serialisation failure. A session that ends while it waits for a replica has committed, and says FATAL;
/// poolers speak for a server that they have lost; and an error of the connection says nothing.
fn certain(error: &sqlx::Error) -> bool {
    let database = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    database.is_some_and(|error| {
        let (severity, state) = (error.severity(), error.code());
        let in_doubt =
            ["08", "57", "58", "XX"].iter().any(|class| state.starts_with(class)) || state == "40003";
        matches!(severity, PgSeverity::Error) && !in_doubt
    })
}
