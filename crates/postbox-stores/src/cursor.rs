//! [`Cursor`]: where the next claim starts reading.
//!
//! Rows in front of the index that cannot be claimed (a sink that is down, dead tuples that a long transaction keeps)
//! would be read again by every claim. So claims read on behind the last key. The cursor is a hint, the row's state is
//! the truth: rows that commit behind it (hazard 12) are found when it goes back to the start, which it does all the
//! time while that is cheap, and with a bounded share of the time when it is not.

use std::time::{Duration, Instant};

use postbox_core::store::ClaimMode;
use time::OffsetDateTime;
use time::macros::datetime;

/// A place in the order of claims: `available_at`, then `sequence`.
pub(crate) type Key = (OffsetDateTime, i64);

/// Before everything, also before what is available since `-infinity`.
pub(crate) const START: Key = (datetime!(0001-01-01 0:00 UTC), i64::MIN);

/// The place in front of this one.
fn just_before((at, sequence): Key) -> Key {
    (at, sequence.saturating_sub(1))
}

/// Going back is free below this.
const CHEAP: Duration = Duration::from_millis(5);
/// Otherwise it may take about one part in this many of the time.
const SHARE: u32 = 10;
/// And not more often than this while there is a backlog: what is in front of it does not wait for anybody.
const OFTEN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Cursor {
    at: Option<Key>,
    went_back: Instant,
    /// What going back costs: the less of the last two times. A machine that stood still once says nothing about the
    /// table, and must not keep away for long what has committed behind the cursor.
    cost: Duration,
    last_cost: Duration,
    /// The last claim found less than it asked for.
    short: bool,
    /// And read on, so that what is in front was not looked at.
    read_on: bool,
    /// Where the first row with an expired lease was seen.
    pub(crate) suspect: Option<Key>,
}

impl Cursor {
    pub(crate) fn new() -> Self {
        let (cost, last_cost) = (Duration::ZERO, Duration::ZERO);
        Self {
            at: None,
            went_back: Instant::now(),
            cost,
            last_cost,
            short: false,
            read_on: false,
            suspect: None,
        }
    }

    /// Remembers where rows with an expired lease begin, as far as a claim has seen some.
    pub(crate) fn meet(&mut self, suspect: Option<Key>) {
        self.suspect = match (self.suspect, suspect) {
            (Some(old), Some(new)) => Some(old.min(new)),
            (old, new) => old.or(new),
        };
    }

    /// Where a claim of this kind looks from, and whether what is in front is looked at, too.
    pub(crate) fn start_of(&self, mode: &ClaimMode, now: Instant) -> (Key, bool) {
        match mode {
            ClaimMode::Waiting => self.next(now),
            ClaimMode::Suspect => (self.suspect.map_or(START, just_before), false),
            ClaimMode::Probe(_) => (START, false),
        }
    }

    /// Where to read on, and whether that is the start.
    pub(crate) fn next(&self, now: Instant) -> (Key, bool) {
        let due = now.duration_since(self.went_back) >= self.pause();
        let cheap = self.short && self.cost < CHEAP;
        match self.at {
            Some(key) if !(due || cheap) => (key, false),
            _ => (START, true),
        }
    }

    /// How soon it looks at what it has passed by; none if the last claim looked at everything.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL wakes its relays"))]
    pub(crate) fn goes_back_in(&self, now: Instant) -> Option<Duration> {
        self.read_on.then(|| self.pause().saturating_sub(now.duration_since(self.went_back)))
    }

    /// How long it reads on before it goes back.
    fn pause(&self) -> Duration {
        let share = self.cost * SHARE;
        if self.short { share } else { OFTEN.max(share) }
    }

    /// The next claim reads from the start. What that costs is not forgotten.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "mysql")),
        allow(dead_code, reason = "only owners read ahead")
    )]
    pub(crate) fn go_back(&mut self) {
        self.at = None;
    }

    /// Takes in what a claim found.
    pub(crate) fn read(&mut self, from_start: bool, asked: Instant, last: Option<Key>, short: bool) {
        if from_start {
            self.went_back = Instant::now();
            let cost = asked.elapsed();
            self.cost = cost.min(self.last_cost);
            self.last_cost = cost;
            self.at = last;
        } else {
            self.at = last.or(self.at);
        }
        (self.short, self.read_on) = (short, !from_start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (datetime!(2026-01-01 0:00 UTC), 7);

    #[test]
    fn reads_on_under_load_and_goes_back_every_second() {
        let mut cursor = Cursor::new();
        let now = Instant::now();
        assert_eq!(cursor.next(now), (START, true));
        cursor.read(true, now, Some(KEY), false);
        assert_eq!(cursor.next(Instant::now()), (KEY, false));
        assert_eq!(cursor.next(Instant::now() + OFTEN), (START, true));
    }

    #[test]
    fn goes_back_at_once_when_idle_unless_that_is_dear() {
        let mut cursor = Cursor::new();
        cursor.read(true, Instant::now(), Some(KEY), true);
        assert_eq!(cursor.next(Instant::now()), (START, true));
        cursor.cost = Duration::from_millis(500);
        assert_eq!(cursor.next(Instant::now()), (KEY, false));
        assert_eq!(cursor.next(Instant::now() + Duration::from_secs(4)), (KEY, false));
        assert_eq!(cursor.next(Instant::now() + Duration::from_secs(5)), (START, true));
    }

    #[test]
    fn what_it_passed_by_is_looked_at_in_time() {
        let mut cursor = Cursor::new();
        cursor.read(true, Instant::now(), Some(KEY), true);
        assert_eq!(cursor.goes_back_in(Instant::now()), None, "that was everything");
        cursor.cost = Duration::from_millis(30);
        cursor.read(false, Instant::now(), None, true);
        let (now, in_time) = (cursor.went_back, Duration::from_millis(300));
        assert_eq!(cursor.goes_back_in(now), Some(in_time));
        assert_eq!(cursor.next(now + in_time), (START, true));
        assert_eq!(cursor.goes_back_in(now + in_time * 2), Some(Duration::ZERO));
    }

    #[test]
    fn one_slow_claim_keeps_nothing_away_for_long() {
        let mut cursor = Cursor::new();
        let slow = || Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        cursor.read(true, Instant::now(), Some(KEY), true);
        cursor.read(true, slow(), Some(KEY), true);
        assert_eq!(cursor.next(Instant::now()), (START, true));
        // If it was no accident, it is dear.
        cursor.read(true, slow(), Some(KEY), true);
        assert_eq!(cursor.next(Instant::now() + Duration::from_secs(20)), (KEY, false));
        assert_eq!(cursor.next(Instant::now() + Duration::from_secs(31)), (START, true));
    }

    #[test]
    fn while_little_comes_it_goes_back_as_often_as_its_share_allows() {
        let mut cursor = Cursor::new();
        cursor.read(true, Instant::now(), Some(KEY), true);
        cursor.cost = Duration::from_millis(20);
        assert_eq!(cursor.next(cursor.went_back + Duration::from_millis(190)), (KEY, false));
        assert_eq!(cursor.next(cursor.went_back + Duration::from_millis(200)), (START, true));
    }
}
