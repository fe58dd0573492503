//! PostgreSQL.

use diesel::pg::Pg;
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::result::Error;
use diesel::sql_types::{Array, BigInt, Bool, Bytea, Integer, Nullable, Text, Timestamptz, Uuid as SqlUuid};
use diesel::{QueryResult, QueryableByName};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use postbox_core::{InboxTrouble, InboxTx, Inserted, Insertion, OutboxTx, Recording};
use sqlx::Postgres;
use uuid::Uuid;

use crate::postgres::session::Value;
use crate::postgres::{inbox, tx};
use crate::tx::{Columns, EventRow, Session, Statement};

/// Marks diesel-async's PostgreSQL connections as a driver of the outbox.
#[derive(Debug)]
pub struct DieselPostgres;

super::of_connection!(DieselPostgres, AsyncPgConnection, Postgres, tx::insert, inbox::record);

#[derive(QueryableByName)]
struct Event {
    #[diesel(sql_type = SqlUuid)]
    event_id: Uuid,
    #[diesel(sql_type = BigInt)]
    sequence: i64,
}

#[derive(QueryableByName)]
struct EventAndRow {
    #[diesel(embed)]
    event: Event,
    #[diesel(sql_type = SqlUuid)]
    id: Uuid,
}

#[derive(QueryableByName)]
struct Message {
    #[diesel(sql_type = Text)]
    message_id: String,
}

impl Event {
    #[allow(clippy::unnecessary_wraps, reason = "elsewhere an id is bytes, which may be none")]
    fn row(&self) -> QueryResult<EventRow> {
        Ok(EventRow { event_id: self.event_id, sequence: self.sequence, id: Uuid::nil() })
    }
}

impl EventAndRow {
    fn row(&self) -> QueryResult<EventRow> {
        Ok(EventRow { id: self.id, ..self.event.row()? })
    }
}

impl Message {
    fn text(self) -> String {
        self.message_id
    }
}

fn bound(statement: Statement<'_, Postgres>) -> BoxedSqlQuery<'_, Pg, SqlQuery> {
    let query = diesel::sql_query(&*statement.sql).into_boxed();
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Bool(value) => query.bind::<Bool, _>(value),
        Value::Int(value) => query.bind::<Integer, _>(value),
        Value::BigInt(value) => query.bind::<BigInt, _>(value),
        Value::Uuid(value) => query.bind::<SqlUuid, _>(value),
        Value::Text(value) => query.bind::<Nullable<Text>, _>(value),
        Value::Bytes(value) => query.bind::<Nullable<Bytea>, _>(value),
        Value::Time(value) => query.bind::<Nullable<Timestamptz>, _>(value),
        Value::Bools(values) => query.bind::<Array<Bool>, _>(values),
        Value::Ints(values) => query.bind::<Array<Integer>, _>(values),
        Value::BigInts(values) => query.bind::<Array<BigInt>, _>(values),
        Value::Uuids(values) => query.bind::<Array<SqlUuid>, _>(values),
        Value::Texts(values) => query.bind::<Array<Nullable<Text>>, _>(values),
        Value::Blobs(values) => query.bind::<Array<Nullable<Bytea>>, _>(values),
        Value::Times(values) => query.bind::<Array<Nullable<Timestamptz>>, _>(values),
    })
}

fn read(message: &str) -> InboxTrouble {
    if message.starts_with("current transaction is aborted") {
        InboxTrouble::Aborted
    } else if message == "deadlock detected" || message.ends_with("due to lock timeout") {
        InboxTrouble::Conflict
    } else if ["relation ", "schema "].iter().any(|what| message.starts_with(what))
        && message.ends_with("does not exist")
    {
        InboxTrouble::Missing
    } else {
        InboxTrouble::Other
    }
}
