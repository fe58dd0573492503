//! [`Diagnose`]: what a database can say about why a table is not well.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// Works, but perhaps not as meant.
    Doubtful,
    /// Does not work, or will not for long.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at, in one word for scripts: `server`, `pooler`, `table`, `layout`, `schema`, …
    pub check: &'static str,
    /// What was found, in one line.
    pub what: String,
    /// What to do about it, as a command where there is one.
    pub fix: Option<String>,
}

impl Finding {
    /// Something that is as it should be.
    pub fn good(check: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Good, check, what: what.into(), fix: None }
    }

    /// Something that may not be as meant.
    pub fn doubtful(check: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Doubtful, check, what: what.into(), fix: Some(fix.into()) }
    }

    /// Something that does not work.
    pub fn wrong(check: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Wrong, check, what: what.into(), fix: Some(fix.into()) }
    }
}

/// What the one who looks wants to know more about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Examination {
    /// Transactions that are open for longer than this are named.
    pub long_transaction: Duration,
}

/// Looks at everything between the program and a table that can be wrong. What cannot be looked at is a finding too,
/// never an error.
pub trait Diagnose: Send + Sync {
    /// The findings about the server, the way to it, and the table's structure.
    fn diagnose(&self, examination: Examination) -> impl Future<Output = Vec<Finding>> + Send;
}
