//! Makes, upgrades and removes outbox tables: as a plan that is shown, carried out, or printed for another tool.
//!
//! A migration is one transaction: all of it happens, or nothing.

mod apply;
mod history;
mod idempotency;
mod inbox;
mod print;

use std::collections::BTreeMap;

use postbox_core::{StoreError, TableName};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::error::classify;
use super::schema::{EXTENSION, TableShape, in_main};
use crate::history::name_of;
use crate::schema::lines;
use crate::table::Template;

pub use crate::plan::{Extras, Held, Ordered, Plan, Step, StepLock};
pub use crate::print::Format;
pub use apply::{down, down_by, held, up, up_with};
pub use history::has_history;
pub use idempotency::has_idempotency;
pub use inbox::has_inbox;
pub use print::{print_down, print_down_with, print_up, print_up_with};

/// The indexes of a table: the end of the name, what kind, the columns, and what the predicate must hold.
const INDEXES: [(&str, &str, &str, &str); 8] = [
    ("event_id_key", "UNIQUE INDEX", "(event_id)", ""),
    ("pending_by_available", "INDEX", "(available_at, sequence)", "published_at IS NULL AND dead_at IS NULL"),
    ("published_by_time", "INDEX", "(published_at, sequence)", "published_at IS NOT NULL"),
    ("tenant_published", "INDEX", "(tenant_id, published_at, sequence)", ""),
    ("dead_by_time", "INDEX", "(dead_at, sequence)", "dead_at IS NOT NULL"),
    // What still has to go to the dead-letter route: few rows, however many dead ones have gone there.
    ("letters_waiting", "INDEX", "(available_at, sequence)", "dead_at IS NOT NULL AND dlq_at IS NULL"),
    ("unpublished_by_sequence", "INDEX", "(sequence)", "published_at IS NULL"),
    (
        "dead_by_aggregate",
        "INDEX",
        "(aggregate_id, aggregate_type, tenant_id, sequence)",
        "dead_at IS NOT NULL",
    ),
];

/// For relays that claim tenants apart.
pub(super) const TENANTS: (&str, &str, &str, &str) = (
    "tenants_waiting",
    "INDEX",
    "(tenant_id, available_at, sequence)",
    "published_at IS NULL AND dead_at IS NULL",
);

/// The time for a plain INSERT: whole milliseconds, exact, in every version that has STRICT tables.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000";

/// The status view, and the same with what is in the history.
const VIEW: &str = include_str!("migrations/view.sql");
const VIEW_HISTORY: &str =
    concat!(include_str!("migrations/view.sql"), include_str!("migrations/view_history.sql"));

const WAL: &str = "PRAGMA journal_mode = WAL";
const REGISTER: &str = "INSERT INTO {{relay}} (tbl) VALUES ({{key}}) ON CONFLICT DO NOTHING";

/// Names for the statements of a migration.
fn names(table: &TableName) -> Template {
    let name = table.table();
    // How people read them: ids with hyphens, times as RFC 3339.
    let uuid = |column: &str| {
        let part = |from: u8, length: u8| format!("substr(hex({column}), {from}, {length})");
        let parts = [part(1, 8), part(9, 4), part(13, 4), part(17, 4), part(21, 12)];
        format!("lower({})", parts.join(" || '-' || "))
    };
    let time = |column: &str| format!("strftime('%Y-%m-%dT%H:%M:%fZ', {column} / 1000000.0, 'unixepoch')");
    Template::of(table, '"')
        .with("name", name)
        .with("idempotency_name", table.idempotency())
        .with("status_view", table.quoted_sibling(&format!("{name}_status"), '"'))
        .with("key", format!("'{name}'"))
        .with("extension", lines(EXTENSION.into_iter()))
        .with("now", NOW)
        .with("event_id_text", uuid("event_id"))
        .with("tenant_id_text", uuid("tenant_id"))
        .with("created_at_text", time("created_at"))
        .with("available_at_text", time("available_at"))
        .with("published_at_text", time("published_at"))
        .with("dead_at_text", time("dead_at"))
        .with("dlq_at_text", time("dlq_at"))
        .with("locked_at_text", time("locked_at"))
}

fn index_sql(table: &TableName, (end, kind, columns, predicate): (&str, &str, &str, &str)) -> String {
    let condition = if predicate.is_empty() { String::new() } else { format!(" WHERE {predicate}") };
    let name = table.table();
    format!("CREATE {kind} IF NOT EXISTS \"{name}_{end}\" ON {} {columns}{condition}", table.quoted('"'))
}

/// Whether this is the statement that made the index whose name ends so.
pub(super) fn is_right(end: &str, sql: &str) -> bool {
    let Some((_, kind, columns, predicate)) = INDEXES.iter().chain([&TENANTS]).find(|index| index.0 == end)
    else {
        return false;
    };
    sql.contains(kind) && sql.contains(columns) && predicate.split(" AND ").all(|part| sql.contains(part))
}

/// Finds out what [`up`] would do.
///
/// # Errors
/// When the table exists with other columns, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn plan(connection: &mut SqliteConnection, table: &TableName) -> Result<Plan, StoreError> {
    plan_with(connection, table, Extras::default()).await
}

/// Finds out what [`up_with`] would do.
///
/// # Errors
/// As [`plan`]; also when something else stands where an extra table would be.
///
/// # Cancel safety
/// As [`plan`].
pub async fn plan_with(
    connection: &mut SqliteConnection,
    table: &TableName,
    extras: Extras,
) -> Result<Plan, StoreError> {
    let table = in_main(table)?;
    let mut steps = Vec::new();
    if !has_wal(connection).await.map_err(classify)? {
        steps.push(Step::new("~ journal_mode: write-ahead log", WAL, StepLock::Short));
    }
    table_steps(connection, &table, extras, &mut steps).await?;
    Ok(Plan { table, steps })
}

async fn has_wal(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    let mode = sqlx::query_scalar::<_, String>("PRAGMA journal_mode").fetch_one(connection).await?;
    // A database in memory has no log; it only stands in for a file that is not there yet.
    Ok(mode.eq_ignore_ascii_case("wal") || mode.eq_ignore_ascii_case("memory"))
}

async fn table_steps(
    connection: &mut SqliteConnection,
    table: &TableName,
    extras: Extras,
    steps: &mut Vec<Step>,
) -> Result<(), StoreError> {
    let template = names(table);
    let mut step =
        |what: String, sql: &str| steps.push(Step::new(what, template.fill(sql), StepLock::Writers));
    let name = table.table();
    // Columns that the table is about to get.
    let mut coming: Vec<(&str, &str)> = Vec::new();
    match TableShape::read(connection, table).await.map_err(classify)? {
        None => step(format!("+ table {table}"), include_str!("migrations/table.sql")),
        Some(shape) => {
            shape.check()?;
            for column in shape.missing() {
                let kind =
                    EXTENSION.iter().find(|(name, _)| *name == column).map_or("TEXT", |(_, kind)| *kind);
                coming.push((column, kind));
                step(
                    format!("+ column {column}"),
                    &format!("ALTER TABLE {{{{table}}}} ADD COLUMN {column} {kind}"),
                );
            }
        }
    }
    let found = sqlx::query("SELECT name, coalesce(sql, '') FROM sqlite_schema").fetch_all(&mut *connection);
    let mut found: BTreeMap<String, String> = found
        .await
        .and_then(|rows| rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect())
        .map_err(classify)?;
    let tenants = extras.tenants || found.contains_key(&format!("{name}_{}", TENANTS.0));
    for index in INDEXES.into_iter().chain(tenants.then_some(TENANTS)) {
        let (end, ..) = index;
        let index_name = format!("{name}_{end}");
        match found.get(&index_name) {
            Some(sql) if is_right(end, sql) => continue,
            Some(_) => {
                step(format!("- index {index_name} (another one)"), &format!("DROP INDEX \"{index_name}\""));
            }
            None => {}
        }
        step(format!("+ index {index_name}"), &index_sql(table, index));
    }
    let with_history = history::steps(connection, table, extras.history, &coming, &mut step).await?;
    inbox::steps(connection, table, extras.inbox, &mut step).await?;
    idempotency::steps(connection, table, extras.idempotency, &mut step).await?;
    let view = format!("{name}_status");
    if found.get(&view).is_some_and(|sql| sql.contains(&name_of(table)) != with_history) {
        step("- status view (another one)".to_owned(), "DROP VIEW {{status_view}}");
        found.remove(&view);
    }
    let view_sql = if with_history { VIEW_HISTORY } else { VIEW };
    for (object, what, sql) in [
        ("postbox_relay", "+ table postbox_relay", include_str!("migrations/relay.sql")),
        ("postbox_audit", "+ table postbox_audit", include_str!("migrations/audit.sql")),
        (&*view, "+ status view", view_sql),
    ] {
        if !found.contains_key(object) {
            step(what.to_owned(), sql);
        }
    }
    let mut registered = false;
    if found.contains_key("postbox_relay") {
        let sql = template.fill("SELECT EXISTS (SELECT 1 FROM {{relay}} WHERE tbl = {{key}})");
        registered = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.map_err(classify)?;
    }
    if !registered {
        step("+ row in postbox_relay".to_owned(), REGISTER);
    }
    Ok(())
}
