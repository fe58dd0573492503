//! [`Suspects`]: rows whose last relay may have died of them are dispatched with nothing else in flight (hazard 21), so the
//! relay takes turns: some of them, then the others.

use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::lease::{Held, Stage, key};
use crate::store::{Standing, Store};

/// A turn of suspects ends after this long (but not before one was tried).
const TURN: Duration = Duration::from_secs(1);

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Suspects {
    /// Rows whose lease ran out were seen.
    pub(super) waiting: bool,
    /// Whether the relay claims nothing else.
    pub(super) turn: bool,
    /// When the first suspect of this turn was claimed.
    pub(super) turn_since: Option<Instant>,
    /// Whether this turn has brought one.
    found: bool,
    /// Not before this, so that the others get their turn.
    pub(super) not_before: Instant,
}

impl Suspects {
    pub(super) fn new(now: Instant) -> Self {
        Self { waiting: false, turn: false, turn_since: None, found: false, not_before: now }
    }

    /// A claim of suspects has `found` one, or there are `more`. A whole turn in vain is not repeated at once: somebody else has
    /// locked what was seen, and each turn takes the relay from the others.
    pub(super) fn answered(&mut self, found: bool, more: bool, next_tick: Instant) {
        self.waiting = found || more;
        self.found |= found;
        if !self.waiting && !self.found {
            self.not_before = next_tick.max(Instant::now() + TURN);
        }
    }
}

impl<S: Store> Engine<S> {
    /// Whether suspects have the relay for themselves now. What only waits in a queue goes back for it, so that nobody
    /// is held up for longer than what runs, and then the suspect, may take.
    pub(super) fn suspects_turn(&mut self, now: Instant) -> bool {
        let due =
            self.suspects.waiting && now >= self.suspects.not_before && self.standing == Standing::Active;
        let over = self.suspects.turn_since.filter(|since| now.duration_since(*since) > TURN);
        if let Some(since) = over.filter(|_| due && self.nothing_at_work()) {
            self.suspects.not_before = now + now.duration_since(since);
        }
        if !due || now < self.suspects.not_before {
            (self.suspects.turn, self.suspects.turn_since) = (false, None);
            return false;
        }
        if !self.suspects.turn {
            (self.suspects.turn, self.suspects.found) = (true, false);
            self.release_cold();
        }
        true
    }

    /// Whether nothing is claimed, dispatched or being settled. Hot events that wait can go on waiting; and what has been dispatched
    /// and cannot be settled, since somebody has locked its row, would have all others wait for whoever that is.
    pub(super) fn nothing_at_work(&self) -> bool {
        let rests = |held: &Held| match held.stage {
            Stage::Queued => held.slot.is_some(),
            Stage::Running => false,
            Stage::Settling => held.busy,
        };
        self.held.values().all(rests)
            && self.outcomes.leases().all(|lease| self.held.get(&key(lease)).is_some_and(|held| held.busy))
    }
}
