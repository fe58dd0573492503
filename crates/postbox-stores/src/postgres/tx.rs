//! Enqueue in a sqlx transaction.

use std::collections::{BTreeSet, HashMap};

use postbox_core::{
    Availability, Birth, Enqueued, EventId, Inserted, Insertion, Json, Layout, OutboxTable, OutboxTx,
    Payload, Receipt, Record,
};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::{order, wake};
use crate::table::Template;

/// Most rows per statement, and most bytes: beyond, a statement only costs memory on both sides.
const CHUNK_ROWS: usize = 1000;
const CHUNK_BYTES: usize = 8 << 20;

/// Marks sqlx's PostgreSQL transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxPostgres;

impl OutboxTx<SqlxPostgres> for &mut Transaction<'_, Postgres> {
    type Error = sqlx::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, sqlx::Error> {
        insert(self, insertion).await
    }
}

pub(super) async fn insert(
    tx: &mut Transaction<'_, Postgres>,
    insertion: Insertion<'_>,
) -> Result<Vec<Inserted>, sqlx::Error> {
    let mut inserted = Vec::with_capacity(insertion.records.len());
    let mut aggregates = aggregates(&insertion);
    for chunk in chunks(insertion.records) {
        let done = inserted.len();
        let part = Insertion {
            records: chunk,
            birth: insertion
                .birth
                .map(|birth| Birth { leased: &birth.leased[done..done + chunk.len()], ..birth }),
            ..insertion
        };
        // The first statement takes all the locks: in pieces, they would not be in order.
        insert_chunk(tx, part, std::mem::take(&mut aggregates), &mut inserted).await?;
    }
    Ok(inserted)
}

/// Whom the events are about, if it is more than one: on a table that orders the writers of an aggregate, their locks are taken
/// in the same order by everybody (hazard 18), whatever the order of the events.
fn aggregates<'a>(insertion: &Insertion<'a>) -> Vec<(Uuid, &'a str, &'a str)> {
    let of = |record: &'a Record| {
        record.aggregate.as_ref().map(|a| (record.tenant_id.0, a.kind.as_str(), a.id.as_str()))
    };
    let known: BTreeSet<_> = match insertion.table.layout {
        Layout::Full => insertion.records.iter().filter_map(of).collect(),
        Layout::Bare => BTreeSet::new(),
    };
    if known.len() > 1 { known.into_iter().collect() } else { Vec::new() }
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
    insertion: Insertion<'_>,
    aggregates: Vec<(Uuid, &str, &str)>,
    inserted: &mut Vec<Inserted>,
) -> Result<(), sqlx::Error> {
    let Insertion { table, records, .. } = insertion;
    let (birth, locks) = (insertion.birth.is_some(), !aggregates.is_empty());
    // What is born leased is on its way already.
    let rings = table.wakes && !records.iter().enumerate().all(|(place, _)| insertion.is_leased(place));
    let sql = insert_sql(table, birth, locks, rings);
    // An id may stand twice in one chunk: the first is written, the others are its duplicates.
    let mut missing: Vec<(&Record, bool)> =
        records.iter().enumerate().map(|(place, record)| (record, insertion.is_leased(place))).collect();
    let mut written: HashMap<Uuid, (i64, Uuid)> = HashMap::with_capacity(records.len());
    let mut known: HashMap<Uuid, i64> = HashMap::new();
    // A duplicate can be cleaned between the two statements: then it is inserted after all.
    for _ in 0..3 {
        let mut query =
            bind(sqlx::query(AssertSqlSafe(sql.as_str())), table.layout, &missing).persistent(table.prepared);
        if let Some(birth) = insertion.birth {
            query =
                query.bind(missing.iter().map(|(_, leased)| *leased).collect::<Vec<_>>()).bind(birth.token);
        }
        if locks {
            query = query
                .bind(aggregates.iter().map(|(tenant, _, _)| *tenant).collect::<Vec<_>>())
                .bind(aggregates.iter().map(|(_, kind, _)| *kind).collect::<Vec<_>>())
                .bind(aggregates.iter().map(|(_, _, id)| *id).collect::<Vec<_>>());
        }
        for row in query.fetch_all(&mut *connection).await? {
            // Not every writer may read the row's own id.
            let id = if insertion.birth.is_some() { row.try_get(2)? } else { Uuid::nil() };
            written.insert(row.try_get(0)?, (row.try_get(1)?, id));
        }
        missing.retain(|(record, _)| !written.contains_key(&record.event_id.0));
        if !missing.is_empty() {
            known.extend(find(connection, table, &missing).await?);
            missing.retain(|(record, _)| !known.contains_key(&record.event_id.0));
        }
        if missing.is_empty() {
            break;
        }
    }
    for (place, record) in records.iter().enumerate() {
        let id = record.event_id.0;
        let (enqueued, leased) = match (written.get(&id), known.get(&id)) {
            (Some((sequence, row)), None) => {
                // The next one with this id in the same call is a duplicate.
                known.insert(id, *sequence);
                (Enqueued::Written(*sequence), insertion.is_leased(place).then_some(*row))
            }
            (_, Some(sequence)) => (Enqueued::Duplicate(*sequence), None),
            (None, None) => return Err(sqlx::Error::RowNotFound),
        };
        inserted.push(Inserted { receipt: Receipt { event_id: EventId(id), enqueued }, leased });
    }
    Ok(())
}

/// The first one's sequence. A second statement, for a snapshot that sees what was committed meanwhile.
async fn find(
    connection: &mut PgConnection,
    table: &OutboxTable,
    records: &[(&Record, bool)],
) -> Result<Vec<(Uuid, i64)>, sqlx::Error> {
    let ids: Vec<Uuid> = records.iter().map(|(record, _)| record.event_id.0).collect();
    let sql = Template::of(&table.name, '"')
        .fill("SELECT event_id, sequence FROM {{table}} WHERE event_id = ANY ($1)");
    let query = sqlx::query(AssertSqlSafe(sql)).bind(ids).persistent(table.prepared);
    let rows = query.fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// With `birth`, rows can be born leased: by the clock, since `now()` is when the transaction began (hazard 4). With `locks`, those
/// of several aggregates are taken before the first row is written, where the table's trigger would take them one by one. With
/// `rings`, a relay that sleeps hears of the commit.
fn insert_sql(table: &OutboxTable, birth: bool, locks: bool, rings: bool) -> String {
    let sql = match table.layout {
        Layout::Full => include_str!("sql/insert.sql"),
        Layout::Bare => include_str!("sql/insert_bare.sql"),
    };
    let part = |text: &'static str| if birth { text } else { "" };
    let oid = format!("'{}'::regclass::oid", table.name.quoted('"'));
    let lease = ", CASE WHEN leased THEN $20 END, CASE WHEN leased THEN clock_timestamp() END, leased::int";
    let first = if birth { 21 } else { 19 };
    let taken = format!(
        "WITH locks AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(key) FROM (
        SELECT DISTINCT {} AS key
        FROM unnest(${}::uuid[], ${}::text[], ${}::text[]) AS a (tenant_id, aggregate_type, aggregate_id)
        WHERE EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = '{}'::regclass AND tgname = '{}' AND tgenabled <> 'D')
        ORDER BY 1
    ) AS k
)
",
        order::writers_lock("a.", &oid),
        first,
        first + 1,
        first + 2,
        table.name.quoted('"'),
        order::TRIGGER,
    );
    Template::of(&table.name, '"')
        .with("locks", if locks { taken.as_str() } else { "" })
        .with("after_locks", if locks { "WHERE (SELECT count(*) FROM locks) >= 0\n" } else { "" })
        .with("birth_columns", part(", locked_by, locked_at, attempts"))
        .with("birth", part(lease))
        .with("birth_argument", part(", $19::bool[]"))
        .with("birth_name", part(", leased"))
        .with("birth_row", part(", id"))
        .with("ring", if rings { format!(", {}", wake::ring(&oid)) } else { String::new() })
        .fill(sql)
}

type Insert<'q> = Query<'q, Postgres, PgArguments>;

fn bind<'q>(query: Insert<'q>, layout: Layout, records: &[(&'q Record, bool)]) -> Insert<'q> {
    macro_rules! column {
        ($record:ident => $value:expr) => {
            records.iter().map(|($record, _)| $value).collect::<Vec<_>>()
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
