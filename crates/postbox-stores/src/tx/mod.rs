//! Drivers' transactions: what a driver adds to a database, which is how it runs a statement and reads the rows.
//!
//! The statements, the chunks they come in, duplicates, wake-ups and the meaning of errors are those of the database (`tx.rs` and
//! `inbox.rs` in its folder), whatever the driver. sqlx, by which stores work, is one of them (`session.rs` there); the others are
//! here, each behind a feature of its own.

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres;
#[cfg(any(feature = "diesel-postgres", feature = "diesel-mysql", feature = "diesel-sqlite"))]
mod diesel;
#[cfg(feature = "sea-orm")]
mod sea_orm;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(feature = "diesel-mysql")]
pub use self::diesel::DieselMysql;
#[cfg(feature = "diesel-postgres")]
pub use self::diesel::DieselPostgres;
#[cfg(feature = "diesel-sqlite")]
pub use self::diesel::DieselSqlite;
#[cfg(feature = "sea-orm")]
pub use self::sea_orm::SeaOrm;
#[cfg(feature = "tokio-postgres")]
pub use self::tokio_postgres::TokioPostgres;

use std::future::Future;
use std::sync::Arc;

use postbox_core::{CommitError, Payload, Record};
use sqlx::{ColumnIndex, Decode, Row, Type};
use uuid::Uuid;

/// A database as a driver sees it: what can be bound to its statements. Implemented by sqlx's names for them.
pub(crate) trait Dialect {
    /// A value.
    type Value<'q>: Send + Sync;
}

/// A statement with all that is bound to it.
pub(crate) struct Statement<'q, D: Dialect> {
    /// The text, with places as the database has them.
    pub(crate) sql: Arc<str>,
    /// What goes there.
    pub(crate) values: Vec<D::Value<'q>>,
    /// Whether it may be kept prepared on the session.
    pub(crate) prepared: bool,
}

/// The transaction of a driver, or its connection while one is open.
pub(crate) trait Session<D: Dialect>: Send {
    /// The driver's error.
    type Error: Send;

    /// Runs a statement that answers events; none, if it answers nothing.
    fn events(
        &mut self,
        statement: Statement<'_, D>,
        columns: Columns,
    ) -> impl Future<Output = Result<Vec<EventRow>, Self::Error>> + Send;

    /// The sequence of the one event that the statement answers, as `event_id, sequence`. The driver's error for a row that
    /// is not there, if it is not.
    fn sequence(
        &mut self,
        statement: Statement<'_, D>,
    ) -> impl Future<Output = Result<i64, Self::Error>> + Send;

    /// Runs a statement that answers one column of text, in the database's type for it; none, if it answers nothing.
    fn texts(
        &mut self,
        statement: Statement<'_, D>,
    ) -> impl Future<Output = Result<Vec<String>, Self::Error>> + Send;
}

/// The first columns of an answer. What is behind them is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "not every database asks for both")]
pub(crate) enum Columns {
    /// `event_id, sequence`.
    Event,
    /// `event_id, sequence, id`.
    EventAndRow,
}

/// A row of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventRow {
    pub(crate) event_id: Uuid,
    pub(crate) sequence: i64,
    /// The row's own id, or nil where nobody asked for it.
    pub(crate) id: Uuid,
}

impl EventRow {
    /// Reads it from a row of sqlx.
    pub(crate) fn read<'r, R: Row>(row: &'r R, columns: Columns) -> Result<Self, sqlx::Error>
    where
        usize: ColumnIndex<R>,
        Uuid: Decode<'r, R::Database> + Type<R::Database>,
        i64: Decode<'r, R::Database> + Type<R::Database>,
    {
        let id = match columns {
            Columns::Event => Uuid::nil(),
            Columns::EventAndRow => row.try_get(2)?,
        };
        Ok(Self { event_id: row.try_get(0)?, sequence: row.try_get(1)?, id })
    }
}

/// Commits a transaction that Postbox has opened; `certain` tells whether an error means that nothing was committed.
pub(crate) async fn commit<D: sqlx::Database>(
    tx: sqlx::Transaction<'static, D>,
    certain: fn(&sqlx::Error) -> bool,
) -> Result<(), CommitError<sqlx::Error>> {
    tx.commit().await.map_err(|error| {
        if certain(&error) { CommitError::RolledBack(error) } else { CommitError::Unknown(error) }
    })
}

/// The headers of an event as the table has them; null if there are none.
pub(crate) fn headers(record: &Record) -> Option<String> {
    let headers = &record.headers;
    (!headers.is_empty()).then(|| serde_json::to_string(headers).unwrap_or_default())
}

/// The columns of its payload: `payload`, `payload_raw` and `content_type`.
pub(crate) fn payload(record: &Record) -> (&str, Option<&[u8]>, Option<&str>) {
    match &record.payload {
        Payload::Json(json) => (json.as_str(), None, None),
        Payload::Bytes { bytes, content_type } => ("null", Some(&**bytes), Some(content_type.as_str())),
    }
}

/// Makes a transaction of a driver that is used by shared reference one of the outbox and the inbox: by `&tx`, as its own
/// functions take it, and by `&mut tx`, as with every other driver.
#[cfg(any(feature = "tokio-postgres", feature = "sea-orm"))]
macro_rules! by_reference {
    ($marker:ty, $transaction:ty, $error:ty, $insert:path, $record:path, $trouble:path) => {
        super::by_reference!(one $marker, &$transaction, $error, $insert, $record, $trouble);
        super::by_reference!(one $marker, &mut $transaction, $error, $insert, $record, $trouble);
    };
    (one $marker:ty, $transaction:ty, $error:ty, $insert:path, $record:path, $trouble:path) => {
        // Who passes a pool of one driver needs no list of all others.
        #[diagnostic::do_not_recommend]
        impl OutboxTx<$marker> for $transaction {
            type Error = $error;

            async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, $error> {
                $insert(&mut &*self, insertion).await
            }
        }

        #[diagnostic::do_not_recommend]
        impl InboxTx<$marker> for $transaction {
            type Error = $error;

            async fn record(self, recording: Recording<'_>) -> Result<Vec<String>, $error> {
                $record(&mut &*self, recording).await
            }

            fn trouble(error: &$error) -> InboxTrouble {
                $trouble(error)
            }
        }
    };
}
#[cfg(any(feature = "tokio-postgres", feature = "sea-orm"))]
pub(crate) use by_reference;
