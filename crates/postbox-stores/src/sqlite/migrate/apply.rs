//! Carries a migration out, and takes it back.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use super::super::clock::now;
use super::super::error::classify;
use super::super::history;
use super::super::inbox::is_there as has_inbox_of;
use super::super::link::Patience;
use super::super::schema::{TableShape, in_main};
use super::{Extras, Held, Plan, Step, StepLock, WAL, has_wal, idempotency, names, table_steps};

/// Brings a table to the state that this version wants: makes it or upgrades it. Calls `progress` before each step.
/// Answers the plan that was carried out; a second run has no steps.
///
/// # Errors
/// When the table has other columns, the database refuses, or the write lock is not to be had.
///
/// # Cancel safety
/// Dropped, nothing has happened, but for the write-ahead log, which stays on.
pub async fn up(
    connection: &mut SqliteConnection,
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
    connection: &mut SqliteConnection,
    table: &TableName,
    extras: Extras,
    mut progress: impl FnMut(&Step),
) -> Result<Plan, StoreError> {
    let table = in_main(table)?;
    let mut steps = Vec::new();
    if !has_wal(connection).await.map_err(classify)? {
        // Not possible inside of a transaction.
        let step = Step::new("~ journal_mode: write-ahead log", WAL, StepLock::Short);
        progress(&step);
        let mut patience = Patience::new();
        while let Err(error) = sqlx::query(WAL).execute(&mut *connection).await {
            patience.pause(error).await.map_err(classify)?;
        }
        steps.push(step);
    }
    let first = steps.len();
    // However little patience the connection has itself.
    let mut patience = Patience::new();
    let mut tx = loop {
        match connection.begin_with("BEGIN IMMEDIATE").await {
            Ok(tx) => break tx,
            Err(error) => patience.pause(error).await.map_err(classify)?,
        }
    };
    table_steps(&mut tx, &table, extras, &mut steps).await?;
    for step in &steps[first..] {
        progress(step);
        sqlx::raw_sql(AssertSqlSafe(step.sql.clone())).execute(&mut *tx).await.map_err(classify)?;
    }
    tx.commit().await.map_err(classify)?;
    Ok(Plan { table, steps })
}

/// Removes a table and what belongs to it, also its history, and its module's inbox and calls. Refuses while it holds events that were
/// not published, unless they are to be lost on purpose.
///
/// # Errors
/// When unpublished events exist, the table does not exist or is no outbox, or the database fails.
///
/// # Cancel safety
/// Dropped, nothing has happened.
pub async fn down(
    connection: &mut SqliteConnection,
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
    connection: &mut SqliteConnection,
    table: &TableName,
    discard_unpublished: bool,
    by: Option<(&str, Held)>,
) -> Result<(), StoreError> {
    let table = in_main(table)?;
    let template = names(&table);
    // However little patience the connection has itself.
    let mut patience = Patience::new();
    let mut tx = loop {
        match connection.begin_with("BEGIN IMMEDIATE").await {
            Ok(tx) => break tx,
            Err(error) => patience.pause(error).await.map_err(classify)?,
        }
    };
    expect(&mut tx, &table).await?;
    let unpublished = template.fill("SELECT EXISTS (SELECT 1 FROM {{table}} WHERE published_at IS NULL)");
    let unpublished = sqlx::query_scalar::<_, bool>(AssertSqlSafe(unpublished)).fetch_one(&mut *tx);
    if unpublished.await.map_err(classify)? && !discard_unpublished {
        let message = format!("{table} holds events that were not published");
        return Err(StoreError::new(Code::NotEmpty, StoreErrorKind::Refused, message));
    }
    let (relay, log) =
        (has_table(&mut tx, "postbox_relay").await?, has_table(&mut tx, "postbox_audit").await?);
    // Another's table of that name is not ours to remove.
    let history = history::find(&mut tx, &table).await.map_err(classify)?.is_some();
    let inbox = has_inbox_of(&mut tx, &table).await?;
    let calls = idempotency::is_there(&mut tx, &table).await.map_err(classify)?;
    for sql in drops([history, inbox, calls]).filter(|sql| relay || !sql.contains("{{relay}}")) {
        let sql = template.fill(sql);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.map_err(classify)?;
    }
    if let Some((who, held)) = by.filter(|_| log) {
        let what = held.described();
        tracing::info!(%table, who, action = Held::ACTION, %what, "operator");
        let audit =
            "INSERT INTO {{audit}} (at, who, action, tbl, what, events) VALUES (?1, ?2, ?3, {{key}}, ?4, ?5)";
        let audit = sqlx::query(AssertSqlSafe(template.fill(audit))).bind(now()).bind(who).bind(Held::ACTION);
        audit.bind(what.to_string()).bind(held.all()).execute(&mut *tx).await.map_err(classify)?;
    }
    tx.commit().await.map_err(classify)
}

/// What a table holds: what [`down`] would remove with it. Reads all of it.
///
/// # Errors
/// When the table does not exist or is no outbox, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn held(connection: &mut SqliteConnection, table: &TableName) -> Result<Held, StoreError> {
    let table = in_main(table)?;
    let shape = expect(connection, &table).await?;
    let history = history::find(connection, &table).await.map_err(classify)?.is_some();
    let sql = names(&table).fill(&Held::sql(!shape.missing().contains(&"dead_at"), history));
    let counts = sqlx::query_as::<_, (i64, i64, i64)>(AssertSqlSafe(sql)).fetch_one(connection);
    counts.await.map(Held::of).map_err(classify)
}

/// The table, if it is one of ours: many a table has a column `published_at`, and what is no outbox is not ours to remove.
async fn expect(connection: &mut SqliteConnection, table: &TableName) -> Result<TableShape, StoreError> {
    let Some(shape) = TableShape::read(connection, table).await.map_err(classify)? else {
        let message = format!("{table} does not exist");
        return Err(StoreError::new(Code::TableMissing, StoreErrorKind::Refused, message));
    };
    shape.check()?;
    Ok(shape)
}

async fn has_table(connection: &mut SqliteConnection, name: &str) -> Result<bool, StoreError> {
    let found = sqlx::query("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1").bind(name);
    Ok(found.fetch_optional(connection).await.map_err(classify)?.is_some())
}

const DROP_HISTORY: &str = "DROP TABLE IF EXISTS {{history}}";
const DROP_INBOX: &str = "DROP TABLE IF EXISTS {{inbox}}";
const DROP_CALLS: &str = "DROP TABLE IF EXISTS {{idempotency}}";
const DROPS: [&str; 6] = [
    "DROP VIEW IF EXISTS {{status_view}}",
    "DROP TABLE {{table}}",
    DROP_HISTORY,
    DROP_INBOX,
    DROP_CALLS,
    "DELETE FROM {{relay}} WHERE tbl = {{key}}",
];

/// All of them, but of history, inbox and calls those that there are.
pub(super) fn drops(there: [bool; 3]) -> impl Iterator<Item = &'static str> {
    let left = [DROP_HISTORY, DROP_INBOX, DROP_CALLS].into_iter().zip(there);
    let left: Vec<&str> = left.filter(|(_, there)| !there).map(|(sql, _)| sql).collect();
    DROPS.into_iter().filter(move |sql| !left.contains(sql))
}
