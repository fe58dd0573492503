//! [`Tracker`]: which events this process is dispatching, so that none is handled twice at once.
//!
//! A lease can end while its event is still being dispatched: the process was stopped for a while, the database was away.
//! Then the row is claimed again, often by the same process.

use std::collections::hash_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::EventId;
use crate::hash::RowMap;

#[derive(Debug)]
pub(super) struct Tracker {
    /// Since when, and how often at once: an event may go to several sinks.
    running: RowMap<EventId, (Instant, usize)>,
    /// A dispatch that is not over by then never says so.
    ttl: Duration,
}

impl Tracker {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { running: RowMap::default(), ttl }
    }

    /// A dispatch begins.
    pub(super) fn start(&mut self, event: EventId, now: Instant) {
        let ttl = self.ttl;
        let entry = self.running.entry(event).or_insert((now, 0));
        // What never said that it is over is not counted for ever.
        let known = if now.duration_since(entry.0) < ttl { entry.1 } else { 0 };
        *entry = (now, known + 1);
    }

    /// A dispatch is over.
    pub(super) fn end(&mut self, event: EventId) {
        if let Entry::Occupied(mut entry) = self.running.entry(event) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }

    /// Whether it is being dispatched.
    pub(super) fn is_running(&self, event: EventId, now: Instant) -> bool {
        self.running.get(&event).is_some_and(|(since, _)| now.duration_since(*since) < self.ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_event_is_known_while_it_runs_and_not_for_ever() {
        let (event, now) = (EventId(uuid::Uuid::from_u128(1)), Instant::now());
        let mut tracker = Tracker::new(Duration::from_mins(1));
        assert!(!tracker.is_running(event, now));
        tracker.start(event, now);
        assert!(tracker.is_running(event, now + Duration::from_secs(59)));
        assert!(!tracker.is_running(event, now + Duration::from_mins(1)));
        tracker.end(event);
        assert!(!tracker.is_running(event, now));
        // To two sinks at once: it runs until both have answered.
        tracker.start(event, now);
        tracker.start(event, now);
        tracker.end(event);
        assert!(tracker.is_running(event, now));
        tracker.end(event);
        tracker.end(event);
        assert!(!tracker.is_running(event, now));
    }
}
