//! The table that published events are moved to.

use postbox_core::{StoreError, TableName};
use sqlx::SqliteConnection;

use super::super::error::classify;
use super::super::history::{INDEX, find, read};
use super::super::schema::{EXTENSION, STANDARD, in_main};
use crate::history::name_of;

/// Whether a table has a history that published events can be moved to.
///
/// # Errors
/// When the name has a schema, of which SQLite has none, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_history(connection: &mut SqliteConnection, table: &TableName) -> Result<bool, StoreError> {
    let found = find(connection, &in_main(table)?).await;
    Ok(found.map_err(classify)?.is_some())
}

pub(super) fn index_sql(table: &TableName) -> String {
    format!("CREATE INDEX IF NOT EXISTS \"{}_{}\" ON {{{{history}}}} {}", name_of(table), INDEX.0, INDEX.1)
}

/// Adds what has to be done about the history: make it where it is wanted, or bring one that is there to the columns that the
/// table has or is about to get. Answers whether there will be one.
pub(super) async fn steps(
    connection: &mut SqliteConnection,
    table: &TableName,
    wanted: bool,
    coming: &[(&str, &str)],
    step: &mut impl FnMut(String, &str),
) -> Result<bool, StoreError> {
    let (name, index) = (name_of(table), format!("{}_{}", name_of(table), INDEX.0));
    let Some(found) = read(connection, table).await.map_err(classify)? else {
        if wanted {
            step(format!("+ table {name}"), include_str!("../migrations/history.sql"));
            step(format!("+ index {index}"), &index_sql(table));
            // Columns that are somebody's own.
            for (column, kind) in own_columns(connection, table).await.map_err(classify)? {
                let add = format!("ALTER TABLE {{{{history}}}} ADD COLUMN {column} {kind}");
                step(format!("+ column {column} of {name}"), &add);
            }
        }
        return Ok(wanted);
    };
    if let Err(problem) = found.check() {
        // Not ours: only whoever wants a history hears that its name is taken.
        return if wanted { Err(problem) } else { Ok(false) };
    }
    let own = columns_of(connection, &name).await.map_err(classify)?;
    let coming = coming.iter().filter(|(column, _)| !own.iter().any(|(own, _)| own == column));
    for (column, kind) in found.missing().chain(coming.copied()) {
        let add = format!("ALTER TABLE {{{{history}}}} ADD COLUMN {column} {kind}");
        step(format!("+ column {column} of {name}"), &add);
    }
    if !found.has_index {
        step(format!("- index {index} (of no use)"), &format!("DROP INDEX IF EXISTS \"{index}\""));
        step(format!("+ index {index}"), &index_sql(table));
    }
    Ok(true)
}

/// Columns of the table that are not ours, for SQL, with their types.
async fn own_columns(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let columns = columns_of(connection, table.table()).await?;
    let ours = |name: &str| STANDARD.iter().chain(&EXTENSION).any(|(column, _)| *column == name);
    let quoted = |name: String| format!("\"{}\"", name.replace('"', "\"\""));
    Ok(columns.into_iter().filter(|(name, _)| !ours(name)).map(|(name, kind)| (quoted(name), kind)).collect())
}

/// The columns of a table of this name, with their types.
async fn columns_of(
    connection: &mut SqliteConnection,
    name: &str,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let columns = sqlx::query_as::<_, (String, String)>(
        "SELECT name, upper(type) FROM pragma_table_xinfo(?1) WHERE hidden <> 1 ORDER BY cid",
    );
    columns.bind(name).fetch_all(connection).await
}
