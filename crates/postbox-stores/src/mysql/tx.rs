//! ② Enqueue in a transaction, whatever the driver.

use std::collections::HashMap;

use postbox_core::{
    Availability, Enqueued, EventId, Fields, Inserted, Insertion, Json, OutboxTx, Receipt, Record, TableName,
};
use sqlx::{MySql, Transaction};
use uuid::Uuid;

use super::clause::{padded, with_list};
use super::clock::{at, span};
use super::session::Value;
use crate::sequenced::{MAX_WAIT, key_of};
use crate::table::Template;
use crate::tx::{Columns, Session, Statement, headers, payload};

/// Rows per statement: few different numbers, so that the connection keeps each of the statements prepared.
const CHUNKS: [usize; 4] = [1000, 100, 10, 1];

/// A statement is far smaller than the least of the servers' limits, which is 16 MiB; one event may be larger.
const CHUNK_BYTES: usize = 4 << 20;

/// The places of one row. The time is the database's, by the statement.
const ROW: &str = "(?, ?, ?, ?, ?, COALESCE(?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
                   IF(?, UTC_TIMESTAMP(6), NULL), ?)";

/// And how many they are.
const COLUMNS: usize = 22;

/// Marks sqlx's MySQL transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxMySql;

impl OutboxTx<SqlxMySql> for &mut Transaction<'_, MySql> {
    type Error = sqlx::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, sqlx::Error> {
        insert(&mut **self, insertion).await
    }
}

/// Writes events.
pub(crate) async fn insert<S: Session<MySql>>(
    session: &mut S,
    insertion: Insertion<'_>,
) -> Result<Vec<Inserted>, S::Error> {
    let mut inserted = Vec::with_capacity(insertion.records.len());
    let mut rest = insertion.records;
    while let Some(rows) = CHUNKS.into_iter().find(|rows| rest.len() >= *rows && fits(&rest[..*rows])) {
        let (chunk, after) = rest.split_at(rows);
        insert_chunk(session, insertion, chunk, &mut inserted).await?;
        rest = after;
    }
    Ok(inserted)
}

fn fits(records: &[Record]) -> bool {
    let bytes = |record: &Record| {
        let Fields { headers, schema_id, routing_key, traceparent, tracestate, .. } = &**record;
        let texts = [schema_id, routing_key, traceparent, tracestate].into_iter().flatten().map(String::len);
        let texts = texts.chain(record.metadata.iter().map(|metadata| metadata.as_str().len()));
        let texts =
            texts.chain(record.aggregate.iter().map(|aggregate| aggregate.kind.len() + aggregate.id.len()));
        let texts = texts.chain(headers.iter().map(|(name, value)| name.len() + value.len()));
        record.payload.len() + texts.sum::<usize>()
    };
    records.len() == 1 || records.iter().map(bytes).sum::<usize>() <= CHUNK_BYTES
}

async fn insert_chunk<S: Session<MySql>>(
    session: &mut S,
    insertion: Insertion<'_>,
    chunk: &[Record],
    inserted: &mut Vec<Inserted>,
) -> Result<(), S::Error> {
    let (table, first) = (&insertion.table.name, inserted.len());
    let prepared = insertion.table.prepared;
    let rows = vec![ROW; chunk.len()].join(", ");
    let sql = Template::of(table, '`').with("rows", rows).fill(include_str!("sql/insert.sql"));
    let token =
        |place: usize| insertion.birth.filter(|_| insertion.is_leased(place)).map(|birth| birth.token);
    // A row that was there already has another one.
    let ids: Vec<Uuid> = chunk.iter().map(|_| Uuid::now_v7()).collect();
    let headers: Vec<Option<String>> = chunk.iter().map(headers).collect();
    let mut values = Vec::with_capacity(COLUMNS * chunk.len());
    for (((place, record), id), headers) in (first..).zip(chunk).zip(&ids).zip(&headers) {
        let token = token(place);
        values.push(Value::Bytes(Some(id.as_bytes())));
        add_columns(&mut values, record, headers.as_deref());
        let leased = i64::from(token.is_some());
        values.extend([Value::Text(token), Value::Int(leased), Value::Int(leased)]);
    }
    let statement = Statement { sql: sql.into(), values, prepared };
    let mut answer = session.events(statement, Columns::EventAndRow).await?;
    if answer.is_empty() {
        answer = session.events(find(table, chunk, prepared), Columns::EventAndRow).await?;
    }
    let there: HashMap<Uuid, (Uuid, i64)> =
        answer.into_iter().map(|row| (row.event_id, (row.id, row.sequence))).collect();
    for ((place, record), id) in (first..).zip(chunk).zip(&ids) {
        let event_id = record.event_id.0;
        let (enqueued, leased) = match there.get(&event_id) {
            Some((first_id, sequence)) if first_id == id => {
                (Enqueued::Written(*sequence), token(place).map(|_| key_of(*sequence)))
            }
            Some((_, sequence)) => (Enqueued::Duplicate(*sequence), None),
            None => {
                let found = session.sequence(find(table, std::slice::from_ref(record), prepared)).await?;
                (Enqueued::Duplicate(found), None)
            }
        };
        inserted.push(Inserted { receipt: Receipt { event_id: EventId(event_id), enqueued }, leased });
    }
    Ok(())
}

/// The rows that there are now. Read with a lock: the first of a duplicate may have committed after this transaction's view
/// of the table was made.
fn find<'q>(table: &TableName, chunk: &'q [Record], prepared: bool) -> Statement<'q, MySql> {
    let sql = "SELECT event_id, sequence, id FROM {{table}} WHERE event_id IN (<in>) LOCK IN SHARE MODE";
    let sql = with_list(&Template::of(table, '`').fill(sql), chunk.len());
    let values = padded(chunk).map(|record| Value::Bytes(Some(record.event_id.0.as_bytes()))).collect();
    Statement { sql: sql.into(), values, prepared }
}

fn add_columns<'q>(values: &mut Vec<Value<'q>>, record: &'q Record, headers: Option<&'q str>) {
    let (payload, raw, content_type) = payload(record);
    let (available_at, delay) = match record.available {
        Availability::Now => (None, 0),
        Availability::After(delay) => (None, span(delay).min(MAX_WAIT)),
        Availability::At(time) => (Some(at(time)), 0),
    };
    let aggregate = record.aggregate.as_ref();
    values.extend([
        Value::Bytes(Some(record.event_id.0.as_bytes())),
        Value::Bytes(Some(record.tenant_id.0.as_bytes())),
        Value::Text(Some(record.topic.as_str())),
        Value::Text(Some(payload)),
        Value::Time(available_at),
        Value::Int(delay),
        Value::Text(aggregate.map(|aggregate| aggregate.kind.as_str())),
        Value::Text(aggregate.map(|aggregate| aggregate.id.as_str())),
        Value::Text(headers),
        Value::Time(Some(at(record.occurred_at))),
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
