//! [`Ranges`]: many numbers, most of them neighbours.

use std::collections::BTreeMap;

/// Each range from its first number to before its end.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<i64, i64>);

impl Ranges {
    /// From bounds: the first number of each range, then its end.
    pub(crate) fn of(bounds: &[i64]) -> Self {
        Self(bounds.as_chunks::<2>().0.iter().map(|[first, end]| (*first, *end)).collect())
    }

    pub(crate) fn has(&self, number: i64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    pub(crate) fn extend(&mut self, mut numbers: Vec<i64>) {
        numbers.sort_unstable();
        for run in numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            self.add(run[0], run[run.len() - 1].saturating_add(1));
        }
    }

    /// Takes in a range, with those that it touches.
    fn add(&mut self, mut first: i64, mut end: i64) {
        while let Some((&other, &others_end)) = self.0.range(..=end).next_back().filter(|(_, e)| **e >= first)
        {
            self.0.remove(&other);
            (first, end) = (first.min(other), end.max(others_end));
        }
        self.0.insert(first, end);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_become_one_range() {
        let mut ranges = Ranges::of(&[1, 3, 7, 8]);
        ranges.extend(vec![4, 3, 5]);
        assert_eq!(ranges.0, BTreeMap::from([(1, 6), (7, 8)]));
        ranges.extend(vec![6]);
        assert_eq!(ranges.0, BTreeMap::from([(1, 8)]));
        assert!(ranges.has(1) && ranges.has(7) && !ranges.has(0) && !ranges.has(8));
    }

    proptest! {
        #[test]
        fn has_what_was_put_in_and_nothing_else(batches in prop::collection::vec(prop::collection::vec(-30_i64..30, 0..8), 0..8)) {
            let (mut ranges, mut all) = (Ranges::default(), HashSet::new());
            for batch in batches {
                all.extend(batch.iter().copied());
                ranges.extend(batch);
            }
            for number in -40..40 {
                prop_assert_eq!(ranges.has(number), all.contains(&number));
            }
            // Nothing is said twice, and nothing that touches is apart.
            let mut ends = ranges.0.iter().zip(ranges.0.iter().skip(1));
            prop_assert!(ends.all(|((_, end), (next, _))| end < next));
        }
    }
}
