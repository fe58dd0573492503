//! Driver errors, classified where they arise.

use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind};

/// SQLite's result code, with its extension.
pub(super) fn result_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// Whether another connection holds a lock that will be free again: BUSY and LOCKED, with all their extensions.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    result_code(error).is_some_and(|code| matches!(code & 0xff, 5 | 6))
}

/// Says what a driver error means for the caller, and keeps it as the cause.
pub fn classify(error: sqlx::Error) -> StoreError {
    use StoreErrorKind::{Connection, Refused};

    let (code, kind, message) = match &error {
        sqlx::Error::Database(database) => {
            let (number, message) = (result_code(&error).unwrap_or(1), database.message());
            let (code, kind) = match (number & 0xff, number) {
                // PERM and AUTH.
                (3 | 23, _) => (Code::DatabasePermission, Refused),
                (5 | 6, _) => (Code::DatabaseLocked, Connection),
                // The file was replaced or deleted under the connection: a new one sees what is there now.
                (8, 1032) => (Code::DatabaseReadOnly, Connection),
                (8, _) => (Code::DatabaseReadOnly, Refused),
                // FULL, and IOERR_SHMSIZE: no room even for the few pages that all connections share.
                (13, _) | (10, 4874) => (Code::DiskFull, Connection),
                // Out of memory, interrupted, I/O errors: nothing to be done but to wait.
                (7 | 9 | 10, _) => (Code::DatabaseError, Connection),
                // CORRUPT, CANTOPEN, NOTADB.
                (11 | 14 | 26, _) => (Code::DatabaseFile, Refused),
                (1, _) if message.starts_with("no such table") => (Code::TableMissing, Refused),
                (1, _) if message.starts_with("no such index") => (Code::TableMismatch, Refused),
                (1, _) if message.contains("no such column") || message.contains("has no column") => {
                    (Code::TableMismatch, Refused)
                }
                _ => (Code::DatabaseError, Refused),
            };
            (code, kind, format!("{message} [{number}]"))
        }
        sqlx::Error::Io(_) => (Code::DatabaseFile, Refused, error.to_string()),
        sqlx::Error::Configuration(_) => (Code::DatabaseUrl, Refused, error.to_string()),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) => {
            (Code::TableMismatch, Refused, error.to_string())
        }
        // A connection that cannot be trusted any more.
        _ => (Code::DatabaseError, Connection, error.to_string()),
    };
    StoreError::new(code, kind, message).caused_by(error)
}

/// Runs a read with a limit. Writes have none: once one is under way, only SQLite knows how it ends.
pub(super) async fn within<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, operation).await {
        Ok(result) => result.map_err(classify),
        Err(_) => Err(StoreError::new(
            Code::DatabaseError,
            StoreErrorKind::Connection,
            format!("no answer from the database file within {limit:?}"),
        )),
    }
}
