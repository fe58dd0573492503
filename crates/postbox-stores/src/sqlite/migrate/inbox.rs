//! The part of a migration that is about `<module>_inbox`.

use postbox_core::{StoreError, TableName};
use sqlx::SqliteConnection;

use super::super::error::classify;
use super::super::inbox::{INDEX, is_there, read_shape};

/// Whether the module of a table has an inbox.
///
/// # Errors
/// When the name has a schema, of which SQLite has none, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_inbox(connection: &mut SqliteConnection, table: &TableName) -> Result<bool, StoreError> {
    is_there(connection, table).await
}

/// The statement that makes the index.
pub(super) fn index_sql(table: &TableName) -> String {
    format!("CREATE INDEX IF NOT EXISTS \"{}_{}\" ON {{{{inbox}}}} {}", table.inbox(), INDEX.0, INDEX.1)
}

/// Adds what has to be done about the inbox: make it where it is wanted, or give one that is there its index.
pub(super) async fn steps(
    connection: &mut SqliteConnection,
    table: &TableName,
    wanted: bool,
    step: &mut impl FnMut(String, &str),
) -> Result<(), StoreError> {
    let (name, index) = (table.inbox(), format!("{}_{}", table.inbox(), INDEX.0));
    let Some(found) = read_shape(connection, table).await.map_err(classify)? else {
        if wanted {
            step(format!("+ table {name}"), include_str!("../migrations/inbox.sql"));
            step(format!("+ index {index}"), &index_sql(table));
        }
        return Ok(());
    };
    if let Err(problem) = found.check() {
        // Not ours: only whoever wants an inbox hears that its name is taken.
        return if wanted { Err(problem) } else { Ok(()) };
    }
    if !found.indexed {
        step(format!("- index {index} (of no use)"), &format!("DROP INDEX IF EXISTS \"{index}\""));
        step(format!("+ index {index}"), &index_sql(table));
    }
    Ok(())
}
