//! Transactions of SeaORM. They are of sqlx underneath, which they do not show, and of any database: which it is, each call
//! finds out.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use postbox_core::{InboxTrouble, InboxTx, Inserted, Insertion, OutboxTx, Recording};
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr};
use uuid::Uuid;

use super::{Columns, Dialect, EventRow, Session, Statement};

/// Marks the transactions of SeaORM as a driver of the outbox.
#[derive(Debug)]
pub struct SeaOrm;

/// A database as SeaORM has it.
trait Backend: Dialect {
    const BACKEND: DbBackend;

    /// A value as it takes it.
    fn value(value: Self::Value<'_>) -> sea_orm::Value;

    /// The text in the first column.
    fn text(row: &QueryResult) -> Result<String, DbErr>;
}

impl<D: Backend> Session<D> for &DatabaseTransaction {
    type Error = DbErr;

    async fn events(
        &mut self,
        statement: Statement<'_, D>,
        columns: Columns,
    ) -> Result<Vec<EventRow>, DbErr> {
        let rows = self.query_all_raw(bound(statement)).await?;
        rows.iter().map(|row| event(row, columns)).collect()
    }

    async fn sequence(&mut self, statement: Statement<'_, D>) -> Result<i64, DbErr> {
        let row = self.query_one_raw(bound(statement)).await?;
        row.ok_or_else(|| DbErr::RecordNotFound("the first event with this id".to_owned()))?
            .try_get_by_index(1)
    }

    async fn texts(&mut self, statement: Statement<'_, D>) -> Result<Vec<String>, DbErr> {
        self.query_all_raw(bound(statement)).await?.iter().map(D::text).collect()
    }
}

fn bound<D: Backend>(statement: Statement<'_, D>) -> sea_orm::Statement {
    let values = statement.values.into_iter().map(D::value);
    sea_orm::Statement::from_sql_and_values(D::BACKEND, &*statement.sql, values)
}

fn event(row: &QueryResult, columns: Columns) -> Result<EventRow, DbErr> {
    let id = match columns {
        Columns::Event => Uuid::nil(),
        Columns::EventAndRow => row.try_get_by_index(2)?,
    };
    Ok(EventRow { event_id: row.try_get_by_index(0)?, sequence: row.try_get_by_index(1)?, id })
}

async fn insert(tx: &mut &DatabaseTransaction, insertion: Insertion<'_>) -> Result<Vec<Inserted>, DbErr> {
    match tx.get_database_backend() {
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => crate::postgres::tx::insert(tx, insertion).await,
        #[cfg(feature = "mysql")]
        DbBackend::MySql => crate::mysql::tx::insert(tx, insertion).await,
        #[cfg(feature = "sqlite")]
        DbBackend::Sqlite => crate::sqlite::tx::insert(tx, insertion).await,
        #[allow(
            unreachable_patterns,
            reason = "reached where Postbox is built for fewer databases than SeaORM"
        )]
        other => Err(not_built(other)),
    }
}

async fn record(tx: &mut &DatabaseTransaction, recording: Recording<'_>) -> Result<Vec<String>, DbErr> {
    match tx.get_database_backend() {
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => crate::postgres::inbox::record(tx, recording).await,
        #[cfg(feature = "mysql")]
        DbBackend::MySql => crate::mysql::inbox::record(tx, recording).await,
        #[cfg(feature = "sqlite")]
        DbBackend::Sqlite => crate::sqlite::inbox::record(tx, recording).await,
        #[allow(
            unreachable_patterns,
            reason = "reached where Postbox is built for fewer databases than SeaORM"
        )]
        other => Err(not_built(other)),
    }
}

fn not_built(backend: DbBackend) -> DbErr {
    let db = match backend {
        DbBackend::Postgres => "PostgreSQL",
        DbBackend::MySql => "MySQL",
        DbBackend::Sqlite => "SQLite",
        _ => "this database",
    };
    DbErr::BackendNotSupported { db, ctx: "Postbox is built without the feature for it" }
}

/// What an error means to whoever records a message.
fn trouble(error: &DbErr) -> InboxTrouble {
    let (DbErr::Conn(RuntimeErr::SqlxError(error))
    | DbErr::Exec(RuntimeErr::SqlxError(error))
    | DbErr::Query(RuntimeErr::SqlxError(error))) = error
    else {
        return InboxTrouble::Other;
    };
    let known = [
        #[cfg(feature = "postgres")]
        postgres::trouble(error),
        #[cfg(feature = "mysql")]
        mysql::trouble(error),
        #[cfg(feature = "sqlite")]
        sqlite::trouble(error),
    ];
    known.into_iter().flatten().next().unwrap_or(InboxTrouble::Other)
}

super::by_reference!(SeaOrm, DatabaseTransaction, DbErr, insert, record, trouble);
