//! The part of a migration that is about `<module>_idempotency`.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use sqlx::{Connection as _, PgConnection, Row as _};

use super::names;
use crate::plan::{Step, StepLock};
use crate::postgres::ask::ask;
use crate::postgres::error::classify;

/// The end of the index's name, and its columns.
const INDEX: (&str, &str) = ("by_time", "(created_at)");

/// The columns by which the table is known, with their types.
const COLUMNS: [(&str, &str); 12] = [
    ("principal", "text"),
    ("route", "text"),
    ("idempotency_key", "text"),
    ("fingerprint", "bytea"),
    ("state", "text"),
    ("token", "uuid"),
    ("lease_until", "timestamp with time zone"),
    ("created_at", "timestamp with time zone"),
    ("finished_at", "timestamp with time zone"),
    ("status", "integer"),
    ("headers", "bytea"),
    ("body", "bytea"),
];

/// Whether the module of an outbox table remembers calls by their idempotency keys.
///
/// # Errors
/// When the database fails.
///
/// # Cancel safety
/// Only looks: it can be dropped at any time.
pub async fn has_idempotency(connection: &mut PgConnection, table: &TableName) -> Result<bool, StoreError> {
    let mut tx = connection.begin().await.map_err(classify)?;
    let found = is_there(&mut tx, table).await?;
    tx.commit().await.map_err(classify)?;
    Ok(found)
}

/// The same in a transaction. Another's table of that name is none.
pub(super) async fn is_there(connection: &mut PgConnection, table: &TableName) -> Result<bool, StoreError> {
    Ok(Found::read(connection, table).await.map_err(classify)?.is_some_and(|found| found.problem.is_none()))
}

/// The statement that makes the index.
pub(super) fn index_sql(table: &TableName, how: &str) -> String {
    let (end, columns) = INDEX;
    let name = table.idempotency();
    format!("CREATE INDEX {how} \"{name}_{end}\" ON {} {columns}", table.quoted_sibling(&name, '"'))
}

/// What stands where the table would be.
struct Found {
    /// Why it is not ours.
    problem: Option<String>,
    index: bool,
}

impl Found {
    async fn read(connection: &mut PgConnection, table: &TableName) -> Result<Option<Self>, sqlx::Error> {
        let name = table.quoted_sibling(&table.idempotency(), '"');
        let facts = ask("SELECT EXISTS (SELECT 1 FROM pg_index x WHERE x.indrelid = c.oid AND x.indisvalid
                             AND pg_get_indexdef(x.indexrelid) LIKE '%(created_at)')
                         FROM pg_class c WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p')");
        let Some(facts) = facts.bind(name.clone()).fetch_optional(&mut *connection).await? else {
            return Ok(None);
        };
        let columns = ask("SELECT attname::text || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
                           WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped");
        let columns = columns.bind(name).fetch_all(connection).await?;
        let columns: Vec<String> = columns.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let lacks = |(column, kind): &(&str, &str)| !columns.contains(&format!("{column} {kind}"));
        let problem =
            COLUMNS.iter().find(|column| lacks(column)).map(|(column, kind)| format!("no {column} {kind}"));
        Ok(Some(Self { problem, index: facts.try_get(0)? }))
    }
}

/// Adds what has to be done: make it where it is wanted, or mend the index of one that is there.
pub(super) async fn steps(
    connection: &mut PgConnection,
    table: &TableName,
    wanted: bool,
    steps: &mut Vec<Step>,
) -> Result<(), StoreError> {
    let name = table.idempotency();
    let index = format!("{name}_{}", INDEX.0);
    match Found::read(connection, table).await.map_err(classify)? {
        None if wanted => {
            let make = names(table).fill(include_str!("../migrations/idempotency.sql"));
            steps.push(Step::new(format!("+ table {name}"), make, StepLock::None));
            let make = index_sql(table, "IF NOT EXISTS");
            steps.push(Step::new(format!("+ index {index}"), make, StepLock::None));
        }
        Some(Found { problem: Some(problem), .. }) if wanted => {
            let message = format!("{name} is another's table: it has {problem}");
            return Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message));
        }
        Some(Found { problem: None, index: false }) => {
            // One that was interrupted, or is another by this name, is in the way.
            let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {}", table.quoted_sibling(&index, '"'));
            steps.push(Step::new(format!("- index {index} (of no use)"), drop, StepLock::Concurrent));
            let make = index_sql(table, "CONCURRENTLY");
            steps.push(Step::new(format!("+ index {index} CONCURRENTLY"), make, StepLock::Concurrent));
        }
        // Not ours, or as it should be: only whoever wants one hears that its name is taken.
        None | Some(_) => {}
    }
    Ok(())
}
