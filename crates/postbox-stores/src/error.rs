//! Errors that do not come from the database itself, where that is a server.

use postbox_core::{Code, StoreErrorKind};

/// What an error of the driver means for the caller, and what to say of it.
pub(crate) fn of_driver(error: &sqlx::Error) -> (Code, StoreErrorKind, String) {
    use StoreErrorKind::{Connection, Refused};

    match error {
        sqlx::Error::PoolTimedOut => {
            (Code::DatabaseUnreachable, Connection, "no connection to the database in time".to_owned())
        }
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolClosed => {
            (Code::DatabaseUnreachable, Connection, error.to_string())
        }
        sqlx::Error::Configuration(_) => (Code::DatabaseUrl, Refused, error.to_string()),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) => {
            (Code::TableMismatch, Refused, error.to_string())
        }
        // A half-read answer: the connection cannot be trusted any more.
        _ => (Code::DatabaseError, Connection, error.to_string()),
    }
}
