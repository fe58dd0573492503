//! Transactions of tokio-postgres.

use postbox_core::{InboxTrouble, InboxTx, Inserted, Insertion, OutboxTx, Recording};
use sqlx::Postgres;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row, Transaction};

use super::{Columns, EventRow, Session, Statement};
use crate::postgres::session::{self, Value};
use crate::postgres::{inbox, tx};

/// Marks the transactions of tokio-postgres, and those of its pools, as a driver of the outbox.
#[derive(Debug)]
pub struct TokioPostgres;

/// All goes in one round trip, and nothing stays prepared: a statement that is prepared first would take two, and behind
/// a transaction pooler be somebody else's.
impl Session<Postgres> for &Transaction<'_> {
    type Error = Error;

    async fn events(
        &mut self,
        statement: Statement<'_, Postgres>,
        columns: Columns,
    ) -> Result<Vec<EventRow>, Error> {
        let rows = self.query_typed(&statement.sql, &typed(&statement.values)).await?;
        rows.iter().map(|row| event(row, columns)).collect()
    }

    async fn sequence(&mut self, statement: Statement<'_, Postgres>) -> Result<i64, Error> {
        self.query_typed_one(&statement.sql, &typed(&statement.values)).await?.try_get(1)
    }

    async fn texts(&mut self, statement: Statement<'_, Postgres>) -> Result<Vec<String>, Error> {
        let rows = self.query_typed(&statement.sql, &typed(&statement.values)).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }
}

/// Reads a row of events.
pub(super) fn event(row: &Row, columns: Columns) -> Result<EventRow, Error> {
    let id = match columns {
        Columns::Event => uuid::Uuid::nil(),
        Columns::EventAndRow => row.try_get(2)?,
    };
    Ok(EventRow { event_id: row.try_get(0)?, sequence: row.try_get(1)?, id })
}

fn typed<'a>(values: &'a [Value<'_>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    values.iter().map(sql).collect()
}

/// A value as this driver takes it, and its type.
pub(super) fn sql<'a>(value: &'a Value<'_>) -> (&'a (dyn ToSql + Sync), Type) {
    match value {
        Value::Bool(value) => (value, Type::BOOL),
        Value::Int(value) => (value, Type::INT4),
        Value::BigInt(value) => (value, Type::INT8),
        Value::Uuid(value) => (value, Type::UUID),
        Value::Text(value) => (value, Type::TEXT),
        Value::Bytes(value) => (value, Type::BYTEA),
        Value::Time(value) => (value, Type::TIMESTAMPTZ),
        Value::Bools(values) => (values, Type::BOOL_ARRAY),
        Value::Ints(values) => (values, Type::INT4_ARRAY),
        Value::BigInts(values) => (values, Type::INT8_ARRAY),
        Value::Uuids(values) => (values, Type::UUID_ARRAY),
        Value::Texts(values) => (values, Type::TEXT_ARRAY),
        Value::Blobs(values) => (values, Type::BYTEA_ARRAY),
        Value::Times(values) => (values, Type::TIMESTAMPTZ_ARRAY),
    }
}

/// What an error means to whoever records a message.
pub(super) fn trouble(error: &Error) -> InboxTrouble {
    error.code().map_or(InboxTrouble::Other, |state| session::trouble(state.code()))
}

super::by_reference!(TokioPostgres, Transaction<'_>, Error, tx::insert, inbox::record, trouble);
