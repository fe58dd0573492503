//! [`Keys`]: the places of the rows that are in flight, in order.

use time::OffsetDateTime;

use crate::cursor::Key;

/// Rows come and go by batches that are mostly in order themselves. So they are noted as they come, and put in order when somebody
/// looks: that costs little more than to read them once, and is asked for once or twice for a batch.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// By sequence, unless some have come since the last look; with those that are gone since then.
    all: Vec<(i64, OffsetDateTime)>,
    /// Each of them is among all.
    gone: Vec<(i64, OffsetDateTime)>,
    changed: bool,
}

impl Keys {
    pub(crate) fn add(&mut self, (at, sequence): Key) {
        self.all.push((sequence, at));
        self.changed = true;
    }

    /// Takes out one that was added.
    pub(crate) fn remove(&mut self, (at, sequence): Key) {
        self.gone.push((sequence, at));
        self.changed = true;
        // Not kept for a look that may be long in coming.
        if self.gone.len() == self.all.len() {
            self.all.clear();
            self.gone.clear();
        }
    }

    /// The bounds of their sequences: neighbours share a range, so that it is short for a window without holes, and exact for any.
    pub(crate) fn bounds(&mut self) -> Vec<i64> {
        let runs = self.in_order().chunk_by(|(a, _), (b, _)| a.checked_add(1) == Some(*b));
        runs.flat_map(|run| [run[0].0, run[run.len() - 1].0.saturating_add(1)]).collect()
    }

    /// The first and the last of the times since when they are due.
    pub(crate) fn span(&mut self) -> Option<(OffsetDateTime, OffsetDateTime)> {
        let mut times = self.in_order().iter().map(|(_, at)| *at);
        let first = times.next()?;
        Some(times.fold((first, first), |(from, to), at| (from.min(at), to.max(at))))
    }

    /// Whether some lie behind this place in the order of reading.
    pub(crate) fn go_beyond(&mut self, key: Key) -> bool {
        self.in_order().iter().any(|(sequence, at)| (*at, *sequence) > key)
    }

    fn in_order(&mut self) -> &[(i64, OffsetDateTime)] {
        if std::mem::take(&mut self.changed) {
            // Not the unstable sort: this one finds what is in order already.
            self.all.sort();
            self.gone.sort();
            let mut gone = self.gone.drain(..).peekable();
            self.all.retain(|key| gone.next_if_eq(key).is_none());
        }
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::Duration;

    use super::*;
    use crate::cursor::START;

    fn key((at, sequence): (i64, i64)) -> Key {
        (START.0 + Duration::seconds(at), sequence)
    }

    #[test]
    fn neighbours_share_a_range() {
        let mut keys = Keys::default();
        assert_eq!((keys.bounds(), keys.span()), (vec![], None));
        for one in [(9, 4), (1, 7), (2, 3), (3, i64::MAX), (4, 5)] {
            keys.add(key(one));
        }
        assert_eq!(keys.bounds(), [3, 6, 7, 8, i64::MAX, i64::MAX]);
        assert_eq!(keys.span(), Some((key((1, 0)).0, key((9, 0)).0)));
        keys.remove(key((9, 4)));
        assert_eq!(keys.bounds(), [3, 4, 5, 6, 7, 8, i64::MAX, i64::MAX]);
        assert!(keys.go_beyond(key((4, 4))) && !keys.go_beyond(key((4, 5))));
    }

    proptest! {
        /// Whenever somebody looks, also at rows that share a sequence, or all.
        #[test]
        fn has_what_came_and_did_not_go(steps in prop::collection::vec((any::<bool>(), 0_i64..4, 0_i64..9, any::<bool>()), 0..60)) {
            let (mut keys, mut all) = (Keys::default(), Vec::new());
            for (comes, at, sequence, look) in steps {
                let key = key((at, sequence));
                match all.iter().position(|other| *other == key) {
                    Some(place) if !comes => {
                        all.swap_remove(place);
                        keys.remove(key);
                    }
                    _ => {
                        all.push(key);
                        keys.add(key);
                    }
                }
                if look {
                    let mut sorted: Vec<_> = all.iter().map(|(at, sequence)| (*sequence, *at)).collect();
                    sorted.sort_unstable();
                    prop_assert_eq!(keys.in_order(), sorted);
                    prop_assert_eq!(keys.go_beyond(key), all.iter().any(|other| *other > key));
                    let times = || all.iter().map(|(at, _)| *at);
                    prop_assert_eq!(keys.span(), times().min().zip(times().max()));
                }
            }
        }
    }
}
