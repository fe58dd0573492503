//! Carries a plan out without getting into anybody's way.

use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::plan::plan_with;
use super::{idempotency, inbox, names};
use crate::plan::{Extras, Held, Plan, Step, StepLock};
use crate::postgres::ask;
use crate::postgres::error::classify;
use crate::postgres::history;
use crate::postgres::schema::TableShape;

/// A lock that is waited for makes all that come after it wait too: so not for long, but again and again.
const LOCK_LIMIT: &str = "300ms";
const TRIES: u32 = 100;
const HELD_UP: &str = "a transaction on the table does not end";

/// Limits that a session may have for what serves requests: an index takes as long as it takes. Short locks have their own.
const LIMITS: &str = "SELECT name, setting FROM pg_settings
    WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout')";

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
    progress: impl FnMut(&Step),
) -> Result<Plan, StoreError> {
    expect_one_session(connection).await?;
    one_at_a_time(connection).await?;
    let limits: Vec<(String, String)> =
        sqlx::query_as(LIMITS).fetch_all(&mut *connection).await.map_err(classify)?;
    let done = all_steps(connection, table, extras, &limits, progress).await;
    // Also after a failure: whoever keeps this connection, as a pool does, would keep all others from migrating.
    let unlock = "SELECT pg_advisory_unlock(hashtextextended('postbox:migrate', 0))";
    let ended = run(connection, &format!("{unlock}; {}", set(&limits, None))).await.map_err(classify);
    let plan = done?;
    ended?;
    Ok(plan)
}

/// Sets limits to this value, or back to what they were.
fn set(limits: &[(String, String)], value: Option<&str>) -> String {
    let set = |(name, was): &(String, String)| format!("SET {name} = '{}'", value.unwrap_or(was));
    limits.iter().map(set).collect::<Vec<_>>().join("; ")
}

async fn all_steps(
    connection: &mut PgConnection,
    table: &TableName,
    extras: Extras,
    limits: &[(String, String)],
    mut progress: impl FnMut(&Step),
) -> Result<Plan, StoreError> {
    run(connection, &set(limits, Some("0"))).await.map_err(classify)?;
    let plan = plan_with(connection, table, extras).await?;
    for step in &plan.steps {
        progress(step);
        carry_out(connection, &plan.table, step).await?;
    }
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
    down_by(connection, table, discard_unpublished, None).await
}

/// The same by somebody: the audit log, where there is one, gets a row with who did it and what [`held`] had counted.
///
/// # Errors
/// As [`down`].
///
/// # Cancel safety
/// As [`down`].
pub async fn down_by(
    connection: &mut PgConnection,
    table: &TableName,
    discard_unpublished: bool,
    by: Option<(&str, Held)>,
) -> Result<(), StoreError> {
    let mut tx = connection.begin().await.map_err(classify)?;
    let shape = expect(&mut tx, table).await?;
    // Another's table of that name is not ours to remove.
    let history = history::find(&mut tx, &shape.name).await.map_err(classify)?.is_some();
    let inbox = inbox::is_there(&mut tx, &shape.name).await?;
    let calls = idempotency::is_there(&mut tx, &shape.name).await?;
    tx.commit().await.map_err(classify)?;
    let drops = [
        ("DROP VIEW IF EXISTS {{status_view}}; DROP TABLE {{table}};", true),
        ("DROP TABLE {{history}};", history),
        ("DROP TABLE {{inbox}};", inbox),
        ("DROP TABLE {{idempotency}};", calls),
        ("DELETE FROM {{relay}} WHERE tbl = {{key}};", shape.system_tables),
    ];
    let drops: String = drops.into_iter().filter(|(_, there)| *there).map(|(sql, _)| sql).collect();
    let by = by.filter(|_| shape.system_tables);
    for attempt in 0..TRIES {
        let mut tx = connection.begin().await.map_err(classify)?;
        let removed = match remove(&mut tx, &shape, &drops, discard_unpublished, by).await {
            Ok(()) => tx.commit().await.map_err(classify),
            Err(error) => {
                // At once: until then nobody else comes to the table.
                let _ = tx.rollback().await;
                Err(error)
            }
        };
        match removed {
            Err(error) if error.kind() == StoreErrorKind::Conflict => pause(attempt).await,
            result => return result,
        }
    }
    Err(busy(HELD_UP))
}

/// Whether there are events that were not published: what an index answers, since everybody waits for the answer.
fn unpublished(tells_dead: bool) -> &'static str {
    if tells_dead {
        "SELECT coalesce(
             (SELECT true FROM {{table}} WHERE published_at IS NULL AND dead_at IS NULL ORDER BY available_at, sequence LIMIT 1),
             (SELECT true FROM {{table}} WHERE published_at IS NULL AND dead_at IS NOT NULL ORDER BY dead_at, sequence LIMIT 1),
             false)"
    } else {
        "SELECT coalesce((SELECT true FROM {{table}} WHERE published_at IS NULL ORDER BY available_at, sequence LIMIT 1), false)"
    }
}

/// All of it, with its row in the audit log; gives up where others hold the table.
async fn remove(
    tx: &mut PgConnection,
    shape: &TableShape,
    drops: &str,
    discard_unpublished: bool,
    by: Option<(&str, Held)>,
) -> Result<(), StoreError> {
    let table = &shape.name;
    let template = names(table);
    let lock =
        format!("SET LOCAL lock_timeout = '{LOCK_LIMIT}'; LOCK TABLE {{{{table}}}} IN ACCESS EXCLUSIVE MODE");
    run(tx, &template.fill(&lock)).await.map_err(classify)?;
    let unpublished = template.fill(unpublished(shape.columns.contains_key("dead_at")));
    let unpublished = sqlx::query_scalar::<_, bool>(AssertSqlSafe(unpublished)).persistent(false);
    if unpublished.fetch_one(&mut *tx).await.map_err(classify)? && !discard_unpublished {
        let message = format!("{table} holds events that were not published");
        return Err(StoreError::new(Code::NotEmpty, StoreErrorKind::Refused, message));
    }
    run(tx, &template.fill(drops)).await.map_err(classify)?;
    if let Some((who, held)) = by {
        let what = held.described();
        tracing::info!(%table, who, action = Held::ACTION, %what, "operator");
        let audit = "INSERT INTO {{audit}} (who, action, tbl, what, events) VALUES ($1, $2, {{key}}, $3, $4)";
        let audit = ask::ask(template.fill(audit)).bind(who).bind(Held::ACTION).bind(what).bind(held.all());
        audit.execute(tx).await.map_err(classify)?;
    }
    Ok(())
}

/// What a table holds: what [`down`] would remove with it. Reads all of it.
///
/// # Errors
/// When the table does not exist or is no outbox, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn held(connection: &mut PgConnection, table: &TableName) -> Result<Held, StoreError> {
    let mut tx = connection.begin().await.map_err(classify)?;
    let shape = expect(&mut tx, table).await?;
    let history = history::find(&mut tx, &shape.name).await.map_err(classify)?.is_some();
    let sql = names(&shape.name).fill(&Held::sql(shape.columns.contains_key("dead_at"), history));
    let counts = sqlx::query_as::<_, (i64, i64, i64)>(AssertSqlSafe(sql)).persistent(false);
    let counts = counts.fetch_one(&mut *tx).await.map_err(classify)?;
    tx.commit().await.map_err(classify)?;
    Ok(Held::of(counts))
}

/// The table, if it is one of ours: many a table has a column `published_at`, and what is no outbox is not ours to remove.
async fn expect(connection: &mut PgConnection, table: &TableName) -> Result<TableShape, StoreError> {
    let Some(shape) = TableShape::read(connection, table).await.map_err(classify)? else {
        let message = format!("{table} does not exist");
        return Err(StoreError::new(Code::TableMissing, StoreErrorKind::Refused, message));
    };
    shape.check()?;
    Ok(shape)
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
            Err(error) if error.kind() == StoreErrorKind::Conflict => pause(attempt).await,
            result => return result,
        }
    }
    Err(busy(HELD_UP))
}

/// Others come first, for longer and longer.
async fn pause(attempt: u32) {
    tokio::time::sleep(Duration::from_millis(50 * u64::from(attempt.min(20)) + 20)).await;
}

/// One statement at a time in simple mode: a concurrent build refuses to be part of a transaction.
async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(|_| ())
}

fn busy(why: &str) -> StoreError {
    StoreError::new(Code::MigrationInterrupted, StoreErrorKind::Conflict, why)
}
