//! Pages and statuses of events, whatever the database.

use std::collections::HashSet;

use postbox_core::{EventId, EventStatus, EventSummary, Page};

/// The page of a list that was asked for one event more than it shows.
pub(crate) fn page(mut events: Vec<EventSummary>, limit: u32, bounded: bool) -> Page {
    let limit = limit as usize;
    let more = events.len() > limit;
    events.truncate(limit);
    let next = events.last().filter(|_| more).map(|event| event.sequence);
    Page { events, next, bounded }
}

/// Those of the events that were not found yet.
pub(crate) fn others(events: &[EventId], found: &[(EventId, EventStatus)]) -> Vec<EventId> {
    let known: HashSet<EventId> = found.iter().map(|(event, _)| *event).collect();
    events.iter().filter(|event| !known.contains(event)).copied().collect()
}
