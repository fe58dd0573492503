//! Enqueue in a sqlx transaction.

use std::collections::HashMap;

use postbox_core::{
    Availability, Enqueued, EventId, Json, OutboxTable, OutboxTx, Payload, Receipt, Record, TableName,
};
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection, Transaction};
use uuid::Uuid;

use super::clock::{micros, now, span};
use crate::table::Template;

/// Rows per statement: few different numbers, so that the connection keeps each of the statements prepared.
const CHUNKS: [usize; 3] = [100, 10, 1];
const COLUMNS: usize = 18;

/// Marks sqlx's SQLite transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxSqlite;

impl OutboxTx<SqlxSqlite> for &mut Transaction<'_, Sqlite> {
    type Error = sqlx::Error;

    async fn insert(self, table: &OutboxTable, records: &[Record]) -> Result<Vec<Receipt>, sqlx::Error> {
        insert(self, table, records).await
    }
}

pub(super) async fn insert(
    tx: &mut Transaction<'_, Sqlite>,
    table: &OutboxTable,
    records: &[Record],
) -> Result<Vec<Receipt>, sqlx::Error> {
    let mut receipts = Vec::with_capacity(records.len());
    let mut rest = records;
    while let Some(rows) = CHUNKS.into_iter().find(|rows| rest.len() >= *rows) {
        let (chunk, after) = rest.split_at(rows);
        insert_chunk(tx, &table.name, chunk, &mut receipts).await?;
        rest = after;
    }
    Ok(receipts)
}

async fn insert_chunk(
    connection: &mut SqliteConnection,
    table: &TableName,
    records: &[Record],
    receipts: &mut Vec<Receipt>,
) -> Result<(), sqlx::Error> {
    let row = format!("({})", ["?"; COLUMNS].join(", "));
    let rows = vec![row.as_str(); records.len()].join(", ");
    let sql = Template::of(table, '"').with("rows", rows).fill(include_str!("sql/insert.sql"));
    let now = now();
    let query =
        records.iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, record| bind(query, record, now));
    let mut written: HashMap<Uuid, i64> = HashMap::with_capacity(records.len());
    for row in query.fetch_all(&mut *connection).await? {
        written.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for record in records {
        let id = record.event_id.0;
        // An id may stand twice in one chunk: the first is written, the others are its duplicates.
        let enqueued = match written.remove(&id) {
            Some(sequence) => Enqueued::Written(sequence),
            None => Enqueued::Duplicate(find(connection, table, id).await?),
        };
        receipts.push(Receipt { event_id: EventId(id), enqueued });
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
