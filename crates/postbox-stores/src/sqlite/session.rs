//! What is bound to statements of writers, and how sqlx runs them.

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection};

use crate::tx::{Columns, Dialect, EventRow, Session, Statement};

/// A value. Times are numbers, ids are bytes.
#[derive(Debug)]
pub(crate) enum Value<'q> {
    Int(i64),
    Text(Option<&'q str>),
    Bytes(Option<&'q [u8]>),
}

impl Dialect for Sqlite {
    type Value<'q> = Value<'q>;
}

impl Session<Sqlite> for SqliteConnection {
    type Error = sqlx::Error;

    async fn events(
        &mut self,
        statement: Statement<'_, Sqlite>,
        columns: Columns,
    ) -> Result<Vec<EventRow>, sqlx::Error> {
        let rows = bound(statement).fetch_all(self).await?;
        rows.iter().map(|row| EventRow::read(row, columns)).collect()
    }

    async fn sequence(&mut self, statement: Statement<'_, Sqlite>) -> Result<i64, sqlx::Error> {
        bound(statement).fetch_one(self).await?.try_get(1)
    }

    async fn texts(&mut self, statement: Statement<'_, Sqlite>) -> Result<Vec<String>, sqlx::Error> {
        let rows = bound(statement).fetch_all(self).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }
}

fn bound(statement: Statement<'_, Sqlite>) -> Query<'_, Sqlite, SqliteArguments> {
    let query = sqlx::query(AssertSqlSafe(statement.sql)).persistent(statement.prepared);
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Int(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Bytes(value) => query.bind(value),
    })
}
