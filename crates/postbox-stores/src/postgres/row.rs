//! A claimed row becomes a delivery; a row that cannot is reported, never an error of its batch.

use std::sync::Arc;

use postbox_core::dispatcher::{Delivery, Meta};
use postbox_core::store::{Buried, Claimed, Lease, Token, Undecodable};
use postbox_core::{AggregateKey, EventId, Json, Payload, TenantId, Topic, TopicError};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::moment::{Latest, Micros};
use crate::headers::parse_headers;

/// What one row of a claim's answer is.
pub(super) enum Found {
    Delivery(Claimed),
    Undecodable(Undecodable),
    Buried(Buried),
}

/// What an event is made of, from `c`; what a claim knows of the row itself stands before it, up to `payload_raw`.
pub(super) const FACTS: &str =
    "c.content_type, c.headers::text, c.aggregate_type, c.aggregate_id, c.occurred_at, c.schema_id,
       c.schema_version, c.routing_key, c.metadata::text, c.traceparent, c.tracestate, c.sinks_done";

/// How many columns that are.
pub(super) const COLUMNS: usize = 23;

/// The place of the first of these columns in the answer of a claim; the summary stands before it.
pub(super) const FIRST: usize = 8;

/// The place of `available_at` among them.
pub(super) const DUE: usize = 8;

/// Reads the rows of one answer.
pub(super) struct Reader<'a> {
    /// The place of the first column of the event.
    first: usize,
    table: &'a Arc<str>,
    token: &'a Token,
    /// Those of the row before: neighbours often have the same.
    topic: Option<Topic>,
    since: Latest,
    times: Latest,
}

impl<'a> Reader<'a> {
    pub(super) fn new(first: usize, table: &'a Arc<str>, token: &'a Token) -> Self {
        Self { first, table, token, topic: None, since: Latest::default(), times: Latest::default() }
    }

    /// Decodes a row of the answer; none if the claim brought no row. Types are not looked at again for each row: they are
    /// those of the statement.
    pub(super) fn read(&mut self, row: &PgRow) -> Result<Option<Found>, sqlx::Error> {
        let first = self.first;
        let Some(id) = row.try_get_unchecked::<Option<Uuid>, _>(first)? else { return Ok(None) };
        let event_id = EventId(row.try_get_unchecked(first + 1)?);
        let topic: &str = row.try_get_unchecked(first + 3)?;
        let sequence: i64 = row.try_get_unchecked(first + 4)?;
        let Some(since) = row.try_get_unchecked::<Option<Micros>, _>(first + 6)? else {
            return Ok(Some(Found::Buried(Buried { topic: topic.to_owned(), event_id, sequence })));
        };
        let since = self.since.time(since);
        let attempts = row.try_get_unchecked(first + 5)?;
        let lease = Lease { row: id, attempts, token: self.token.clone(), since };
        let parsed = (parse_headers(row.try_get_unchecked(first + 12)?), self.topic(topic));
        let undecodable = |lease, reason| {
            Ok(Some(Found::Undecodable(Undecodable { lease, topic: topic.to_owned(), event_id, reason })))
        };
        let (headers, topic) = match parsed {
            (Ok(headers), Ok(topic)) => (headers, topic),
            (Err(reason), _) => return undecodable(lease, reason),
            (_, Err(error)) => return undecodable(lease, error.to_string()),
        };
        let created_at = self.times.time(row.try_get_unchecked(first + 7)?);
        let available_at = self.due(row)?;
        let kind: Option<String> = row.try_get_unchecked(first + 13)?;
        let aggregate_id: Option<String> = row.try_get_unchecked(first + 14)?;
        let occurred_at = row.try_get_unchecked::<Option<Micros>, _>(first + 15)?;
        let meta = Meta {
            table: Arc::clone(self.table),
            event_id,
            tenant_id: TenantId(row.try_get_unchecked(first + 2)?),
            topic,
            sequence,
            attempts,
            aggregate: aggregate_id.map(|id| AggregateKey { kind: kind.unwrap_or_default(), id }),
            headers,
            occurred_at: occurred_at.map_or(created_at, |at| self.times.time(at)),
            created_at,
            schema_id: row.try_get_unchecked(first + 16)?,
            schema_version: row.try_get_unchecked::<Option<_>, _>(first + 17)?.unwrap_or(1),
            routing_key: row.try_get_unchecked(first + 18)?,
            metadata: row.try_get_unchecked::<Option<String>, _>(first + 19)?.map(Json::trusted),
            traceparent: row.try_get_unchecked(first + 20)?,
            tracestate: row.try_get_unchecked(first + 21)?,
        };
        let payload = payload(row, first + 9)?;
        Ok(Some(Found::Delivery(Claimed {
            lease,
            delivery: Box::new(Delivery { meta, payload }),
            age: (since - created_at.max(available_at)).try_into().unwrap_or_default(),
            strand: None,
            sinks_done: row.try_get_unchecked::<Option<Vec<String>>, _>(first + 22)?.unwrap_or_default(),
        })))
    }

    /// Since when a row can be claimed.
    pub(super) fn due(&mut self, row: &PgRow) -> Result<OffsetDateTime, sqlx::Error> {
        Ok(self.times.time(row.try_get_unchecked(self.first + DUE)?))
    }

    fn topic(&mut self, name: &str) -> Result<Topic, TopicError> {
        if let Some(topic) = self.topic.as_ref().filter(|topic| topic.as_str() == name) {
            return Ok(topic.clone());
        }
        let topic = Topic::lenient(name)?;
        self.topic = Some(topic.clone());
        Ok(topic)
    }
}

/// The payload from the columns of its text, its bytes and their type. Empty where it was not asked for.
pub(super) fn payload(row: &PgRow, first: usize) -> Result<Payload, sqlx::Error> {
    if let Some(bytes) = row.try_get_unchecked::<Option<Vec<u8>>, _>(first + 1)? {
        let content_type = row.try_get_unchecked::<Option<String>, _>(first + 2)?;
        let content_type = content_type.unwrap_or_else(|| "application/octet-stream".into());
        return Ok(Payload::Bytes { bytes: bytes.into_boxed_slice(), content_type });
    }
    let text = row.try_get_unchecked::<Option<String>, _>(first)?;
    Ok(Payload::Json(Json::trusted(text.unwrap_or_default())))
}
