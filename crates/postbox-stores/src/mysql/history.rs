//! `<table>_history`: where published rows go, and how they come back.
//!
//! It has the columns of its table, whatever these are, and one index beside the key, which is `sequence` as in the table.

use postbox_core::{Code, History, StoreError, StoreErrorKind, TableName};
use sqlx::MySqlConnection;

use super::error::classify;
use super::migrate::TIME;
use super::schema::{Column, STANDARD, TableShape, columns, indexes, quoted};

/// The history's name.
pub(super) fn name_of(table: &TableName) -> String {
    format!("{}_history", table.table())
}

/// A history as it is, beside its table.
#[derive(Debug, Clone)]
pub(super) struct HistoryShape {
    name: String,
    /// The table's, and whether each is there, and as it should be.
    columns: Vec<(Column, There)>,
    /// Its own, by name.
    own: Vec<String>,
    index: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum There {
    No,
    Yes,
    /// Of this type.
    Otherwise(String),
}

impl HistoryShape {
    /// Reads what stands where the history of a table would be; none if nothing does.
    pub(super) async fn read(
        connection: &mut MySqlConnection,
        schema: &str,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        let name = name_of(table);
        let own = columns(connection, schema, &name).await?;
        if own.is_empty() {
            return Ok(None);
        }
        let indexes = indexes(connection, schema, &name).await?;
        let index = indexes.get(&format!("{name}_{}", TIME.0)).is_some_and(|columns| columns == TIME.1);
        let shape = TableShape::read(connection, schema, table).await?;
        let there = |column: Column| {
            let there = match own.iter().find(|other| other.name == column.name) {
                None => There::No,
                // One that counts by itself is an outbox table's.
                Some(other) if other.whole == column.whole && !other.counts() => There::Yes,
                Some(other) if other.counts() => There::Otherwise(format!("{} AUTO_INCREMENT", other.whole)),
                Some(other) => There::Otherwise(other.whole.clone()),
            };
            (column, there)
        };
        let columns =
            shape.map(TableShape::into_columns).unwrap_or_default().into_iter().map(there).collect();
        let own = own.iter().map(|column| column.name.clone()).collect();
        Ok(Some(Self { name, columns, own, index }))
    }

    /// The same where it is one; another's table of this name is none, and is left alone.
    pub(super) async fn find(
        connection: &mut MySqlConnection,
        schema: &str,
        table: &TableName,
    ) -> Result<Option<Self>, sqlx::Error> {
        Ok(Self::read(connection, schema, table).await?.filter(|found| found.check().is_ok()))
    }

    /// Whether it is a history, and of this table.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let mut problems = Vec::new();
        if self.columns.is_empty() {
            problems.push("its table does not exist".to_owned());
        }
        for (column, there) in &self.columns {
            match there {
                There::No if STANDARD.iter().any(|(name, _)| *name == column.name) => {
                    problems.push(format!("{} is missing", column.name));
                }
                There::Otherwise(kind) => {
                    problems.push(format!("{} is {kind}, not {}", column.name, column.whole));
                }
                There::No | There::Yes => {}
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
        let missing = self.columns.iter().filter(|(_, there)| *there == There::No);
        missing.map(|(column, _)| (quoted(&column.name), column.whole.as_str())).collect()
    }

    /// Whether it has a column, also one that the table lacks.
    pub(super) fn has(&self, column: &str) -> bool {
        self.own.iter().any(|own| own == column)
    }

    /// Whether its index is there.
    pub(super) fn has_index(&self) -> bool {
        self.index
    }

    /// The statement that brings rows here, up to its source: the table as `t`.
    ///
    /// Should a row of this sequence be there, whoever put it there: what is delivered now must get out of the table. `attempts` are
    /// those that it arrives with.
    pub(super) fn arrive(&self, attempts: &str) -> String {
        let value = |column: &Column| match column.name.as_str() {
            "attempts" => attempts.to_owned(),
            "published_at" => "UTC_TIMESTAMP(6)".to_owned(),
            "locked_at" | "locked_by" | "last_error" => "NULL".to_owned(),
            _ => format!("t.{}", quoted(&column.name)),
        };
        let columns: Vec<&Column> = self.columns.iter().map(|(column, _)| column).collect();
        let values: Vec<String> = columns.iter().map(|column| value(column)).collect();
        format!("REPLACE INTO {{{{history}}}} ({}) SELECT {}", list(&columns), values.join(", "))
    }

    /// The statement that brings rows back into the table, as a replay wants them, up to its source: the history as `h`.
    /// As every replay does it, what an owner may still settle is left for a lease.
    pub(super) fn come_back(&self) -> String {
        let value = |column: &Column| match column.name.as_str() {
            "attempts" => "0".to_owned(),
            "available_at" => "UTC_TIMESTAMP(6)".to_owned(),
            "locked_at" => "CASE WHEN {{unsettled_moved}} THEN '1970-01-01 00:00:01' END".to_owned(),
            "locked_by" => "CASE WHEN {{unsettled_moved}} THEN 'replayed' END".to_owned(),
            "published_at" | "last_error" | "dead_at" | "dlq_at" | "sinks_done" => "NULL".to_owned(),
            _ => format!("h.{}", quoted(&column.name)),
        };
        let comes_back = |(column, there): &&(Column, There)| *there == There::Yes && !column.generated;
        let columns: Vec<&Column> =
            self.columns.iter().filter(comes_back).map(|(column, _)| column).collect();
        let values: Vec<String> = columns.iter().map(|column| value(column)).collect();
        format!("INSERT INTO {{{{table}}}} ({}) SELECT {}", list(&columns), values.join(", "))
    }
}

fn list(columns: &[&Column]) -> String {
    columns.iter().map(|column| quoted(&column.name)).collect::<Vec<_>>().join(", ")
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
        connection: &mut MySqlConnection,
        schema: &str,
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
                let found = HistoryShape::read(connection, schema, table).await.map_err(classify)?;
                let Some(found) = found else {
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
