//! SQLite.

use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::result::Error;
use diesel::sql_types::{BigInt, Binary, Nullable, Text};
use diesel::sqlite::Sqlite as DieselDialect;
use diesel::{QueryableByName, SqliteConnection};
use diesel_async::RunQueryDsl;
use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
use postbox_core::{InboxTrouble, InboxTx, Inserted, Insertion, OutboxTx, Recording};
use sqlx::Sqlite;

use super::bytes::{Event, EventAndRow};
use crate::sqlite::session::Value;
use crate::sqlite::{inbox, tx};
use crate::tx::{Columns, EventRow, Session, Statement};

/// Marks diesel-async's SQLite connections as a driver of the outbox.
#[derive(Debug)]
pub struct DieselSqlite;

type Connection = SyncConnectionWrapper<SqliteConnection>;

super::of_connection!(DieselSqlite, Connection, Sqlite, tx::insert, inbox::record);

#[derive(QueryableByName)]
struct Message {
    #[diesel(sql_type = Text)]
    message_id: String,
}

impl Message {
    fn text(self) -> String {
        self.message_id
    }
}

fn bound(statement: Statement<'_, Sqlite>) -> BoxedSqlQuery<'_, DieselDialect, SqlQuery> {
    let query = diesel::sql_query(&*statement.sql).into_boxed();
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Int(value) => query.bind::<BigInt, _>(value),
        Value::Text(value) => query.bind::<Nullable<Text>, _>(value),
        Value::Bytes(value) => query.bind::<Nullable<Binary>, _>(value),
    })
}

fn read(message: &str) -> InboxTrouble {
    if message.ends_with("is locked") {
        InboxTrouble::Conflict
    } else if message.starts_with("no such table") {
        InboxTrouble::Missing
    } else {
        InboxTrouble::Other
    }
}
