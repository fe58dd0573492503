//! Driver errors, classified where they arise.

use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind};
use sqlx::mysql::MySqlDatabaseError;

use crate::error::of_driver;

/// The server's number for an error, if it came from there.
pub(super) fn error_number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(database.number())
}

/// A deadlock: the server has rolled the transaction back.
pub(super) const DEADLOCK: u16 = 1213;
/// A lock was waited for in vain: only the statement was undone, and a COMMIT would keep the half.
pub(super) const LOCK_WAIT: u16 = 1205;
/// MariaDB: somebody else has changed the row since it was read.
const CHANGED: u16 = 1020;
/// A key that is there already.
pub(super) const DUPLICATE: u16 = 1062;

/// Whether a lock was waited for in vain.
pub(super) fn is_lock_wait(error: &StoreError) -> bool {
    let number = || error_number(std::error::Error::source(error)?.downcast_ref::<sqlx::Error>()?);
    number() == Some(LOCK_WAIT)
}

/// Says what a driver error means for the caller, and keeps it as the cause.
pub fn classify(error: sqlx::Error) -> StoreError {
    use StoreErrorKind::{Conflict, Connection, Refused};

    let (code, kind, message) = match &error {
        sqlx::Error::Database(database) => {
            let number = error_number(&error).unwrap_or_default();
            let (code, kind) = match number {
                DEADLOCK | LOCK_WAIT | CHANGED => (Code::DatabaseError, Conflict),
                // No such user or database, or a password that is wrong.
                1044 | 1045 | 1049 | 1698 => (Code::DatabaseAuth, Refused),
                1142 | 1143 | 1227 | 1370 => (Code::DatabasePermission, Refused),
                1146 => (Code::TableMissing, Refused),
                // A column or an index that is not there.
                1054 | 1176 => (Code::TableMismatch, Refused),
                // Too many connections, a node of a cluster that is not ready, a shutdown, a session or statement that was ended,
                // or a statement that took too long.
                1040 | 1047 | 1053 | 1077 | 1203 | 1317 | 1927 | 1969 | 3024 | 4031 => {
                    (Code::DatabaseUnreachable, Connection)
                }
                1021 | 1114 => (Code::DiskFull, Connection),
                // A replica, or a server that was told to be read only: it may be the primary again soon.
                1290 | 1792 | 1836 => (Code::DatabaseReadOnly, Connection),
                _ => (Code::DatabaseError, Refused),
            };
            // These quote the value, which may be a secret (hazard 49).
            let message = match number {
                DUPLICATE => "a key is there already",
                1292 | 1366 => "a value does not fit its column",
                _ => database.message(),
            };
            (code, kind, format!("{message} [{number}]"))
        }
        driver => of_driver(driver),
    };
    StoreError::new(code, kind, message).caused_by(error)
}

/// Runs a database operation with a limit, so that a silent network is an error and not a hang (hazard 8). What ran out of
/// time has an unknown result: its connection must not be used again.
pub(super) async fn within<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, operation).await {
        Ok(result) => result.map_err(classify),
        Err(_) => Err(StoreError::new(
            Code::DatabaseUnreachable,
            StoreErrorKind::Connection,
            format!("no answer from the database within {limit:?}"),
        )),
    }
}
