//! What a doctor says of a table, whatever the database.

use postbox_core::{Code, Finding, StoreError, TableName};

use crate::history::{HistoryShape, name_of};
#[cfg(any(feature = "sqlite", feature = "mysql"))]
use crate::plan::{Plan, Step};

/// The table could not be looked at; with what to do about it, where that is known.
pub(crate) fn failed(table: &TableName, error: &StoreError) -> Finding {
    let mut finding = Finding::failed("table", error);
    if error.code() == Code::TableMissing {
        finding.fix = Some(format!("postbox migrate up --table {table}, or correct the name"));
    } else if error.code() == Code::TableNameInvalid {
        finding.fix = Some(format!("--table {}", table.table()));
    }
    finding
}

/// What stands where the history would be.
pub(crate) fn history(table: &TableName, found: &HistoryShape) -> Finding {
    match found.check() {
        Ok(()) => Finding::good("history", format!("{} is there", name_of(table))),
        Err(error) => {
            let fix = "rename it, if events are to be moved";
            Finding::doubtful("history", Code::HistoryMissing, error.message(), fix)
        }
    }
}

/// Whether the columns are there without which no relay works.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) fn layout(lacking: &[&str], migrate: &str) -> Finding {
    if lacking.is_empty() {
        return Finding::good("layout", "all columns are there");
    }
    let what = format!("no relay works on it: no {}", lacking.join(", no "));
    Finding::wrong("layout", Code::ColumnMissing, what, migrate)
}

/// What `migrate up` would do. Without its indexes every claim, count or clean reads the whole table, and without its row
/// in `postbox_relay` none works; the view is for people alone.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) fn drift(plan: Result<Plan, StoreError>, migrate: &str) -> Vec<Finding> {
    let steps = match plan {
        Ok(plan) => plan.steps,
        Err(error) => return vec![Finding::failed("schema", &error)],
    };
    let finding = |step: &Step| {
        let what = format!("schema differs: {}", step.what);
        if step.what.ends_with("view") {
            Finding::doubtful("schema", Code::SchemaDrift, what, migrate)
        } else if step.what.contains("index") {
            Finding::wrong("schema", Code::IndexMissing, what, migrate)
        } else {
            Finding::wrong("schema", Code::SchemaDrift, what, migrate)
        }
    };
    // SQLite's journal has its own check.
    let differs: Vec<Finding> =
        steps.iter().filter(|step| !step.what.starts_with('~')).map(finding).collect();
    if differs.is_empty() {
        return vec![Finding::good("schema", "the schema is as this version wants it")];
    }
    differs
}
