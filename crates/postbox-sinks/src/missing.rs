//! [`Missing`]: for how long topics have not been there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An event's own attempts say nothing about its topic: they may all have been spent on something else. So a topic counts as one that
/// nobody makes only after so long and so many looks, while no event arrives there. Brokers that have just started do not know all their
/// topics yet, and somebody may be making it.
const LONG: Duration = Duration::from_secs(10);
const LOOKS: u32 = 3;

/// Looks within this time are one: the events of a batch are told the same.
const APART: Duration = Duration::from_secs(1);

/// After so long without a look nobody knows what has happened meanwhile.
const STALE: Duration = Duration::from_mins(10);

/// So many are remembered: destinations may be made of what events have in them.
const MOST: usize = 1000;

/// The topics that a sink has looked for in vain.
#[derive(Debug, Default)]
pub(crate) struct Missing(Mutex<HashMap<String, Search>>);

#[derive(Debug)]
struct Search {
    since: Instant,
    last: Instant,
    looks: u32,
}

impl Missing {
    /// Notes that a topic is not there; answers whether that has lasted.
    pub(crate) fn look(&self, topic: &str) -> bool {
        self.look_at(topic, Instant::now())
    }

    fn look_at(&self, topic: &str, now: Instant) -> bool {
        let mut searches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(search) = searches.get_mut(topic)
            && now.saturating_duration_since(search.last) < STALE
        {
            if now.saturating_duration_since(search.last) >= APART {
                search.last = now;
                search.looks = search.looks.saturating_add(1);
            }
            return search.looks >= LOOKS && now.saturating_duration_since(search.since) >= LONG;
        }
        if searches.len() >= MOST
            && let Some(oldest) = searches.iter().min_by_key(|(_, search)| search.last)
        {
            let oldest = oldest.0.clone();
            searches.remove(&oldest);
        }
        searches.insert(topic.to_owned(), Search { since: now, last: now, looks: 1 });
        false
    }

    /// Something has arrived there.
    pub(crate) fn found(&self, topic: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_missing_after_a_while_and_several_looks() {
        let (missing, start) = (Missing::default(), Instant::now());
        let look = |topic: &str, seconds: u64| missing.look_at(topic, start + Duration::from_secs(seconds));
        for seconds in [0, 0, 0, 0, 5, 9] {
            assert!(!look("a", seconds), "after {seconds} s");
        }
        assert!(look("a", 10));
        assert!(!look("b", 10), "each has a time of its own");
        assert!(!look("b", 20), "it was looked for twice");
        assert!(look("b", 30));
        missing.found("a");
        assert!(!look("a", 31), "it was there in between");
        assert!(!look("b", 30 + STALE.as_secs()), "nobody has looked for so long");
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (missing, start) = (Missing::default(), Instant::now());
        for number in 0..2 * u64::try_from(MOST).unwrap() {
            missing.look_at(&number.to_string(), start + Duration::from_millis(number));
        }
        let searches = missing.0.lock().unwrap();
        assert_eq!(searches.len(), MOST);
        assert!(searches.contains_key(&(2 * MOST - 1).to_string()) && !searches.contains_key("0"));
    }
}
