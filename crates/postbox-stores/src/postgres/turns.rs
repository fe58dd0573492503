//! ④ Whose turn it is: where order is kept and much waits, strands are read in the order in which their events have waited.
//!
//! The rounds along the strands' numbers would do. But numbers are hashes, so that the rows of one batch lie everywhere in the table,
//! and to read and to settle them costs more than to do the same with neighbours. So a look at the rows that have waited longest
//! says which strands come next. It is a hint and nothing depends on it: of each strand the first rows are read, wherever they are,
//! and what no look has met is met by the next round.

use std::collections::VecDeque;
use std::time::Instant;

use postbox_core::StoreError;
use postbox_core::store::ClaimRequest;
use sqlx::{PgConnection, Row as _};

use super::claim::Position;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::moment::Micros;
use super::ordered::OrderedClaims;
use super::reading::Batch;
use super::store::{Inner, Opened};
use super::strands::{Long, Round};
use super::window::InFlight;
use crate::cursor::START;

/// A look is at the rows of so many batches: they lie near each other, and their strands have time to be settled before their next turn.
const BATCHES: usize = 20;

/// So many looks are had for one read: many rows of one strand may lie in front.
const LOOKS: usize = 4;

/// So many reads go along the numbers after a look, or a read, that found too little.
const BY_NUMBER: u32 = 20;

/// Where not even this share of the rows that a read asked for can go, what waits longest is blocked.
const FEW: usize = 4;

/// The strands that come next, with how many rows of them were seen.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next: VecDeque<(i64, usize)>,
    /// Reads along the numbers have found much that can go.
    much: bool,
    /// How many batches a read may bring besides one.
    more: usize,
    by_number: u32,
}

/// What a read asks for: strands in the order of their numbers, with how many rows of each are wanted, and how many were seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked(Vec<(i64, usize, usize)>);

impl Asked {
    pub(super) fn strands(&self) -> Vec<i64> {
        self.0.iter().map(|(strand, ..)| *strand).collect()
    }

    pub(super) fn rows(&self) -> Vec<i64> {
        self.0.iter().map(|(_, rows, _)| i64::try_from(*rows).unwrap_or(i64::MAX)).collect()
    }
}

impl Turns {
    /// How many rows are known.
    fn rows(&self) -> usize {
        self.next.iter().map(|(_, rows)| rows).sum()
    }

    /// How many of them are of strands that have nothing in flight.
    fn free(&self, in_flight: &InFlight) -> usize {
        self.next.iter().filter(|(strand, _)| !in_flight.contains_key(strand)).map(|(_, rows)| rows).sum()
    }

    /// Takes in the strands of rows that wait, in this order. Those that are in flight are among them if it was looked from the start on.
    fn add(&mut self, strands: Vec<i64>, in_flight: Option<&InFlight>, long: &mut Long) {
        let (most, mut rows) = (strands.len(), InFlight::default());
        for strand in &strands {
            *rows.entry(*strand).or_default() += 1;
        }
        for (strand, rows) in &mut rows {
            let taken = in_flight.and_then(|rows| rows.get(strand)).copied().unwrap_or(0);
            *rows = rows.saturating_sub(taken);
        }
        // One that has most of them has reads of its own.
        rows.retain(|strand, rows| *rows > 0 && !(*rows > most / 2 && long.note(*strand)));
        for (strand, known) in &mut self.next {
            let more = rows.remove(strand).unwrap_or(0);
            *known = if in_flight.is_some() { more.max(*known) } else { *known + more };
        }
        self.next.extend(strands.into_iter().filter_map(|strand| Some((strand, rows.remove(&strand)?))));
    }

    /// Takes the next strands that have nothing in flight, and as many rows of each as make a batch: of one a sixteenth of it, more if
    /// there are too few others.
    fn take(&mut self, batch: usize, in_flight: &InFlight) -> Option<Asked> {
        let share = usize::try_from(Round::longest_run(batch)).unwrap_or(batch);
        let limit = batch * (1 + self.more);
        let (mut asked, mut passed, mut wanted) = (Vec::new(), VecDeque::new(), 0);
        while wanted < limit {
            let Some((strand, rows)) = self.next.pop_front() else { break };
            if in_flight.contains_key(&strand) {
                passed.push_back((strand, rows));
                continue;
            }
            let run = rows.min(share).min(limit - wanted);
            wanted += run;
            asked.push((strand, run, rows));
        }
        // Those that were passed by are still the next ones.
        passed.append(&mut self.next);
        self.next = passed;
        for (_, run, rows) in &mut asked {
            let more = (*rows - *run).min(limit - wanted);
            (*run, wanted) = (*run + more, wanted + more);
        }
        asked.sort_unstable();
        (!asked.is_empty()).then_some(Asked(asked))
    }

    /// Takes in what was read of them: one that has more has another turn, one that has something which cannot go has none.
    pub(super) fn read(&mut self, asked: &Asked, batch: &Batch) {
        let mut taken = InFlight::default();
        for strand in batch.rows.iter().filter_map(|(_, spot)| spot.strand) {
            *taken.entry(strand).or_default() += 1;
        }
        for (strand, run, rows) in &asked.0 {
            let taken = taken.get(strand).copied().unwrap_or(0);
            if (taken == *run || batch.left_out) && *rows > taken {
                self.next.push_back((*strand, rows - taken));
            }
        }
        let wanted: usize = asked.0.iter().map(|(_, run, _)| run).sum();
        // Also if it was one row of one: whoever claims looks again at once, and would do so for ever.
        if batch.rows.len() * FEW < wanted && !batch.left_out {
            *self = Self { by_number: BY_NUMBER, more: self.more, ..Self::default() };
        }
    }

    /// Whether there are enough for several batches on their way, with a row of each.
    pub(super) fn are_many(&self, limit: usize) -> bool {
        self.next.len() >= limit
    }

    /// So many batches are read at once.
    pub(super) fn several(&mut self, batches: usize) {
        self.more = batches.saturating_sub(1);
    }

    /// What a read along the numbers found.
    pub(super) fn much_goes(&mut self, much: bool) {
        self.much = much;
    }

    /// What was taken is not handed over: the next look finds it again.
    pub(super) fn start_again(&mut self) {
        self.next.clear();
    }
}

impl Inner {
    /// The strands whose turn it is; none if little waits.
    pub(super) async fn whose_turn(
        &self,
        at: &mut Position,
        connection: &mut PgConnection,
        (opened, claims): (&Opened, &OrderedClaims),
        request: &ClaimRequest,
        in_flight: &InFlight,
    ) -> Result<Option<Asked>, StoreError> {
        // What is left out may be most of what waits.
        if !(request.exclude.is_empty() && request.spent.is_empty()) {
            return Ok(None);
        }
        if at.turns.much && at.turns.by_number == 0 {
            let (limit, enough) = (request.limit, request.limit * BATCHES / 2);
            for _ in 0..LOOKS {
                let free = at.turns.free(in_flight);
                // Small batches are better than to know more and more strands that are in flight.
                if free >= limit || (free > 0 && at.turns.rows() >= enough) {
                    break;
                }
                if !self.look_for_turns(at, connection, (opened, claims), limit, in_flight).await? {
                    break;
                }
            }
            if at.turns.free(in_flight) == 0 {
                at.turns.by_number = BY_NUMBER;
            }
        }
        at.turns.by_number = at.turns.by_number.saturating_sub(1);
        Ok(at.turns.take(request.limit, in_flight))
    }

    /// One look; answers whether there may be more behind it.
    async fn look_for_turns(
        &self,
        at: &mut Position,
        connection: &mut PgConnection,
        (opened, claims): (&Opened, &OrderedClaims),
        limit: usize,
        in_flight: &InFlight,
    ) -> Result<bool, StoreError> {
        let (asked, most) = (Instant::now(), limit * BATCHES);
        let ((from_at, from_sequence), from_start) = at.cursor.next(asked);
        let query = opened
            .query(&claims.own_turns)
            .bind(((from_at, from_sequence) != START).then_some(from_at))
            .bind(from_sequence)
            .bind(i64::try_from(most).unwrap_or(i64::MAX));
        let Some(row) = within(OPERATION_LIMIT, query.fetch_optional(connection)).await? else {
            at.cursor.read(from_start, asked, None, true);
            return Ok(false);
        };
        let read = || Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        let (last, sequence, strands): (Micros, i64, Vec<i64>) = read().map_err(classify)?;
        let short = strands.len() < most;
        at.cursor.read(from_start, asked, Some((last.time(), sequence)), short);
        at.turns.add(strands, from_start.then_some(in_flight), &mut at.round.long);
        Ok(!short)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::postgres::place::Place;
    use crate::postgres::window::Spot;

    fn flying(strands: &[i64]) -> InFlight {
        strands.iter().map(|strand| (*strand, 1)).collect()
    }

    fn known(turns: &Turns) -> Vec<(i64, usize)> {
        turns.next.iter().copied().collect()
    }

    fn batch(rows: &[(i64, usize)]) -> Batch {
        let spot = |strand| Spot { key: START, place: Place::default(), strand: Some(strand) };
        let rows = rows.iter().flat_map(|(strand, rows)| std::iter::repeat_n(spot(*strand), *rows));
        Batch { rows: rows.map(|spot| (Uuid::nil(), spot)).collect(), ..Batch::default() }
    }

    #[test]
    fn strands_come_in_the_order_in_which_they_wait() {
        let (mut turns, mut long) = (Turns::default(), Long::default());
        turns.add(vec![5, 3, 5, 4, 3, 5], None, &mut long);
        assert_eq!(known(&turns), [(5, 3), (3, 2), (4, 1)]);
        turns.add(vec![3, 9], None, &mut long);
        assert_eq!(
            known(&turns),
            [(5, 3), (3, 3), (4, 1), (9, 1)],
            "those that were known come first, and have more"
        );
        // From the start on, what is in flight is seen again.
        turns.add(vec![3, 7, 8, 8, 5], Some(&flying(&[7, 8])), &mut long);
        assert_eq!(known(&turns), [(5, 3), (3, 3), (4, 1), (9, 1), (8, 1)]);
        assert_eq!(turns.rows(), 9);
        assert_eq!(turns.free(&flying(&[5, 8])), 5);
    }

    #[test]
    fn one_that_has_most_of_what_waits_has_reads_of_its_own() {
        let (mut turns, mut long) = (Turns::default(), Long::default());
        turns.add(vec![1, 1, 2, 1], None, &mut long);
        assert_eq!(known(&turns), [(2, 1)]);
        assert_eq!(long.next(&InFlight::default()), Some(1));
    }

    #[test]
    fn a_batch_is_of_many_strands_and_longer_runs_of_few() {
        let (mut turns, mut long) = (Turns::default(), Long::default());
        turns.add((0..40).chain(0..40).collect(), None, &mut long);
        // A sixteenth of 20 is two.
        let asked = turns.take(20, &flying(&[1])).unwrap();
        assert_eq!(asked.strands(), [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(asked.rows(), [2; 10]);
        assert_eq!(known(&turns)[0], (1, 2), "what is in flight is still the next");
        let mut few = Turns { next: [(1, 50), (2, 50)].into(), ..Turns::default() };
        let asked = few.take(20, &InFlight::default()).unwrap();
        assert_eq!(asked.0, [(1, 18, 50), (2, 2, 50)]);
        assert_eq!(few.take(20, &InFlight::default()), None);
    }

    #[test]
    fn what_has_more_has_another_turn_and_what_cannot_go_has_none() {
        let mut turns = Turns { next: [(1, 50), (2, 50), (3, 4)].into(), ..Turns::default() };
        let asked = turns.take(32, &InFlight::default()).unwrap();
        assert_eq!(asked.0, [(1, 28, 50), (2, 2, 50), (3, 2, 4)]);
        turns.read(&asked, &batch(&[(1, 20), (2, 2), (3, 1)]));
        assert_eq!(known(&turns), [(2, 48)]);
        let asked = turns.take(32, &InFlight::default()).unwrap();
        turns.read(&asked, &Batch { left_out: true, ..batch(&[(2, 5)]) });
        assert_eq!(known(&turns), [(2, 43)], "what did not fit is read again");
    }

    #[test]
    fn where_what_waits_longest_is_blocked_it_goes_by_number() {
        let mut turns = Turns { next: [(1, 9), (2, 9), (3, 9)].into(), much: true, ..Turns::default() };
        let asked = turns.take(16, &InFlight::default()).unwrap();
        turns.read(&asked, &batch(&[(1, 3)]));
        assert_eq!((turns.rows(), turns.much, turns.by_number), (0, false, BY_NUMBER));
    }

    #[test]
    fn a_read_that_brings_nothing_is_the_last_by_time_however_little_it_asked_for() {
        for rows in 1..6 {
            let mut turns = Turns { next: [(1, rows)].into(), much: true, ..Turns::default() };
            let asked = turns.take(16, &InFlight::default()).unwrap();
            turns.read(&asked, &batch(&[]));
            assert!(!turns.much, "{rows}");
        }
    }
}
