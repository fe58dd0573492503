//! `<table>_history`: where published rows go, and how they come back.
//!
//! It has the columns of its table, whatever these are, and one index beside the key, which is `sequence` as in the table.

use postbox_core::{History, StoreError, TableName};
use sqlx::MySqlConnection;

use super::error::classify;
use super::migrate::TIME;
use super::schema::{STANDARD, TableShape, columns, indexes, quoted};
use crate::history::{Column, HistoryShape, Sent, name_of};

/// Reads what stands where the history of a table would be; none if nothing does.
pub(super) async fn read(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
) -> Result<Option<HistoryShape>, sqlx::Error> {
    let name = name_of(table);
    let own = columns(connection, schema, &name).await?;
    if own.is_empty() {
        return Ok(None);
    }
    let indexes = indexes(connection, schema, &name).await?;
    let has_index = indexes.get(&format!("{name}_{}", TIME.0)).is_some_and(|columns| columns == TIME.1);
    let column = |column: super::schema::Column| {
        let there = own.iter().find(|other| other.name == column.name);
        Column {
            quoted: quoted(&column.name),
            standard: STANDARD.iter().any(|(standard, _)| *standard == column.name),
            kind: column.whole,
            generated: column.generated,
            there: there.map(|other| {
                // One that counts by itself is an outbox table's.
                if other.counts { format!("{} AUTO_INCREMENT", other.whole) } else { other.whole.clone() }
            }),
            name: column.name,
        }
    };
    let shape = TableShape::read(connection, schema, table).await?;
    let columns = shape.map(TableShape::into_columns).unwrap_or_default().into_iter().map(column).collect();
    Ok(Some(HistoryShape { name, columns, problem: None, has_index }))
}

/// The same where it is one; another's table of this name is none, and is left alone.
pub(super) async fn find(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
) -> Result<Option<HistoryShape>, sqlx::Error> {
    Ok(read(connection, schema, table).await?.filter(|found| found.check().is_ok()))
}

/// The statement that brings rows here, up to its source: the table as `t`.
///
/// Should a row of this sequence be there, whoever put it there: what is delivered now must get out of the table. `attempts` are
/// those that it arrives with.
pub(super) fn arrive(history: &HistoryShape, attempts: &str) -> String {
    let (columns, values) = history.arriving("t", |column| match column {
        "attempts" => Some(attempts.to_owned()),
        "published_at" => Some("UTC_TIMESTAMP(6)".to_owned()),
        "locked_at" | "locked_by" | "last_error" => Some("NULL".to_owned()),
        _ => None,
    });
    format!("REPLACE INTO {{{{history}}}} ({columns}) SELECT {values}")
}

/// The statement that brings rows back into the table, as a replay wants them, up to its source: the history as `h`.
/// As every replay does it, what an owner may still settle is left for a lease.
pub(super) fn come_back(history: &HistoryShape) -> String {
    let (columns, values) = history.coming_back("h", |column| match column {
        "attempts" => Some("0".to_owned()),
        "available_at" => Some("UTC_TIMESTAMP(6)".to_owned()),
        "locked_at" => Some("CASE WHEN {{unsettled_moved}} THEN '1970-01-01 00:00:01' END".to_owned()),
        "locked_by" => Some("CASE WHEN {{unsettled_moved}} THEN 'replayed' END".to_owned()),
        "published_at" | "last_error" | "dead_at" | "dlq_at" | "sinks_done" => Some("NULL".to_owned()),
        _ => None,
    });
    format!("INSERT INTO {{{{table}}}} ({columns}) SELECT {values}")
}

/// What a settle does with delivered rows; a history that they are to move to must be there.
pub(super) async fn look(
    connection: &mut MySqlConnection,
    schema: &str,
    table: &TableName,
    history: History,
) -> Result<Sent, StoreError> {
    let sent = match history {
        History::Keep => Sent::Kept,
        History::None => Sent::Deleted,
        History::Move => {
            let found = read(connection, schema, table).await.map_err(classify)?;
            Sent::Moved(HistoryShape::required(found, table)?)
        }
    };
    history.warn_of_duplicates(table.table());
    Ok(sent)
}
