//! Whether a relay may work on a table, as the table's row in `postbox_relay` says.

use postbox_core::store::Standing;
use postbox_core::{Code, StoreError, StoreErrorKind};

/// What a relay may do on a table that is paused, or is its own.
pub(crate) fn standing(paused: bool, mine: bool) -> Standing {
    match (mine, paused) {
        (false, _) => Standing::Standby,
        (true, true) => Standing::Paused,
        (true, false) => Standing::Active,
    }
}

/// The error for a table that has no such row.
pub(crate) fn no_relay_row(table: &str, key: &str) -> StoreError {
    let message = format!("{key} has no row in postbox_relay: run `postbox migrate up` again");
    tracing::error!(table, message);
    StoreError::new(Code::TableMismatch, StoreErrorKind::Refused, message)
}

/// What is said of a row that has used up its attempts without any answer.
pub(crate) fn no_answer_in(max_attempts: i32) -> String {
    format!("{}: no answer in {max_attempts} attempts", Code::Exhausted)
}
