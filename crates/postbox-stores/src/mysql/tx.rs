//! Enqueue in a sqlx transaction.

use std::collections::HashMap;

use postbox_core::{
    Availability, Enqueued, EventId, Inserted, Insertion, Json, OutboxTx, Payload, Receipt, Record, TableName,
};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _, Transaction};
use uuid::Uuid;

use super::clock::{at, span};
use super::list_of::{Bound, bind_list, with_list};
use crate::sequenced::{MAX_WAIT, key_of};
use crate::table::Template;

/// Rows per statement: few different numbers, so that the connection keeps each of the statements prepared.
const CHUNKS: [usize; 4] = [1000, 100, 10, 1];

/// A statement is far smaller than the least of the servers' limits, which is 16 MiB; one event may be larger.
const CHUNK_BYTES: usize = 4 << 20;

/// The places of one row. The time is the database's, by the statement.
const ROW: &str = "(?, ?, ?, ?, ?, COALESCE(?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
                   IF(?, UTC_TIMESTAMP(6), NULL), ?)";

/// Marks sqlx's MySQL transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxMySql;

impl OutboxTx<SqlxMySql> for &mut Transaction<'_, MySql> {
    type Error = sqlx::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, sqlx::Error> {
        insert(self, insertion).await
    }
}

pub(super) async fn insert(
    tx: &mut Transaction<'_, MySql>,
    insertion: Insertion<'_>,
) -> Result<Vec<Inserted>, sqlx::Error> {
    let mut inserted = Vec::with_capacity(insertion.records.len());
    let mut rest = insertion.records;
    while let Some(rows) = CHUNKS.into_iter().find(|rows| rest.len() >= *rows && fits(&rest[..*rows])) {
        let (chunk, after) = rest.split_at(rows);
        insert_chunk(tx, insertion, chunk, &mut inserted).await?;
        rest = after;
    }
    Ok(inserted)
}

fn fits(records: &[Record]) -> bool {
    let bytes = |record: &Record| {
        record.payload.len() + record.metadata.as_ref().map_or(0, |metadata| metadata.as_str().len())
    };
    records.len() == 1 || records.iter().map(bytes).sum::<usize>() <= CHUNK_BYTES
}

async fn insert_chunk(
    connection: &mut MySqlConnection,
    insertion: Insertion<'_>,
    chunk: &[Record],
    inserted: &mut Vec<Inserted>,
) -> Result<(), sqlx::Error> {
    let (table, first) = (&insertion.table.name, inserted.len());
    let rows = vec![ROW; chunk.len()].join(", ");
    let sql = Template::of(table, '`').with("rows", rows).fill(include_str!("sql/insert.sql"));
    let token =
        |place: usize| insertion.birth.filter(|_| insertion.is_leased(place)).map(|birth| birth.token);
    // A row that was there already has another one.
    let ids: Vec<Uuid> = chunk.iter().map(|_| Uuid::now_v7()).collect();
    let query = sqlx::query(AssertSqlSafe(sql)).persistent(insertion.table.prepared);
    let query = (first..).zip(chunk).zip(&ids).fold(query, |query, ((place, record), id)| {
        let token = token(place);
        bind(query.bind(*id), record).bind(token).bind(token.is_some()).bind(i64::from(token.is_some()))
    });
    let mut there: HashMap<Uuid, (Uuid, i64)> = HashMap::with_capacity(chunk.len());
    let mut answer = query.fetch_all(&mut *connection).await?;
    if answer.is_empty() {
        answer = find(connection, insertion, table, chunk).await?;
    }
    for row in &answer {
        there.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
    }
    for ((place, record), id) in (first..).zip(chunk).zip(ids) {
        let event_id = record.event_id.0;
        let (first_id, sequence) = there.get(&event_id).copied().ok_or(sqlx::Error::RowNotFound)?;
        let (enqueued, leased) = if first_id == id {
            (Enqueued::Written(sequence), token(place).map(|_| key_of(sequence)))
        } else {
            (Enqueued::Duplicate(sequence), None)
        };
        inserted.push(Inserted { receipt: Receipt { event_id: EventId(event_id), enqueued }, leased });
    }
    Ok(())
}

/// The rows that there are now. Read with a lock: the first of a duplicate may have committed after this transaction's view
/// of the table was made.
async fn find(
    connection: &mut MySqlConnection,
    insertion: Insertion<'_>,
    table: &TableName,
    chunk: &[Record],
) -> Result<Vec<sqlx::mysql::MySqlRow>, sqlx::Error> {
    let sql = "SELECT event_id, id, sequence FROM {{table}} WHERE event_id IN (<in>) LOCK IN SHARE MODE";
    let sql = with_list(&Template::of(table, '`').fill(sql), chunk.len());
    let ids: Vec<Uuid> = chunk.iter().map(|record| record.event_id.0).collect();
    let query = sqlx::query(AssertSqlSafe(sql)).persistent(insertion.table.prepared);
    bind_list(query, &ids).fetch_all(connection).await
}

fn bind<'q>(query: Bound<'q>, record: &'q Record) -> Bound<'q> {
    let (payload, raw, content_type) = match &record.payload {
        Payload::Json(json) => (json.as_str(), None, None),
        Payload::Bytes { bytes, content_type } => ("null", Some(&**bytes), Some(content_type.as_str())),
    };
    let (available_at, delay) = match record.available {
        Availability::Now => (None, 0),
        Availability::After(delay) => (None, span(delay).min(MAX_WAIT)),
        Availability::At(time) => (Some(at(time)), 0),
    };
    let aggregate = record.aggregate.as_ref();
    let headers = &record.headers;
    query
        .bind(record.event_id.0)
        .bind(record.tenant_id.0)
        .bind(record.topic.as_str())
        .bind(payload)
        .bind(available_at)
        .bind(delay)
        .bind(aggregate.map(|aggregate| aggregate.kind.as_str()))
        .bind(aggregate.map(|aggregate| aggregate.id.as_str()))
        .bind((!headers.is_empty()).then(|| serde_json::to_string(headers).unwrap_or_default()))
        .bind(at(record.occurred_at))
        .bind(record.schema_id.as_deref())
        .bind(record.schema_version)
        .bind(record.routing_key.as_deref())
        .bind(record.metadata.as_ref().map(Json::as_str))
        .bind(record.traceparent.as_deref())
        .bind(record.tracestate.as_deref())
        .bind(raw)
        .bind(content_type)
}
