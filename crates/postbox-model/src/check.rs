//! What must hold in every state, and at the end of every way.

use stateright::{Model, Property};

use crate::state::{Relay, Row, Stage, State};
use crate::step::Step;
use crate::{Relays, Strategy};

/// P2: what is settled as delivered was delivered.
pub const NO_LOSS: &str = "nothing is settled that was not delivered";
/// P2: however it goes on, everything is delivered.
pub const ARRIVES: &str = "everything arrives";
/// P4.
pub const ORDER: &str = "first deliveries of an aggregate are in order";
/// P6: without a lost lease nobody works on what another works on.
pub const EXCLUSIVE: &str = "a row has one relay";
/// Nobody changes a row that is another's.
pub const FENCED: &str = "only the holder changes a row";
/// P5: what may have killed a relay is alone in the next one.
pub const SOLO: &str = "suspects go alone";
/// No zombies: who dies of a row for ever must run out of attempts.
pub const CHARGED: &str = "every death is charged";

impl Model for Relays {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: vec![Row::default(); self.aggregates.len()],
            relays: vec![Relay::default(); usize::from(self.relays)],
            deaths: vec![0; self.aggregates.len()],
            crashes: self.crashes,
            stalls: self.stalls,
            failures: self.failures,
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.possible(state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.take(&mut next, step);
        next.relays.sort();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NO_LOSS, |_, state: &State| {
                let settled = state.rows.iter().zip(0..).filter(|(row, _)| row.published);
                settled.into_iter().all(|(_, row)| state.arrived.contains(&row))
            }),
            // Rows stay published, so a way that ends without it is found at its end.
            Property::eventually(ARRIVES, |_, state: &State| state.is_done()),
            Property::always(EXCLUSIVE, |_, state: &State| {
                (0..state.rows.len()).all(|row| holders(state, row) <= 1)
            }),
            Property::always(FENCED, |_, state: &State| !state.trespass),
            Property::always(SOLO, |_, state: &State| {
                state.relays.iter().all(|relay| {
                    let sending = |held: &&crate::Held| held.stage == Stage::Running;
                    let mut running = relay.held.values().filter(sending);
                    !running.clone().any(|held| held.suspect) || running.nth(1).is_none()
                })
            }),
            Property::always(CHARGED, |_, state: &State| {
                let sent = state.relays.iter().flat_map(|relay| relay.held.iter());
                let mut running = sent.filter(|(_, held)| held.stage == Stage::Running);
                running
                    .all(|(row, _)| state.rows[usize::from(*row)].attempts >= state.deaths[usize::from(*row)])
            }),
        ];
        if self.ordered {
            properties.push(Property::always(ORDER, |_, state: &State| !state.disorder));
        }
        properties
    }
}

/// The relays that rightly work on a row.
fn holders(state: &State, row: usize) -> usize {
    let key = u8::try_from(row).unwrap_or(u8::MAX);
    state.relays.iter().filter(|relay| relay.held.get(&key).is_some_and(|held| !held.stale)).count()
}

impl Strategy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Lease, Self::Owner];
}
