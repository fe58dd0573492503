//! Enqueue in a sqlx transaction.

use std::collections::HashMap;

use postbox_core::{
    Availability, Enqueued, EventId, Inserted, Insertion, Json, OutboxTx, Payload, Receipt, Record, TableName,
};
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection, Transaction};
use uuid::Uuid;

use super::clock::{micros, now, span};
use crate::sequenced::key_of;
use crate::table::Template;

/// Rows per statement: few different numbers, so that the connection keeps each of the statements prepared.
const CHUNKS: [usize; 3] = [100, 10, 1];
const COLUMNS: usize = 21;

/// Marks sqlx's SQLite transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxSqlite;

impl OutboxTx<SqlxSqlite> for &mut Transaction<'_, Sqlite> {
    type Error = sqlx::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, sqlx::Error> {
        insert(self, insertion).await
    }
}

pub(super) async fn insert(
    tx: &mut Transaction<'_, Sqlite>,
    insertion: Insertion<'_>,
) -> Result<Vec<Inserted>, sqlx::Error> {
    let mut inserted = Vec::with_capacity(insertion.records.len());
    let mut rest = insertion.records;
    while let Some(rows) = CHUNKS.into_iter().find(|rows| rest.len() >= *rows) {
        let (chunk, after) = rest.split_at(rows);
        insert_chunk(tx, insertion, chunk, &mut inserted).await?;
        rest = after;
    }
    Ok(inserted)
}

async fn insert_chunk(
    connection: &mut SqliteConnection,
    insertion: Insertion<'_>,
    chunk: &[Record],
    inserted: &mut Vec<Inserted>,
) -> Result<(), sqlx::Error> {
    let (table, first) = (&insertion.table.name, inserted.len());
    let row = format!("({})", ["?"; COLUMNS].join(", "));
    let rows = vec![row.as_str(); chunk.len()].join(", ");
    let sql = Template::of(table, '"').with("rows", rows).fill(include_str!("sql/insert.sql"));
    let now = now();
    let token =
        |place: usize| insertion.birth.filter(|_| insertion.is_leased(place)).map(|birth| birth.token);
    let query = (first..).zip(chunk).fold(sqlx::query(AssertSqlSafe(sql)), |query, (place, record)| {
        let token = token(place);
        bind(query, record, now).bind(token).bind(token.map(|_| now)).bind(i64::from(token.is_some()))
    });
    let mut written: HashMap<Uuid, i64> = HashMap::with_capacity(chunk.len());
    for row in query.fetch_all(&mut *connection).await? {
        written.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for (place, record) in (first..).zip(chunk) {
        let id = record.event_id.0;
        // An id may stand twice in one chunk: the first is written, the others are its duplicates.
        let (enqueued, leased) = match written.remove(&id) {
            Some(sequence) => (Enqueued::Written(sequence), token(place).map(|_| key_of(sequence))),
            None => (Enqueued::Duplicate(find(connection, table, id).await?), None),
        };
        inserted.push(Inserted { receipt: Receipt { event_id: EventId(id), enqueued }, leased });
    }
    Ok(())
}

/// The first one's sequence.
async fn find(connection: &mut SqliteConnection, table: &TableName, id: Uuid) -> Result<i64, sqlx::Error> {
    let sql = Template::of(table, '"').fill("SELECT sequence FROM {{table}} WHERE event_id = ?1");
    sqlx::query_scalar(AssertSqlSafe(sql)).bind(id).fetch_one(connection).await
}

type Insert<'q> = Query<'q, Sqlite, SqliteArguments>;

fn bind<'q>(query: Insert<'q>, record: &'q Record, now: i64) -> Insert<'q> {
    let (payload, raw, content_type) = match &record.payload {
        Payload::Json(json) => (json.as_str(), None, None),
        Payload::Bytes { bytes, content_type } => ("null", Some(&**bytes), Some(content_type.as_str())),
    };
    let available_at = match record.available {
        Availability::Now => now,
        Availability::After(delay) => now.saturating_add(span(delay)),
        Availability::At(at) => micros(at),
    };
    let aggregate = record.aggregate.as_ref();
    let headers = &record.headers;
    query
        .bind(record.event_id.0)
        .bind(record.tenant_id.0)
        .bind(record.topic.as_str())
        .bind(payload)
        .bind(now)
        .bind(available_at)
        .bind(aggregate.map(|aggregate| aggregate.kind.as_str()))
        .bind(aggregate.map(|aggregate| aggregate.id.as_str()))
        .bind((!headers.is_empty()).then(|| serde_json::to_string(headers).unwrap_or_default()))
        .bind(micros(record.occurred_at))
        .bind(record.schema_id.as_deref())
        .bind(record.schema_version)
        .bind(record.routing_key.as_deref())
        .bind(record.metadata.as_ref().map(Json::as_str))
        .bind(record.traceparent.as_deref())
        .bind(record.tracestate.as_deref())
        .bind(raw)
        .bind(content_type)
}
