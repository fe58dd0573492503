//! ② Enqueue in a transaction, whatever the driver.

use std::collections::{BTreeSet, HashMap};

use postbox_core::{
    Birth, Enqueued, EventId, Inserted, Insertion, Layout, OutboxTable, OutboxTx, Receipt, Record,
};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::session::Value;
use super::writing::{self, Form};
use crate::table::Template;
use crate::tx::{Columns, Session, Statement};

/// Most rows per statement, and most bytes: beyond, a statement only costs memory on both sides.
const CHUNK_ROWS: usize = 1000;
const CHUNK_BYTES: usize = 8 << 20;

/// Marks sqlx's PostgreSQL transactions as a driver of the outbox.
#[derive(Debug)]
pub struct SqlxPostgres;

impl OutboxTx<SqlxPostgres> for &mut Transaction<'_, Postgres> {
    type Error = sqlx::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, sqlx::Error> {
        insert(&mut **self, insertion).await
    }
}

/// Writes events.
pub(crate) async fn insert<S: Session<Postgres>>(
    session: &mut S,
    insertion: Insertion<'_>,
) -> Result<Vec<Inserted>, S::Error> {
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
        insert_chunk(session, part, std::mem::take(&mut aggregates), &mut inserted).await?;
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

async fn insert_chunk<S: Session<Postgres>>(
    session: &mut S,
    insertion: Insertion<'_>,
    aggregates: Vec<(Uuid, &str, &str)>,
    inserted: &mut Vec<Inserted>,
) -> Result<(), S::Error> {
    let Insertion { table, records, .. } = insertion;
    let (birth, locks) = (insertion.birth.is_some(), !aggregates.is_empty());
    // Not every writer may read the row's own id.
    let columns = if birth { Columns::EventAndRow } else { Columns::Event };
    // What is born leased is on its way already.
    let rings = table.wakes && !records.iter().enumerate().all(|(place, _)| insertion.is_leased(place));
    // An id may stand twice in one chunk: the first is written, the others are its duplicates.
    let mut missing: Vec<(&Record, bool)> =
        records.iter().enumerate().map(|(place, record)| (record, insertion.is_leased(place))).collect();
    let mut written: HashMap<Uuid, (i64, Uuid)> = HashMap::with_capacity(records.len());
    let mut known: HashMap<Uuid, i64> = HashMap::new();
    // A duplicate can be cleaned between the two statements: then it is inserted after all.
    for _ in 0..3 {
        // The locks are an array, and of several.
        let one = missing.len() == 1 && !locks;
        let sql = writing::sql(table, Form { one, birth, locks, rings });
        let headers = writing::headers(&missing);
        let mut values = writing::values(table.layout, &missing, &headers, one);
        if let Some(birth) = insertion.birth {
            values.push(match missing.as_slice() {
                [(_, leased)] if one => Value::Bool(*leased),
                _ => Value::Bools(missing.iter().map(|(_, leased)| *leased).collect()),
            });
            values.push(Value::Text(Some(birth.token)));
        }
        if locks {
            values.push(Value::Uuids(aggregates.iter().map(|(tenant, _, _)| *tenant).collect()));
            values.push(Value::Texts(aggregates.iter().map(|(_, kind, _)| Some(*kind)).collect()));
            values.push(Value::Texts(aggregates.iter().map(|(_, _, id)| Some(*id)).collect()));
        }
        let statement = Statement { sql, values, prepared: table.prepared };
        for row in session.events(statement, columns).await? {
            written.insert(row.event_id, (row.sequence, row.id));
        }
        missing.retain(|(record, _)| !written.contains_key(&record.event_id.0));
        if !missing.is_empty() {
            let ids = missing.iter().map(|(record, _)| record.event_id.0).collect();
            let found = session.events(find(table, ids), Columns::Event).await?;
            known.extend(found.into_iter().map(|row| (row.event_id, row.sequence)));
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
            (None, None) => (Enqueued::Duplicate(session.sequence(find(table, vec![id])).await?), None),
        };
        inserted.push(Inserted { receipt: Receipt { event_id: EventId(id), enqueued }, leased });
    }
    Ok(())
}

/// The first ones' sequences. A second statement, for a snapshot that sees what was committed meanwhile.
fn find(table: &OutboxTable, ids: Vec<Uuid>) -> Statement<'static, Postgres> {
    let sql = Template::of(&table.name, '"')
        .fill("SELECT event_id, sequence FROM {{table}} WHERE event_id = ANY ($1)");
    Statement { sql: sql.into(), values: vec![Value::Uuids(ids)], prepared: table.prepared }
}
