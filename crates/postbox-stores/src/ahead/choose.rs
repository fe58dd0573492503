//! Which of the rows that are known a claim takes.

use std::collections::{HashSet, VecDeque};

use super::{Ahead, MOST_OF_ONE};
use crate::left_out::{Lane, LeftOut};
use crate::seen::Row;

/// How many of one strand are claimed at first, so that many strands share a batch and what runs at a time.
const SHORT_RUN: usize = 10;
/// How many, while others wait.
const LONG_RUN: usize = 50;

/// What a claim wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) now: i64,
    pub(crate) limit: usize,
    pub(crate) max_bytes: usize,
    pub(crate) max_attempts: i64,
    pub(crate) left_out: &'a LeftOut,
}

impl Ahead {
    /// Chooses rows to claim: a few of each strand first, then more of those that have more, then of the others.
    pub(crate) fn choose(&mut self, wanted: Wanted<'_>, chosen: &mut Vec<Row>) {
        let mut bytes: usize = chosen.iter().map(|row| row.bytes).sum();
        for share in [wanted.limit / 2, wanted.limit] {
            let mut taken = Vec::new();
            while chosen.len() < share && (chosen.is_empty() || bytes < wanted.max_bytes) {
                let Some(number) = self.ready.pop_front() else { break };
                if self.take(number, SHORT_RUN, wanted, chosen, &mut bytes) > 0 {
                    taken.push(number);
                }
            }
            for most in [LONG_RUN, wanted.limit] {
                // Longer runs only for those that were begun now; what is alone may have all.
                if most == LONG_RUN || self.ready.is_empty() {
                    for number in &taken {
                        self.take(*number, most, wanted, chosen, &mut bytes);
                    }
                }
            }
        }
    }

    /// Takes rows of a strand until it has so many claimed; answers how many, unless no more can be taken of it.
    fn take(
        &mut self,
        number: i64,
        most: usize,
        wanted: Wanted<'_>,
        chosen: &mut Vec<Row>,
        bytes: &mut usize,
    ) -> usize {
        let Some(strand) = self.strands.get_mut(&number) else { return 0 };
        strand.queued = false;
        let mut taken = 0;
        while let Some(row) = strand.rows.front().copied() {
            let full = chosen.len() >= wanted.limit || (!chosen.is_empty() && *bytes >= wanted.max_bytes);
            let tired = row.attempts >= wanted.max_attempts;
            if strand.claimed >= most || full || row.expired || row.available_at > wanted.now {
                break;
            }
            // One that has used up its attempts dies; what is behind it depends on that.
            if wanted.left_out.holds(row.lane, &self.confirmed) || (tired && strand.claimed > 0) {
                break;
            }
            strand.rows.pop_front();
            strand.claim(&row);
            taken += 1;
            *bytes = bytes.saturating_add(row.bytes);
            self.rows -= 1;
            self.claimed.insert(row.sequence, row);
            chosen.push(row);
            if tired {
                return 0;
            }
        }
        if strand.claimed == 0 {
            match strand.rows.front() {
                Some(row)
                    if row.available_at <= wanted.now && wanted.left_out.holds(row.lane, &self.confirmed) =>
                {
                    strand.queued = true;
                    self.parked.entry(row.lane).or_default().push_back(number);
                }
                _ => self.queue(number, wanted.now),
            }
        }
        taken
    }

    /// One that a relay left behind when it died, if it is not left out.
    pub(crate) fn choose_suspect(&mut self, left_out: &LeftOut) -> Option<Row> {
        for _ in 0..self.suspects.len() {
            let number = self.suspects.pop_front()?;
            let Some(strand) = self.strands.get_mut(&number) else { continue };
            let Some(row) = strand.rows.front().copied() else { continue };
            if left_out.holds(row.lane, &self.confirmed) {
                self.suspects.push_back(number);
                continue;
            }
            return Some(self.take_first(number, row));
        }
        None
    }

    /// One of these topics that can be claimed now, to find out whether their sink is back.
    pub(crate) fn choose_probe(&mut self, topics: &HashSet<u64>, wanted: Wanted<'_>) -> Option<Row> {
        let now = wanted.now;
        // Where the topic is left out, since its sinks are down: that is what is asked about.
        let asks = |ahead: &Self, lane: Lane| {
            topics.contains(&lane.topic) && !wanted.left_out.is_spent(lane, &ahead.confirmed)
        };
        let first = |ahead: &Self, number: &i64| {
            let row = ahead.strands.get(number)?.rows.front()?;
            (asks(ahead, row.lane) && row.available_at <= now && !row.expired).then_some(*row)
        };
        let lanes: Vec<Lane> = self.parked.keys().filter(|lane| asks(self, **lane)).copied().collect();
        for lane in lanes {
            while let Some(number) = self.parked.get_mut(&lane).and_then(VecDeque::pop_front) {
                if let Some(row) = first(self, &number) {
                    return Some(self.take_first(number, row));
                }
                self.requeue(number, now);
            }
        }
        let place = self.ready.iter().take(MOST_OF_ONE).position(|number| first(self, number).is_some())?;
        let number = self.ready.remove(place)?;
        let row = first(self, &number)?;
        Some(self.take_first(number, row))
    }

    fn take_first(&mut self, number: i64, row: Row) -> Row {
        if let Some(strand) = self.strands.get_mut(&number) {
            strand.rows.pop_front();
            strand.claim(&row);
            strand.queued = false;
            self.rows -= 1;
            self.claimed.insert(row.sequence, row);
        }
        row
    }
}
