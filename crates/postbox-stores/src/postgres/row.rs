//! A claimed row becomes a delivery; a row that cannot is reported, never an error of its batch.

use std::sync::Arc;

use postbox_core::dispatcher::{Delivery, Meta};
use postbox_core::store::{Buried, Claimed, Lease, Token, Undecodable};
use postbox_core::{AggregateKey, EventId, Json, Payload, TenantId, Topic, TopicError};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::facts::Facts;
use super::moment::{Latest, Micros};
use crate::headers::parse_headers;

/// What one row of a claim's answer is.
pub(super) enum Found {
    Delivery(Claimed),
    Undecodable(Undecodable),
    Buried(Buried),
}

/// How many columns an event has: what a claim knows of the row itself, its payload and its facts.
pub(super) const COLUMNS: usize = 12;

/// The place of the first of these columns in the answer of a claim; the summary stands before it.
pub(super) const FIRST: usize = 8;

/// The places of the time of the claim and of `available_at` among them.
pub(super) const SINCE: usize = 6;
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
        let Some(since) = row.try_get_unchecked::<Option<Micros>, _>(first + SINCE)? else {
            return Ok(Some(Found::Buried(Buried { topic: topic.to_owned(), event_id, sequence })));
        };
        let since = self.since.time(since);
        let attempts = row.try_get_unchecked(first + 5)?;
        let lease = Lease { row: id, attempts, token: self.token.clone(), since };
        let facts = Facts::read(row, first + 11)?;
        let parsed = (parse_headers(facts.headers), self.topic(topic));
        let undecodable = |lease, reason| {
            Ok(Some(Found::Undecodable(Undecodable { lease, topic: topic.to_owned(), event_id, reason })))
        };
        let Ok(sinks_done) = facts.sinks_done.map(serde_json::from_slice).transpose() else {
            return undecodable(lease, "sinks_done is not a list of texts".to_owned());
        };
        let (headers, topic) = match parsed {
            (Ok(headers), Ok(topic)) => (headers, topic),
            (Err(reason), _) => return undecodable(lease, reason),
            (_, Err(error)) => return undecodable(lease, error.to_string()),
        };
        let created_at = self.times.time(row.try_get_unchecked(first + 7)?);
        let available_at = self.due(row)?;
        let kind = facts.aggregate_type.unwrap_or_default();
        let meta = Meta {
            table: Arc::clone(self.table),
            event_id,
            tenant_id: TenantId(row.try_get_unchecked(first + 2)?),
            topic,
            sequence,
            attempts,
            aggregate: facts.aggregate_id.map(|id| AggregateKey::new(kind, id)),
            headers,
            occurred_at: facts.occurred_at.map_or(created_at, |at| self.times.time(at)),
            created_at,
            schema_id: facts.schema_id.map(str::to_owned),
            schema_version: facts.schema_version.unwrap_or(1),
            routing_key: facts.routing_key.map(str::to_owned),
            metadata: facts.metadata.map(|metadata| Json::trusted(metadata.to_owned())),
            traceparent: facts.traceparent.map(str::to_owned),
            tracestate: facts.tracestate.map(str::to_owned),
        };
        let payload = payload(row, first + 9, facts.content_type)?;
        Ok(Some(Found::Delivery(Claimed {
            lease,
            delivery: Box::new(Delivery { meta, payload, destination: None }),
            age: (since - created_at.max(available_at)).try_into().unwrap_or_default(),
            strand: None,
            sinks_done: sinks_done.unwrap_or_default(),
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

/// The payload from the columns of its text and its bytes. Empty where it was not asked for.
pub(super) fn payload(row: &PgRow, first: usize, content_type: Option<&str>) -> Result<Payload, sqlx::Error> {
    if let Some(bytes) = row.try_get_unchecked::<Option<Vec<u8>>, _>(first + 1)? {
        let content_type = content_type.unwrap_or("application/octet-stream").to_owned();
        return Ok(Payload::Bytes { bytes: bytes.into_boxed_slice(), content_type });
    }
    let text = row.try_get_unchecked::<Option<String>, _>(first)?;
    Ok(Payload::Json(Json::trusted(text.unwrap_or_default())))
}
