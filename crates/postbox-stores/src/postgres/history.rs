//! `<table>_history`: where published rows go, and how they come back.
//!
//! It has the columns of its table, whatever these are, and one index. Nothing in it is unique: an event that was moved,
//! enqueued again and moved again is there twice, and a settle must never fail over what was delivered long ago.

use postbox_core::{Code, History, Layout, StoreError, StoreErrorKind, TableName};
use sqlx::{PgConnection, Row as _};

use super::error::classify;
use super::schema::{STANDARD, TableShape};
use super::window::may_be_settled;
use crate::history::{Column, HistoryShape, Sent, name_of};

/// The end of the index's name, and its columns.
pub(super) const INDEX: (&str, &str) = ("by_time", "(published_at, sequence)");

/// Its name, for SQL.
pub(super) fn quoted(table: &TableName) -> String {
    table.quoted_sibling(&name_of(table), '"')
}

/// Reads what stands where the history of a table would be; none if nothing does.
pub(super) async fn read(
    connection: &mut PgConnection,
    table: &TableName,
) -> Result<Option<HistoryShape>, sqlx::Error> {
    let facts = sqlx::query(
            "SELECT EXISTS (SELECT 1 FROM pg_index WHERE indrelid = c.oid AND indisprimary),
                    ARRAY(SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = c.oid AND indisvalid)
             FROM pg_class c WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p')",
        );
    let facts = facts.bind(quoted(table)).persistent(false).fetch_optional(&mut *connection).await?;
    let Some(facts) = facts else { return Ok(None) };
    let rows = sqlx::query(
            "SELECT quote_ident(t.attname), t.attname::text, format_type(t.atttypid, t.atttypmod), t.attgenerated <> '',
                    (SELECT format_type(h.atttypid, h.atttypmod) FROM pg_attribute h
                     WHERE h.attrelid = to_regclass($2) AND h.attname = t.attname AND h.attnum > 0 AND NOT h.attisdropped)
             FROM pg_attribute t
             WHERE t.attrelid = to_regclass($1) AND t.attnum > 0 AND NOT t.attisdropped ORDER BY t.attnum",
        );
    let rows = rows.bind(table.quoted('"')).bind(quoted(table)).persistent(false);
    let mut columns = Vec::new();
    for row in rows.fetch_all(&mut *connection).await? {
        let name: String = row.try_get(1)?;
        columns.push(Column {
            quoted: row.try_get(0)?,
            standard: STANDARD.iter().any(|(standard, _)| *standard == name),
            name,
            kind: row.try_get(2)?,
            generated: row.try_get(3)?,
            there: row.try_get(4)?,
        });
    }
    let schema = table.schema().map(|schema| format!("{schema}.")).unwrap_or_default();
    let (has_key, indexes): (bool, Vec<String>) = (facts.try_get(0)?, facts.try_get(1)?);
    Ok(Some(HistoryShape {
        name: format!("{schema}{}", name_of(table)),
        columns,
        problem: has_key.then_some("it has a primary key, as outbox tables have and histories have not"),
        has_index: indexes.iter().any(|index| index.contains(INDEX.1) && !index.contains(" WHERE ")),
    }))
}

/// The same where it is one; another's table of this name is none, and is left alone.
pub(super) async fn find(
    connection: &mut PgConnection,
    table: &TableName,
) -> Result<Option<HistoryShape>, sqlx::Error> {
    Ok(read(connection, table).await?.filter(|found| found.check().is_ok()))
}

/// The statement's part that brings rows here: from `gone`, which has the table's columns. Owners write attempts at the settle.
pub(super) fn arrive(history: &HistoryShape, table: &TableName, attempts: &str) -> String {
    let (columns, values) = history.arriving("g", |column| match column {
        "published_at" => Some("now()".to_owned()),
        "locked_at" | "locked_by" | "last_error" => Some("NULL".to_owned()),
        "attempts" => Some(attempts.to_owned()),
        _ => None,
    });
    format!("INSERT INTO {} ({columns})\n    SELECT {values}\n    FROM gone g", quoted(table))
}

/// The statement's part that brings rows back into the table, as a replay wants them: from `moved`, which has the
/// history's columns. An event that was enqueued again meanwhile stays where it is.
pub(super) fn come_back(history: &HistoryShape, table: &TableName, condition: &str) -> String {
    // As every replay does it: what an owner may still settle is left for a lease.
    let unsettled = may_be_settled(table, "m.");
    let (columns, values) = history.coming_back("m", |column| match column {
        "attempts" => Some("0".to_owned()),
        "available_at" => Some("now()".to_owned()),
        "locked_at" => Some(format!("CASE WHEN {unsettled} THEN to_timestamp(0) END")),
        "locked_by" => Some(format!("CASE WHEN {unsettled} THEN 'replayed' END")),
        "published_at" | "last_error" | "dead_at" | "dlq_at" | "sinks_done" => Some("NULL".to_owned()),
        _ => None,
    });
    let table = table.quoted('"');
    format!(
        "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM moved m WHERE {condition} ON CONFLICT DO NOTHING"
    )
}

/// What a settle does with delivered rows; a history that they are to move to must be there.
pub(super) async fn look(
    connection: &mut PgConnection,
    shape: &TableShape,
    history: History,
) -> Result<Sent, StoreError> {
    let table = &shape.name;
    if history != History::Keep && shape.layout() == Layout::Bare {
        let message = format!(
            "{table} has only the standard columns, and history = {history} needs all of them: run `postbox migrate up \
             --table {table}`, or leave history at keep"
        );
        return Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, message));
    }
    let sent = match history {
        History::Keep => return Ok(Sent::Kept),
        History::None => Sent::Deleted,
        History::Move => {
            Sent::Moved(HistoryShape::required(read(connection, table).await.map_err(classify)?, table)?)
        }
    };
    expect_grants(connection, table, history).await?;
    history.warn_of_duplicates(&table.to_string());
    Ok(sent)
}

/// Whether the relay's user may do what this history asks of every settle.
async fn expect_grants(
    connection: &mut PgConnection,
    table: &TableName,
    history: History,
) -> Result<(), StoreError> {
    let missing = sqlx::query_scalar::<_, String>(
        "SELECT need.privilege || ' ON ' || need.tbl FROM (VALUES ('DELETE', $1, true), ('INSERT', $2, $3), ('SELECT', $2, $3))
             AS need (privilege, tbl, wanted)
         WHERE need.wanted AND NOT has_table_privilege(need.tbl, need.privilege)",
    );
    // Without one, a history is not asked about: it may not be there.
    let moves = history == History::Move;
    let place = if moves { quoted(table) } else { table.quoted('"') };
    let missing = missing.bind(table.quoted('"')).bind(place).bind(moves).persistent(false);
    let missing = missing.fetch_all(connection).await.map_err(classify)?;
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the database user lacks what history = {history} needs: {}; grant it with what `postbox migrate print --history \
         {history} --grants relay=<role> --table {table}` prints",
        missing.join(", ")
    );
    Err(StoreError::new(Code::DatabasePermission, StoreErrorKind::Refused, message))
}
