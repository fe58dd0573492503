//! [`RecordBuilder`]: a row in the making.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::check::check;
use super::{Fields, Record};
use crate::event::{
    AggregateKey, Availability, EventError, EventId, Headers, Payload, RecordDefaults, TenantId,
};
use crate::json::Json;
use crate::topic::Topic;

/// A century. Whoever means never gets it; much more no database can add to its time, and the transaction would fail.
const LONGEST_DELAY: Duration = Duration::from_hours(100 * 365 * 24);

/// Builds a [`Record`]. Errors of single steps are reported by [`build`](Self::build).
///
/// ```
/// use std::time::Duration;
/// use postbox_core::{Record, Topic};
///
/// let record = Record::builder(Topic::from_static("shop.order.placed.v1"))
///     .json(&serde_json::json!({ "order_id": 7 }))
///     .aggregate("order", 7)
///     .header("source", "web")
///     .delay(Duration::from_mins(5))
///     .build()?;
/// assert_eq!(record.headers["source"], "web");
/// # Ok::<(), postbox_core::EventError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built or enqueued"]
pub struct RecordBuilder {
    event_id: Option<EventId>,
    tenant_id: Option<TenantId>,
    topic: Topic,
    payload: Option<Result<Payload, String>>,
    aggregate: Option<AggregateKey>,
    headers: Headers,
    occurred_at: Option<OffsetDateTime>,
    schema_id: Option<String>,
    schema_version: i32,
    routing_key: Option<String>,
    metadata: Option<Result<Json, String>>,
    available: Availability,
    trace: Option<(String, Option<String>)>,
}

impl RecordBuilder {
    pub(super) fn new(topic: Topic) -> Self {
        Self {
            event_id: None,
            tenant_id: None,
            topic,
            payload: None,
            aggregate: None,
            headers: Headers::new(),
            occurred_at: None,
            schema_id: None,
            schema_version: 1,
            routing_key: None,
            metadata: None,
            available: Availability::Now,
            trace: None,
        }
    }

    pub(super) fn from_fields(fields: Fields) -> Self {
        Self {
            event_id: Some(fields.event_id),
            tenant_id: Some(fields.tenant_id),
            topic: fields.topic,
            payload: Some(Ok(fields.payload)),
            aggregate: fields.aggregate,
            headers: fields.headers,
            occurred_at: Some(fields.occurred_at),
            schema_id: fields.schema_id,
            schema_version: fields.schema_version,
            routing_key: fields.routing_key,
            metadata: fields.metadata.map(Ok),
            available: fields.available,
            trace: fields.traceparent.map(|parent| (parent, fields.tracestate)),
        }
    }

    /// Decides now what would otherwise be decided when the record is built: its identity, when it happened, and the
    /// span that it happened in. However often it is then built, it is the same event.
    pub(crate) fn pinned(mut self) -> Self {
        self.event_id.get_or_insert_default();
        self.occurred_at.get_or_insert_with(OffsetDateTime::now_utc);
        self.trace = self.trace.or_else(crate::trace::current);
        self
    }

    /// The payload: any serde value, serialised now.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        self.payload = Some(Json::from_value(value).map(Payload::Json).map_err(|e| e.to_string()));
        self
    }

    /// The payload: text that is JSON already, carried digit for digit.
    pub fn raw_json(mut self, text: impl Into<String>) -> Self {
        let json = Json::from_text(text).map(Payload::Json);
        self.payload = Some(json.map_err(|e| format!("not JSON at line {} column {}", e.line(), e.column())));
        self
    }

    /// The payload: bytes with their media type.
    pub fn bytes(mut self, bytes: impl Into<Vec<u8>>, content_type: impl Into<String>) -> Self {
        let bytes = bytes.into().into_boxed_slice();
        self.payload = Some(Ok(Payload::Bytes { bytes, content_type: content_type.into() }));
        self
    }

    /// The event's identity, where the caller has one; a repeated one is enqueued only once.
    pub fn event_id(mut self, id: impl Into<EventId>) -> Self {
        self.event_id = Some(id.into());
        self
    }

    /// Whose event it is.
    pub fn tenant(mut self, id: impl Into<TenantId>) -> Self {
        self.tenant_id = Some(id.into());
        self
    }

    /// Whose event it is, by name: the id is the name's UUIDv5, and the name travels in the header `tenant`.
    pub fn tenant_name(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.tenant_id = Some(TenantId::from_name(&name));
        self.header("tenant", name)
    }

    /// What the event is about: the kind and id of an aggregate.
    pub fn aggregate(mut self, kind: impl Into<String>, id: impl fmt::Display) -> Self {
        self.aggregate = Some(AggregateKey::new(kind, id));
        self
    }

    pub(super) fn aggregate_key(mut self, key: Option<AggregateKey>) -> Self {
        self.aggregate = key;
        self
    }

    /// All headers, instead of those there were.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// When it happened; now, if not given.
    pub fn occurred_at(mut self, at: OffsetDateTime) -> Self {
        self.occurred_at = Some(at.to_offset(time::UtcOffset::UTC));
        self
    }

    /// The schema of the payload.
    pub fn schema(mut self, id: impl Into<String>, version: i32) -> Self {
        (self.schema_id, self.schema_version) = (Some(id.into()), version);
        self
    }

    /// The message key at brokers, before the aggregate's id.
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// Free JSON that travels with the row, not with the message.
    pub fn metadata<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        self.metadata = Some(Json::from_value(value).map_err(|e| e.to_string()));
        self
    }

    /// Not to be delivered before this time.
    pub fn available_at(mut self, at: OffsetDateTime) -> Self {
        self.available = Availability::At(at);
        self
    }

    /// Not to be delivered before this long after the enqueue, by the database's clock; a century at the most.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.available = Availability::After(delay.min(LONGEST_DELAY));
        self
    }

    /// The W3C trace context; the current span's, if not given (feature `otel`).
    pub fn trace(mut self, traceparent: impl Into<String>, tracestate: Option<String>) -> Self {
        self.trace = Some((traceparent.into(), tracestate));
        self
    }

    /// Makes the record, with the default limits.
    ///
    /// # Errors
    /// When there is no payload, it cannot be serialised, or a limit is broken.
    pub fn build(self) -> Result<Record, EventError> {
        self.build_with(&RecordDefaults::default())
    }

    pub(crate) fn build_with(self, defaults: &RecordDefaults) -> Result<Record, EventError> {
        let payload = match self.payload {
            Some(payload) => payload.map_err(EventError::payload)?,
            None => return Err(EventError::payload("it has none")),
        };
        let (traceparent, tracestate) = match self.trace.or_else(crate::trace::current) {
            Some((parent, state)) => (Some(parent), state),
            None => (None, None),
        };
        let fields = Fields {
            event_id: self.event_id.unwrap_or_default(),
            tenant_id: self.tenant_id.unwrap_or(defaults.tenant_id),
            topic: self.topic,
            aggregate: self.aggregate,
            headers: self.headers,
            payload,
            occurred_at: self.occurred_at.unwrap_or_else(OffsetDateTime::now_utc),
            schema_id: self.schema_id,
            schema_version: self.schema_version,
            routing_key: self.routing_key,
            metadata: self
                .metadata
                .transpose()
                .map_err(|e| EventError::Field { field: "metadata", problem: e })?,
            available: self.available,
            traceparent,
            tracestate,
        };
        check(&fields, &defaults.limits)?;
        Ok(Record { fields, limits: defaults.limits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_that_never_ends_is_a_century() {
        let event = Record::builder(Topic::from_static("a.b.c.v1")).json(&1);
        let available = |delay| event.clone().delay(delay).build().unwrap().available;
        assert_eq!(available(Duration::MAX), Availability::After(LONGEST_DELAY));
        assert_eq!(available(Duration::from_secs(3)), Availability::After(Duration::from_secs(3)));
    }
}
