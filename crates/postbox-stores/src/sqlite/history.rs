//! `<table>_history`: where published rows go, and how they come back.
//!
//! It has the columns of its table, whatever these are, and one index beside the key, which is `sequence` as in the table.

use postbox_core::{History, StoreError, TableName};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::error::classify;
use super::schema::STANDARD;
use crate::history::{Column, HistoryShape, Sent, name_of};

/// The end of the index's name, and its columns.
pub(super) const INDEX: (&str, &str) = ("by_time", "(published_at, sequence)");

/// Reads what stands where the history of a table would be; none if nothing does.
pub(super) async fn read(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<Option<HistoryShape>, sqlx::Error> {
    let name = name_of(table);
    let found = sqlx::query_as::<_, (bool, bool)>(
            "SELECT upper(sql) LIKE '%AUTOINCREMENT%', EXISTS (
                 SELECT 1 FROM sqlite_schema i WHERE i.type = 'index' AND i.name = ?1 || '_by_time' AND i.tbl_name = ?1
                   AND instr(i.sql, '(published_at, sequence)') > 0)
             FROM sqlite_schema WHERE type = 'table' AND name = ?1",
        );
    let Some((counts, has_index)) = found.bind(&name).fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    let rows = sqlx::query(
        "SELECT t.name, upper(t.type), t.hidden IN (2, 3),
                    (SELECT upper(h.type) FROM pragma_table_info(?2) h WHERE h.name = t.name)
             FROM pragma_table_xinfo(?1) t WHERE t.hidden <> 1 ORDER BY t.cid",
    );
    let rows = rows.bind(table.table()).bind(&name).fetch_all(&mut *connection).await?;
    let column = |row: &SqliteRow| -> Result<Column, sqlx::Error> {
        let name: String = row.try_get(0)?;
        Ok(Column {
            quoted: format!("\"{}\"", name.replace('"', "\"\"")),
            standard: STANDARD.iter().any(|(standard, _)| *standard == name),
            name,
            kind: row.try_get(1)?,
            generated: row.try_get(2)?,
            there: row.try_get(3)?,
        })
    };
    let columns = rows.iter().map(column).collect::<Result<_, _>>()?;
    let problem = counts.then_some("its sequence counts by itself, as those of outbox tables do");
    Ok(Some(HistoryShape { name, columns, problem, has_index }))
}

/// The same where it is one; another's table of this name is none, and is left alone.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<Option<HistoryShape>, sqlx::Error> {
    Ok(read(connection, table).await?.filter(|found| found.check().is_ok()))
}

/// The statement that brings rows here, up to its source: the table as `t`. `?1` now
///
/// Should a row of this sequence be there, whoever put it there: what is delivered now must get out of the table.
pub(super) fn arrive(history: &HistoryShape) -> String {
    let (columns, values) = history.arriving("t", |column| match column {
        "published_at" => Some("?1".to_owned()),
        "locked_at" | "locked_by" | "last_error" => Some("NULL".to_owned()),
        _ => None,
    });
    format!("INSERT OR REPLACE INTO {{{{history}}}} ({columns}) SELECT {values}")
}

/// The statement that brings rows back into the table, as a replay wants them, up to its source: the history as `h`.
/// `?2` now
pub(super) fn come_back(history: &HistoryShape) -> String {
    let (columns, values) = history.coming_back("h", |column| match column {
        "attempts" => Some("0".to_owned()),
        "available_at" => Some("?2".to_owned()),
        "published_at" | "locked_at" | "locked_by" | "last_error" | "dead_at" | "dlq_at" | "sinks_done" => {
            Some("NULL".to_owned())
        }
        _ => None,
    });
    format!("INSERT INTO {{{{table}}}} ({columns}) SELECT {values}")
}

/// What a settle does with delivered rows; a history that they are to move to must be there.
pub(super) async fn look(
    connection: &mut SqliteConnection,
    table: &TableName,
    history: History,
) -> Result<Sent, StoreError> {
    let sent = match history {
        History::Keep => Sent::Kept,
        History::None => Sent::Deleted,
        History::Move => {
            Sent::Moved(HistoryShape::required(read(connection, table).await.map_err(classify)?, table)?)
        }
    };
    history.warn_of_duplicates(table.table());
    Ok(sent)
}
