//! A claimed row becomes a delivery; a row that cannot is reported, never an error of its batch.

use std::sync::Arc;

use postbox_core::dispatcher::{Delivery, Meta};
use postbox_core::{AggregateKey, EventId, Json, Payload, TenantId, Topic};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use super::clock::{known_time, micros, time};
use crate::headers::parse_headers;
use crate::sequenced::{Content, Unreadable};

/// What rows carry, in the order of [`decode`].
pub(super) const CONTENT: &str =
    "sequence, event_id, tenant_id, topic, created_at, available_at, payload, payload_raw, content_type, headers,
       aggregate_type, aggregate_id, occurred_at, schema_id, schema_version, routing_key, metadata, traceparent, tracestate,
       sinks_done";

/// How many columns these are.
pub(super) const COLUMNS: usize = 20;

/// Decodes a row that begins with [`CONTENT`].
pub(super) fn decode(row: &MySqlRow, table: &Arc<str>) -> Result<Content, sqlx::Error> {
    let sequence = row.try_get(0)?;
    let due = micros(known_time(row, 4)?.max(known_time(row, 5)?));
    let what = match delivery(row, table, sequence) {
        Ok(delivery) => Ok(delivery),
        Err(reason) => {
            let (topic, event_id) = (text(row, 3)?.unwrap_or_default(), uuid(row, 1).unwrap_or_default());
            Err(Unreadable { topic, event_id: EventId(event_id), reason })
        }
    };
    // What somebody else wrote there tells of no sink.
    let done: Option<Vec<String>> = text(row, 19)?.and_then(|done| serde_json::from_str(&done).ok());
    Ok(Content { sequence, due, what, sinks_done: done.unwrap_or_default() })
}

pub(super) fn uuid(row: &MySqlRow, place: usize) -> Option<Uuid> {
    Uuid::from_slice(row.try_get::<&[u8], _>(place).ok()?).ok()
}

/// Text as well as it can be read.
pub(super) fn text(row: &MySqlRow, place: usize) -> Result<Option<String>, sqlx::Error> {
    let bytes = row.try_get::<Option<&[u8]>, _>(place)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// The event, or why there is none; never with its content.
fn delivery(row: &MySqlRow, table: &Arc<str>, sequence: i64) -> Result<Delivery, String> {
    let text =
        |place: usize| row.try_get::<Option<String>, _>(place).map_err(|_| "a column is not text".to_owned());
    let moment = |place: usize| time(row, place).map_err(|_| "a column is not a time".to_owned());
    let raw = row.try_get::<Option<Vec<u8>>, _>(7).map_err(|_| "payload_raw is not bytes".to_owned())?;
    let payload = match raw {
        Some(bytes) => Payload::Bytes {
            bytes: bytes.into_boxed_slice(),
            content_type: text(8)?.unwrap_or_else(|| "application/octet-stream".into()),
        },
        None => Payload::Json(
            Json::from_text(text(6)?.unwrap_or_default())
                .map_err(|_| "the payload is not JSON".to_owned())?,
        ),
    };
    let version = row.try_get::<Option<i64>, _>(14).map_err(|_| "a column is not a number".to_owned())?;
    let created_at = moment(4)?.ok_or("created_at is missing")?;
    let (kind, aggregate_id) = (text(10)?, text(11)?);
    let meta = Meta {
        table: Arc::clone(table),
        event_id: EventId(uuid(row, 1).ok_or("event_id is not a UUID of 16 bytes")?),
        tenant_id: TenantId(uuid(row, 2).ok_or("tenant_id is not a UUID of 16 bytes")?),
        topic: Topic::lenient(text(3)?.unwrap_or_default()).map_err(|error| error.to_string())?,
        sequence,
        // Known when it is leased.
        attempts: 0,
        aggregate: aggregate_id.map(|id| AggregateKey { kind: kind.unwrap_or_default(), id }),
        headers: parse_headers(text(9)?.as_deref())?,
        occurred_at: moment(12)?.unwrap_or(created_at),
        created_at,
        schema_id: text(13)?,
        schema_version: version.map_or(1, |version| i32::try_from(version).unwrap_or(i32::MAX)),
        routing_key: text(15)?,
        metadata: text(16)?
            .map(Json::from_text)
            .transpose()
            .map_err(|_| "metadata is not JSON".to_owned())?,
        traceparent: text(17)?,
        tracestate: text(18)?,
    };
    Ok(Delivery { meta, payload, destination: None })
}
