//! ② Enqueue in a transaction, whatever the driver.

use std::collections::HashMap;

use postbox_core::{
    Availability, Enqueued, EventId, Inserted, Insertion, Json, OutboxTx, Receipt, Record, TableName,
};
use sqlx::{Sqlite, Transaction};
use uuid::Uuid;

use super::clock::{micros, now, span};
use super::session::Value;
use crate::sequenced::key_of;
use crate::table::Template;
use crate::tx::{Columns, Session, Statement, headers, payload};

/// Rows per statement: few different numbers, so that the connection keeps each of the statements prepared.
const CHUNKS: [usize; 3] = [100, 10, 1];
const COLUMNS: usize = 21;

/// Marks sqlx's SQLite transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxSqlite;

impl OutboxTx<SqlxSqlite> for &mut Transaction<'_, Sqlite> {
    type Error = sqlx::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, sqlx::Error> {
        insert(&mut **self, insertion).await
    }
}

/// Writes events.
pub(crate) async fn insert<S: Session<Sqlite>>(
    session: &mut S,
    insertion: Insertion<'_>,
) -> Result<Vec<Inserted>, S::Error> {
    let mut inserted = Vec::with_capacity(insertion.records.len());
    let mut rest = insertion.records;
    while let Some(rows) = CHUNKS.into_iter().find(|rows| rest.len() >= *rows) {
        let (chunk, after) = rest.split_at(rows);
        insert_chunk(session, insertion, chunk, &mut inserted).await?;
        rest = after;
    }
    Ok(inserted)
}

async fn insert_chunk<S: Session<Sqlite>>(
    session: &mut S,
    insertion: Insertion<'_>,
    chunk: &[Record],
    inserted: &mut Vec<Inserted>,
) -> Result<(), S::Error> {
    let (table, first) = (&insertion.table.name, inserted.len());
    let row = format!("({})", ["?"; COLUMNS].join(", "));
    let rows = vec![row.as_str(); chunk.len()].join(", ");
    let sql = Template::of(table, '"').with("rows", rows).fill(include_str!("sql/insert.sql"));
    let now = now();
    let token =
        |place: usize| insertion.birth.filter(|_| insertion.is_leased(place)).map(|birth| birth.token);
    let headers: Vec<Option<String>> = chunk.iter().map(headers).collect();
    let mut values = Vec::with_capacity(COLUMNS * chunk.len());
    for ((place, record), headers) in (first..).zip(chunk).zip(&headers) {
        let token = token(place);
        add_columns(&mut values, record, headers.as_deref(), now);
        values.push(Value::Text(token));
        values.push(token.map_or(Value::Text(None), |_| Value::Int(now)));
        values.push(Value::Int(i64::from(token.is_some())));
    }
    let mut written: HashMap<Uuid, i64> = HashMap::with_capacity(chunk.len());
    let statement = Statement { sql: sql.into(), values, prepared: true };
    for row in session.events(statement, Columns::Event).await? {
        written.insert(row.event_id, row.sequence);
    }
    for (place, record) in (first..).zip(chunk) {
        let id = record.event_id.0;
        // An id may stand twice in one chunk: the first is written, the others are its duplicates.
        let (enqueued, leased) = match written.remove(&id) {
            Some(sequence) => (Enqueued::Written(sequence), token(place).map(|_| key_of(sequence))),
            None => (Enqueued::Duplicate(session.sequence(find(table, record)).await?), None),
        };
        inserted.push(Inserted { receipt: Receipt { event_id: EventId(id), enqueued }, leased });
    }
    Ok(())
}

/// The first one's sequence.
fn find<'q>(table: &TableName, record: &'q Record) -> Statement<'q, Sqlite> {
    let sql = Template::of(table, '"').fill("SELECT event_id, sequence FROM {{table}} WHERE event_id = ?1");
    let values = vec![Value::Bytes(Some(record.event_id.0.as_bytes()))];
    Statement { sql: sql.into(), values, prepared: true }
}

fn add_columns<'q>(values: &mut Vec<Value<'q>>, record: &'q Record, headers: Option<&'q str>, now: i64) {
    let (payload, raw, content_type) = payload(record);
    let available_at = match record.available {
        Availability::Now => now,
        Availability::After(delay) => now.saturating_add(span(delay)),
        Availability::At(at) => micros(at),
    };
    let aggregate = record.aggregate.as_ref();
    values.extend([
        Value::Bytes(Some(record.event_id.0.as_bytes())),
        Value::Bytes(Some(record.tenant_id.0.as_bytes())),
        Value::Text(Some(record.topic.as_str())),
        Value::Text(Some(payload)),
        Value::Int(now),
        Value::Int(available_at),
        Value::Text(aggregate.map(|aggregate| aggregate.kind.as_str())),
        Value::Text(aggregate.map(|aggregate| aggregate.id.as_str())),
        Value::Text(headers),
        Value::Int(micros(record.occurred_at)),
        Value::Text(record.schema_id.as_deref()),
        Value::Int(i64::from(record.schema_version)),
        Value::Text(record.routing_key.as_deref()),
        Value::Text(record.metadata.as_ref().map(Json::as_str)),
        Value::Text(record.traceparent.as_deref()),
        Value::Text(record.tracestate.as_deref()),
        Value::Bytes(raw),
        Value::Text(content_type),
    ]);
}
