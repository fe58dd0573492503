//! The part of a migration that is about `<module>_inbox`.

use postbox_core::{StoreError, TableName};
use sqlx::{Connection as _, PgConnection};

use super::names;
use crate::plan::{Step, StepLock};
use crate::postgres::error::classify;
use crate::postgres::inbox::{INDEX, read_shape};

/// Whether the module of a table has an inbox.
///
/// # Errors
/// When the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_inbox(connection: &mut PgConnection, table: &TableName) -> Result<bool, StoreError> {
    let mut tx = connection.begin().await.map_err(classify)?;
    let found = is_there(&mut tx, table).await?;
    tx.commit().await.map_err(classify)?;
    Ok(found)
}

/// Whether there is one that is ours; another's table of this name is none.
pub(super) async fn is_there(connection: &mut PgConnection, table: &TableName) -> Result<bool, StoreError> {
    let found = read_shape(connection, table).await.map_err(classify)?;
    Ok(found.is_some_and(|found| found.check().is_ok()))
}

/// The statement that makes the index.
pub(super) fn index_sql(table: &TableName, how: &str) -> String {
    let name = table.inbox();
    format!("CREATE INDEX {how} \"{name}_{}\" ON {} {}", INDEX.0, table.quoted_sibling(&name, '"'), INDEX.1)
}

/// Adds what has to be done about the inbox: make it where it is wanted, or give one that is there its index.
pub(super) async fn steps(
    connection: &mut PgConnection,
    table: &TableName,
    wanted: bool,
    steps: &mut Vec<Step>,
) -> Result<(), StoreError> {
    let name = table.inbox();
    let index = format!("index {name}_{}", INDEX.0);
    let Some(found) = read_shape(connection, table).await.map_err(classify)? else {
        if wanted {
            let make = names(table).fill(include_str!("../migrations/inbox.sql"));
            steps.push(Step::new(format!("+ table {name}"), make, StepLock::None));
            let make = index_sql(table, "IF NOT EXISTS");
            steps.push(Step::new(format!("+ {index}"), make, StepLock::None));
        }
        return Ok(());
    };
    if let Err(problem) = found.check() {
        // Not ours: only whoever wants an inbox hears that its name is taken.
        return if wanted { Err(problem) } else { Ok(()) };
    }
    if !found.indexed {
        // One that was interrupted, or is another by this name, is in the way.
        let drop = table.quoted_sibling(&format!("{name}_{}", INDEX.0), '"');
        let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {drop}");
        steps.push(Step::new(format!("- {index} (of no use)"), drop, StepLock::Concurrent));
        let make = index_sql(table, "CONCURRENTLY");
        steps.push(Step::new(format!("+ {index} CONCURRENTLY"), make, StepLock::Concurrent));
    }
    Ok(())
}
