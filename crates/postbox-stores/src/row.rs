//! Rows of databases that keep ids as bytes and JSON as text. A claimed row becomes a delivery; a row that cannot is reported, never
//! an error of its batch.

use std::sync::Arc;

use postbox_core::dispatcher::{Delivery, Meta};
use postbox_core::{AggregateKey, EventId, Json, Payload, TenantId, Topic};
use sqlx::{ColumnIndex, Decode, Row, Type};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::headers::parse_headers;
use crate::sequenced::{Content, Unreadable};

/// How a database keeps times.
pub(crate) trait Times {
    /// A time, if there is one.
    fn time(&self, place: usize) -> Result<Option<OffsetDateTime>, sqlx::Error>;

    /// One that is always there, as a number.
    fn micros(&self, place: usize) -> Result<i64, sqlx::Error>;
}

/// What stands in a row.
pub(crate) trait Cells: Times {
    /// Text as well as it can be read.
    fn text(&self, place: usize) -> Result<Option<String>, sqlx::Error>;

    /// Text that is text.
    fn pure_text(&self, place: usize) -> Result<Option<String>, sqlx::Error>;

    fn bytes(&self, place: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;

    /// None if it is no UUID of 16 bytes.
    fn uuid(&self, place: usize) -> Option<Uuid>;

    fn big_number(&self, place: usize) -> Result<Option<i64>, sqlx::Error>;

    /// A number as events carry it; columns can hold larger ones.
    fn number(&self, place: usize) -> Result<Option<i32>, sqlx::Error> {
        let fit = |number: i64| i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX });
        Ok(self.big_number(place)?.map(fit))
    }

    /// How many; never below zero.
    fn count(&self, place: usize) -> Result<u64, sqlx::Error> {
        Ok(u64::try_from(self.big_number(place)?.unwrap_or_default()).unwrap_or(0))
    }

    /// A time that is always there.
    fn known_time(&self, place: usize) -> Result<OffsetDateTime, sqlx::Error> {
        Ok(self.time(place)?.unwrap_or(OffsetDateTime::UNIX_EPOCH))
    }
}

impl<R: Row + Times> Cells for R
where
    usize: ColumnIndex<R>,
    i64: for<'r> Decode<'r, R::Database> + Type<R::Database>,
    String: for<'r> Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: for<'r> Decode<'r, R::Database> + Type<R::Database>,
    for<'r> &'r [u8]: Decode<'r, R::Database> + Type<R::Database>,
{
    fn text(&self, place: usize) -> Result<Option<String>, sqlx::Error> {
        let bytes = self.try_get::<Option<&[u8]>, _>(place)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    }

    fn pure_text(&self, place: usize) -> Result<Option<String>, sqlx::Error> {
        self.try_get(place)
    }

    fn bytes(&self, place: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
        self.try_get(place)
    }

    fn uuid(&self, place: usize) -> Option<Uuid> {
        Uuid::from_slice(self.try_get::<&[u8], _>(place).ok()?).ok()
    }

    fn big_number(&self, place: usize) -> Result<Option<i64>, sqlx::Error> {
        self.try_get(place)
    }
}

/// How many columns [`decode`] reads.
pub(crate) const COLUMNS: usize = 20;

/// Decodes a row that begins with sequence, `event_id`, `tenant_id`, topic, `created_at`, `available_at`, payload, `payload_raw`,
/// `content_type`, headers, `aggregate_type`, `aggregate_id`, `occurred_at`, `schema_id`, `schema_version`, `routing_key`, metadata,
/// traceparent, tracestate and `sinks_done`.
pub(crate) fn decode(row: &impl Cells, table: &Arc<str>) -> Result<Content, sqlx::Error> {
    let sequence = row.big_number(0)?.unwrap_or_default();
    let due = row.micros(4)?.max(row.micros(5)?);
    let what = match delivery(row, table, sequence) {
        Ok(delivery) => Ok(delivery),
        Err(reason) => {
            let (topic, event_id) = (row.text(3)?.unwrap_or_default(), row.uuid(1).unwrap_or_default());
            Err(Unreadable { topic, event_id: EventId(event_id), reason })
        }
    };
    // What somebody else wrote there tells of no sink.
    let done = row.text(19)?.and_then(|done| serde_json::from_str(&done).ok());
    Ok(Content { sequence, due, what, sinks_done: done.unwrap_or_default() })
}

/// The event, or why there is none; never with its content.
fn delivery(row: &impl Cells, table: &Arc<str>, sequence: i64) -> Result<Delivery, String> {
    let text = |place: usize| row.pure_text(place).map_err(|_| "a column is not text".to_owned());
    let time = |place: usize| row.time(place).map_err(|_| "a column is not a time".to_owned());
    let raw = row.bytes(7).map_err(|_| "payload_raw is not bytes".to_owned())?;
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
    let version = row.number(14).map_err(|_| "a column is not a number".to_owned())?;
    let created_at = time(4)?.ok_or("created_at is missing")?;
    let (kind, aggregate_id) = (text(10)?, text(11)?);
    let meta = Meta {
        table: Arc::clone(table),
        event_id: EventId(row.uuid(1).ok_or("event_id is not a UUID of 16 bytes")?),
        tenant_id: TenantId(row.uuid(2).ok_or("tenant_id is not a UUID of 16 bytes")?),
        topic: Topic::lenient(text(3)?.unwrap_or_default()).map_err(|error| error.to_string())?,
        sequence,
        // Known when it is leased.
        attempts: 0,
        aggregate: aggregate_id.map(|id| AggregateKey { kind: kind.unwrap_or_default(), id }),
        headers: parse_headers(text(9)?.as_deref())?,
        occurred_at: time(12)?.unwrap_or(created_at),
        created_at,
        schema_id: text(13)?,
        schema_version: version.unwrap_or(1),
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
