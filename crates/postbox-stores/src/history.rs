//! `<table>_history`, whatever the database: its columns beside those of its table, and what a settle does with delivered rows.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};

use crate::schema::refuse;

/// The history's name, in the schema of its table.
pub(crate) fn name_of(table: &TableName) -> String {
    format!("{}_history", table.table())
}

/// A column of the table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// For SQL.
    pub(crate) quoted: String,
    pub(crate) kind: String,
    /// One of the standard ones, which every history has.
    pub(crate) standard: bool,
    /// The database works it out by itself, and lets nobody write it.
    pub(crate) generated: bool,
    /// Its type in the history; none if it is not there.
    pub(crate) there: Option<String>,
}

/// A history as it is, beside its table.
#[derive(Debug, Clone)]
pub(crate) struct HistoryShape {
    /// With its schema where there is one.
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// What an outbox table has and a history has not.
    pub(crate) problem: Option<&'static str>,
    /// Whether its index is there.
    pub(crate) has_index: bool,
}

impl HistoryShape {
    /// Whether it is a history, and of this table.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let mut problems = Vec::new();
        if self.columns.is_empty() {
            problems.push("its table does not exist".to_owned());
        }
        problems.extend(self.problem.map(str::to_owned));
        for Column { name, kind, standard, there, .. } in &self.columns {
            match there {
                None if *standard => problems.push(format!("{name} is missing")),
                Some(there) if there != kind => problems.push(format!("{name} is {there}, not {kind}")),
                None | Some(_) => {}
            }
        }
        refuse(format_args!("{} is no history of its table", self.name), &problems)
    }

    /// Makes sure, before anything is claimed, that delivered rows can move to what was found: a settle that fails would have every
    /// event delivered again and again.
    pub(crate) fn required(found: Option<Self>, table: &TableName) -> Result<Self, StoreError> {
        let next = format!("run `postbox migrate up --history move --table {table}`");
        let refused = |why: String| StoreError::new(Code::HistoryMissing, StoreErrorKind::Refused, why);
        let Some(found) = found else {
            return Err(refused(format!("{table} has no {}: {next}", name_of(table))));
        };
        found.check()?;
        let lacking: Vec<&str> = found.missing().map(|(column, _)| column).collect();
        if lacking.is_empty() {
            return Ok(found);
        }
        Err(refused(format!("{} lacks {}, which {table} has: {next}", found.name, lacking.join(", "))))
    }

    /// Columns of the table that it lacks, for SQL, with their types.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        let missing = self.columns.iter().filter(|column| column.there.is_none());
        missing.map(|column| (column.quoted.as_str(), column.kind.as_str()))
    }

    /// The columns that a row arrives with, and their values: those of the table, which is called `from`, unless `value` says
    /// otherwise.
    pub(crate) fn arriving(&self, from: &str, value: impl Fn(&str) -> Option<String>) -> (String, String) {
        lists(self.columns.iter(), from, value)
    }

    /// The same of a row that comes back from the history, which is called `from`.
    pub(crate) fn coming_back(&self, from: &str, value: impl Fn(&str) -> Option<String>) -> (String, String) {
        let comes_back = |column: &&Column| column.there.is_some() && !column.generated;
        lists(self.columns.iter().filter(comes_back), from, value)
    }
}

fn lists<'a>(
    columns: impl Iterator<Item = &'a Column>,
    from: &str,
    value: impl Fn(&str) -> Option<String>,
) -> (String, String) {
    let own = |column: &Column| format!("{from}.{}", column.quoted);
    let both = columns.map(|column| (&*column.quoted, value(&column.name).unwrap_or_else(|| own(column))));
    let (columns, values): (Vec<&str>, Vec<String>) = both.unzip();
    (columns.join(", "), values.join(", "))
}

/// What a settle does with the rows of delivered events.
#[derive(Debug, Clone)]
pub(crate) enum Sent {
    /// They stay, with the time.
    Kept,
    /// They move there.
    Moved(HistoryShape),
    /// They go.
    Deleted,
}
