//! Carries a migration out, and takes it back.

use std::time::{Duration, Instant};

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::super::admin::AUDIT;
use super::super::error::classify;
use super::super::history;
use super::super::inbox::is_there as has_inbox_of;
use super::super::leader::lock_name;
use super::super::schema::{TableShape, columns, locate};
use super::{Extras, Held, Plan, Step, idempotency, names, plan_with};

/// A lock on the structure is asked for no longer than this: everybody who comes later would wait behind it.
const LOCK_LIMIT: &str = "SET SESSION lock_wait_timeout = 1";
/// And is asked for again for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Brings a table to the state that this version wants: makes it or upgrades it. Calls `progress` before each step.
/// Answers the plan that was carried out; a second run has no steps.
///
/// # Errors
/// When the table has other columns, the database refuses, or a lock is not to be had.
///
/// # Cancel safety
/// Dropped, the steps that were done stay, and the next run does the rest. Close the connection: its session may keep others from
/// migrating.
pub async fn up(
    connection: &mut MySqlConnection,
    table: &TableName,
    progress: impl FnMut(&Step),
) -> Result<Plan, StoreError> {
    up_with(connection, table, Extras::default(), progress).await
}

/// The same, with what only some tables have.
///
/// # Errors
/// As [`up`]; also when something else stands where an extra table would be, or the server cannot have what is asked for.
///
/// # Cancel safety
/// As [`up`].
pub async fn up_with(
    connection: &mut MySqlConnection,
    table: &TableName,
    extras: Extras,
    mut progress: impl FnMut(&Step),
) -> Result<Plan, StoreError> {
    let lock = Alone::wait(connection, table).await?;
    let done = async {
        let plan = plan_with(connection, table, extras).await?;
        for step in &plan.steps {
            progress(step);
            run(connection, &step.sql).await?;
        }
        Ok(plan)
    };
    let done = done.await;
    lock.end(connection).await;
    done
}

/// Removes a table and what belongs to it, also its history, and the inbox and the calls by idempotency key of its module. Refuses while it
/// holds events that were not published, unless they are to be lost on purpose.
///
/// # Errors
/// When unpublished events exist, the table does not exist or is no outbox, or the database fails.
///
/// # Cancel safety
/// Dropped, the table may be gone and others not: [`up`] and this once more remove them. Close the connection: its session may keep others
/// from migrating.
pub async fn down(
    connection: &mut MySqlConnection,
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
/// As [`down`]; the row is written right after the table is gone.
pub async fn down_by(
    connection: &mut MySqlConnection,
    table: &TableName,
    discard_unpublished: bool,
    by: Option<(&str, Held)>,
) -> Result<(), StoreError> {
    let (schema, table, _) = expect(connection, table).await?;
    let template = names(&table);
    let lock = Alone::wait(connection, &table).await?;
    let done = async {
        if !discard_unpublished {
            expect_published(connection, &table).await?;
        }
        let relay = !columns(connection, &schema, "postbox_relay").await.map_err(classify)?.is_empty();
        let log = !columns(connection, &schema, "postbox_audit").await.map_err(classify)?.is_empty();
        // Another's table of that name is not ours to remove.
        let history = history::find(connection, &schema, &table).await.map_err(classify)?.is_some();
        let inbox = has_inbox_of(connection, &schema, &table).await?;
        let idempotency = idempotency::is_there(connection, &schema, &table).await?;
        let window = !columns(connection, &schema, "postbox_window").await.map_err(classify)?.is_empty();
        let extras = Extras { history, inbox, idempotency, ..Extras::default() };
        let there =
            |sql: &&str| (relay || !sql.contains("{{relay}}")) && (window || !sql.contains("{{window}}"));
        for sql in drops(extras).filter(there) {
            if sql == DROP_TABLE && !discard_unpublished {
                // Until now writers came to it: what they had begun before the first look may have been committed since.
                run(connection, &template.fill("LOCK TABLES {{table}} WRITE")).await?;
                expect_published(connection, &table).await?;
            }
            run(connection, &template.fill(sql)).await?;
            if sql == DROP_TABLE {
                run(connection, "UNLOCK TABLES").await?;
            }
            // No transaction has both; whatever fails after this, the events are gone.
            if let (DROP_TABLE, Some((who, held)), true) = (sql, by, log) {
                let what = held.described();
                tracing::info!(%table, who, action = Held::ACTION, %what, "operator");
                let audit = sqlx::query(AssertSqlSafe(template.fill(AUDIT))).bind(who).bind(Held::ACTION);
                let audit = audit.bind(table.table()).bind(what.to_string()).bind(held.all());
                audit.execute(&mut *connection).await.map_err(classify)?;
            }
        }
        Ok(())
    };
    let done = done.await;
    lock.end(connection).await;
    done
}

/// What a table holds: what [`down`] would remove with it. Reads all of it.
///
/// # Errors
/// When the table does not exist or is no outbox, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn held(connection: &mut MySqlConnection, table: &TableName) -> Result<Held, StoreError> {
    let (schema, table, shape) = expect(connection, table).await?;
    let history = history::find(connection, &schema, &table).await.map_err(classify)?.is_some();
    let tells_dead = !shape.lacking().contains(&"dead_at");
    let sql = names(&table).fill(&Held::sql(tells_dead, history));
    let counts = sqlx::query_as::<_, (i64, i64, i64)>(AssertSqlSafe(sql)).fetch_one(connection);
    counts.await.map(Held::of).map_err(classify)
}

/// The table and its place, if it is one of ours: many a table has a column `published_at`, and what is no outbox is not ours to
/// remove.
async fn expect(
    connection: &mut MySqlConnection,
    table: &TableName,
) -> Result<(String, TableName, TableShape), StoreError> {
    let (schema, table) = locate(connection, table).await?;
    let Some(shape) = TableShape::read(connection, &schema, &table).await.map_err(classify)? else {
        let message = format!("{table} does not exist");
        return Err(StoreError::new(Code::TableMissing, StoreErrorKind::Refused, message));
    };
    shape.check()?;
    Ok((schema, table, shape))
}

/// Refuses where an event waits, or is dead.
async fn expect_published(connection: &mut MySqlConnection, table: &TableName) -> Result<(), StoreError> {
    let sql = names(table).fill("SELECT EXISTS (SELECT 1 FROM {{table}} WHERE published_at IS NULL)");
    let unpublished = sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql)).fetch_one(connection);
    if !unpublished.await.map_err(classify)? {
        return Ok(());
    }
    let message = format!("{table} holds events that were not published");
    Err(StoreError::new(Code::NotEmpty, StoreErrorKind::Refused, message))
}

const DROP_TABLE: &str = "DROP TABLE {{table}}";
const DROP_HISTORY: &str = "DROP TABLE IF EXISTS {{history}}";
const DROP_INBOX: &str = "DROP TABLE IF EXISTS {{inbox}}";
const DROP_CALLS: &str = "DROP TABLE IF EXISTS {{idempotency}}";
const DROPS: [&str; 7] = [
    DROP_TABLE,
    "DROP VIEW IF EXISTS {{status_view}}",
    DROP_HISTORY,
    DROP_INBOX,
    DROP_CALLS,
    "DELETE FROM {{relay}} WHERE tbl = {{key}}",
    "DELETE FROM {{window}} WHERE tbl = {{key}}",
];

/// The statements that remove a table, and of the others what is there.
pub(super) fn drops(there: Extras) -> impl Iterator<Item = &'static str> {
    let absent = [(there.history, DROP_HISTORY), (there.inbox, DROP_INBOX), (there.idempotency, DROP_CALLS)];
    DROPS.into_iter().filter(move |sql| !absent.contains(&(false, *sql)))
}

/// Runs a step. One that others hold up is tried again: until then they come first.
async fn run(connection: &mut MySqlConnection, sql: &str) -> Result<(), StoreError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let run =
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *connection).await.map_err(classify);
        match run {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == StoreErrorKind::Conflict => {
                if Instant::now() >= until {
                    let message = format!("somebody held the table for all of {PATIENCE:?}");
                    let busy = StoreError::new(Code::MigrationInterrupted, StoreErrorKind::Refused, message);
                    return Err(busy.caused_by(error));
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// One migration of a table at a time: the second finds nothing to do.
struct Alone {
    lock: String,
    /// The limit that the session had for locks.
    limit: u64,
}

impl Alone {
    async fn wait(connection: &mut MySqlConnection, table: &TableName) -> Result<Self, StoreError> {
        let (schema, table) = locate(connection, table).await?;
        let limit = sqlx::query_scalar("SELECT @@SESSION.lock_wait_timeout").fetch_one(&mut *connection);
        let limit = limit.await.map_err(classify)?;
        sqlx::raw_sql(LOCK_LIMIT).execute(&mut *connection).await.map_err(classify)?;
        let name = lock_name("migrate", &schema, &table);
        let lock = sqlx::query_scalar::<_, Option<bool>>("SELECT GET_LOCK(?, 60)").bind(&name);
        if lock.fetch_one(connection).await.map_err(classify)? == Some(true) {
            return Ok(Self { lock: name, limit });
        }
        let message = format!("another migration of {table} is under way");
        Err(StoreError::new(Code::MigrationInterrupted, StoreErrorKind::Refused, message))
    }

    /// The end of the session would give it back too.
    async fn end(self, connection: &mut MySqlConnection) {
        let _ = sqlx::raw_sql("UNLOCK TABLES").execute(&mut *connection).await;
        let _ = sqlx::query("DO RELEASE_LOCK(?)").bind(self.lock).execute(&mut *connection).await;
        let _ = sqlx::query("SET SESSION lock_wait_timeout = ?").bind(self.limit).execute(connection).await;
    }
}
