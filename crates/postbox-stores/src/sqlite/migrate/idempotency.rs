//! The part of a migration that is about `<module>_idempotency`.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::SqliteConnection;

use crate::sqlite::error::classify;
use crate::sqlite::schema::in_main;

/// The end of the index's name, and its columns.
const INDEX: (&str, &str) = ("by_time", "(created_at)");

/// The columns by which the table is known, with their types.
const COLUMNS: [(&str, &str); 12] = [
    ("principal", "TEXT"),
    ("route", "TEXT"),
    ("idempotency_key", "TEXT"),
    ("fingerprint", "BLOB"),
    ("state", "TEXT"),
    ("token", "BLOB"),
    ("lease_until", "INTEGER"),
    ("created_at", "INTEGER"),
    ("finished_at", "INTEGER"),
    ("status", "INTEGER"),
    ("headers", "BLOB"),
    ("body", "BLOB"),
];

/// Whether the module of an outbox table remembers calls by their idempotency keys.
///
/// # Errors
/// When the name has a schema, of which SQLite has none, or the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_idempotency(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<bool, StoreError> {
    is_there(connection, &in_main(table)?).await.map_err(classify)
}

/// The same for a name without a schema. Another's table of that name is none.
pub(super) async fn is_there(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<bool, sqlx::Error> {
    Ok(Found::read(connection, table).await?.is_some_and(|found| found.problem.is_none()))
}

/// The statement that makes the index.
pub(super) fn index_sql(table: &TableName) -> String {
    let (end, columns) = INDEX;
    format!("CREATE INDEX IF NOT EXISTS \"{}_{end}\" ON {{{{idempotency}}}} {columns}", table.idempotency())
}

/// What stands where the table would be.
struct Found {
    /// Why it is not ours.
    problem: Option<String>,
    index: bool,
}

impl Found {
    async fn read(connection: &mut SqliteConnection, table: &TableName) -> Result<Option<Self>, sqlx::Error> {
        let name = table.idempotency();
        let index = sqlx::query_scalar::<_, bool>(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema i WHERE i.type = 'index' AND i.tbl_name = ?1
                 AND i.name = ?1 || '_by_time' AND instr(i.sql, '(created_at)') > 0)
             FROM sqlite_schema WHERE type = 'table' AND name = ?1",
        );
        let Some(index) = index.bind(&name).fetch_optional(&mut *connection).await? else { return Ok(None) };
        let columns =
            sqlx::query_scalar::<_, String>("SELECT name || ' ' || upper(type) FROM pragma_table_info(?1)");
        let columns = columns.bind(&name).fetch_all(connection).await?;
        let lacks = |(column, kind): &(&str, &str)| !columns.contains(&format!("{column} {kind}"));
        let problem =
            COLUMNS.iter().find(|column| lacks(column)).map(|(column, kind)| format!("no {column} {kind}"));
        Ok(Some(Self { problem, index }))
    }
}

/// Adds what has to be done: make it where it is wanted, or mend the index of one that is there.
pub(super) async fn steps(
    connection: &mut SqliteConnection,
    table: &TableName,
    wanted: bool,
    step: &mut impl FnMut(String, &str),
) -> Result<(), StoreError> {
    let name = table.idempotency();
    let index = format!("{name}_{}", INDEX.0);
    match Found::read(connection, table).await.map_err(classify)? {
        None if wanted => {
            step(format!("+ table {name}"), include_str!("../migrations/idempotency.sql"));
            step(format!("+ index {index}"), &index_sql(table));
        }
        Some(Found { problem: Some(problem), .. }) if wanted => {
            let message = format!("{name} is another's table: it has {problem}");
            return Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message));
        }
        Some(Found { problem: None, index: false }) => {
            step(format!("- index {index} (of no use)"), &format!("DROP INDEX IF EXISTS \"{index}\""));
            step(format!("+ index {index}"), &index_sql(table));
        }
        // Not ours, or as it should be: only whoever wants one hears that its name is taken.
        None | Some(_) => {}
    }
    Ok(())
}
