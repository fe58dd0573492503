//! What the audit log says of a change, the same in every database.

use postbox_core::{EventId, InboxFilter};

/// So many ids are named.
const SHOWN: usize = 100;

/// Which events were asked for, without filling the log with ids.
pub(crate) fn described(events: &[EventId]) -> serde_json::Value {
    let ids: Vec<&EventId> = events.iter().take(SHOWN).collect();
    match events {
        [only] => serde_json::json!({ "event_id": only }),
        _ => serde_json::json!({ "event_ids": ids, "more": events.len().saturating_sub(SHOWN) }),
    }
}

/// Which messages were forgotten, likewise.
pub(crate) fn forgotten(inbox: &str, filter: &InboxFilter) -> serde_json::Value {
    let mut shown = filter.clone();
    shown.message_ids.truncate(SHOWN);
    let more = filter.message_ids.len() - shown.message_ids.len();
    serde_json::json!({ "inbox": inbox, "filter": shown, "more": more })
}
