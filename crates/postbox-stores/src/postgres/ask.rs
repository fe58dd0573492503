//! How operators ask: each operation is a transaction, and none of its statements has a name.
//!
//! Behind a transaction pooler nothing else is certain to reach one and the same server process: a statement that was prepared
//! on one is unknown to the next, or is there already, from somebody else. Operators ask seldom, so that they do it everywhere
//! in the same way, pooler or not; it costs two round trips and one more parse.

use std::ops::Deref;
use std::time::Duration;

use postbox_core::StoreError;
use sqlx::postgres::{PgArguments, PgPool, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _, Transaction};

use super::error::classify;

/// A statement with its values.
pub(super) type Ask<'q> = Query<'q, Postgres, PgArguments>;

/// A statement without a name.
pub(super) fn ask<'q>(sql: impl Into<String>) -> Ask<'q> {
    sqlx::query(AssertSqlSafe(sql.into())).persistent(false)
}

/// Whatever the sessions of the pool are otherwise: what waits for a row that somebody changes goes on with what that one has
/// left (hazard 17).
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Where connections come from.
pub(super) trait Door: Sync {
    /// Begins a transaction.
    fn open(&self) -> impl Future<Output = Result<Transaction<'static, Postgres>, StoreError>> + Send;
}

impl Door for PgPool {
    async fn open(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        // On the heap: whoever asks would carry it along.
        Box::pin(self.begin_with(BEGIN)).await.map_err(classify)
    }
}

/// A pool whose transactions may have a limit for each of their statements. It is said in every one of them: behind a pooler
/// the next one is another session's, and whatever is set there for good would hit others.
#[derive(Debug, Clone)]
pub(super) struct Limited {
    pub(super) pool: PgPool,
    pub(super) limit: Option<Duration>,
}

impl Deref for Limited {
    type Target = PgPool;

    fn deref(&self) -> &PgPool {
        &self.pool
    }
}

impl Door for Limited {
    async fn open(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        let Some(limit) = self.limit else { return self.pool.open().await };
        let millis = limit.as_millis().max(1);
        let sql =
            format!("{BEGIN}; SET LOCAL statement_timeout = {millis}; SET LOCAL lock_timeout = {millis}");
        Box::pin(self.pool.begin_with(AssertSqlSafe(sql))).await.map_err(classify)
    }
}

/// Begins an operation of several statements.
pub(super) async fn begin(door: &impl Door) -> Result<Transaction<'static, Postgres>, StoreError> {
    door.open().await
}

/// Ends it. What was written counts from here on.
pub(super) async fn commit(tx: Transaction<'static, Postgres>) -> Result<(), StoreError> {
    tx.commit().await.map_err(classify)
}

/// An operation of one statement.
pub(super) async fn all(pool: &impl Door, query: Ask<'_>) -> Result<Vec<PgRow>, StoreError> {
    let mut tx = begin(pool).await?;
    let rows = query.persistent(false).fetch_all(&mut *tx).await.map_err(classify)?;
    commit(tx).await?;
    Ok(rows)
}

/// The same, where there is at most one answer.
pub(super) async fn optional(pool: &impl Door, query: Ask<'_>) -> Result<Option<PgRow>, StoreError> {
    Ok(all(pool, query).await?.into_iter().next())
}

/// The same, where there is always one.
pub(super) async fn one(pool: &impl Door, query: Ask<'_>) -> Result<PgRow, StoreError> {
    optional(pool, query).await?.ok_or_else(|| classify(sqlx::Error::RowNotFound))
}

/// How often both clients are asked: once where nothing speaks for a pooler.
const ROUNDS: usize = 8;

/// Whether a transaction pooler stands between: two clients share one server process, or one client has several (hazard 6).
/// Nothing is set and nothing prepared, since either would hit others on a shared session.
///
/// Among others who come and go, a pooler may give each of the two its own process for a while. So they are asked more often
/// where the server has not heard what the driver asks for when it connects: poolers keep that to themselves.
pub(super) async fn is_pooled(mut clients: [&mut PgConnection; 2]) -> Result<bool, sqlx::Error> {
    let digits = sqlx::raw_sql("SHOW extra_float_digits").fetch_one(&mut *clients[0]).await?;
    let heard = digits.try_get::<String, _>(0)? == "2";
    let mut first = [None, None];
    for _ in 0..if heard { 1 } else { ROUNDS } {
        // One after the other: in turns, a pooler with two server processes could give each its own by chance.
        for (client, first) in clients.iter_mut().zip(&mut first) {
            for _ in 0..3 {
                let pid = sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(&mut **client).await?;
                let pid: i32 = pid.try_get(0)?;
                if *first.get_or_insert(pid) != pid {
                    return Ok(true);
                }
            }
        }
        if first[0] == first[1] {
            return Ok(true);
        }
    }
    Ok(false)
}
