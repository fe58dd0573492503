//! A claimed row becomes a delivery; a row that cannot is reported, never an error of its batch.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::dispatcher::{Delivery, Meta};
use postbox_core::store::{Buried, Claimed, Lease, Undecodable};
use postbox_core::{AggregateKey, EventId, Json, Payload, TenantId, Topic};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::headers::parse_headers;

/// What one row of a claim's answer is.
pub(super) enum Found {
    Delivery(Claimed),
    Undecodable(Undecodable),
    Buried(Buried),
}

/// The place of the first column of the event in the answer; the summary stands before it.
pub(super) const FIRST: usize = 8;

/// Decodes a row of the answer; none if the claim brought no row.
pub(super) fn decode(row: &PgRow, table: &Arc<str>, token: &Arc<str>) -> Result<Option<Found>, sqlx::Error> {
    let Some(id) = row.try_get::<Option<Uuid>, _>(FIRST)? else { return Ok(None) };
    let event_id = EventId(row.try_get(FIRST + 1)?);
    let topic: &str = row.try_get(FIRST + 3)?;
    let sequence: i64 = row.try_get(FIRST + 4)?;
    let Some(since) = row.try_get::<Option<OffsetDateTime>, _>(FIRST + 6)? else {
        return Ok(Some(Found::Buried(Buried { topic: topic.to_owned(), event_id, sequence })));
    };
    let lease = Lease { row: id, attempts: row.try_get(FIRST + 5)?, token: Arc::clone(token), since };
    let parsed = (parse_headers(row.try_get(FIRST + 12)?), Topic::lenient(topic));
    let undecodable = |lease, reason| {
        Ok(Some(Found::Undecodable(Undecodable { lease, topic: topic.to_owned(), event_id, reason })))
    };
    let (headers, topic) = match parsed {
        (Ok(headers), Ok(topic)) => (headers, topic),
        (Err(reason), _) => return undecodable(lease, reason),
        (_, Err(error)) => return undecodable(lease, error.to_string()),
    };
    let created_at: OffsetDateTime = row.try_get(FIRST + 7)?;
    let age: f64 = row.try_get(FIRST + 8)?;
    let payload = match row.try_get::<Option<Vec<u8>>, _>(FIRST + 10)? {
        Some(bytes) => Payload::Bytes {
            bytes: bytes.into_boxed_slice(),
            content_type: row
                .try_get::<Option<String>, _>(FIRST + 11)?
                .unwrap_or_else(|| "application/octet-stream".into()),
        },
        None => Payload::Json(Json::trusted(row.try_get::<String, _>(FIRST + 9)?)),
    };
    let kind: Option<String> = row.try_get(FIRST + 13)?;
    let aggregate_id: Option<String> = row.try_get(FIRST + 14)?;
    let meta = Meta {
        table: Arc::clone(table),
        event_id,
        tenant_id: TenantId(row.try_get(FIRST + 2)?),
        topic,
        sequence,
        attempts: lease.attempts,
        aggregate: aggregate_id.map(|id| AggregateKey { kind: kind.unwrap_or_default(), id }),
        headers,
        occurred_at: row.try_get::<Option<_>, _>(FIRST + 15)?.unwrap_or(created_at),
        created_at,
        schema_id: row.try_get(FIRST + 16)?,
        schema_version: row.try_get::<Option<_>, _>(FIRST + 17)?.unwrap_or(1),
        routing_key: row.try_get(FIRST + 18)?,
        metadata: row.try_get::<Option<String>, _>(FIRST + 19)?.map(Json::trusted),
        traceparent: row.try_get(FIRST + 20)?,
        tracestate: row.try_get(FIRST + 21)?,
    };
    let age = Duration::try_from_secs_f64(age).unwrap_or_default();
    Ok(Some(Found::Delivery(Claimed {
        lease,
        delivery: Box::new(Delivery { meta, payload }),
        age,
        strand: None,
        sinks_done: row.try_get::<Option<Vec<String>>, _>("sinks_done")?.unwrap_or_default(),
    })))
}
