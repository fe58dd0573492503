//! Connections of diesel-async. They have one type with and without a transaction, so each call asks whether one is open.

#[cfg(any(feature = "diesel-mysql", feature = "diesel-sqlite"))]
mod bytes;
#[cfg(feature = "diesel-mysql")]
mod mysql;
#[cfg(feature = "diesel-postgres")]
mod postgres;
#[cfg(feature = "diesel-sqlite")]
mod sqlite;

#[cfg(feature = "diesel-mysql")]
pub use mysql::DieselMysql;
#[cfg(feature = "diesel-postgres")]
pub use postgres::DieselPostgres;
#[cfg(feature = "diesel-sqlite")]
pub use sqlite::DieselSqlite;

use diesel::result::{DatabaseErrorKind, Error};
use diesel_async::{AsyncConnection, TransactionManager};
use postbox_core::InboxTrouble;

/// Whether a transaction is open. One that is broken counts as such: what is done in it fails, with an error that says more.
fn is_open<C: AsyncConnection>(connection: &mut C) -> bool {
    let status = C::TransactionManager::transaction_manager_status_mut(connection);
    !matches!(status.transaction_depth(), Ok(None))
}

/// What an error means to whoever records a message. Diesel keeps a few kinds of errors and the database's words, but no code: so
/// they are read, as a server says them that speaks English.
fn trouble(error: &Error, read: fn(&str) -> InboxTrouble) -> InboxTrouble {
    match error {
        Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _) => InboxTrouble::Conflict,
        Error::DatabaseError(_, information) => read(information.message()),
        _ => InboxTrouble::Other,
    }
}

/// Makes a connection one of the outbox and the inbox. Where it is used, `Event` and `EventAndRow` are rows of events, `Message` is one
/// of the inbox, `bound` is a statement as diesel takes it, and `read` what an error's words mean.
macro_rules! of_connection {
    ($marker:ty, $connection:ty, $database:ty, $insert:path, $record:path) => {
        // Who passes a pool of one driver needs no list of all others.
        #[diagnostic::do_not_recommend]
        impl OutboxTx<$marker> for &mut $connection {
            type Error = Error;

            async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, Error> {
                $insert(self, insertion).await
            }

            fn is_open(&mut self) -> bool {
                super::is_open(*self)
            }
        }

        #[diagnostic::do_not_recommend]
        impl InboxTx<$marker> for &mut $connection {
            type Error = Error;

            async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, Error> {
                $record(self, recording).await
            }

            fn trouble(error: &Error) -> InboxTrouble {
                super::trouble(error, read)
            }

            fn is_open(&mut self) -> bool {
                super::is_open(*self)
            }
        }

        impl Session<$database> for $connection {
            type Error = Error;

            async fn events(
                &mut self,
                statement: Statement<'_, $database>,
                columns: Columns,
            ) -> Result<Vec<EventRow>, Error> {
                let query = bound(statement);
                match columns {
                    Columns::Event => query.load(self).await?.iter().map(Event::row).collect(),
                    Columns::EventAndRow => query.load(self).await?.iter().map(EventAndRow::row).collect(),
                }
            }

            async fn sequence(&mut self, statement: Statement<'_, $database>) -> Result<i64, Error> {
                let row: Event = bound(statement).get_result(self).await?;
                Ok(row.sequence)
            }

            async fn texts(&mut self, statement: Statement<'_, $database>) -> Result<Vec<String>, Error> {
                let rows: Vec<Message> = bound(statement).load(self).await?;
                Ok(rows.into_iter().map(Message::text).collect())
            }
        }
    };
}
use of_connection;
