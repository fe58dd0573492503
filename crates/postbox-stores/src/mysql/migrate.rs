//! Makes, upgrades and removes outbox tables: as a plan that is shown, carried out, or printed for another tool.
//!
//! MySQL and MariaDB commit each change of a structure by itself. So every step can be repeated, and a migration that was
//! interrupted goes on where it stopped.

mod apply;
mod idempotency;
mod inbox;
mod print;

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::error::classify;
use super::history;
use super::schema::{EXTENSION, TableShape, columns, indexes, locate, quoted};
use super::version::Server;
use super::window;
use crate::history::name_of;
use crate::schema::lines;
use crate::table::Template;

pub use crate::plan::{Extras, Held, Ordered, Plan, Step, StepLock};
pub use crate::print::Format;
pub use apply::{down, down_by, held, up, up_with};
pub use idempotency::has_idempotency;
pub use inbox::has_inbox;
pub use print::{print_down, print_down_with, print_up, print_up_with};

/// The index by which rows are claimed, found when they are dead, and cleaned: the end of its name, and its columns.
pub(super) const PENDING: (&str, &str) =
    ("pending_by_available", "published_at, dead_at, available_at, sequence");

/// For relays that claim tenants apart.
pub(super) const TENANTS: (&str, &str) =
    ("tenants_waiting", "published_at, dead_at, tenant_id, available_at, sequence");

/// For relays that keep order: what is not published, by sequence, and what of an aggregate is not.
pub(super) const ORDER: (&str, &str) = ("unpublished_by_sequence", "published_at, sequence");
pub(super) const AGGREGATES: (&str, &str) =
    ("unpublished_by_aggregate", "aggregate_id(64), published_at, sequence");

/// The history's, by which it is cleaned.
pub(super) const TIME: (&str, &str) = ("by_time", "published_at, sequence");

/// The status view, and the same with what is in the history.
const VIEW: &str = include_str!("migrations/view.sql");
const VIEW_HISTORY: &str =
    concat!(include_str!("migrations/view.sql"), include_str!("migrations/view_history.sql"));

const REGISTER: &str = "INSERT IGNORE INTO {{relay}} (tbl) VALUES ({{key}})";

/// Names for the statements of a migration.
fn names(table: &TableName) -> Template {
    let name = table.table();
    // How people read ids: with hyphens.
    let uuid = |column: &str| {
        let hyphens = [21, 17, 13, 9];
        let text =
            hyphens.iter().fold(format!("HEX({column})"), |text, at| format!("INSERT({text}, {at}, 0, '-')"));
        format!("LOWER({text})")
    };
    Template::of(table, '`')
        .with("name", name)
        .with("idempotency_name", table.idempotency())
        .with("status_view", table.quoted_sibling(&format!("{name}_status"), '`'))
        .with("key", format!("'{name}'"))
        .with("extension", lines(EXTENSION.into_iter().map(|(column, _, kind)| (column, kind))))
        .with("in_flight", window::in_flight(table))
        .with("event_id_text", uuid("event_id"))
        .with("tenant_id_text", uuid("tenant_id"))
}

/// Indexes are built while everybody goes on working.
fn index_sql(on: &str, table: &str, (end, columns): (&str, &str)) -> String {
    format!("CREATE INDEX `{table}_{end}` ON {on} ({columns})")
}

/// The indexes that a table is to have.
fn wanted(extras: Extras, has: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
    let mut wanted = vec![PENDING];
    if extras.tenants || has(TENANTS.0) {
        wanted.push(TENANTS);
    }
    if extras.ordered != Ordered::AsItIs || has(ORDER.0) || has(AGGREGATES.0) {
        wanted.extend([ORDER, AGGREGATES]);
    }
    wanted
}

/// Refuses what these databases cannot do.
fn check(extras: Extras) -> Result<(), StoreError> {
    let why = match extras {
        Extras { ordered: Ordered::Writers, .. } => {
            "--ordered needs a lock that ends with its transaction, which MySQL and MariaDB do not have: use --order-index, and have \
             the writers of an aggregate lock its row before they enqueue"
        }
        Extras { wake_trigger: true, .. } => {
            "--wake-trigger needs a way to tell others of a commit, which MySQL and MariaDB do not have: leave it out, relays look \
             for commits by themselves"
        }
        _ => return Ok(()),
    };
    Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, why))
}

/// Finds out what [`up`] would do.
///
/// # Errors
/// When the table exists with other columns, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn plan(connection: &mut MySqlConnection, table: &TableName) -> Result<Plan, StoreError> {
    plan_with(connection, table, Extras::default()).await
}

/// Finds out what [`up_with`] would do.
///
/// # Errors
/// As [`plan`]; also when something else stands where an extra table would be, or the server cannot have what is asked for.
///
/// # Cancel safety
/// As [`plan`].
pub async fn plan_with(
    connection: &mut MySqlConnection,
    table: &TableName,
    extras: Extras,
) -> Result<Plan, StoreError> {
    check(extras)?;
    Server::expect(connection).await?;
    let (schema, table) = locate(connection, table).await?;
    let template = names(&table);
    let mut steps = Vec::new();
    let mut step =
        |what: String, sql: &str, lock: StepLock| steps.push(Step::new(what, template.fill(sql), lock));
    let (name, on) = (table.table(), table.quoted('`'));
    // Columns that the table is about to get.
    let mut coming: Vec<(&str, &str)> = Vec::new();
    let shape = TableShape::read(connection, &schema, &table).await.map_err(classify)?;
    match &shape {
        None => step(format!("+ table {table}"), include_str!("migrations/table.sql"), StepLock::None),
        Some(shape) => {
            shape.check()?;
            for (column, kind) in shape.missing() {
                coming.push((column, kind));
                let add = format!("ALTER TABLE {{{{table}}}} ADD COLUMN {column} {kind}");
                step(format!("+ column {column}"), &add, StepLock::Short);
            }
        }
    }
    let found = indexes(connection, &schema, name).await.map_err(classify)?;
    let lock = if shape.is_none() { StepLock::None } else { StepLock::Concurrent };
    if shape.is_some() && !found.values().any(|columns| columns == "event_id") {
        let add = format!("CREATE UNIQUE INDEX `{name}_event_id_key` ON {on} (event_id)");
        step(format!("+ index {name}_event_id_key"), &add, lock);
    }
    for index in wanted(extras, |end| found.contains_key(&format!("{name}_{end}"))) {
        let (index_name, add) = (format!("{name}_{}", index.0), index_sql(&on, name, index));
        match found.get(&index_name) {
            Some(columns) if columns == index.1 => continue,
            Some(_) => {
                let drop = format!("DROP INDEX `{index_name}` ON {on}");
                step(format!("- index {index_name} (another one)"), &drop, StepLock::Short);
            }
            None => {}
        }
        step(format!("+ index {index_name}"), &add, lock);
    }
    let history = history_steps(connection, &schema, &table, extras.history, &coming, &mut step).await?;
    inbox::steps(connection, &schema, &table, extras.inbox, &mut step).await?;
    idempotency::steps(connection, &schema, &table, extras.idempotency, &mut step).await?;
    let own = shape.iter().flat_map(TableShape::own_columns);
    if history == HistoryComing::New {
        for column in own {
            let (column, kind) = (quoted(&column.name), &column.whole);
            let add = format!("ALTER TABLE {{{{history}}}} ADD COLUMN {column} {kind}");
            step(format!("+ column {column} of {}", name_of(&table)), &add, StepLock::None);
        }
    }
    system_steps(connection, &schema, &table, history, &mut step).await?;
    Ok(Plan { table, steps })
}

/// What stands in the way, or is to come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HistoryComing {
    None,
    There,
    New,
}

/// Adds what has to be done about the history: make it where it is wanted, or bring one that is there to the columns that the
/// table has or is about to get.
async fn history_steps(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
    wanted: bool,
    coming: &[(&str, &str)],
    step: &mut impl FnMut(String, &str, StepLock),
) -> Result<HistoryComing, StoreError> {
    let (name, index) = (name_of(table), format!("{}_{}", name_of(table), TIME.0));
    let on = table.quoted_sibling(&name, '`');
    let Some(found) = history::read(connection, schema, table).await.map_err(classify)? else {
        if wanted {
            step(format!("+ table {name}"), include_str!("migrations/history.sql"), StepLock::None);
            step(format!("+ index {index}"), &index_sql(&on, &name, TIME), StepLock::None);
            return Ok(HistoryComing::New);
        }
        return Ok(HistoryComing::None);
    };
    if let Err(problem) = found.check() {
        // Not ours: only whoever wants a history hears that its name is taken.
        return if wanted { Err(problem) } else { Ok(HistoryComing::None) };
    }
    let own = columns(connection, schema, &name).await.map_err(classify)?;
    let coming = coming.iter().filter(|(column, _)| !own.iter().any(|own| own.name == *column));
    for (column, kind) in found.missing().chain(coming.copied()) {
        let add = format!("ALTER TABLE {{{{history}}}} ADD COLUMN {column} {kind}");
        step(format!("+ column {column} of {name}"), &add, StepLock::Short);
    }
    if !found.has_index {
        let indexes = indexes(connection, schema, &name).await.map_err(classify)?;
        if indexes.contains_key(&index) {
            step(
                format!("- index {index} (of no use)"),
                &format!("DROP INDEX `{index}` ON {on}"),
                StepLock::Short,
            );
        }
        step(format!("+ index {index}"), &index_sql(&on, &name, TIME), StepLock::Concurrent);
    }
    Ok(HistoryComing::There)
}

/// Adds what has to be done about the system tables, the view, and the table's row.
async fn system_steps(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
    history: HistoryComing,
    step: &mut impl FnMut(String, &str, StepLock),
) -> Result<(), StoreError> {
    let mut has_relay = false;
    for (system, sql) in [
        ("postbox_relay", include_str!("migrations/relay.sql")),
        ("postbox_audit", include_str!("migrations/audit.sql")),
        ("postbox_window", include_str!("migrations/window.sql")),
    ] {
        let found = columns(connection, schema, system).await.map_err(classify)?;
        if found.is_empty() {
            step(format!("+ table {system}"), sql, StepLock::None);
        } else if system == "postbox_relay" {
            has_relay = true;
        }
    }
    let view = sqlx::query_scalar::<_, String>(
        "SELECT CAST(view_definition AS CHAR) FROM information_schema.views WHERE table_schema = ? AND table_name = ?",
    );
    let view = view.bind(schema).bind(format!("{}_status", table.table())).fetch_optional(&mut *connection);
    let view = view.await.map_err(classify)?;
    let with_history = history != HistoryComing::None;
    if view.is_none_or(|sql| sql.contains(&name_of(table)) != with_history) {
        let view = if with_history { VIEW_HISTORY } else { VIEW };
        step("+ status view".to_owned(), view, StepLock::None);
    }
    let mut registered = false;
    if has_relay {
        let sql = names(table).fill("SELECT EXISTS (SELECT 1 FROM {{relay}} WHERE tbl = {{key}})");
        registered = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.map_err(classify)?;
    }
    if !registered {
        step("+ row in postbox_relay".to_owned(), REGISTER, StepLock::None);
    }
    Ok(())
}

/// Whether a table has a history that published events can be moved to.
///
/// # Errors
/// When the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_history(connection: &mut MySqlConnection, table: &TableName) -> Result<bool, StoreError> {
    let (schema, table) = locate(connection, table).await?;
    Ok(history::find(connection, &schema, &table).await.map_err(classify)?.is_some())
}
