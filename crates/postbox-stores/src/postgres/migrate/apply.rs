//! Carries a plan out without getting into anybody's way.

use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::plan::plan_with;
use super::{idempotency, inbox, names};
use crate::plan::{Extras, Plan, Step, StepLock};
#[cfg(all(feature = "sqlite", feature = "mysql"))]
use crate::postgres::ask;
use crate::postgres::error::classify;
use crate::postgres::history;
use crate::postgres::schema::TableShape;

/// A lock that is waited for makes all that come after it wait too: so not for long, but again and again.
const LOCK_LIMIT: &str = "300ms";
const TRIES: u32 = 100;

/// Brings a table to the state that this version wants: makes it, upgrades it, or finishes what was interrupted.
/// Calls `progress` before each step. Answers the plan that was carried out; a second run has no steps.
///
/// # Errors
/// When the table has columns of other types, the database refuses, or a short lock is not to be had.
///
/// # Cancel safety
/// Dropped, the steps that were done stay, and the next run does the rest. Close the connection: its session may keep others from
/// migrating.
pub async fn up(
    connection: &mut PgConnection,
    table: &TableName,
    progress: impl FnMut(&Step),
) -> Result<Plan, StoreError> {
    up_with(connection, table, Extras::default(), progress).await
}

/// The same, with what only some tables have.
///
/// # Errors
/// As [`up`]; also when something else stands where an extra table would be.
///
/// # Cancel safety
/// As [`up`].
pub async fn up_with(
    connection: &mut PgConnection,
    table: &TableName,
    extras: Extras,
    mut progress: impl FnMut(&Step),
) -> Result<Plan, StoreError> {
    expect_one_session(connection).await?;
    one_at_a_time(connection).await?;
    let plan = plan_with(connection, table, extras).await?;
    for step in &plan.steps {
        progress(step);
        carry_out(connection, &plan.table, step).await?;
    }
    run(connection, "SELECT pg_advisory_unlock(hashtextextended('postbox:migrate', 0))")
        .await
        .map_err(classify)?;
    Ok(plan)
}

/// Removes a table and what belongs to it, also its history, and its module's inbox and calls. Refuses while it holds events that were
/// not published, unless they are to be lost on purpose.
///
/// # Errors
/// When unpublished events exist, the table does not exist or is no outbox, or the database fails.
///
/// # Cancel safety
/// Dropped, all of it is gone, or nothing is. Close the connection: the statement may still run.
pub async fn down(
    connection: &mut PgConnection,
    table: &TableName,
    discard_unpublished: bool,
) -> Result<(), StoreError> {
    let mut tx = connection.begin().await.map_err(classify)?;
    let Some(shape) = TableShape::read(&mut tx, table).await.map_err(classify)? else {
        let message = format!("{table} does not exist");
        return Err(StoreError::new(Code::TableMissing, StoreErrorKind::Refused, message));
    };
    // Many a table has a column `published_at`: what is no outbox is not ours to remove.
    shape.check()?;
    let template = names(&shape.name);
    let guard = "IF EXISTS (SELECT 1 FROM {{table}} WHERE published_at IS NULL) THEN
        RAISE EXCEPTION 'not empty' USING ERRCODE = 'PB001'; END IF;";
    // Another's table of that name is not ours to remove.
    let history = history::find(&mut tx, &shape.name).await.map_err(classify)?;
    let inbox = inbox::is_there(&mut tx, &shape.name).await?;
    let calls = idempotency::is_there(&mut tx, &shape.name).await?;
    tx.commit().await.map_err(classify)?;
    let calls = if calls { "DROP TABLE {{idempotency}};" } else { "" };
    let history = history.map_or("", |_| "DROP TABLE {{history}};");
    let inbox = if inbox { "DROP TABLE {{inbox}};" } else { "" };
    let forget = if shape.system_tables { "DELETE FROM {{relay}} WHERE tbl = {{key}};" } else { "" };
    let sql = template.fill(&format!(
        "DO $postbox$ BEGIN LOCK TABLE {{{{table}}}} IN ACCESS EXCLUSIVE MODE; {} DROP VIEW IF EXISTS {{{{status_view}}}};
         DROP TABLE {{{{table}}}}; {history} {inbox} {calls} {forget} END $postbox$",
        if discard_unpublished { "" } else { guard }
    ));
    match with_short_lock(connection, &sql).await {
        Err(error) if error.message().contains("PB001") => {
            let message = format!("{} holds events that were not published", shape.name);
            Err(StoreError::new(Code::NotEmpty, StoreErrorKind::Refused, message))
        }
        result => result,
    }
}

/// Indexes are built outside of any transaction, and what keeps migrations apart is a lock of the session: through a
/// transaction pooler, a migration could end half-way, and leave its lock with somebody else.
async fn expect_one_session(connection: &mut PgConnection) -> Result<(), StoreError> {
    let mut first = None;
    for _ in 0..3 {
        let pid =
            sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(&mut *connection).await.map_err(classify)?;
        let pid: i32 = pid.try_get(0).map_err(classify)?;
        if *first.get_or_insert(pid) != pid {
            return Err(pooled());
        }
    }
    Ok(())
}

/// The same, seen from two clients: a pooler that nobody else uses gives one client the same server process each time.
///
/// # Errors
/// When a transaction pooler stands between.
#[cfg(all(feature = "sqlite", feature = "mysql"))]
pub(crate) async fn expect_sessions(
    connection: &mut PgConnection,
    other: &mut PgConnection,
) -> Result<(), StoreError> {
    if ask::is_pooled([connection, other]).await.map_err(classify)? { Err(pooled()) } else { Ok(()) }
}

fn pooled() -> StoreError {
    let message = "a migration needs a session of its own, and this connection goes through a transaction pooler: nothing was \
                   changed; set OUTBOX_DIRECT_URL to the database itself, or apply what `postbox migrate print` prints";
    StoreError::new(Code::PoolerUnsupported, StoreErrorKind::Refused, message)
}

/// Waits for another migration without a statement that waits: a concurrent index build of that other one would wait
/// for our snapshot, and we for it.
async fn one_at_a_time(connection: &mut PgConnection) -> Result<(), StoreError> {
    for _ in 0..600 {
        let lock = "SELECT pg_try_advisory_lock(hashtextextended('postbox:migrate', 0))";
        if sqlx::query_scalar::<_, bool>(lock).fetch_one(&mut *connection).await.map_err(classify)? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(busy("another migration runs"))
}

async fn carry_out(connection: &mut PgConnection, table: &TableName, step: &Step) -> Result<(), StoreError> {
    match step.lock {
        StepLock::Short => with_short_lock(connection, &step.sql).await,
        StepLock::None | StepLock::Concurrent | StepLock::Writers => {
            run(connection, "SET lock_timeout = 0").await.map_err(classify)?;
            run(connection, &step.sql).await.map_err(|error| {
                let error = classify(error);
                tracing::error!(%table, step = step.what, %error, "migration step failed");
                error
            })
        }
    }
}

async fn with_short_lock(connection: &mut PgConnection, sql: &str) -> Result<(), StoreError> {
    // The limit ends with the transaction: nobody else ever has it, whose session this is.
    let sql = format!("BEGIN; SET LOCAL lock_timeout = '{LOCK_LIMIT}'; {sql}\n; COMMIT");
    for attempt in 0..TRIES {
        let done = run(connection, &sql).await.map_err(classify);
        if done.is_err() {
            // Where it failed for want of a connection, there is nothing to take back.
            let _ = run(connection, "ROLLBACK").await;
        }
        match done {
            Err(error) if error.kind() == StoreErrorKind::Conflict => {
                let pause = Duration::from_millis(50 * u64::from(attempt.min(20)) + 20);
                tokio::time::sleep(pause).await;
            }
            result => return result,
        }
    }
    Err(busy("a transaction on the table does not end"))
}

/// One statement at a time in simple mode: a concurrent build refuses to be part of a transaction.
async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(|_| ())
}

fn busy(why: &str) -> StoreError {
    StoreError::new(Code::MigrationInterrupted, StoreErrorKind::Conflict, why)
}
