//! The part of a migration that is about `<module>_inbox`.

use postbox_core::{StoreError, TableName};
use sqlx::MySqlConnection;

use super::super::error::classify;
use super::super::inbox::{INDEX, is_there, read_shape};
use super::super::schema::locate;
use super::{StepLock, index_sql};

/// Whether the module of a table has an inbox.
///
/// # Errors
/// When the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_inbox(connection: &mut MySqlConnection, table: &TableName) -> Result<bool, StoreError> {
    let (schema, table) = locate(connection, table).await?;
    is_there(connection, &schema, &table).await
}

/// The statement that makes the index.
pub(super) fn time_index(table: &TableName) -> String {
    index_sql(&table.quoted_sibling(&table.inbox(), '`'), &table.inbox(), INDEX)
}

/// Adds what has to be done about the inbox: make it where it is wanted, or give one that is there its index.
pub(super) async fn steps(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
    wanted: bool,
    step: &mut impl FnMut(String, &str, StepLock),
) -> Result<(), StoreError> {
    let (name, index) = (table.inbox(), format!("{}_{}", table.inbox(), INDEX.0));
    let Some(found) = read_shape(connection, schema, table).await.map_err(classify)? else {
        if wanted {
            step(format!("+ table {name}"), include_str!("../migrations/inbox.sql"), StepLock::None);
            step(format!("+ index {index}"), &time_index(table), StepLock::None);
        }
        return Ok(());
    };
    if let Err(problem) = found.check() {
        // Not ours: only whoever wants an inbox hears that its name is taken.
        return if wanted { Err(problem) } else { Ok(()) };
    }
    if !found.indexed {
        step(format!("+ index {index}"), &time_index(table), StepLock::Concurrent);
    }
    Ok(())
}
