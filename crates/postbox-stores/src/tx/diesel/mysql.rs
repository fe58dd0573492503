//! MySQL and MariaDB.

use diesel::QueryableByName;
use diesel::mysql::Mysql;
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::result::Error;
use diesel::sql_types::{BigInt, Binary, Datetime, Nullable, Text};
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

super::of_connection!(DieselMysql, AsyncMysqlConnection, MySql, tx::insert, inbox::record);

#[derive(QueryableByName)]
struct Message {
    #[diesel(sql_type = Binary)]
    message_id: Vec<u8>,
}

impl Message {
    fn text(self) -> String {
        String::from_utf8_lossy(&self.message_id).into_owned()
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
