//! [`PgIdempotency`]: calls by their idempotency keys, in PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept};
use postbox_core::idempotency::{
    Begun, Call, Finish, IdempotencyDriver, IdempotencyStore, IdempotencyTable, IdempotencyTx,
    StoredResponse, Ticket,
};
use postbox_core::{OutboxTransaction, StoreError, StoreErrorKind, TableName};
use sqlx::postgres::{PgArguments, PgPool, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::ask::{self, ask};
use super::error::classify;
use super::store::fnv1a;
use super::tx::SqlxPostgres;
use crate::idempotency::{self, Statements, TRIES, statements};
use crate::table::Template;

/// The calls of a module, beside its outbox table: `<module>_idempotency`, which `postbox migrate up --idempotency` makes. Cheap to
/// clone.
///
/// It uses the given pool, a connection for each statement. A [`Cleaner`](postbox_core::Cleaner) forgets calls after their
/// retention; `postbox relay` and `postbox clean` do so too.
///
/// ```no_run
/// # use postbox_core::Cleaner;
/// # use postbox_stores::postgres::PgIdempotency;
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let calls = PgIdempotency::new(pool, "public.shop_outbox".parse()?);
/// let cleaner = Cleaner::new(calls.clone()).retention(std::time::Duration::from_hours(48));
/// tokio::spawn(async move { cleaner.run().await });
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PgIdempotency {
    pool: PgPool,
    table: Arc<IdempotencyTable>,
    statements: Arc<Statements>,
}

type Bound<'q> = Query<'q, Postgres, PgArguments>;

const FINISH: &str = include_str!("sql/idempotency/finish.sql");

impl PgIdempotency {
    /// The calls of the module that has this outbox table. Nothing is connected yet.
    pub fn new(pool: PgPool, outbox: TableName) -> Self {
        let statements = Arc::new(statements!(&outbox, '"'));
        let table = Arc::new(IdempotencyTable { outbox, prepared: true });
        Self { pool, table, statements }
    }

    /// Keeps no statement prepared: for services behind a transaction pooler that does not know prepared statements. Costs one
    /// more round trip for each statement.
    #[must_use]
    pub fn unprepared(mut self) -> Self {
        self.table = Arc::new(IdempotencyTable { prepared: false, ..(*self.table).clone() });
        self
    }

    /// A statement about one call.
    fn about<'q>(&self, sql: &Arc<str>, call: &'q Call) -> Bound<'q> {
        about(sql, self.table.prepared, call)
    }

    /// Runs one; whether it changed something.
    async fn changes(&self, query: Bound<'_>) -> Result<bool, StoreError> {
        let done = if self.table.prepared {
            query.execute(&self.pool).await.map_err(classify)
        } else {
            // Behind a pooler, only the statements of a transaction are sure to reach the same server process.
            let mut tx = ask::begin(&self.pool).await?;
            let done = query.execute(&mut *tx).await.map_err(classify);
            ask::commit(tx).await.and(done)
        };
        Ok(done.map_err(|error| idempotency::explain(error, &self.table.outbox))?.rows_affected() > 0)
    }

    /// Runs one that only reads.
    async fn read(&self, query: Bound<'_>) -> Result<Option<PgRow>, StoreError> {
        let row = if self.table.prepared {
            query.fetch_optional(&self.pool).await.map_err(classify)
        } else {
            ask::optional(&self.pool, query).await
        };
        row.map_err(|error| idempotency::explain(error, &self.table.outbox))
    }

    async fn try_begin(&self, call: &Arc<Call>, lease: Duration) -> Result<Option<Begun>, StoreError> {
        let (token, lease) = (Uuid::new_v4(), lease.as_secs_f64());
        let run = |taken_over| Ok(Some(Begun::Run(Ticket::new(call, &self.table, token, taken_over))));
        let begin = self.about(&self.statements.begin, call);
        let begin = begin.bind(call.fingerprint().as_bytes().as_slice()).bind(token).bind(lease);
        if self.changes(begin).await? {
            return run(false);
        }
        let look = self.about(&self.statements.look, call).bind(call.fingerprint().as_bytes().as_slice());
        // Forgotten in between: to be begun after all.
        let Some(found) = self.read(look).await? else { return Ok(None) };
        let found = read(&found).map_err(classify)?;
        if let Some(answer) = found.answer() {
            return Ok(Some(answer));
        }
        let take = self.about(&self.statements.take_over, call).bind(found.token);
        if self.changes(take.bind(token).bind(lease)).await? { run(true) } else { Ok(None) }
    }
}

fn about<'q>(sql: &Arc<str>, prepared: bool, call: &'q Call) -> Bound<'q> {
    let query = sqlx::query(AssertSqlSafe(Arc::clone(sql))).persistent(prepared);
    query.bind(call.principal()).bind(call.route()).bind(call.key())
}

fn read(row: &PgRow) -> Result<idempotency::Found, sqlx::Error> {
    let remaining: f64 = row.try_get(3)?;
    Ok(idempotency::Found {
        same: row.try_get(0)?,
        done: row.try_get::<&str, _>(1)? == "done",
        token: row.try_get(2)?,
        remaining: Duration::try_from_secs_f64(remaining).unwrap_or_default(),
        status: row.try_get::<Option<i32>, _>(4)?.and_then(|status| u16::try_from(status).ok()),
        headers: row.try_get(5)?,
        body: row.try_get(6)?,
    })
}

impl IdempotencyStore for PgIdempotency {
    type Driver = SqlxPostgres;

    fn table(&self) -> &str {
        &self.statements.label
    }

    async fn begin(&self, call: &Arc<Call>, lease: Duration) -> Result<Begun, StoreError> {
        for _ in 0..TRIES {
            match self.try_begin(call, lease).await {
                Ok(Some(begun)) => return Ok(begun),
                Ok(None) => {}
                // Where everything is serializable by default, two who begin at once can fail so.
                Err(error) if error.kind() == StoreErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        Err(idempotency::restless(call))
    }

    async fn extend(&self, ticket: &Ticket, lease: Duration) -> Result<bool, StoreError> {
        let extend = self.about(&self.statements.extend, ticket.call()).bind(ticket.token());
        self.changes(extend.bind(lease.as_secs_f64())).await
    }

    async fn finish(&self, ticket: &Ticket, response: &StoredResponse) -> Result<bool, StoreError> {
        if self.changes(finishing(&self.statements.finish, Finish { ticket, response })).await? {
            return Ok(true);
        }
        let finished = self.about(&self.statements.finished, ticket.call()).bind(ticket.token());
        let finished = self.read(finished).await?;
        finished.map_or(Ok(false), |row| row.try_get(0)).map_err(classify)
    }

    async fn abandon(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        self.changes(self.about(&self.statements.abandon, ticket.call()).bind(ticket.token())).await
    }

    async fn transaction(&self) -> Result<OutboxTransaction<SqlxPostgres>, StoreError> {
        OutboxTransaction::begin(&self.pool).await.map_err(classify)
    }
}

fn finishing<'q>(sql: &Arc<str>, finish: Finish<'q>) -> Bound<'q> {
    let Finish { ticket, response } = finish;
    let query = about(sql, ticket.table().prepared, ticket.call());
    let query = query.bind(ticket.token()).bind(i32::from(response.status));
    query.bind(response.header_block()).bind(response.body.as_deref())
}

async fn finish(connection: &mut PgConnection, what: Finish<'_>) -> Result<bool, sqlx::Error> {
    let sql = Template::of(&what.ticket.table().outbox, '"').fill(FINISH);
    Ok(finishing(&sql.into(), what).execute(connection).await?.rows_affected() > 0)
}

impl IdempotencyTx<SqlxPostgres> for &mut Transaction<'_, Postgres> {
    type Error = sqlx::Error;

    async fn finish(self, what: Finish<'_>) -> Result<bool, sqlx::Error> {
        finish(&mut *self, what).await
    }
}

impl IdempotencyDriver for SqlxPostgres {
    async fn finish(tx: &mut Transaction<'static, Postgres>, what: Finish<'_>) -> Result<bool, sqlx::Error> {
        finish(&mut *tx, what).await
    }
}

impl Sweep for PgIdempotency {
    fn table(&self) -> &str {
        &self.statements.label
    }

    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        let query = ask(&*self.statements.sweep)
            .bind(fnv1a(&format!("outbox-cleaner:{}", self.statements.label)))
            .bind(request.retention.as_secs_f64())
            .bind(i64::from(request.batch));
        let row = ask::one(&self.pool, query).await;
        let row = row.map_err(|error| idempotency::explain(error, &self.table.outbox))?;
        let free: bool = row.try_get(0).map_err(classify)?;
        let rows: i64 = row.try_get(1).map_err(classify)?;
        Ok(if free { Swept::Deleted(u64::try_from(rows).unwrap_or(0)) } else { Swept::Busy })
    }
}

impl SweepCount for PgIdempotency {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        let sql = "SELECT count(*) FROM {{idempotency}} WHERE created_at < now() - make_interval(secs => $1)
                   AND (state = 'done' OR lease_until < now())";
        let sql = Template::of(&self.table.outbox, '"').fill(sql);
        let row = ask::one(&self.pool, ask(sql).bind(request.retention.as_secs_f64())).await;
        let row = row.map_err(|error| idempotency::explain(error, &self.table.outbox))?;
        let calls: i64 = row.try_get(0).map_err(classify)?;
        Ok(Due { published: u64::try_from(calls).unwrap_or(0), dead: 0 })
    }
}
