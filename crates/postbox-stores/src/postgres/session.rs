//! What is bound to statements of writers, and how sqlx runs them.

use postbox_core::InboxTrouble;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::tx::{Columns, Dialect, EventRow, Session, Statement};

/// A value: of one event, or of several as an array.
#[derive(Debug)]
pub(crate) enum Value<'q> {
    Bool(bool),
    Int(i32),
    BigInt(i64),
    Uuid(Uuid),
    Text(Option<&'q str>),
    Bytes(Option<&'q [u8]>),
    Time(Option<OffsetDateTime>),
    Bools(Vec<bool>),
    Ints(Vec<i32>),
    BigInts(Vec<i64>),
    Uuids(Vec<Uuid>),
    Texts(Vec<Option<&'q str>>),
    Blobs(Vec<Option<&'q [u8]>>),
    Times(Vec<Option<OffsetDateTime>>),
}

impl Dialect for Postgres {
    type Value<'q> = Value<'q>;
}

impl Session<Postgres> for PgConnection {
    type Error = sqlx::Error;

    async fn events(
        &mut self,
        statement: Statement<'_, Postgres>,
        columns: Columns,
    ) -> Result<Vec<EventRow>, sqlx::Error> {
        let rows = bound(statement).fetch_all(self).await?;
        rows.iter().map(|row| EventRow::read(row, columns)).collect()
    }

    async fn sequence(&mut self, statement: Statement<'_, Postgres>) -> Result<i64, sqlx::Error> {
        bound(statement).fetch_one(self).await?.try_get(1)
    }

    async fn texts(&mut self, statement: Statement<'_, Postgres>) -> Result<Vec<String>, sqlx::Error> {
        let rows = bound(statement).fetch_all(self).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }
}

fn bound(statement: Statement<'_, Postgres>) -> Query<'_, Postgres, PgArguments> {
    let query = sqlx::query(AssertSqlSafe(statement.sql)).persistent(statement.prepared);
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Bool(value) => query.bind(value),
        Value::Int(value) => query.bind(value),
        Value::BigInt(value) => query.bind(value),
        Value::Uuid(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Bytes(value) => query.bind(value),
        Value::Time(value) => query.bind(value),
        Value::Bools(values) => query.bind(values),
        Value::Ints(values) => query.bind(values),
        Value::BigInts(values) => query.bind(values),
        Value::Uuids(values) => query.bind(values),
        Value::Texts(values) => query.bind(values),
        Value::Blobs(values) => query.bind(values),
        Value::Times(values) => query.bind(values),
    })
}

/// What the database's own code for an error means to whoever records a message.
pub(crate) fn trouble(sqlstate: &str) -> InboxTrouble {
    match sqlstate {
        // In a transaction that has failed.
        "25P02" => InboxTrouble::Aborted,
        // A serialisation failure, a deadlock, or a lock that was not had in time.
        "40001" | "40P01" | "55P03" => InboxTrouble::Conflict,
        // No such table, no such schema.
        "42P01" | "3F000" => InboxTrouble::Missing,
        _ => InboxTrouble::Other,
    }
}
