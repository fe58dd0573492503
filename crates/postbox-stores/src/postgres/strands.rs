//! Where a relay that keeps order looks next, and what it has in flight.
//!
//! Claims in order go along the strands, by number, and look at the head of each: the first event that is neither published nor
//! dead. The place is a hint, the rows' state is the truth. Whatever commits is met when its strand has its turn again, at its
//! place in the strand: no cursor by `sequence` could pass it by.

use std::time::Duration;

use super::window::InFlight;

/// The number of the first strand there can be.
pub(super) const FIRST_STRAND: i64 = i64::MIN;

/// So many heads are looked at by one claim: ten thousand aggregates that wait for something cost the others some claims of a
/// few milliseconds, not one that nobody sees the end of.
pub(super) const HEADS_LOOKED_AT: i64 = 2000;

/// So many strands share a claim at least, where there are so many: few long runs would leave dispatchers idle, since the events
/// of one strand go one by one.
pub(super) const FEWEST: usize = 16;

/// So many strands have claims of their own. Where more of them are long, all take turns from head to head.
const FEW_LONG: usize = 2;

/// So many claims look at heads after one for which that would have been better.
const BY_HEADS: u32 = 20;

/// For so long a relay looks in vain before it waits for its next tick: a table that is all blocked must not cost a core.
const IN_VAIN: Duration = Duration::from_millis(200);

/// A relay's way along the strands.
#[derive(Debug)]
pub(super) struct Round {
    /// The next strand, or the first one after it.
    next: i64,
    /// Whether this round began at the first strand.
    whole: bool,
    /// Whether this round has found something.
    fruitful: bool,
    in_vain: Duration,
    /// Whether it has gone out of another's way without finding anything since.
    jumped: bool,
    /// How many events a strand had to offer, of late.
    run: f64,
    /// So many claims look at heads, until all rows are read in a row again.
    by_heads: u32,
    pub(super) long: Long,
    /// The strand of an event whose lease ran out.
    pub(super) suspect: Option<i64>,
    /// Where the next probe looks.
    pub(super) probe: i64,
}

/// Strands that are far longer than the others.
#[derive(Debug, Default)]
pub(super) struct Long {
    strands: Vec<i64>,
    /// Whether the last claim was theirs.
    had_turn: bool,
}

impl Long {
    pub(super) fn is_empty(&self) -> bool {
        self.strands.is_empty()
    }

    /// One of them of which nothing is in flight, unless the last claim was theirs. A turn that finds all of them in flight is
    /// not lost: the next claim may find one that is free.
    pub(super) fn next(&mut self, in_flight: &InFlight) -> Option<i64> {
        let others = std::mem::take(&mut self.had_turn);
        let free = self.strands.iter().copied().find(|strand| !others && !in_flight.contains_key(strand));
        self.had_turn = free.is_some();
        free
    }

    /// One has more than its share; answers whether it is one of few.
    pub(super) fn note(&mut self, strand: i64) -> bool {
        if self.strands.len() < FEW_LONG && !self.strands.contains(&strand) {
            self.strands.push(strand);
        }
        self.strands.contains(&strand)
    }

    /// One was read, and had less than was asked for.
    pub(super) fn no_longer(&mut self, strand: i64) {
        self.strands.retain(|long| *long != strand);
    }
}

/// What one claim of waiting events saw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Where it began.
    pub(super) from: i64,
    /// The last strand that it is done with; none if there was none.
    pub(super) last: Option<i64>,
    /// Whether it stopped before the last strand: it had enough, or had looked at enough.
    pub(super) stopped: bool,
    /// Events, and the strands that they are from.
    pub(super) events: usize,
    pub(super) strands: usize,
    pub(super) took: Duration,
}

impl Round {
    /// A round from the first strand on.
    pub(super) fn new() -> Self {
        Self {
            next: FIRST_STRAND,
            whole: true,
            fruitful: false,
            in_vain: Duration::ZERO,
            jumped: false,
            run: 1.0,
            by_heads: 0,
            long: Long::default(),
            suspect: None,
            probe: FIRST_STRAND,
        }
    }

    /// Where the next claim begins.
    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// What was read from this strand on is not handed over.
    pub(super) fn back_to(&mut self, strand: i64) {
        (self.next, self.whole) = (strand, self.whole && strand == FIRST_STRAND);
    }

    /// Whether the next claim reads all rows of one strand after the other.
    pub(super) fn reads_all(&mut self) -> bool {
        self.by_heads = self.by_heads.saturating_sub(1);
        self.by_heads == 0
    }

    /// That was in vain for the most part, or brought few strands: some claims look at heads.
    pub(super) fn look_at_heads(&mut self) {
        self.by_heads = BY_HEADS;
    }

    /// How many heads are enough for a claim of so many events.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a guess, and small"
    )]
    pub(super) fn heads(&self, limit: usize) -> i64 {
        let guess = (limit as f64 / self.run * 1.25).ceil() as usize;
        i64::try_from(guess.clamp(FEWEST.min(limit), limit)).unwrap_or(i64::MAX)
    }

    /// At most so many events of one strand, if it is not the only one: the share of one among the fewest.
    pub(super) fn longest_run(limit: usize) -> i64 {
        i64::try_from(limit.div_ceil(FEWEST)).unwrap_or(i64::MAX)
    }

    /// Another relay took what this one wanted: somewhere else they are not in each other's way. Once, until something is found:
    /// it may also be somebody who has locked rows and keeps them.
    pub(super) fn jump(&mut self, next: i64) -> bool {
        let jumps = !self.jumped;
        if jumps {
            (self.next, self.whole, self.jumped) = (next, false, true);
        }
        jumps
    }

    /// Takes in what a claim saw; answers whether to claim again at once.
    #[allow(clippy::cast_precision_loss, reason = "a guess, and small")]
    pub(super) fn read(&mut self, seen: Seen) -> bool {
        if seen.strands > 0 {
            self.run = (seen.events as f64 / seen.strands as f64).max(1.0);
        }
        self.fruitful |= seen.events > 0;
        self.jumped &= seen.events == 0;
        self.in_vain = if seen.events > 0 { Duration::ZERO } else { self.in_vain + seen.took };
        if seen.stopped {
            self.next = seen.last.map_or(self.next, |last| last.saturating_add(1));
            return self.has_patience();
        }
        // The end of the round. Whether all of it was in vain is only known of a whole one.
        let again = seen.from != FIRST_STRAND && (self.fruitful || !self.whole);
        (self.next, self.whole, self.fruitful) = (FIRST_STRAND, true, false);
        again && self.has_patience()
    }

    fn has_patience(&mut self) -> bool {
        if self.in_vain < IN_VAIN {
            return true;
        }
        self.in_vain = Duration::ZERO;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Seen =
        Seen { from: FIRST_STRAND, last: None, stopped: false, events: 0, strands: 0, took: Duration::ZERO };

    #[test]
    fn a_round_in_vain_is_the_last_one() {
        let mut round = Round::new();
        assert!(!round.read(NOTHING), "the whole table was looked at");
        // Blocked strands in front: on behind them, then once around.
        assert!(round.read(Seen { stopped: true, last: Some(7), ..NOTHING }));
        assert_eq!(round.next(), 8);
        assert!(!round.read(Seen { from: 8, last: Some(20), ..NOTHING }), "nothing in all of the round");
        assert_eq!(round.next(), FIRST_STRAND);
    }

    #[test]
    fn what_lies_before_the_start_is_looked_at() {
        let mut round = Round::new();
        assert!(round.jump(100));
        assert!(round.read(Seen { from: 100, ..NOTHING }), "what is before 100 was not seen yet");
        assert_eq!(round.next(), FIRST_STRAND);
        assert!(!round.jump(200), "not for ever");
        assert!(!round.read(NOTHING));
        // A round that brought something is followed by another.
        assert!(round.read(Seen { stopped: true, last: Some(5), events: 3, strands: 3, ..NOTHING }));
        assert!(round.read(Seen { from: 6, ..NOTHING }));
    }

    #[test]
    fn a_table_that_is_all_blocked_costs_little() {
        let mut round = Round::new();
        let seen = Seen { stopped: true, last: Some(1), took: Duration::from_millis(150), ..NOTHING };
        assert!(round.read(seen));
        assert!(!round.read(seen), "enough for this tick");
        assert!(round.read(seen), "the next one goes on");
    }

    #[test]
    fn as_many_heads_as_their_runs_ask_for() {
        let mut round = Round::new();
        assert_eq!(round.heads(100), 100, "all may be alone in their strands");
        round.read(Seen { events: 100, strands: 8, stopped: true, last: Some(1), ..NOTHING });
        assert_eq!((round.heads(100), Round::longest_run(100)), (16, 7));
        round.read(Seen { events: 10, strands: 10, stopped: true, last: Some(1), ..NOTHING });
        assert_eq!((round.heads(100), round.heads(1)), (100, 1));
    }

    #[test]
    fn a_long_strand_has_every_other_claim_while_it_is_long_and_nothing_of_it_is_in_flight() {
        let (mut round, free) = (Round::new(), InFlight::default());
        assert_eq!(round.long.next(&free), None);
        assert!(round.long.note(7) && round.long.note(8) && round.long.note(7));
        assert!(!round.long.note(9), "where many are long, all take turns");
        let turns: Vec<_> = (0..4).map(|_| round.long.next(&free)).collect();
        assert_eq!(turns, [Some(7), None, Some(7), None]);
        assert_eq!([(); 2].map(|()| round.long.next(&[(7, 1)].into_iter().collect())), [Some(8), None]);
        // As soon as one is free, not at the turn after the next.
        let both: InFlight = [(7, 1), (8, 1)].into_iter().collect();
        assert_eq!(
            [&both, &both, &both, &free].map(|flying| round.long.next(flying)),
            [None, None, None, Some(7)]
        );
        round.long.no_longer(7);
        assert_eq!([(); 2].map(|()| round.long.next(&free)), [None, Some(8)]);
    }

    #[test]
    fn heads_are_looked_for_some_times_and_then_all_is_read_again() {
        let mut round = Round::new();
        assert!(round.reads_all() && round.reads_all());
        round.look_at_heads();
        assert_eq!((0..BY_HEADS).filter(|_| !round.reads_all()).count(), 19);
        assert!(round.reads_all());
    }
}
