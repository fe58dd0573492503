//! The part of a migration that is about `<module>_idempotency`.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::MySqlConnection;

use super::super::error::classify;
use super::super::schema::{columns, indexes, locate};
use super::{StepLock, index_sql};

/// The end of the index's name, and its columns.
const INDEX: (&str, &str) = ("by_time", "created_at");

/// By which a call is found, and begun once.
const KEY: &str = "principal, route, idempotency_key";

/// The columns by which the table is known, with their types, as far as all servers call them the same.
const COLUMNS: [(&str, &str); 12] = [
    ("principal", "varbinary(256)"),
    ("route", "varbinary(512)"),
    ("idempotency_key", "varbinary(255)"),
    ("fingerprint", "binary(32)"),
    ("state", "varchar(7)"),
    ("token", "binary(16)"),
    ("lease_until", "datetime(6)"),
    ("created_at", "datetime(6)"),
    ("finished_at", "datetime(6)"),
    ("status", "int"),
    ("headers", "longblob"),
    ("body", "longblob"),
];

/// Whether the module of an outbox table remembers calls by their idempotency keys.
///
/// # Errors
/// When the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_idempotency(
    connection: &mut MySqlConnection,
    table: &TableName,
) -> Result<bool, StoreError> {
    let (schema, table) = locate(connection, table).await?;
    is_there(connection, &schema, &table).await
}

/// The same where the schema is known. Another's table of that name is none.
pub(super) async fn is_there(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
) -> Result<bool, StoreError> {
    let found = Found::read(connection, schema, table).await.map_err(classify)?;
    Ok(found.is_some_and(|found| found.problem.is_none()))
}

/// The statement that makes the index.
pub(super) fn time_index(table: &TableName) -> String {
    let name = table.idempotency();
    index_sql(&table.quoted_sibling(&name, '`'), &name, INDEX)
}

/// What stands where the table would be.
struct Found {
    /// Why it is not ours.
    problem: Option<String>,
    index: Index,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Index {
    There,
    Missing,
    /// Another one has its name.
    Other,
}

impl Found {
    async fn read(
        connection: &mut MySqlConnection,
        schema: &str,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        let name = table.idempotency();
        let found = columns(connection, schema, &name).await?;
        if found.is_empty() {
            return Ok(None);
        }
        let lacks = |(column, kind): &&(&str, &str)| {
            !found.iter().any(|found| found.name == *column && found.whole.starts_with(kind))
        };
        let mut problem = COLUMNS.iter().find(lacks).map(|(column, kind)| format!("no {column} {kind}"));
        let keys = indexes(connection, schema, &name).await?;
        if problem.is_none() && keys.get("PRIMARY").is_none_or(|columns| columns != KEY) {
            problem = Some(format!("no primary key ({KEY})"));
        }
        let index = match keys.get(&format!("{name}_{}", INDEX.0)) {
            _ if keys.values().any(|columns| columns == INDEX.1) => Index::There,
            Some(_) => Index::Other,
            None => Index::Missing,
        };
        Ok(Some(Self { problem, index }))
    }
}

/// Adds what has to be done: make it where it is wanted, or mend the index of one that is there.
pub(super) async fn steps(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
    wanted: bool,
    step: &mut impl FnMut(String, &str, StepLock),
) -> Result<(), StoreError> {
    let name = table.idempotency();
    let index = format!("{name}_{}", INDEX.0);
    let Some(found) = Found::read(connection, schema, table).await.map_err(classify)? else {
        if wanted {
            step(format!("+ table {name}"), include_str!("../migrations/idempotency.sql"), StepLock::None);
            step(format!("+ index {index}"), &time_index(table), StepLock::None);
        }
        return Ok(());
    };
    if let Some(problem) = found.problem {
        if !wanted {
            // Not ours: only whoever wants one hears that its name is taken.
            return Ok(());
        }
        let message = format!("{name} is another's table: it has {problem}");
        return Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message));
    }
    if found.index == Index::Other {
        let drop = format!("DROP INDEX `{index}` ON {{{{idempotency}}}}");
        step(format!("- index {index} (of no use)"), &drop, StepLock::Short);
    }
    if found.index != Index::There {
        step(format!("+ index {index}"), &time_index(table), StepLock::Concurrent);
    }
    Ok(())
}
