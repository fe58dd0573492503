//! A claimed row becomes a delivery; a row that cannot is reported, never an error of its batch.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::dispatcher::{Delivery, Meta};
use postbox_core::store::{Buried, Claimed, Lease, Undecodable};
use postbox_core::{AggregateKey, EventId, Json, Payload, TenantId, Topic};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::clock::from_micros;
use crate::headers::parse_headers;

/// What one row of a claim's answer is.
pub(super) enum Found {
    Delivery(Box<Claimed>),
    Undecodable(Undecodable),
    Buried(Buried),
}

/// A row's key as leases carry it: rows are found by their sequence, so `id` needs no index.
pub(super) fn key_of(sequence: i64) -> Uuid {
    Uuid::from_u128(u128::from(sequence.cast_unsigned()))
}

/// And back.
pub(super) fn sequence_of(key: Uuid) -> i64 {
    key.as_u64_pair().1.cast_signed()
}

/// Decodes a row of the answer.
pub(super) fn decode(row: &SqliteRow, table: &Arc<str>, token: &Arc<str>) -> Result<Found, sqlx::Error> {
    let sequence: i64 = row.try_get(0)?;
    let event_id = EventId(uuid(row, 1).unwrap_or_default());
    // Text need not be text here: it can hold any bytes.
    let topic = String::from_utf8_lossy(row.try_get::<&[u8], _>(3)?).into_owned();
    let Some(since) = row.try_get::<Option<i64>, _>(5)? else {
        return Ok(Found::Buried(Buried { topic, event_id, sequence }));
    };
    let attempts = i32::try_from(row.try_get::<i64, _>(4)?).unwrap_or(i32::MAX);
    let lease =
        Lease { row: key_of(sequence), attempts, token: Arc::clone(token), since: from_micros(since) };
    let due: i64 = row.try_get::<i64, _>(6)?.max(row.try_get(7)?);
    let age = Duration::from_micros(u64::try_from(since.saturating_sub(due)).unwrap_or(0));
    Ok(match delivery(row, table, sequence, attempts) {
        Ok(delivery) => Found::Delivery(Box::new(Claimed { lease, delivery, age })),
        Err(reason) => Found::Undecodable(Undecodable { lease, topic, event_id, reason }),
    })
}

pub(super) fn uuid(row: &SqliteRow, place: usize) -> Option<Uuid> {
    Uuid::from_slice(row.try_get::<&[u8], _>(place).ok()?).ok()
}

/// Text as well as it can be read: here it can hold any bytes.
pub(super) fn text(row: &SqliteRow, place: usize) -> Result<Option<String>, sqlx::Error> {
    let bytes = row.try_get::<Option<&[u8]>, _>(place)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// A time, if there is one.
pub(super) fn time(row: &SqliteRow, place: usize) -> Result<Option<OffsetDateTime>, sqlx::Error> {
    Ok(row.try_get::<Option<i64>, _>(place)?.map(from_micros))
}

/// A number as events carry it; columns hold larger ones.
pub(super) fn number(row: &SqliteRow, place: usize) -> Result<Option<i32>, sqlx::Error> {
    let number = row.try_get::<Option<i64>, _>(place)?;
    Ok(number.map(|number| i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX })))
}

/// The event, or why there is none; never with its content.
fn delivery(row: &SqliteRow, table: &Arc<str>, sequence: i64, attempts: i32) -> Result<Delivery, String> {
    let text =
        |place: usize| row.try_get::<Option<String>, _>(place).map_err(|_| "a column is not text".to_owned());
    let topic = text(3)?.unwrap_or_default();
    let raw = row.try_get::<Option<Vec<u8>>, _>(9).map_err(|_| "payload_raw is not bytes".to_owned())?;
    let payload = match raw {
        Some(bytes) => Payload::Bytes {
            bytes: bytes.into_boxed_slice(),
            content_type: text(10)?.unwrap_or_else(|| "application/octet-stream".into()),
        },
        None => Payload::Json(
            Json::from_text(text(8)?.unwrap_or_default())
                .map_err(|_| "the payload is not JSON".to_owned())?,
        ),
    };
    let number = |place: usize| {
        row.try_get::<Option<i64>, _>(place).map_err(|_| "a column is not a number".to_owned())
    };
    let created_at = from_micros(number(6)?.unwrap_or_default());
    let (kind, aggregate_id) = (text(12)?, text(13)?);
    let meta = Meta {
        table: Arc::clone(table),
        event_id: EventId(uuid(row, 1).ok_or("event_id is not a UUID of 16 bytes")?),
        tenant_id: TenantId(uuid(row, 2).ok_or("tenant_id is not a UUID of 16 bytes")?),
        topic: Topic::lenient(topic).map_err(|error| error.to_string())?,
        sequence,
        attempts,
        aggregate: aggregate_id.map(|id| AggregateKey { kind: kind.unwrap_or_default(), id }),
        headers: parse_headers(text(11)?)?,
        occurred_at: number(14)?.map_or(created_at, from_micros),
        created_at,
        schema_id: text(15)?,
        schema_version: number(16)?.map_or(1, |version| i32::try_from(version).unwrap_or(i32::MAX)),
        routing_key: text(17)?,
        metadata: text(18)?
            .map(Json::from_text)
            .transpose()
            .map_err(|_| "metadata is not JSON".to_owned())?,
        traceparent: text(19)?,
        tracestate: text(20)?,
    };
    Ok(Delivery { meta, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sequences_are_one() {
        for sequence in [0, 1, 7_000_000_000, i64::MAX, -1] {
            assert_eq!(sequence_of(key_of(sequence)), sequence);
        }
    }
}
