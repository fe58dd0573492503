//! What can happen: which steps are possible, and what they do.

use crate::state::{Held, Stage, State};
use crate::{Mutant, Relays, Strategy};

/// One step: a transaction, a message, or a misfortune. `relay` and `row` are indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields say it")]
pub enum Step {
    /// The writer of a row commits.
    Commit(u8),
    /// A relay leases a run of rows.
    Claim { relay: u8, first: u8, count: usize },
    /// An owner notes a run of rows in its window.
    Admit { relay: u8, first: u8, count: usize },
    /// A relay takes the place of an owner whose time is over.
    TakeOver(u8),
    /// A relay begins to send a row.
    Start { relay: u8, row: u8 },
    /// The sink has it, and says so.
    Arrive { relay: u8, row: u8 },
    /// The sink refuses it for now.
    Fail { relay: u8, row: u8 },
    /// A relay writes down what became of a row.
    Settle { relay: u8, row: u8 },
    /// A renewal tells a relay that a row which waits is another's.
    Lose { relay: u8, row: u8 },
    /// A relay dies, and another begins with an empty memory.
    Crash(u8),
    /// The lease of a row runs out.
    RunOut(u8),
    /// The owner's time runs out.
    PlaceRunsOut,
}

impl Relays {
    /// The aggregate of a row.
    pub(crate) fn strand(&self, row: u8) -> u8 {
        self.aggregates[usize::from(row)]
    }

    /// The rows of the same aggregate before this one, or behind it.
    fn of_strand(&self, row: u8, rows: std::ops::Range<u8>) -> impl Iterator<Item = u8> + Clone {
        let strand = self.strand(row);
        rows.filter(move |other| self.strand(*other) == strand)
    }

    fn end(&self) -> u8 {
        u8::try_from(self.aggregates.len()).unwrap_or(u8::MAX)
    }

    /// Every step that is possible now.
    pub(crate) fn possible(&self, state: &State, steps: &mut Vec<Step>) {
        for row in 0..self.end() {
            let at = &state.rows[usize::from(row)];
            let mut before = self.of_strand(row, 0..row);
            let in_turn = self.lacks(Mutant::WritersInAnyOrder)
                || !self.ordered
                || before.all(|other| state.rows[usize::from(other)].committed);
            if !at.committed && in_turn {
                steps.push(Step::Commit(row));
            }
            let has_holder = state.relays.iter().any(|relay| {
                relay.held.get(&row).is_some_and(|held| held.claim.is_some() && held.claim == at.lock)
            });
            // A lease that nobody holds any more runs out for sure, another one by a stall.
            if at.lock.is_some() && !at.ran_out && (!has_holder || state.stalls > 0) {
                steps.push(Step::RunOut(row));
            }
        }
        if !state.place.free && state.stalls > 0 {
            steps.push(Step::PlaceRunsOut);
        }
        for relay in 0..self.relays {
            self.of_relay(state, relay, steps);
        }
    }

    fn of_relay(&self, state: &State, relay: u8, steps: &mut Vec<Step>) {
        let memory = &state.relays[usize::from(relay)];
        let owns = memory.epoch == Some(state.place.epoch);
        if state.crashes > 0 && (!memory.held.is_empty() || owns) {
            steps.push(Step::Crash(relay));
        }
        if self.strategy == Strategy::Owner && state.place.free {
            steps.push(Step::TakeOver(relay));
        }
        for first in 0..self.end() {
            for count in 1..=2 {
                if self.claimable(state, relay, first, count) {
                    let suspect = state.rows[usize::from(first)].ran_out;
                    match self.strategy {
                        Strategy::Lease => steps.push(Step::Claim { relay, first, count }),
                        Strategy::Owner if owns && suspect => {
                            steps.push(Step::Claim { relay, first, count });
                        }
                        Strategy::Owner if owns => steps.push(Step::Admit { relay, first, count }),
                        Strategy::Owner => {}
                    }
                }
            }
        }
        for (&row, held) in &memory.held {
            match held.stage {
                Stage::Queued => {
                    if self.may_start(state, relay, row) {
                        steps.push(Step::Start { relay, row });
                    }
                    if held.claim.is_some() && state.rows[usize::from(row)].lock != held.claim {
                        steps.push(Step::Lose { relay, row });
                    }
                }
                Stage::Running => {
                    steps.push(Step::Arrive { relay, row });
                    if state.failures > 0 {
                        steps.push(Step::Fail { relay, row });
                    }
                }
                Stage::Arrived | Stage::Failed | Stage::Back | Stage::Asked => {
                    steps.push(Step::Settle { relay, row });
                }
            }
        }
    }

    /// Whether a relay finds a run of so many rows here.
    fn claimable(&self, state: &State, relay: u8, first: u8, count: usize) -> bool {
        let (memory, at) = (&state.relays[usize::from(relay)], |row: u8| &state.rows[usize::from(row)]);
        let waits = |row: u8| at(row).committed && !at(row).published && !memory.held.contains_key(&row);
        let suspect = at(first).ran_out;
        let alone = !memory.held.values().any(|held| held.suspect) && (!suspect || memory.held.is_empty());
        if !waits(first) || !(alone || self.lacks(Mutant::SuspectsInCompany)) {
            return false;
        }
        if !self.ordered {
            return count == 1 && (at(first).lock.is_none() || suspect);
        }
        let done = |other: u8| !at(other).committed || at(other).published;
        let is_head = self.of_strand(first, 0..first).all(done) || self.lacks(Mutant::NoPredecessor);
        let run = self.of_strand(first, first..self.end()).filter(|row| !at(*row).published).take(count);
        let free = |row: u8| waits(row) && (at(row).lock.is_none() || (at(row).ran_out && count == 1));
        is_head && run.clone().count() == count && run.clone().all(free)
    }

    fn may_start(&self, state: &State, relay: u8, row: u8) -> bool {
        let held = &state.relays[usize::from(relay)].held;
        let is_suspect = |held: &Held| held.suspect && held.stage == Stage::Running;
        if held.values().any(is_suspect) && !self.lacks(Mutant::SuspectsInCompany) {
            return false;
        }
        let lets_on = |stage: Stage| match stage {
            Stage::Arrived | Stage::Asked => true,
            Stage::Failed => self.lacks(Mutant::FailureHoldsNobody),
            Stage::Queued | Stage::Running | Stage::Back => false,
        };
        !self.ordered
            || self
                .of_strand(row, 0..row)
                .all(|other| held.get(&other).is_none_or(|held| lets_on(held.stage)))
    }

    /// Takes a possible step.
    pub(crate) fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Commit(row) => state.rows[usize::from(row)].committed = true,
            Step::Claim { relay, first, count } => self.hold(state, relay, first, count, true),
            Step::Admit { relay, first, count } => self.hold(state, relay, first, count, false),
            Step::TakeOver(relay) => take_over(state, relay),
            Step::Start { relay, row } => set(state, relay, row, Stage::Running),
            Step::Arrive { relay, row } => {
                set(state, relay, row, Stage::Arrived);
                let earlier = self.of_strand(row, 0..row);
                if state.arrived.insert(row) {
                    state.disorder |= !earlier.into_iter().all(|other| state.arrived.contains(&other));
                }
            }
            Step::Fail { relay, row } => {
                state.failures -= 1;
                set(state, relay, row, Stage::Failed);
                if !self.lacks(Mutant::FailureHoldsNobody) {
                    self.give_back_behind(state, relay, row);
                }
            }
            Step::Settle { relay, row } => self.settle(state, relay, row),
            Step::Lose { relay, row } => {
                state.relays[usize::from(relay)].held.remove(&row);
                if !self.lacks(Mutant::LossHoldsNobody) {
                    self.give_back_behind(state, relay, row);
                }
            }
            Step::Crash(relay) => crash(state, relay),
            Step::RunOut(row) => {
                let lock = state.rows[usize::from(row)].lock;
                state.rows[usize::from(row)].ran_out = true;
                let held = state.relays.iter_mut().filter_map(|relay| relay.held.get_mut(&row));
                for held in held.filter(|held| held.claim == lock) {
                    held.stale = true;
                    state.stalls -= 1;
                }
            }
            Step::PlaceRunsOut => {
                state.place.free = true;
                state.stalls -= 1;
            }
        }
    }

    fn hold(&self, state: &mut State, relay: u8, first: u8, count: usize, lease: bool) {
        let rows = self.of_strand(first, first..self.end());
        let rows: Vec<u8> = rows.filter(|row| !state.rows[usize::from(*row)].published).take(count).collect();
        for row in rows {
            let at = &mut state.rows[usize::from(row)];
            let mut held = Held { stage: Stage::Queued, claim: None, suspect: at.ran_out, stale: false };
            if lease {
                at.claims += 1;
                (at.lock, at.ran_out, held.claim) = (Some(at.claims), false, Some(at.claims));
                at.attempts += 1;
            } else if !self.lacks(Mutant::NoJournal) {
                state.place.window.insert(row);
            }
            at.published = self.lacks(Mutant::SettleFirst);
            state.relays[usize::from(relay)].held.insert(row, held);
        }
    }

    fn give_back_behind(&self, state: &mut State, relay: u8, row: u8) {
        for other in self.of_strand(row, row + 1..self.end()).filter(|_| self.ordered) {
            if let Some(held) = state.relays[usize::from(relay)].held.get_mut(&other)
                && held.stage == Stage::Queued
            {
                held.stage = Stage::Back;
            }
        }
    }

    fn settle(&self, state: &mut State, relay: u8, row: u8) {
        let memory = &mut state.relays[usize::from(relay)];
        let Some(held) = memory.held.remove(&row) else { return };
        let at = &mut state.rows[usize::from(row)];
        let is_own = match held.claim {
            Some(claim) => at.lock == Some(claim),
            None => memory.epoch == Some(state.place.epoch),
        };
        if self.lacks(Mutant::FenceAsksFirst)
            && held.stage == Stage::Arrived
            && held.claim.is_none()
            && is_own
        {
            memory.held.insert(row, Held { stage: Stage::Asked, ..held });
            return;
        }
        if !is_own && held.stage != Stage::Asked && !self.lacks(Mutant::NoFence) {
            return;
        }
        state.trespass |= !is_own;
        match held.stage {
            Stage::Arrived | Stage::Asked => at.published = true,
            // The attempt of what was never sent is given back.
            Stage::Back if held.claim.is_some() => at.attempts -= 1,
            _ => {}
        }
        if held.claim.is_none() && held.stage != Stage::Back {
            at.attempts += 1;
        }
        (at.lock, at.ran_out) = (None, false);
        state.place.window.remove(&row);
    }
}

fn set(state: &mut State, relay: u8, row: u8, to: Stage) {
    if let Some(held) = state.relays[usize::from(relay)].held.get_mut(&row) {
        held.stage = to;
    }
}

/// The window of the owner before becomes suspects; whatever it still has in its memory is not its own any more.
fn take_over(state: &mut State, relay: u8) {
    let place = &mut state.place;
    place.free = false;
    if state.relays[usize::from(relay)].epoch == Some(place.epoch) {
        return;
    }
    place.epoch += 1;
    for row in std::mem::take(&mut place.window) {
        let at = &mut state.rows[usize::from(row)];
        if !at.published {
            // A number that no claim has.
            (at.lock, at.ran_out, at.attempts) = (Some(0), true, at.attempts + 1);
        }
    }
    for held in state.relays.iter_mut().flat_map(|relay| relay.held.values_mut()) {
        held.stale |= held.claim.is_none();
    }
    let memory = &mut state.relays[usize::from(relay)];
    memory.held.retain(|_, held| held.claim.is_some());
    memory.epoch = Some(place.epoch);
}

fn crash(state: &mut State, relay: u8) {
    state.crashes -= 1;
    let memory = std::mem::take(&mut state.relays[usize::from(relay)]);
    for (row, _) in memory.held.iter().filter(|(_, held)| held.stage == Stage::Running) {
        state.deaths[usize::from(*row)] += 1;
    }
    // Its session ends with it, and anybody may take over.
    state.place.free |= memory.epoch == Some(state.place.epoch);
}
