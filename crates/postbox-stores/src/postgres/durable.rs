//! [`Durable`]: up to when it is known that what was committed is on disk.
//!
//! A writer may leave its commit to a crash (`synchronous_commit = off`), and nothing is delivered that a crash can take back
//! (hazard 33). A commit that waits for the disk takes with it whatever was committed before. So what was seen before such a commit
//! began is safe once that has ended, and nobody needs to wait for the disk on its account again.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Durable(Mutex<Option<Instant>>);

impl Durable {
    /// A commit has waited for the disk; it had not begun before this time.
    pub(super) fn up_to(&self, begun: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = (*known).max(Some(begun));
    }

    /// Whether all that was seen by this time is on disk.
    pub(super) fn has(&self, seen: Instant) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) >= Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_what_was_seen_before_a_commit_began_is_known_to_be_there() {
        let durable = Durable::default();
        let start = Instant::now();
        assert!(!durable.has(start));
        let begun = start + Duration::from_millis(5);
        durable.up_to(begun);
        // One that began earlier may end later.
        durable.up_to(start);
        assert!(durable.has(begun));
        assert!(!durable.has(begun + Duration::from_nanos(1)));
    }
}
