//! [`Diagnose`]: what a database can say about why a table is not well.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use crate::code::Code;
use crate::store::StoreError;

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
    /// What it is, for scripts and `postbox explain`; none where all is as it should be.
    pub code: Option<Code>,
    /// What was found, in one line, with the figures that show it.
    pub what: String,
    /// What to do about it, as a command where there is one.
    pub fix: Option<String>,
}

impl Finding {
    /// Something that is as it should be.
    pub fn good(check: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Good, check, code: None, what: what.into(), fix: None }
    }

    /// Something that may not be as meant.
    pub fn doubtful(
        check: &'static str,
        code: Code,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Doubtful, check, code: Some(code), what: what.into(), fix: Some(fix.into()) }
    }

    /// Something that does not work.
    pub fn wrong(check: &'static str, code: Code, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Wrong, check, code: Some(code), what: what.into(), fix: Some(fix.into()) }
    }

    /// A check that could not be made.
    pub fn failed(check: &'static str, error: &StoreError) -> Self {
        Self::wrong(check, error.code(), error.message(), error.code().next_step())
    }
}

/// What the one who looks wants to know more about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Examination {
    /// Transactions that are open for longer than this are named.
    pub long_transaction: Duration,
    /// How many connections the one who looks would need more than are open now; 0 asks for none.
    pub connections: u32,
}

/// How far delivery has come, to be compared with a later look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// The sequence of the event that has been due for longest, if one is that nothing holds back: it does not back off, and no
    /// dead event of its aggregate is in front of it.
    pub first_due: Option<i64>,
    /// For how long that one has been due.
    pub due_for: Duration,
    /// How long ago an event was last published, where the database knows without a search.
    pub published: Option<Duration>,
    /// A number that rises with every event that is written, where the database keeps one.
    pub written: Option<i64>,
}

/// Looks at everything between the program and a table that can be wrong. What cannot be looked at is a finding too,
/// never an error.
///
/// # Cancel safety
/// Only looks; may be dropped at any time.
pub trait Diagnose: Send + Sync {
    /// The findings about the server, the way to it, and the table's structure.
    fn diagnose(&self, examination: Examination) -> impl Future<Output = Vec<Finding>> + Send;

    /// How far delivery has come: two looks tell whether it goes on.
    ///
    /// # Errors
    /// When the table is missing or the database fails.
    fn flow(&self) -> impl Future<Output = Result<Flow, StoreError>> + Send;
}
