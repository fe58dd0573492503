//! What a claim leaves out where rows are chosen from what is known of them: topics whose sinks are down or busy, and rows of
//! a route to several sinks that only such sinks lack.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// The topic of a row, and which sinks have confirmed it already: what decides whether it is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    /// A number for the topic.
    pub(crate) topic: u64,
    pub(crate) done: Done,
}

/// A set of sinks, by its place in [`Confirmed`]; 0 is the empty one, that of nearly all rows.
pub(crate) type Done = usize;

/// The sets of sinks that have confirmed some row, each once. There are few: most rows go to all of their sinks at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Confirmed(Vec<BTreeSet<Arc<str>>>);

impl Confirmed {
    /// These together with those that were known of.
    pub(crate) fn with(&mut self, done: Done, more: &[Arc<str>]) -> Done {
        if more.is_empty() {
            return done;
        }
        let mut set = self.get(done).cloned().unwrap_or_default();
        set.extend(more.iter().cloned());
        let place = self.0.iter().position(|known| *known == set).unwrap_or_else(|| {
            self.0.push(set);
            self.0.len() - 1
        });
        place + 1
    }

    fn get(&self, done: Done) -> Option<&BTreeSet<Arc<str>>> {
        self.0.get(done.checked_sub(1)?)
    }
}

/// What one claim leaves out.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// All rows of these topics.
    pub(crate) topics: HashSet<u64>,
    /// Rows of a topic that these sinks have confirmed: whoever remains is down or busy.
    pub(crate) spent: Vec<(u64, Vec<Arc<str>>)>,
}

impl LeftOut {
    /// Whether rows of a lane are left out.
    pub(crate) fn holds(&self, lane: Lane, confirmed: &Confirmed) -> bool {
        self.topics.contains(&lane.topic) || self.is_spent(lane, confirmed)
    }

    /// Whether all that remain for rows of a lane are down or busy, whatever the topic.
    pub(crate) fn is_spent(&self, lane: Lane, confirmed: &Confirmed) -> bool {
        let Some(done) = confirmed.get(lane.done) else { return false };
        self.spent
            .iter()
            .any(|(topic, sinks)| *topic == lane.topic && sinks.iter().all(|sink| done.contains(sink)))
    }
}
