//! Enqueue in a sqlx transaction.

use std::collections::HashMap;

use postbox_core::{
    Availability, Enqueued, EventId, Json, Layout, OutboxTable, OutboxTx, Payload, Receipt, Record, TableName,
};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _, Transaction};
use uuid::Uuid;

use crate::table::Template;

/// Most rows per statement, and most bytes: beyond, a statement only costs memory on both sides.
const CHUNK_ROWS: usize = 1000;
const CHUNK_BYTES: usize = 8 << 20;

/// Marks sqlx's PostgreSQL transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxPostgres;

impl OutboxTx<SqlxPostgres> for &mut Transaction<'_, Postgres> {
    type Error = sqlx::Error;

    async fn insert(self, table: &OutboxTable, records: &[Record]) -> Result<Vec<Receipt>, sqlx::Error> {
        insert(self, table, records).await
    }
}

pub(super) async fn insert(
    tx: &mut Transaction<'_, Postgres>,
    table: &OutboxTable,
    records: &[Record],
) -> Result<Vec<Receipt>, sqlx::Error> {
    let mut receipts = Vec::with_capacity(records.len());
    for chunk in chunks(records) {
        insert_chunk(tx, table, chunk, &mut receipts).await?;
    }
    Ok(receipts)
}

fn chunks(mut records: &[Record]) -> impl Iterator<Item = &[Record]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |record: &&Record| {
            bytes += record.payload.len();
            bytes <= CHUNK_BYTES
        };
        let rows = records.iter().take(CHUNK_ROWS).take_while(fits).count().max(1);
        let (chunk, rest) = records.split_at_checked(rows)?;
        records = rest;
        Some(chunk)
    })
}

async fn insert_chunk(
    connection: &mut PgConnection,
    table: &OutboxTable,
    records: &[Record],
    receipts: &mut Vec<Receipt>,
) -> Result<(), sqlx::Error> {
    // An id may stand twice in one chunk: the first is written, the others are its duplicates.
    let mut missing: Vec<&Record> = records.iter().collect();
    let mut written: HashMap<Uuid, i64> = HashMap::with_capacity(records.len());
    let mut known: HashMap<Uuid, i64> = HashMap::new();
    // A duplicate can be cleaned between the two statements: then it is inserted after all.
    for _ in 0..3 {
        let sql = insert_sql(table);
        let rows =
            bind(sqlx::query(AssertSqlSafe(sql)), table.layout, &missing).fetch_all(&mut *connection).await?;
        for row in rows {
            written.insert(row.try_get(0)?, row.try_get(1)?);
        }
        missing.retain(|record| !written.contains_key(&record.event_id.0));
        if !missing.is_empty() {
            known.extend(find(connection, &table.name, &missing).await?);
            missing.retain(|record| !known.contains_key(&record.event_id.0));
        }
        if missing.is_empty() {
            break;
        }
    }
    for record in records {
        let id = record.event_id.0;
        let enqueued = match (written.get(&id), known.get(&id)) {
            (Some(sequence), None) => {
                let sequence = *sequence;
                // The next one with this id in the same call is a duplicate.
                known.insert(id, sequence);
                Enqueued::Written(sequence)
            }
            (_, Some(sequence)) => Enqueued::Duplicate(*sequence),
            (None, None) => return Err(sqlx::Error::RowNotFound),
        };
        receipts.push(Receipt { event_id: EventId(id), enqueued });
    }
    Ok(())
}

/// The first one's sequence. A second statement, for a snapshot that sees what was committed meanwhile.
async fn find(
    connection: &mut PgConnection,
    table: &TableName,
    records: &[&Record],
) -> Result<Vec<(Uuid, i64)>, sqlx::Error> {
    let ids: Vec<Uuid> = records.iter().map(|record| record.event_id.0).collect();
    let sql =
        Template::of(table, '"').fill("SELECT event_id, sequence FROM {{table}} WHERE event_id = ANY ($1)");
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

fn insert_sql(table: &OutboxTable) -> String {
    let sql = match table.layout {
        Layout::Full => include_str!("sql/insert.sql"),
        Layout::Bare => include_str!("sql/insert_bare.sql"),
    };
    Template::of(&table.name, '"').fill(sql)
}

type Insert<'q> = Query<'q, Postgres, PgArguments>;

fn bind<'q>(query: Insert<'q>, layout: Layout, records: &[&'q Record]) -> Insert<'q> {
    macro_rules! column {
        ($record:ident => $value:expr) => {
            records.iter().map(|$record| $value).collect::<Vec<_>>()
        };
    }
    let query = query
        .bind(column!(r => r.event_id.0))
        .bind(column!(r => r.tenant_id.0))
        .bind(column!(r => r.topic.as_str()))
        .bind(column!(r => match &r.payload {
            Payload::Json(json) => json.as_str(),
            Payload::Bytes { .. } => "null",
        }))
        .bind(column!(r => match r.available {
            Availability::At(at) => Some(at),
            Availability::Now | Availability::After(_) => None,
        }))
        .bind(column!(r => match r.available {
            Availability::After(delay) => i64::try_from(delay.as_micros()).unwrap_or(i64::MAX),
            Availability::Now | Availability::At(_) => 0,
        }));
    if layout == Layout::Bare {
        return query;
    }
    query
        .bind(column!(r => r.aggregate.as_ref().map(|a| a.kind.as_str())))
        .bind(column!(r => r.aggregate.as_ref().map(|a| a.id.as_str())))
        .bind(column!(r => (!r.headers.is_empty()).then(|| serde_json::to_string(&r.headers).unwrap_or_default())))
        .bind(column!(r => r.occurred_at))
        .bind(column!(r => r.schema_id.as_deref()))
        .bind(column!(r => r.schema_version))
        .bind(column!(r => r.routing_key.as_deref()))
        .bind(column!(r => r.metadata.as_ref().map(Json::as_str)))
        .bind(column!(r => r.traceparent.as_deref()))
        .bind(column!(r => r.tracestate.as_deref()))
        .bind(column!(r => match &r.payload {
            Payload::Bytes { bytes, .. } => Some(&**bytes),
            Payload::Json(_) => None,
        }))
        .bind(column!(r => match &r.payload {
            Payload::Bytes { content_type, .. } => Some(content_type.as_str()),
            Payload::Json(_) => None,
        }))
}
