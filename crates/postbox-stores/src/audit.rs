//! What the audit log says of a change, the same in every database.

use postbox_core::EventId;

/// Which events were asked for, without filling the log with ids.
pub(crate) fn described(events: &[EventId]) -> serde_json::Value {
    const SHOWN: usize = 100;
    let ids: Vec<&EventId> = events.iter().take(SHOWN).collect();
    match events {
        [only] => serde_json::json!({ "event_id": only }),
        _ => serde_json::json!({ "event_ids": ids, "more": events.len().saturating_sub(SHOWN) }),
    }
}
