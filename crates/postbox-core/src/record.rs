//! ① [`Record`]: the row of an event as it will be written, built and checked.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use crate::event::{
    AggregateKey, Availability, Event, EventError, EventId, Headers, Limits, Payload, RecordDefaults,
    TenantId,
};
use crate::json::{self, Json};
use crate::topic::Topic;

/// Anything that can become the row of an event: a typed [`Event`], a [`Record`], or its builder.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be enqueued: it is not an event",
    note = "derive it: `#[derive(postbox::Event, serde::Serialize)] #[event(topic = \"module.aggregate.event.v1\")]`",
    note = "or pass `Record::builder(topic).json(&value)`"
)]
pub trait IntoRecord {
    /// Makes the row, checked against the limits.
    ///
    /// # Errors
    /// When a limit is broken or the payload cannot be serialised.
    fn into_record(self, defaults: &RecordDefaults) -> Result<Record, EventError>;
}

impl<E: Event> IntoRecord for E {
    fn into_record(self, defaults: &RecordDefaults) -> Result<Record, EventError> {
        Record::of(&self).into_record(defaults)
    }
}

impl IntoRecord for Record {
    fn into_record(self, defaults: &RecordDefaults) -> Result<Record, EventError> {
        check(&self.0, &defaults.limits)?;
        Ok(self)
    }
}

impl IntoRecord for RecordBuilder {
    fn into_record(self, defaults: &RecordDefaults) -> Result<Record, EventError> {
        self.build_with(defaults)
    }
}

/// The row of an event as it will be written: immutable, checked, its payload serialised once.
#[derive(Debug, Clone)]
pub struct Record(Fields);

/// The fields of a [`Record`], for stores to read.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the contract's; each is explained at the builder's method")]
pub struct Fields {
    pub event_id: EventId,
    pub tenant_id: TenantId,
    pub topic: Topic,
    pub aggregate: Option<AggregateKey>,
    pub headers: Headers,
    pub payload: Payload,
    pub occurred_at: OffsetDateTime,
    pub schema_id: Option<String>,
    pub schema_version: i32,
    pub routing_key: Option<String>,
    pub metadata: Option<Json>,
    pub available: Availability,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}

impl Deref for Record {
    type Target = Fields;
    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl Record {
    pub(crate) fn into_fields(self) -> Fields {
        self.0
    }

    /// Starts a record for a topic; the payload comes next.
    pub fn builder(topic: Topic) -> RecordBuilder {
        RecordBuilder {
            event_id: None,
            tenant_id: None,
            payload: None,
            topic,
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

    /// Starts a record from a typed event, to add headers, a tenant or a delay to it.
    pub fn of<E: Event>(event: &E) -> RecordBuilder {
        let mut builder = Self::builder(E::TOPIC).json(event);
        builder.aggregate = event.aggregate();
        builder
    }
}

/// Builds a [`Record`]. Errors of single steps are reported by [`build`](Self::build).
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

    /// Not to be delivered before this long after the enqueue, by the database's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.available = Availability::After(delay);
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

    fn build_with(self, defaults: &RecordDefaults) -> Result<Record, EventError> {
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
        Ok(Record(fields))
    }
}

/// Longest text field besides payload and headers: far beyond any real id, short enough for every index.
const TEXT_LIMIT: usize = 1024;

fn check(fields: &Fields, limits: &Limits) -> Result<(), EventError> {
    let actual = fields.payload.len();
    if actual > limits.payload_bytes {
        return Err(EventError::TooLarge { limit: limits.payload_bytes, actual });
    }
    if let Payload::Json(json) = &fields.payload {
        json::check(json.as_str(), limits.json_depth, limits.payload_bytes).map_err(EventError::payload)?;
    }
    check_headers(&fields.headers, limits)?;
    if let Some(metadata) = &fields.metadata {
        let problem = |problem| EventError::Field { field: "metadata", problem };
        if metadata.as_str().len() > limits.payload_bytes {
            return Err(problem(format!(
                "it has {} bytes, the limit is {}",
                metadata.as_str().len(),
                limits.payload_bytes
            )));
        }
        json::check(metadata.as_str(), limits.json_depth, limits.payload_bytes)
            .map_err(|e| problem(e.to_string()))?;
    }
    let content_type = match &fields.payload {
        Payload::Bytes { content_type, .. } => Some(content_type),
        Payload::Json(_) => None,
    };
    let texts = [
        ("aggregate_type", fields.aggregate.as_ref().map(|a| &a.kind)),
        ("aggregate_id", fields.aggregate.as_ref().map(|a| &a.id)),
        ("schema_id", fields.schema_id.as_ref()),
        ("routing_key", fields.routing_key.as_ref()),
        ("traceparent", fields.traceparent.as_ref()),
        ("tracestate", fields.tracestate.as_ref()),
        ("content_type", content_type),
    ];
    for (field, text) in texts.into_iter().filter_map(|(field, text)| Some((field, text?))) {
        if text.len() > TEXT_LIMIT {
            let problem = format!("it has {} bytes, the limit is {TEXT_LIMIT}", text.len());
            return Err(EventError::Field { field, problem });
        }
        if text.chars().any(char::is_control) {
            return Err(EventError::Field { field, problem: "it holds a control character".into() });
        }
    }
    Ok(())
}

fn check_headers(headers: &Headers, limits: &Limits) -> Result<(), EventError> {
    let fail = |problem| Err(EventError::Headers { problem });
    if headers.len() > limits.headers {
        return fail(format!("there are {} headers, the limit is {}", headers.len(), limits.headers));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits.headers_bytes {
        return fail(format!("the headers have {bytes} bytes, the limit is {}", limits.headers_bytes));
    }
    if headers.keys().any(String::is_empty) {
        return fail("a header has an empty name".into());
    }
    if headers.iter().any(|(name, value)| name.chars().chain(value.chars()).any(char::is_control)) {
        return fail("a header holds a control character".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    const TOPIC: Topic = Topic::from_static("org.organization.created.v1");

    fn with_payload(text: &str) -> Result<Record, EventError> {
        Record::builder(TOPIC).raw_json(text).build()
    }

    #[test]
    fn ids_are_version_7_and_grow_within_a_process() {
        let ids: Vec<_> = (0..10_000).map(|_| EventId::new()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(ids[0].0.get_version_num(), 7);
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let record = with_payload("{}").unwrap();
        assert_eq!(record.tenant_id, TenantId::NIL);
        assert_eq!(record.schema_version, 1);
        assert_eq!(record.available, Availability::Now);
        assert!(record.headers.is_empty() && record.aggregate.is_none() && record.traceparent.is_none());
    }

    #[test]
    fn tenant_names_are_uuid_v5_and_travel_in_a_header() {
        let record = Record::builder(TOPIC).json(&1).tenant_name("acme").build().unwrap();
        assert_eq!(record.tenant_id, TenantId::from_name("acme"));
        assert_eq!(record.tenant_id.0.get_version_num(), 5);
        assert_eq!(record.headers["tenant"], "acme");
        assert_ne!(TenantId::from_name("acme"), TenantId::from_name("other"));
    }

    #[test]
    fn limits_name_the_limit_and_the_actual_value() {
        let mib = 1 << 20;
        assert!(with_payload(&format!("\"{}\"", "a".repeat(mib - 2))).is_ok());
        let error = with_payload(&format!("\"{}\"", "a".repeat(mib - 1))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "OUTBOX_PAYLOAD_TOO_LARGE: the payload has 1048577 bytes, the limit is 1048576"
        );
        let error = with_payload(r#"{"a":"\u0000"}"#).unwrap_err();
        assert_eq!(error.code(), Code::PayloadInvalid);
        assert!(with_payload("{nope").unwrap_err().to_string().contains("line 1"));
        let mut many = Record::builder(TOPIC).json(&1);
        for i in 0..65 {
            many = many.header(format!("h{i}"), "v");
        }
        assert_eq!(
            many.build().unwrap_err().to_string(),
            "OUTBOX_HEADERS_INVALID: there are 65 headers, the limit is 64"
        );
        let fat = Record::builder(TOPIC).json(&1).header("h", "v".repeat(8192)).build();
        assert_eq!(
            fat.unwrap_err().to_string(),
            "OUTBOX_HEADERS_INVALID: the headers have 8193 bytes, the limit is 8192"
        );
        let split = Record::builder(TOPIC).json(&1).header("h", "a\r\nx: y").build();
        assert_eq!(split.unwrap_err().code(), Code::HeadersInvalid);
        let field = Record::builder(TOPIC).json(&1).routing_key("a\0b").build();
        assert_eq!(field.unwrap_err().code(), Code::FieldInvalid);
        assert_eq!(Record::builder(TOPIC).build().unwrap_err().code(), Code::PayloadInvalid);
    }
}
