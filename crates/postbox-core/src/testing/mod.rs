//! Helpers for tests of dispatchers and handlers.

use std::sync::Arc;

use time::OffsetDateTime;

use crate::dispatcher::{Delivery, Meta};
use crate::event::{EventId, Headers, Payload, TenantId};
use crate::json::Json;
use crate::topic::Topic;

/// A delivery of this topic and JSON payload, as a relay would hand it over at the first attempt.
///
/// # Panics
/// When the topic or the JSON is malformed.
#[allow(clippy::expect_used, reason = "a test helper fails by panicking")]
pub fn delivery(topic: &str, json: &str) -> Delivery {
    let now = OffsetDateTime::now_utc();
    let meta = Meta {
        table: Arc::from("test_outbox"),
        event_id: EventId::new(),
        tenant_id: TenantId::NIL,
        topic: Topic::lenient(topic).expect("a topic"),
        sequence: 1,
        attempts: 1,
        aggregate: None,
        headers: Headers::new(),
        occurred_at: now,
        created_at: now,
        schema_id: None,
        schema_version: 1,
        routing_key: None,
        metadata: None,
        traceparent: None,
        tracestate: None,
    };
    Delivery { meta, payload: Payload::Json(Json::from_text(json).expect("JSON")) }
}
