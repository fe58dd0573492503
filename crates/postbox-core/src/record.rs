//! ① [`Record`]: the row of an event as it will be written, built and checked.

mod builder;
mod check;

use std::ops::Deref;

use time::OffsetDateTime;

use crate::event::{
    AggregateKey, Availability, Event, EventError, EventId, Headers, Limits, Payload, RecordDefaults,
    TenantId,
};
use crate::json::Json;
use crate::topic::Topic;

pub use builder::RecordBuilder;

/// Anything that can become the row of an event: a typed [`Event`], an enum of them, a [`Record`], or its builder.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be enqueued: it is not an event",
    note = "derive it: `#[derive(postbox::Event, serde::Serialize)] #[event(topic = \"module.aggregate.event.v1\")]`",
    note = "or pass `Record::builder(topic).json(&value)`"
)]
pub trait IntoRecord: Sized {
    /// Starts the row, so that headers, a tenant or a delay can be added.
    fn into_builder(self) -> RecordBuilder;

    /// Makes the row, checked against the limits.
    ///
    /// # Errors
    /// When a limit is broken or the payload cannot be serialised.
    fn into_record(self, defaults: &RecordDefaults) -> Result<Record, EventError> {
        self.into_builder().build_with(defaults)
    }
}

impl<E: Event> IntoRecord for E {
    fn into_builder(self) -> RecordBuilder {
        Record::of(&self)
    }
}

impl IntoRecord for Record {
    fn into_builder(self) -> RecordBuilder {
        self.rebuild()
    }

    fn into_record(self, defaults: &RecordDefaults) -> Result<Record, EventError> {
        self.checked(&defaults.limits)
    }
}

impl IntoRecord for RecordBuilder {
    fn into_builder(self) -> RecordBuilder {
        self
    }
}

/// The row of an event as it will be written: immutable, checked, its payload serialised once.
#[derive(Debug, Clone)]
pub struct Record {
    fields: Fields,
    /// What it was checked against: nothing is walked over twice for the same limits.
    limits: Limits,
}

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
        &self.fields
    }
}

impl Record {
    pub(crate) fn into_fields(self) -> Fields {
        self.fields
    }

    /// Starts a record for a topic; the payload comes next.
    pub fn builder(topic: Topic) -> RecordBuilder {
        RecordBuilder::new(topic)
    }

    /// Starts a record from a typed event, to add headers, a tenant or a delay to it.
    pub fn of<E: Event>(event: &E) -> RecordBuilder {
        RecordBuilder::new(E::TOPIC).json(event).aggregate_key(event.aggregate())
    }

    /// Starts again from this record, to make a changed one: everything stays as it is, the `event_id` too, until it is
    /// set anew.
    ///
    /// ```
    /// # use postbox_core::{Record, Topic};
    /// let record = Record::builder(Topic::from_static("org.thing.moved.v1")).json(&1).build()?;
    /// let signed = record.clone().rebuild().header("signature", "…").build()?;
    /// assert_eq!(signed.event_id, record.event_id);
    /// # Ok::<(), postbox_core::EventError>(())
    /// ```
    pub fn rebuild(self) -> RecordBuilder {
        RecordBuilder::from_fields(self.fields)
    }

    /// The same, known to keep these limits.
    pub(crate) fn checked(mut self, limits: &Limits) -> Result<Self, EventError> {
        if self.limits != *limits {
            check::check(&self.fields, limits)?;
            self.limits = *limits;
        }
        Ok(self)
    }
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
    fn a_record_that_is_rebuilt_keeps_everything_that_is_not_set_anew() {
        let record = Record::builder(TOPIC)
            .json(&1)
            .tenant_name("acme")
            .aggregate("thing", 7)
            .schema("s", 2)
            .routing_key("k")
            .metadata(&2)
            .delay(std::time::Duration::from_secs(3))
            .trace("00-1-2-01", Some("a=b".into()))
            .build()
            .unwrap();
        let again = record.clone().rebuild().header("x", "y").build().unwrap();
        assert_eq!(again.headers.len(), 2);
        let without = again.rebuild().headers(record.headers.clone()).build().unwrap();
        assert_eq!(format!("{without:?}"), format!("{record:?}"));
    }

    #[test]
    fn other_limits_are_checked_again() {
        let record = with_payload("[[1]]").unwrap();
        let flat =
            RecordDefaults { limits: Limits { json_depth: 1, ..Limits::default() }, ..Default::default() };
        assert!(record.clone().into_record(&RecordDefaults::default()).is_ok());
        assert!(record.into_record(&flat).is_err());
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
