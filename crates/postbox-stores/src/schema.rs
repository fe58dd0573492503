//! What is wrong with a table, whatever the database.

use std::collections::BTreeMap;
use std::fmt::Display;

use postbox_core::{Code, StoreError, StoreErrorKind};

/// Refuses a table that has problems.
pub(crate) fn refuse(what: impl Display, problems: &[String]) -> Result<(), StoreError> {
    if problems.is_empty() {
        return Ok(());
    }
    let message = format!("{what}: {}", problems.join("; "));
    Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message))
}

/// What is wrong with the columns of a table, which have these types: standard ones that are missing, and any of another type.
#[cfg_attr(
    not(any(feature = "postgres", feature = "sqlite")),
    allow(dead_code, reason = "types have more than one name in MySQL")
)]
pub(crate) fn problems(
    columns: &BTreeMap<String, String>,
    standard: &[(&str, &str)],
    extension: &[(&str, &str)],
) -> Vec<String> {
    let mut problems = Vec::new();
    let needed = standard.iter().map(|(column, wanted)| (column, wanted, true));
    for (column, wanted, needed) in
        needed.chain(extension.iter().map(|(column, wanted)| (column, wanted, false)))
    {
        match columns.get(*column) {
            None if needed => problems.push(format!("{column} is missing")),
            Some(actual) if actual != wanted => problems.push(format!("{column} is {actual}, not {wanted}")),
            None | Some(_) => {}
        }
    }
    problems
}

/// Extension columns and their types as lines of a CREATE TABLE, but for the payload: payloads stand last.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn lines<'a>(columns: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let lines =
        columns.filter(|(name, _)| *name != "payload_raw").map(|(name, kind)| format!("{name:<14} {kind},"));
    lines.collect::<Vec<_>>().join("\n    ")
}
