//! Migrations as text for other tools.

use postbox_core::{StoreError, TableName};

use super::apply::drops;
use super::{
    Extras, Format, REGISTER, TIME, VIEW, VIEW_HISTORY, check, idempotency, inbox, index_sql, names, wanted,
};
use crate::history::name_of;
use crate::print::{goose, join};

/// The table as SQL.
///
/// # Errors
/// None here; other databases have some.
pub fn print_up(table: &TableName, format: Format) -> Result<String, StoreError> {
    print_up_with(table, format, Extras::default())
}

/// The same, with what only some tables have.
///
/// # Errors
/// When MySQL and MariaDB cannot have what is asked for.
pub fn print_up_with(table: &TableName, format: Format, extras: Extras) -> Result<String, StoreError> {
    check(extras)?;
    let template = names(table);
    let mut up = vec![template.fill(include_str!("../migrations/table.sql"))];
    let (name, on) = (table.table(), table.quoted('`'));
    up.extend(wanted(extras, |_| false).into_iter().map(|index| index_sql(&on, name, index)));
    let mut view = VIEW;
    if extras.history {
        view = VIEW_HISTORY;
        let history = name_of(table);
        up.push(template.fill(include_str!("../migrations/history.sql")));
        up.push(index_sql(&table.quoted_sibling(&history, '`'), &history, TIME));
    }
    if extras.inbox {
        up.push(template.fill(include_str!("../migrations/inbox.sql")));
        up.push(inbox::time_index(table));
    }
    if extras.idempotency {
        up.push(template.fill(include_str!("../migrations/idempotency.sql")));
        up.push(idempotency::time_index(table));
    }
    let rest = [
        include_str!("../migrations/relay.sql"),
        include_str!("../migrations/audit.sql"),
        include_str!("../migrations/window.sql"),
        view,
        REGISTER,
    ];
    up.extend(rest.map(|sql| template.fill(sql)));
    Ok(match format {
        Format::Sql => join(&up),
        Format::Goose => goose(&up, &down_statements(table, extras)),
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
    Ok(join(&down_statements(table, extras)))
}

fn down_statements(table: &TableName, extras: Extras) -> Vec<String> {
    let guard = [
        include_str!("../migrations/down.sql"),
        "INSERT INTO postbox_guard SELECT COUNT(*) FROM {{table}} WHERE published_at IS NULL",
        "DROP TEMPORARY TABLE postbox_guard",
    ];
    guard.into_iter().chain(drops(extras)).map(|sql| names(table).fill(sql)).collect()
}
