//! `<table>_history`: where published rows go, and how they come back.
//!
//! It has the columns of its table, whatever these are, and one index beside the key, which is `sequence` as in the table.

use postbox_core::{Code, History, StoreError, StoreErrorKind, TableName};
use sqlx::{Row as _, SqliteConnection};

use super::error::classify;
use super::schema::STANDARD;

/// The end of the index's name, and its columns.
pub(super) const INDEX: (&str, &str) = ("by_time", "(published_at, sequence)");

/// The history's name.
pub(super) fn name_of(table: &TableName) -> String {
    format!("{}_history", table.table())
}

/// A column of the table.
#[derive(Debug, Clone)]
struct Column {
    name: String,
    kind: String,
    /// The database works it out by itself, and lets nobody write it.
    generated: bool,
    /// Its type in the history; none if it is not there.
    there: Option<String>,
}

impl Column {
    /// Whether it is written when a row comes back.
    fn comes_back(&self) -> bool {
        self.there.is_some() && !self.generated
    }

    /// For SQL.
    fn quoted(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
    }
}

/// A history as it is, beside its table.
#[derive(Debug, Clone)]
pub(super) struct HistoryShape {
    name: String,
    columns: Vec<Column>,
    /// Its key counts by itself, as that of an outbox table does and that of a history does not.
    counts: bool,
    index: bool,
}

impl HistoryShape {
    /// Reads what stands where the history of a table would be; none if nothing does.
    pub(super) async fn read(
        connection: &mut SqliteConnection,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        let name = name_of(table);
        let found = sqlx::query_as::<_, (bool, bool)>(
            "SELECT upper(sql) LIKE '%AUTOINCREMENT%', EXISTS (
                 SELECT 1 FROM sqlite_schema i WHERE i.type = 'index' AND i.name = ?1 || '_by_time' AND i.tbl_name = ?1
                   AND instr(i.sql, '(published_at, sequence)') > 0)
             FROM sqlite_schema WHERE type = 'table' AND name = ?1",
        );
        let Some((counts, index)) = found.bind(&name).fetch_optional(&mut *connection).await? else {
            return Ok(None);
        };
        let rows = sqlx::query(
            "SELECT t.name, upper(t.type), t.hidden IN (2, 3),
                    (SELECT upper(h.type) FROM pragma_table_info(?2) h WHERE h.name = t.name)
             FROM pragma_table_xinfo(?1) t WHERE t.hidden <> 1 ORDER BY t.cid",
        );
        let rows = rows.bind(table.table()).bind(&name).fetch_all(&mut *connection).await?;
        let column = |row: &sqlx::sqlite::SqliteRow| -> Result<Column, sqlx::Error> {
            Ok(Column {
                name: row.try_get(0)?,
                kind: row.try_get(1)?,
                generated: row.try_get(2)?,
                there: row.try_get(3)?,
            })
        };
        let columns = rows.iter().map(column).collect::<Result<_, _>>()?;
        Ok(Some(Self { name, columns, counts, index }))
    }

    /// The same where it is one; another's table of this name is none, and is left alone.
    pub(super) async fn find(
        connection: &mut SqliteConnection,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        Ok(Self::read(connection, table).await?.filter(|found| found.check().is_ok()))
    }

    /// Whether it is a history, and of this table.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let mut problems = Vec::new();
        if self.columns.is_empty() {
            problems.push("its table does not exist".to_owned());
        }
        if self.counts {
            problems.push("its sequence counts by itself, as those of outbox tables do".to_owned());
        }
        for column in &self.columns {
            match &column.there {
                None if STANDARD.iter().any(|(name, _)| *name == column.name) => {
                    problems.push(format!("{} is missing", column.name));
                }
                Some(there) if *there != column.kind => {
                    problems.push(format!("{} is {there}, not {}", column.name, column.kind));
                }
                None | Some(_) => {}
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        let message = format!("{} is no history of its table: {}", self.name, problems.join("; "));
        Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message))
    }

    /// Columns of the table that it lacks, for SQL, with their types.
    pub(super) fn missing(&self) -> Vec<(String, &str)> {
        let missing = self.columns.iter().filter(|column| column.there.is_none());
        missing.map(|column| (column.quoted(), column.kind.as_str())).collect()
    }

    /// Whether its index is there.
    pub(super) fn has_index(&self) -> bool {
        self.index
    }

    /// The statement that brings rows here, up to its source: the table as `t`. `?1` now
    ///
    /// Should a row of this sequence be there, whoever put it there: what is delivered now must get out of the table.
    pub(super) fn arrive(&self) -> String {
        let value = |column: &Column| match column.name.as_str() {
            "published_at" => "?1".to_owned(),
            "locked_at" | "locked_by" | "last_error" => "NULL".to_owned(),
            _ => format!("t.{}", column.quoted()),
        };
        let values: Vec<String> = self.columns.iter().map(value).collect();
        format!(
            "INSERT OR REPLACE INTO {{{{history}}}} ({}) SELECT {}",
            self.list(|_| true),
            values.join(", ")
        )
    }

    /// The statement that brings rows back into the table, as a replay wants them, up to its source: the history as `h`.
    /// `?2` now
    pub(super) fn come_back(&self) -> String {
        let value = |column: &Column| match column.name.as_str() {
            "attempts" => "0".to_owned(),
            "available_at" => "?2".to_owned(),
            "published_at" | "locked_at" | "locked_by" | "last_error" | "dead_at" | "dlq_at"
            | "sinks_done" => "NULL".to_owned(),
            _ => format!("h.{}", column.quoted()),
        };
        let values: Vec<String> =
            self.columns.iter().filter(|column| column.comes_back()).map(value).collect();
        format!("INSERT INTO {{{{table}}}} ({}) SELECT {}", self.list(Column::comes_back), values.join(", "))
    }

    fn list(&self, which: impl Fn(&Column) -> bool) -> String {
        let columns = self.columns.iter().filter(|column| which(column)).map(Column::quoted);
        columns.collect::<Vec<_>>().join(", ")
    }
}

/// What a settle does with the rows of delivered events.
#[derive(Debug, Clone)]
pub(super) enum Sent {
    /// They stay, with the time.
    Kept,
    /// They move there.
    Moved(HistoryShape),
    /// They go.
    Deleted,
}

impl Sent {
    /// Makes sure, before anything is claimed, that delivered rows can go where they are to go: a settle that fails would
    /// have every event delivered again and again.
    pub(super) async fn look(
        connection: &mut SqliteConnection,
        table: &TableName,
        history: History,
    ) -> Result<Self, StoreError> {
        let sent = match history {
            History::Keep => Self::Kept,
            History::None => Self::Deleted,
            History::Move => {
                let missing =
                    |why: String| StoreError::new(Code::HistoryMissing, StoreErrorKind::Refused, why);
                let next = format!("run `postbox migrate up --history move --table {table}`");
                let Some(found) = HistoryShape::read(connection, table).await.map_err(classify)? else {
                    return Err(missing(format!("{table} has no {}: {next}", name_of(table))));
                };
                found.check()?;
                let lacking: Vec<String> = found.missing().into_iter().map(|(column, _)| column).collect();
                if !lacking.is_empty() {
                    let lacking = lacking.join(", ");
                    return Err(missing(format!(
                        "{} lacks {lacking}, which {table} has: {next}",
                        found.name
                    )));
                }
                Self::Moved(found)
            }
        };
        history.warn_of_duplicates(table.table());
        Ok(sent)
    }
}
