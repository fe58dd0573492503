//! Driver errors, classified where they arise.

use std::borrow::Cow;
use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind};
use sqlx::postgres::PgDatabaseError;

use crate::error::of_driver;

/// Says what a driver error means for the caller, and keeps it as the cause.
pub fn classify(error: sqlx::Error) -> StoreError {
    use StoreErrorKind::{Conflict, Connection, Refused};

    let (code, kind, message) = match &error {
        sqlx::Error::Database(database) => {
            let sqlstate = database.code().unwrap_or_default().into_owned();
            let (code, kind) = match sqlstate.as_str() {
                "40001" | "40P01" | "55P03" => (Code::DatabaseError, Conflict),
                "28000" | "28P01" | "3D000" => (Code::DatabaseAuth, Refused),
                "42501" => (Code::DatabasePermission, Refused),
                // A statement prepared on a session that is not there any more, or by somebody else on this one.
                "26000" | "42P05" => (Code::PoolerUnsupported, Refused),
                "42P01" | "3F000" => (Code::TableMissing, Refused),
                "42703" | "42804" | "42P07" | "42710" => (Code::TableMismatch, Refused),
                // Shutting down, starting up, too many connections, killed by an operator or a timeout.
                "57P01" | "57P02" | "57P03" | "57P05" | "53300" => (Code::DatabaseUnreachable, Connection),
                // A standby, or a server that was told to be read only: it may be the primary again soon.
                "25006" => (Code::DatabaseReadOnly, Connection),
                // Out of disk or memory, statement timeouts: nothing to be done but to wait.
                state if state.starts_with("53") || state.starts_with("57") => {
                    (Code::DatabaseError, Connection)
                }
                state if state.starts_with("08") => (Code::DatabaseUnreachable, Connection),
                _ => (Code::DatabaseError, Refused),
            };
            // The detail of a constraint violation quotes the row: it stays out of messages (hazard 49).
            let hint = database.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::hint);
            let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            (code, kind, format!("{}{hint} [{sqlstate}]", database.message()))
        }
        driver => of_driver(driver),
    };
    StoreError::new(code, kind, message).caused_by(error)
}

/// The database's own code for an error, if it came from there.
pub(super) fn sqlstate(error: &StoreError) -> Option<Cow<'_, str>> {
    let source = std::error::Error::source(error)?.downcast_ref::<sqlx::Error>()?;
    source.as_database_error()?.code()
}

/// Runs a database operation with a limit, so that a silent network is an error and not a hang (hazard 8). What ran
/// out of time has an unknown result: its connection must not be used again.
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
