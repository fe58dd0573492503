//! Before anything is changed for good: what would be, how many rows, and a question.

use std::fmt;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

use postbox_core::Code;

use crate::cli::Call;
use crate::database::Database;
use crate::render::{counted, printable};
use crate::report::{Failure, Problem};

/// A change that is about to be made.
pub(crate) struct Change<'a> {
    /// The verb: `replay`, `discard`.
    pub(crate) verb: &'a str,
    /// The statement in words.
    pub(crate) meaning: String,
    /// How many rows it hits.
    pub(crate) rows: u64,
    /// Of which table.
    pub(crate) table: &'a dyn fmt::Display,
    pub(crate) database: &'a Database,
}

impl Change<'_> {
    /// Shows what would be done, and asks: `y` on this machine's database, the name of the database on another. `--yes` answers
    /// beforehand; without a terminal there is no other way.
    pub(crate) fn confirmed(&self, call: &Call<'_>) -> Result<bool, Failure> {
        let Self { verb, rows, table, database, .. } = self;
        let place = format!("{} in {table} @ {}", counted(*rows, "row"), database.place());
        let mut input = std::io::stdin().lock();
        // A question that goes into a file is seen by nobody, and would be waited on for ever.
        let asks = !call.on("yes") && input.is_terminal() && std::io::stderr().is_terminal();
        // Scripts that want JSON are told nothing else; somebody who is asked has to know about what.
        if asks || !call.json {
            tell(&format!("{}\n{place}\n", printable(&self.meaning)));
        }
        if call.on("yes") {
            return Ok(true);
        }
        if !asks {
            let message = format!("cannot ask whether to {verb} {place}: there is no terminal");
            return Err(Problem::new(Code::ConfigMissing, message).next("pass --yes").into());
        }
        let (name, local) = database.name();
        if local {
            tell(&format!("{verb} them? [y/N] "));
        } else {
            tell(&format!("Type {name:?} to {verb}: "));
        }
        let mut answer = String::new();
        // No answer is a no.
        let read = input.read_line(&mut answer).unwrap_or(0);
        let answer = answer.trim();
        Ok(read > 0 && if local { matches!(answer, "y" | "Y" | "yes") } else { answer == name })
    }
}

/// Says something beside the result.
pub(crate) fn tell(text: &str) {
    let mut out = std::io::stderr().lock();
    // Nobody is left to tell when this fails.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A line that shows how far long work is, on a terminal alone.
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn new(json: bool) -> Self {
        Self { shown: !json && std::io::stderr().is_terminal() }
    }

    pub(crate) fn at(&self, text: &str) {
        if self.shown {
            tell(&format!("\r\u{1b}[K{text}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.at("");
    }
}
