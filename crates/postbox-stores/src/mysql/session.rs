//! What is bound to statements of writers, and how sqlx runs them.

use postbox_core::InboxTrouble;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _};
use time::PrimitiveDateTime;

use super::clause::Bound;
use super::error::{DEADLOCK, LOCK_WAIT};
use crate::tx::{Columns, Dialect, EventRow, Session, Statement};

const NO_SUCH_TABLE: u16 = 1146;

/// A value. Ids, and names of which every byte counts, are bytes.
#[derive(Debug)]
pub(crate) enum Value<'q> {
    Int(i64),
    Text(Option<&'q str>),
    Bytes(Option<&'q [u8]>),
    Time(Option<PrimitiveDateTime>),
}

impl Dialect for MySql {
    type Value<'q> = Value<'q>;
}

impl Session<MySql> for MySqlConnection {
    type Error = sqlx::Error;

    async fn events(
        &mut self,
        statement: Statement<'_, MySql>,
        columns: Columns,
    ) -> Result<Vec<EventRow>, sqlx::Error> {
        let rows = bound(statement).fetch_all(self).await?;
        rows.iter().map(|row| EventRow::read(row, columns)).collect()
    }

    async fn sequence(&mut self, statement: Statement<'_, MySql>) -> Result<i64, sqlx::Error> {
        bound(statement).fetch_one(self).await?.try_get(1)
    }

    async fn texts(&mut self, statement: Statement<'_, MySql>) -> Result<Vec<String>, sqlx::Error> {
        let rows = bound(statement).fetch_all(self).await?;
        rows.iter().map(|row| text(row, 0)).collect()
    }
}

fn bound(statement: Statement<'_, MySql>) -> Bound<'_> {
    let query = sqlx::query(AssertSqlSafe(statement.sql)).persistent(statement.prepared);
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Int(value) => query.bind(value),
        Value::Text(value) => query.bind(value),
        Value::Bytes(value) => query.bind(value),
        Value::Time(value) => query.bind(value),
    })
}

/// What a name was, from a column of bytes.
pub(super) fn text(row: &MySqlRow, place: usize) -> Result<String, sqlx::Error> {
    Ok(String::from_utf8_lossy(&row.try_get::<Vec<u8>, _>(place)?).into_owned())
}

/// What the server's number for an error means to whoever records a message.
pub(crate) fn trouble(number: u16) -> InboxTrouble {
    match number {
        DEADLOCK | LOCK_WAIT => InboxTrouble::Conflict,
        NO_SUCH_TABLE => InboxTrouble::Missing,
        _ => InboxTrouble::Other,
    }
}
