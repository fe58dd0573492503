//! The part of a migration that is about `<table>_history`.

use postbox_core::{StoreError, TableName};
use sqlx::{Connection as _, PgConnection};

use super::names;
use crate::history::name_of;
use crate::plan::{Step, StepLock};
use crate::postgres::error::classify;
use crate::postgres::history::{INDEX, find, quoted, read};
use crate::postgres::schema::TableShape;

/// Whether a table has a history that published events can be moved to.
///
/// # Errors
/// When the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_history(connection: &mut PgConnection, table: &TableName) -> Result<bool, StoreError> {
    let mut tx = connection.begin().await.map_err(classify)?;
    let found = find(&mut tx, table).await.map_err(classify)?;
    tx.commit().await.map_err(classify)?;
    Ok(found.is_some())
}

/// The statement that makes the index.
pub(super) fn index_sql(table: &TableName, how: &str) -> String {
    format!("CREATE INDEX {how} \"{}_{}\" ON {} {}", name_of(table), INDEX.0, quoted(table), INDEX.1)
}

/// Adds what has to be done about the history: make it where it is wanted, or bring one that is there to the columns that the
/// table has or is about to get. Answers whether there will be one.
pub(super) async fn steps(
    connection: &mut PgConnection,
    table: &TableName,
    shape: Option<&TableShape>,
    wanted: bool,
    steps: &mut Vec<Step>,
) -> Result<bool, StoreError> {
    let template = names(table);
    let history = name_of(table);
    let found = read(connection, table).await.map_err(classify)?;
    // Columns that an earlier step of this plan adds to the table.
    let coming = shape.is_some_and(|shape| !shape.missing().is_empty());
    let columns = || {
        let alter = include_str!("../migrations/columns.sql").replace("{{table}}", "{{history}}");
        template.fill(&alter)
    };
    let Some(found) = found else {
        if wanted {
            let make = template.fill(include_str!("../migrations/history.sql"));
            steps.push(Step::new(format!("+ table {history}"), make, StepLock::None));
            let index = index_sql(table, "IF NOT EXISTS");
            steps.push(Step::new(format!("+ index {history}_{}", INDEX.0), index, StepLock::None));
        }
        return Ok(wanted);
    };
    if let Err(problem) = found.check() {
        // Not ours: only whoever wants a history hears that its name is taken.
        return if wanted { Err(problem) } else { Ok(false) };
    }
    if coming {
        steps.push(Step::new(format!("+ columns of {history}"), columns(), StepLock::Short));
    }
    let missing: Vec<_> = found.missing().collect();
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|(column, _)| *column).collect();
        let add: Vec<String> = missing
            .iter()
            .map(|(column, kind)| format!("ADD COLUMN IF NOT EXISTS {column} {kind}"))
            .collect();
        let alter = format!("ALTER TABLE {} {}", quoted(table), add.join(", "));
        let what = format!("+ columns {} of {history}", names.join(", "));
        steps.push(Step::new(what, alter, StepLock::Short));
    }
    if !found.has_index {
        let (name, what) = (format!("{history}_{}", INDEX.0), format!("index {history}_{}", INDEX.0));
        // One that was interrupted, or is another by this name, is in the way.
        let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {}", table.quoted_sibling(&name, '"'));
        steps.push(Step::new(format!("- {what} (of no use)"), drop, StepLock::Concurrent));
        let make = index_sql(table, "CONCURRENTLY");
        steps.push(Step::new(format!("+ {what} CONCURRENTLY"), make, StepLock::Concurrent));
    }
    Ok(true)
}
