//! What there is: the table, the owner's place, the relays' memory, and what the sink has seen.

use std::collections::{BTreeMap, BTreeSet};

/// A row of the table; its sequence is its index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// Its transaction has committed: everybody sees it.
    pub committed: bool,
    /// It is settled as delivered.
    pub published: bool,
    /// The claim that holds it; no two claims of a row have the same number.
    pub lock: Option<u8>,
    /// The claims that it had.
    pub claims: u8,
    /// Its lease has run out: it is a suspect, and whoever comes may have it.
    pub ran_out: bool,
    /// What was charged.
    pub attempts: u8,
}

/// The row of the table's owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Counts the owners.
    pub epoch: u8,
    /// There is no owner, its time is over, or its session gone: anybody may take over.
    pub free: bool,
    /// The rows that the holder may have sent.
    pub window: BTreeSet<u8>,
}

impl Default for Place {
    fn default() -> Self {
        Self { epoch: 0, free: true, window: BTreeSet::new() }
    }
}

/// Where a row is in its relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Waits.
    Queued,
    /// On its way to the sink.
    Running,
    /// The sink has confirmed it.
    Arrived,
    /// The sink has refused it for now.
    Failed,
    /// To be given back: something before it did not arrive.
    Back,
    /// Its relay has looked whether the table is still its own (a mutant's stage).
    Asked,
}

/// A row in a relay's memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Held {
    /// How far it is.
    pub stage: Stage,
    /// The number of the claim; none if the owner's window holds it.
    pub claim: Option<u8>,
    /// It may have killed a relay.
    pub suspect: bool,
    /// Whether it is another's by now, which its relay cannot know.
    pub stale: bool,
}

/// The memory of a relay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Relay {
    /// The epoch in which it believes to own the table.
    pub epoch: Option<u8>,
    /// Its rows.
    pub held: BTreeMap<u8, Held>,
}

/// Everything at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The table.
    pub rows: Vec<Row>,
    /// The owner's place.
    pub place: Place,
    /// The relays, sorted: which one is called the first makes no difference.
    pub relays: Vec<Relay>,
    /// The rows that the sink has.
    pub arrived: BTreeSet<u8>,
    /// A row was delivered for the first time before one of its aggregate that comes before it.
    pub disorder: bool,
    /// How many relays died while they were sending a row.
    pub deaths: Vec<u8>,
    /// Crashes, stalls and failures that are still to come.
    pub crashes: u8,
    /// See `crashes`.
    pub stalls: u8,
    /// See `crashes`.
    pub failures: u8,
    /// Somebody has changed a row that was another's.
    pub trespass: bool,
}

impl State {
    /// Whether nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.rows.iter().all(|row| row.published)
    }
}
