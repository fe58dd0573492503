//! What inboxes of all databases have in common.

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};

use crate::schema::refuse;

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

/// What stands where the inbox of a module would be.
#[derive(Debug, Clone)]
pub(crate) struct InboxShape {
    pub(crate) name: String,
    pub(crate) problems: Vec<String>,
    /// Whether its index is there.
    pub(crate) indexed: bool,
}

impl InboxShape {
    /// Whether it is one; another's table of this name is none, and is left alone.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        refuse(format_args!("{} is no inbox", self.name), &self.problems)
    }
}
