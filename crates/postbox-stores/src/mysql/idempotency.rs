//! [`MySqlIdempotency`]: calls by their idempotency keys, in MySQL and MariaDB.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept};
use postbox_core::idempotency::{
    Begun, Call, Finish, IdempotencyDriver, IdempotencyStore, IdempotencyTable, IdempotencyTx,
    StoredResponse, Ticket,
};
use postbox_core::{OutboxPool, OutboxTransaction, StoreError, TableName};
use sqlx::mysql::{MySqlPool, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _, Transaction};
use uuid::Uuid;

use super::clause::Bound;
use super::clock::span;
use super::error::{DUPLICATE, classify, error_number};
use super::link::Tries;
use super::tx::SqlxMySql;
use crate::idempotency::{self, Statements, TRIES, statements};
use crate::table::Template;

/// The calls of a module, beside its outbox table: `<module>_idempotency`, which `postbox migrate up --idempotency` makes. Cheap to
/// clone.
///
/// It uses the given pool, a connection for each statement, and tries again what a deadlock has undone. What a repeat is told is
/// read without a lock. A [`Cleaner`](postbox_core::Cleaner) forgets calls after their retention; `postbox relay` and `postbox clean`
/// do so too.
///
/// The transactions that it opens for handlers are READ COMMITTED, whatever the pool's sessions are: see
/// [`session_isolation`](Self::session_isolation).
#[derive(Debug, Clone)]
pub struct MySqlIdempotency {
    pool: MySqlPool,
    table: Arc<IdempotencyTable>,
    statements: Arc<Statements>,
    begin: &'static str,
}

/// For one transaction, whatever the session's others are.
const READ_COMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

const FINISH: &str = include_str!("sql/idempotency/finish.sql");

impl MySqlIdempotency {
    /// The calls of the module that has this outbox table. Nothing is connected yet.
    pub fn new(pool: MySqlPool, outbox: TableName) -> Self {
        let statements = Arc::new(statements!(&outbox, '`'));
        let table = Arc::new(IdempotencyTable { outbox, prepared: true });
        Self { pool, table, statements, begin: READ_COMMITTED }
    }

    /// Opens transactions at the isolation level of the pool's sessions instead of READ COMMITTED, for handlers that rely on it.
    ///
    /// At REPEATABLE READ, MariaDB from 11.6 on refuses to change a row that somebody has changed since the transaction first read
    /// (`innodb_snapshot_isolation`). The lease of a call that takes long is renewed in its row: such a call then cannot commit. Let handlers
    /// end within a third of the lease, or turn that setting off.
    #[must_use]
    pub fn session_isolation(mut self) -> Self {
        self.begin = "START TRANSACTION";
        self
    }

    /// Runs a statement that is a transaction of its own; how many rows it changed.
    async fn change<'q>(&self, statement: impl Fn() -> Bound<'q>) -> Result<u64, StoreError> {
        let mut tries = Tries::new();
        loop {
            match statement().execute(&self.pool).await {
                Ok(done) => return Ok(done.rows_affected()),
                // Of a new call: somebody was first.
                Err(error) if error_number(&error) == Some(DUPLICATE) => return Ok(0),
                Err(error) => tries.pause(self.explain(error)).await?,
            }
        }
    }

    fn explain(&self, error: sqlx::Error) -> StoreError {
        idempotency::explain(classify(error), &self.table.outbox)
    }

    async fn look(&self, call: &Call) -> Result<Option<idempotency::Found>, StoreError> {
        let fingerprint = call.fingerprint();
        let content = || fingerprint.as_bytes().as_slice();
        let look = query(&self.statements.look).bind(content()).bind(content()).bind(content());
        let found = of(look, call).fetch_optional(&self.pool).await;
        let found = found.map_err(|error| self.explain(error))?;
        found.as_ref().map(read).transpose().map_err(classify)
    }

    async fn try_begin(&self, call: &Arc<Call>, lease: Duration) -> Result<Option<Begun>, StoreError> {
        let (token, lease) = (Uuid::new_v4(), span(lease));
        // To look costs no lock, for which a repeat would have to wait while the answer of the first is committed.
        let Some(found) = self.look(call).await? else {
            let fingerprint = call.fingerprint();
            let begin = || {
                let begin = of(query(&self.statements.begin), call);
                begin.bind(fingerprint.as_bytes().to_vec()).bind(token).bind(lease)
            };
            let is_first = self.change(begin).await? > 0;
            return Ok(is_first.then(|| Begun::Run(Ticket::new(call, &self.table, token, false))));
        };
        if let Some(answer) = found.answer() {
            return Ok(Some(answer));
        }
        let take = || {
            let take = query(&self.statements.take_over).bind(token).bind(lease);
            of(take, call).bind(found.token)
        };
        let is_next = self.change(take).await? > 0;
        Ok(is_next.then(|| Begun::Run(Ticket::new(call, &self.table, token, true))))
    }
}

fn query(sql: &Arc<str>) -> Bound<'static> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// Binds which call it is about.
fn of<'q>(query: Bound<'q>, call: &'q Call) -> Bound<'q> {
    query.bind(call.principal().as_bytes()).bind(call.route().as_bytes()).bind(call.key().as_bytes())
}

fn read(row: &MySqlRow) -> Result<idempotency::Found, sqlx::Error> {
    let remaining: i64 = row.try_get(3)?;
    Ok(idempotency::Found {
        same: row.try_get(0)?,
        done: row.try_get(1)?,
        token: row.try_get(2)?,
        remaining: Duration::from_micros(u64::try_from(remaining).unwrap_or(0)),
        status: row.try_get::<Option<i32>, _>(4)?.and_then(|status| u16::try_from(status).ok()),
        headers: row.try_get(5)?,
        body: row.try_get(6)?,
    })
}

impl IdempotencyStore for MySqlIdempotency {
    type Driver = SqlxMySql;

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
        let extend = || {
            let extend = query(&self.statements.extend).bind(span(lease));
            of(extend, ticket.call()).bind(ticket.token())
        };
        Ok(self.change(extend).await? > 0)
    }

    async fn finish(&self, ticket: &Ticket, response: &StoredResponse) -> Result<bool, StoreError> {
        let finish = || finishing(&self.statements.finish, Finish { ticket, response });
        if self.change(finish).await? > 0 {
            return Ok(true);
        }
        let finished = of(query(&self.statements.finished), ticket.call()).bind(ticket.token());
        let finished = finished.fetch_one(&self.pool).await.map_err(|error| self.explain(error))?;
        finished.try_get(0).map_err(classify)
    }

    async fn abandon(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let abandon = || of(query(&self.statements.abandon), ticket.call()).bind(ticket.token());
        Ok(self.change(abandon).await? > 0)
    }

    async fn transaction(&self) -> Result<OutboxTransaction<SqlxMySql>, StoreError> {
        OutboxTransaction::begin(Beginning { pool: &self.pool, sql: self.begin }).await.map_err(classify)
    }
}

/// How a handler's transaction begins.
struct Beginning<'a> {
    pool: &'a MySqlPool,
    sql: &'static str,
}

impl OutboxPool<SqlxMySql> for Beginning<'_> {
    async fn begin(self) -> Result<Transaction<'static, MySql>, sqlx::Error> {
        self.pool.begin_with(self.sql).await
    }
}

fn finishing<'q>(sql: &Arc<str>, finish: Finish<'q>) -> Bound<'q> {
    let Finish { ticket, response } = finish;
    let query = query(sql).bind(i32::from(response.status)).bind(response.header_block());
    of(query.bind(response.body.as_deref()), ticket.call()).bind(ticket.token())
}

/// A deadlock ends the transaction, and the session goes on without one. Who did not look at that error would store an answer here
/// whose effect is gone. Without a transaction there is no savepoint, and to release it is an error.
pub(super) const STILL_OPEN: &str = "SAVEPOINT postbox_call; RELEASE SAVEPOINT postbox_call";

async fn finish(connection: &mut MySqlConnection, what: Finish<'_>) -> Result<bool, sqlx::Error> {
    sqlx::raw_sql(STILL_OPEN).execute(&mut *connection).await?;
    let sql = Template::of(&what.ticket.table().outbox, '`').fill(FINISH);
    Ok(finishing(&sql.into(), what).execute(connection).await?.rows_affected() > 0)
}

impl IdempotencyTx<SqlxMySql> for &mut Transaction<'_, MySql> {
    type Error = sqlx::Error;

    async fn finish(self, what: Finish<'_>) -> Result<bool, sqlx::Error> {
        finish(&mut *self, what).await
    }
}

impl IdempotencyDriver for SqlxMySql {
    async fn finish(tx: &mut Transaction<'static, MySql>, what: Finish<'_>) -> Result<bool, sqlx::Error> {
        finish(&mut *tx, what).await
    }
}

impl Sweep for MySqlIdempotency {
    fn table(&self) -> &str {
        &self.statements.label
    }

    /// Cleaners that meet wait for each other's rows, for as long as a batch takes: none is ever told that it is busy.
    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        let mut tries = Tries::new();
        loop {
            let once = async {
                // Else a sweep would lock the gaps, too, and new calls would wait for it.
                let mut tx = self.pool.begin_with(READ_COMMITTED).await?;
                let sweep = query(&self.statements.sweep).bind(span(request.retention));
                let swept = sweep.bind(i64::from(request.batch)).execute(&mut *tx).await?;
                tx.commit().await?;
                Ok(swept.rows_affected())
            };
            match once.await {
                Ok(rows) => return Ok(Swept::Deleted(rows)),
                Err(error) => tries.pause(self.explain(error)).await?,
            }
        }
    }
}

impl SweepCount for MySqlIdempotency {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        let sql = "SELECT COUNT(*) FROM {{idempotency}} WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
                   AND (state = 'done' OR lease_until < UTC_TIMESTAMP(6))";
        let sql = Template::of(&self.table.outbox, '`').fill(sql);
        let row = sqlx::query(AssertSqlSafe(sql)).bind(span(request.retention)).fetch_one(&self.pool).await;
        let row = row.map_err(|error| self.explain(error))?;
        let calls: i64 = row.try_get(0).map_err(classify)?;
        Ok(Due { published: u64::try_from(calls).unwrap_or(0), dead: 0 })
    }
}
