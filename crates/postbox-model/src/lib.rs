//! How relays share a table, small enough that every order of events can be tried: three events of two aggregates, two
//! or three relays, writers that commit late, crashes, leases and ownership that run out under a relay that still works.
//!
//! A step of the model is a transaction of the database, a message to a sink, or a misfortune. Time is no number here:
//! whatever has a time limit may run out at any moment, which takes in every clock and every pause there can be. The
//! statements that the steps stand for are those of `postbox-stores`; the model knows their outcome, not their SQL.
//!
//! [`Mutant`]s leave one rule out. Each of them must be caught, or the model would prove nothing.

mod check;
mod state;
mod step;

pub use check::{ARRIVES, CHARGED, EXCLUSIVE, FENCED, NO_LOSS, ORDER, SOLO};
pub use state::{Held, Place, Relay, Row, Stage, State};
pub use step::Step;

/// How the relays come to their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Each claim is written into the rows, and any number of relays work.
    Lease,
    /// One relay has the table, and writes down which rows it has in flight.
    Owner,
}

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A settle does not ask whether the row is still its own.
    NoFence,
    /// An owner asks whether the table is still its own, and settles afterwards.
    FenceAsksFirst,
    /// A row is settled before it is sent.
    SettleFirst,
    /// An owner sends first, and writes down what it has in flight afterwards.
    NoJournal,
    /// What may have killed a relay is sent beside others.
    SuspectsInCompany,
    /// Of an aggregate, rows are taken though an earlier one is not done.
    NoPredecessor,
    /// When a row fails, what waits behind it goes on.
    FailureHoldsNobody,
    /// When the lease of a row is lost, what waits behind it goes on.
    LossHoldsNobody,
    /// Writers of an aggregate do not wait for each other.
    WritersInAnyOrder,
}

/// What is tried.
#[derive(Debug, Clone)]
pub struct Relays {
    /// How rows are claimed.
    pub strategy: Strategy,
    /// How many relays there are.
    pub relays: u8,
    /// The aggregate of each event, by sequence.
    pub aggregates: Vec<u8>,
    /// Whether order is kept.
    pub ordered: bool,
    /// So many times a relay dies.
    pub crashes: u8,
    /// So many times a lease or an ownership runs out under a relay that lives on.
    pub stalls: u8,
    /// So many dispatches fail.
    pub failures: u8,
    /// The rule that is left out, if any.
    pub mutant: Option<Mutant>,
}

impl Relays {
    /// Three events, the first and the last of one aggregate, and some of every misfortune.
    pub fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            relays: 2,
            aggregates: vec![0, 1, 0],
            ordered: true,
            crashes: 1,
            stalls: 1,
            failures: 1,
            mutant: None,
        }
    }

    /// The same with a rule left out.
    #[must_use]
    pub fn without(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }

    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
