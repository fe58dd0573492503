//! What inboxes of all databases have in common.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};

/// So many messages are forgotten in one transaction.
pub(crate) const FORGET_BATCH: u32 = 500;

/// The inbox of a module, with its schema where there is one, for people.
pub(crate) fn name_of(table: &TableName) -> String {
    let schema = table.schema().map(|schema| format!("{schema}.")).unwrap_or_default();
    format!("{schema}{}", table.inbox())
}

/// The error for a module that has none.
pub(crate) fn missing(table: &TableName) -> StoreError {
    let message = format!(
        "{} does not exist, or is no inbox: make it with `postbox migrate up --inbox --table {table}`",
        name_of(table)
    );
    StoreError::new(Code::InboxMissing, StoreErrorKind::Refused, message)
}

/// Refuses a table that has problems.
pub(crate) fn is_no_inbox(name: &str, problems: &[String]) -> Result<(), StoreError> {
    if problems.is_empty() {
        return Ok(());
    }
    let message = format!("{name} is no inbox: {}", problems.join("; "));
    Err(StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message))
}
