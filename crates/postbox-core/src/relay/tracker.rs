//! [`Tracker`]: which events this process is dispatching, so that none is handled twice at once.
//!
//! A lease can end while its event is still being dispatched: the process was stopped for a while, the database was away.
//! Then the row is claimed again, often by the same process.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::EventId;

#[derive(Debug)]
pub(super) struct Tracker {
    running: HashMap<EventId, Instant>,
    /// A dispatch that is not over by then never says so.
    ttl: Duration,
}

impl Tracker {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { running: HashMap::new(), ttl }
    }

    /// A dispatch begins.
    pub(super) fn start(&mut self, event: EventId, now: Instant) {
        self.running.insert(event, now);
    }

    /// A dispatch is over.
    pub(super) fn end(&mut self, event: EventId) {
        self.running.remove(&event);
    }

    /// Whether it is being dispatched.
    pub(super) fn is_running(&self, event: EventId, now: Instant) -> bool {
        self.running.get(&event).is_some_and(|since| now.duration_since(*since) < self.ttl)
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
    }
}
