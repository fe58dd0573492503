//! Migrations as text for other tools.

use postbox_core::{StoreError, TableName};

use super::super::schema::in_main;
use super::apply::drops;
use super::{
    Extras, Format, INDEXES, REGISTER, TENANTS, VIEW, VIEW_HISTORY, history, idempotency, inbox, index_sql,
    names,
};
use crate::print::{goose, join};

/// The table as SQL. The write-ahead log is not in it, since tools wrap this in a transaction: a relay turns it on.
///
/// # Errors
/// When the name has a schema, of which SQLite has none.
pub fn print_up(table: &TableName, format: Format) -> Result<String, StoreError> {
    print_up_with(table, format, Extras::default())
}

/// The same, with what only some tables have.
///
/// # Errors
/// As [`print_up`].
pub fn print_up_with(table: &TableName, format: Format, extras: Extras) -> Result<String, StoreError> {
    let table = in_main(table)?;
    let template = names(&table);
    let mut up = vec![template.fill(include_str!("../migrations/table.sql"))];
    let tenants = extras.tenants.then_some(TENANTS);
    up.extend(INDEXES.into_iter().chain(tenants).map(|index| index_sql(&table, index)));
    let mut view = VIEW;
    if extras.history {
        view = VIEW_HISTORY;
        up.push(template.fill(include_str!("../migrations/history.sql")));
        up.push(template.fill(&history::index_sql(&table)));
        // It may be there without the history.
        up.push(template.fill("DROP VIEW IF EXISTS {{status_view}}"));
    }
    if extras.inbox {
        up.push(template.fill(include_str!("../migrations/inbox.sql")));
        up.push(template.fill(&inbox::index_sql(&table)));
    }
    let rest =
        [include_str!("../migrations/relay.sql"), include_str!("../migrations/audit.sql"), view, REGISTER];
    up.extend(rest.map(|sql| template.fill(sql)));
    if extras.idempotency {
        up.push(template.fill(include_str!("../migrations/idempotency.sql")));
        up.push(template.fill(&idempotency::index_sql(&table)));
    }
    Ok(match format {
        Format::Sql => join(&up),
        Format::Goose => goose(&up, &down_statements(&table, extras)),
    })
}

/// The way back as SQL; it fails by itself while unpublished events exist.
///
/// # Errors
/// As [`print_up`].
pub fn print_down(table: &TableName) -> Result<String, StoreError> {
    print_down_with(table, Extras::default())
}

/// The same, with what only some tables have.
///
/// # Errors
/// As [`print_up`].
pub fn print_down_with(table: &TableName, extras: Extras) -> Result<String, StoreError> {
    Ok(join(&down_statements(&in_main(table)?, extras)))
}

fn down_statements(table: &TableName, extras: Extras) -> Vec<String> {
    let guard = [
        include_str!("../migrations/down.sql"),
        "INSERT INTO postbox_guard SELECT count(*) FROM {{table}} WHERE published_at IS NULL",
        "DROP TABLE temp.postbox_guard",
    ];
    let there = [extras.history, extras.inbox, extras.idempotency];
    guard.into_iter().chain(drops(there)).map(|sql| names(table).fill(sql)).collect()
}
