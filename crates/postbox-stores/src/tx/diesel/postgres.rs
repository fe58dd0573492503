//! PostgreSQL.

use diesel::QueryableByName;
use diesel::pg::Pg;
use diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use diesel::result::Error;
use diesel::sql_types::{Array, BigInt, Bool, Bytea, Integer, Nullable, Text, Timestamptz, Uuid as SqlUuid};
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

super::of_connection!(DieselPostgres, AsyncPgConnection, tx::insert, inbox::record, read);

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
    fn with(self, id: Uuid) -> EventRow {
        EventRow { event_id: self.event_id, sequence: self.sequence, id }
    }
}

impl Session<Postgres> for AsyncPgConnection {
    type Error = Error;

    async fn events(
        &mut self,
        statement: Statement<'_, Postgres>,
        columns: Columns,
    ) -> Result<Vec<EventRow>, Error> {
        let query = bound(statement);
        Ok(match columns {
            Columns::Event => {
                let rows: Vec<Event> = query.load(self).await?;
                rows.into_iter().map(|row| row.with(Uuid::nil())).collect()
            }
            Columns::EventAndRow => {
                let rows: Vec<EventAndRow> = query.load(self).await?;
                rows.into_iter().map(|row| row.event.with(row.id)).collect()
            }
        })
    }

    async fn sequence(&mut self, statement: Statement<'_, Postgres>) -> Result<i64, Error> {
        let row: Event = bound(statement).get_result(self).await?;
        Ok(row.sequence)
    }

    async fn texts(&mut self, statement: Statement<'_, Postgres>) -> Result<Vec<String>, Error> {
        let rows: Vec<Message> = bound(statement).load(self).await?;
        Ok(rows.into_iter().map(|row| row.message_id).collect())
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
