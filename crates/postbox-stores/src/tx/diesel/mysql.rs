//! MySQL and MariaDB.

use diesel::mysql::Mysql;
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::result::Error;
use diesel::sql_types::{BigInt, Binary, Datetime, Nullable, Text};
use diesel::{QueryResult, QueryableByName};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};
use postbox_core::{InboxTrouble, InboxTx, Inserted, Insertion, OutboxTx, Recording};
use sqlx::MySql;

use super::bytes::{Event, EventAndRow};
use crate::mysql::session::Value;
use crate::mysql::{inbox, tx};
use crate::tx::{Columns, EventRow, Session, Statement};

/// Marks diesel-async's MySQL connections as a driver of the outbox.
#[derive(Debug)]
pub struct DieselMysql;

super::of_connection!(DieselMysql, AsyncMysqlConnection, tx::insert, inbox::record, read);

#[derive(QueryableByName)]
struct Message {
    #[diesel(sql_type = Binary)]
    message_id: Vec<u8>,
}

impl Session<MySql> for AsyncMysqlConnection {
    type Error = Error;

    async fn events(
        &mut self,
        statement: Statement<'_, MySql>,
        columns: Columns,
    ) -> QueryResult<Vec<EventRow>> {
        let query = bound(statement);
        match columns {
            Columns::Event => {
                let rows: Vec<Event> = query.load(self).await?;
                rows.iter().map(Event::row).collect()
            }
            Columns::EventAndRow => {
                let rows: Vec<EventAndRow> = query.load(self).await?;
                rows.iter().map(EventAndRow::row).collect()
            }
        }
    }

    async fn sequence(&mut self, statement: Statement<'_, MySql>) -> QueryResult<i64> {
        let row: Event = bound(statement).get_result(self).await?;
        Ok(row.sequence)
    }

    async fn texts(&mut self, statement: Statement<'_, MySql>) -> QueryResult<Vec<String>> {
        let rows: Vec<Message> = bound(statement).load(self).await?;
        Ok(rows.into_iter().map(|row| String::from_utf8_lossy(&row.message_id).into_owned()).collect())
    }
}

fn bound(statement: Statement<'_, MySql>) -> BoxedSqlQuery<'_, Mysql, SqlQuery> {
    let query = diesel::sql_query(&*statement.sql).into_boxed();
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Int(value) => query.bind::<BigInt, _>(value),
        Value::Text(value) => query.bind::<Nullable<Text>, _>(value),
        Value::Bytes(value) => query.bind::<Nullable<Binary>, _>(value),
        Value::Time(value) => query.bind::<Nullable<Datetime>, _>(value),
    })
}

fn read(message: &str) -> InboxTrouble {
    if message.ends_with("try restarting transaction") {
        InboxTrouble::Conflict
    } else if message.starts_with("Table ") && message.ends_with("doesn't exist") {
        InboxTrouble::Missing
    } else {
        InboxTrouble::Other
    }
}
