//! The message that the relay makes of an event of these benchmarks, by hand.

use uuid::Uuid;

use crate::drain::TOPIC;

const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// What any client is given to send.
pub(super) struct Message {
    /// Also its key.
    pub(super) event_id: String,
    pub(super) payload: Vec<u8>,
    sequence: String,
}

impl Message {
    pub(super) fn new(number: usize) -> Self {
        let event_id = Uuid::new_v4();
        let text = event_id.simple().to_string().repeat(8);
        Self {
            event_id: event_id.to_string(),
            payload: format!("{{\"n\": {number}, \"text\": \"{text}\"}}").into_bytes(),
            sequence: number.to_string(),
        }
    }

    /// As the relay has them, in their order.
    pub(super) fn headers(&self) -> [(&'static str, &str); 8] {
        [
            ("event_id", &self.event_id),
            ("tenant_id", NOBODY),
            ("topic", TOPIC),
            ("sequence", &self.sequence),
            ("attempts", "1"),
            ("occurred_at", "2026-01-01T00:00:00.000000Z"),
            ("schema_version", "1"),
            ("content_type", "application/json"),
        ]
    }
}
