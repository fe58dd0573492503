//! [`SqliteIdempotency`]: calls by their idempotency keys, in SQLite.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept};
use postbox_core::idempotency::{
    Begun, Call, Finish, IdempotencyDriver, IdempotencyStore, IdempotencyTable, IdempotencyTx,
    StoredResponse, Ticket,
};
use postbox_core::{OutboxTransaction, StoreError, TableName};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection, Transaction};
use uuid::Uuid;

use super::clock::{now, span};
use super::error::classify;
use super::link::Patience;
use super::schema::in_main;
use super::tx::SqlxSqlite;
use crate::idempotency::{self, Statements, TRIES, statements};
use crate::table::Template;

/// The calls of a module, beside its outbox table: `<module>_idempotency`, which `postbox migrate up --idempotency` makes. Cheap to
/// clone.
///
/// It uses the given pool, a connection for each statement, and waits for the write lock in short random pauses, as
/// [`begin`](super::begin) does. What a repeat is told is read without that lock. A [`Cleaner`](postbox_core::Cleaner) forgets
/// calls after their retention; `postbox relay` and `postbox clean` do so too.
#[derive(Debug, Clone)]
pub struct SqliteIdempotency {
    pool: SqlitePool,
    table: Arc<IdempotencyTable>,
    statements: Arc<Statements>,
}

type Bound<'q> = Query<'q, Sqlite, SqliteArguments>;

impl SqliteIdempotency {
    /// The calls of the module that has this outbox table. Nothing is connected yet.
    pub fn new(pool: SqlitePool, outbox: TableName) -> Self {
        // A schema that SQLite does not have is an error of the first statement.
        let outbox = in_main(&outbox).unwrap_or(outbox);
        let statements = Arc::new(statements!(&outbox, '"'));
        let table = Arc::new(IdempotencyTable { outbox, prepared: true });
        Self { pool, table, statements }
    }

    /// Runs a statement that writes, which is made for the time at which it is tried; how many rows it changed.
    async fn change<'q>(&self, statement: impl Fn(i64) -> Bound<'q>) -> Result<u64, StoreError> {
        let mut patience = Patience::new();
        loop {
            // First the connection, then the time: one may be waited for.
            let mut connection = self.pool.acquire().await.map_err(classify)?;
            let tried = statement(now()).execute(&mut *connection).await;
            drop(connection);
            match tried {
                Ok(done) => return Ok(done.rows_affected()),
                Err(error) => patience.pause(error).await.map_err(|error| self.explain(error))?,
            }
        }
    }

    fn explain(&self, error: sqlx::Error) -> StoreError {
        idempotency::explain(classify(error), &self.table.outbox)
    }

    async fn look(&self, call: &Call) -> Result<Option<idempotency::Found>, StoreError> {
        let look = about(&self.statements.look, call).bind(call.fingerprint().as_bytes().as_slice());
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let found = look.bind(now()).fetch_optional(&mut *connection).await;
        let found = found.map_err(|error| self.explain(error))?;
        found.as_ref().map(read).transpose().map_err(classify)
    }

    async fn try_begin(&self, call: &Arc<Call>, lease: Duration) -> Result<Option<Begun>, StoreError> {
        let token = Uuid::new_v4();
        // To look costs no lock, which somebody may hold for all of his transaction.
        let Some(found) = self.look(call).await? else {
            let begin = |now| {
                let begin = about(&self.statements.begin, call);
                let begin = begin.bind(call.fingerprint().as_bytes().as_slice()).bind(token);
                begin.bind(now).bind(span(lease))
            };
            let is_first = self.change(begin).await? > 0;
            return Ok(is_first.then(|| Begun::Run(Ticket::new(call, &self.table, token, false))));
        };
        if let Some(answer) = found.answer() {
            return Ok(Some(answer));
        }
        let take = |now| {
            let take = about(&self.statements.take_over, call).bind(found.token).bind(token);
            take.bind(now).bind(span(lease))
        };
        let is_next = self.change(take).await? > 0;
        Ok(is_next.then(|| Begun::Run(Ticket::new(call, &self.table, token, true))))
    }
}

const FINISH: &str = include_str!("sql/idempotency/finish.sql");

fn about<'q>(sql: &Arc<str>, call: &'q Call) -> Bound<'q> {
    let query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
    query.bind(call.principal()).bind(call.route()).bind(call.key())
}

fn read(row: &SqliteRow) -> Result<idempotency::Found, sqlx::Error> {
    let remaining: i64 = row.try_get(3)?;
    Ok(idempotency::Found {
        same: row.try_get(0)?,
        done: row.try_get::<&str, _>(1)? == "done",
        token: row.try_get(2)?,
        remaining: Duration::from_micros(u64::try_from(remaining).unwrap_or(0)),
        status: row.try_get::<Option<i64>, _>(4)?.and_then(|status| u16::try_from(status).ok()),
        headers: row.try_get(5)?,
        body: row.try_get(6)?,
    })
}

impl IdempotencyStore for SqliteIdempotency {
    type Driver = SqlxSqlite;

    fn table(&self) -> &str {
        &self.statements.label
    }

    async fn begin(&self, call: &Arc<Call>, lease: Duration) -> Result<Begun, StoreError> {
        for _ in 0..TRIES {
            if let Some(begun) = self.try_begin(call, lease).await? {
                return Ok(begun);
            }
        }
        Err(idempotency::restless(call))
    }

    async fn extend(&self, ticket: &Ticket, lease: Duration) -> Result<bool, StoreError> {
        let extend = |now| {
            let extend = about(&self.statements.extend, ticket.call()).bind(ticket.token());
            extend.bind(now).bind(span(lease))
        };
        Ok(self.change(extend).await? > 0)
    }

    async fn finish(&self, ticket: &Ticket, response: &StoredResponse) -> Result<bool, StoreError> {
        let finish = |now| bind(&self.statements.finish, Finish { ticket, response }, now);
        if self.change(finish).await? > 0 {
            return Ok(true);
        }
        let finished = about(&self.statements.finished, ticket.call()).bind(ticket.token());
        let finished = finished.fetch_one(&self.pool).await.map_err(|error| self.explain(error))?;
        finished.try_get(0).map_err(classify)
    }

    async fn abandon(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let abandon = |_| about(&self.statements.abandon, ticket.call()).bind(ticket.token());
        Ok(self.change(abandon).await? > 0)
    }

    async fn transaction(&self) -> Result<OutboxTransaction<SqlxSqlite>, StoreError> {
        OutboxTransaction::begin(&self.pool).await.map_err(classify)
    }
}

fn bind<'q>(sql: &Arc<str>, finish: Finish<'q>, now: i64) -> Bound<'q> {
    let Finish { ticket, response } = finish;
    let query = about(sql, ticket.call()).bind(ticket.token()).bind(i64::from(response.status));
    query.bind(response.header_block()).bind(response.body.as_deref()).bind(now)
}

/// SQLite itself ends a transaction where the disk is full or fails, and a handler may have sent a ROLLBACK. Who did not look at that
/// would commit each further statement at once. A second BEGIN is refused while one is open. One that is not refused is left to
/// the caller, who rolls back: else sqlx would count a transaction that is not there, and this connection could begin none again.
pub(super) async fn still_open(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    match sqlx::raw_sql("BEGIN").execute(connection).await {
        Ok(_) => Err(sqlx::Error::Protocol("the transaction was ended before its COMMIT".to_owned())),
        Err(sqlx::Error::Database(error)) if error.message().contains("within a transaction") => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) async fn finish(
    connection: &mut SqliteConnection,
    finish: Finish<'_>,
) -> Result<bool, sqlx::Error> {
    still_open(&mut *connection).await?;
    let sql = Template::of(&finish.ticket.table().outbox, '"').fill(FINISH);
    Ok(bind(&sql.into(), finish, now()).execute(connection).await?.rows_affected() > 0)
}

impl IdempotencyTx<SqlxSqlite> for &mut Transaction<'_, Sqlite> {
    type Error = sqlx::Error;

    async fn finish(self, what: Finish<'_>) -> Result<bool, sqlx::Error> {
        finish(&mut *self, what).await
    }
}

impl IdempotencyDriver for SqlxSqlite {
    async fn finish(tx: &mut Transaction<'static, Sqlite>, what: Finish<'_>) -> Result<bool, sqlx::Error> {
        finish(&mut *tx, what).await
    }
}

impl Sweep for SqliteIdempotency {
    fn table(&self) -> &str {
        &self.statements.label
    }

    /// One writer at a time: cleaners cannot get in each other's way, so none is ever told that it is busy.
    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        let sweep = |now: i64| {
            let sweep = sqlx::query(AssertSqlSafe(Arc::clone(&self.statements.sweep)));
            let before = now.saturating_sub(span(request.retention));
            sweep.bind(before).bind(now).bind(i64::from(request.batch))
        };
        Ok(Swept::Deleted(self.change(sweep).await?))
    }
}

impl SweepCount for SqliteIdempotency {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        let sql = "SELECT count(*) FROM {{idempotency}} WHERE created_at < ?1 AND (state = 'done' OR lease_until < ?2)";
        let sql = Template::of(&self.table.outbox, '"').fill(sql);
        let now = now();
        let query =
            sqlx::query(AssertSqlSafe(sql)).bind(now.saturating_sub(span(request.retention))).bind(now);
        let row = query.fetch_one(&self.pool).await.map_err(|error| self.explain(error))?;
        let calls: i64 = row.try_get(0).map_err(classify)?;
        Ok(Due { published: u64::try_from(calls).unwrap_or(0), dead: 0 })
    }
}
