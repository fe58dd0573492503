//! What the audit log says of a change, the same in every database.

use postbox_core::{EventId, InboxFilter, Published};

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

/// Which published events were asked for, likewise.
pub(crate) fn published(which: &Published) -> serde_json::Value {
    match which {
        Published::Events { event_ids } => described(event_ids),
        Published::Between { .. } => serde_json::json!({ "published": which }),
    }
}

/// Which messages were forgotten, likewise.
pub(crate) fn forgotten(inbox: &str, filter: &InboxFilter) -> serde_json::Value {
    let mut shown = filter.clone();
    shown.message_ids.truncate(SHOWN);
    let more = filter.message_ids.len() - shown.message_ids.len();
    serde_json::json!({ "inbox": inbox, "filter": shown, "more": more })
}

/// What an entry says, where the database does not know that it is JSON: what somebody else wrote there becomes a text.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) fn as_json(text: String) -> postbox_core::Json {
    postbox_core::Json::from_text(text.clone())
        .unwrap_or_else(|_| postbox_core::Json::trusted(serde_json::Value::String(text).to_string()))
}
