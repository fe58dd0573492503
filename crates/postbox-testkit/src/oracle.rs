//! The judge of every fault test: was anything lost, invented, repeated too often or out of order?
//!
//! The writer notes what became of each event's transaction: committed (C), rolled back (R), or unknown (U), when the
//! answer to COMMIT was lost. The sink notes deliveries (D). At rest, C ⊆ D ∪ dead, D ∩ R = ∅ and D ⊆ C ∪ U.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use uuid::Uuid;

/// How many offenders an error names.
const SHOWN: usize = 5;

/// Collects what was written and what arrived, from any thread, and judges it.
///
/// ```
/// use postbox_testkit::Oracle;
/// use uuid::Uuid;
/// let (oracle, id) = (Oracle::new(), Uuid::now_v7());
/// oracle.committed(id);
/// assert!(oracle.verdict(0).is_err(), "committed, but not delivered");
/// oracle.delivered(id);
/// assert_eq!(oracle.verdict(0).unwrap().delivered, 1);
/// ```
#[derive(Debug, Default)]
pub struct Oracle {
    journal: Mutex<Journal>,
    ordered: bool,
}

#[derive(Debug, Default)]
struct Journal {
    committed: BTreeSet<Uuid>,
    rolled_back: BTreeSet<Uuid>,
    unknown: BTreeSet<Uuid>,
    dead: BTreeSet<Uuid>,
    /// None: whatever is dead may be dead.
    dead_expected: Option<BTreeSet<Uuid>>,
    deliveries: Vec<Delivered>,
}

#[derive(Debug)]
struct Delivered {
    id: Uuid,
    /// The aggregate, and the event's place in it.
    place: Option<(String, i64)>,
}

/// What the oracle counted in a run that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Events known to be committed.
    pub committed: usize,
    /// Events known to be rolled back.
    pub rolled_back: usize,
    /// Events whose COMMIT was never answered, and is not known otherwise.
    pub unknown: usize,
    /// Different events delivered.
    pub delivered: usize,
    /// Deliveries beyond the first of each event.
    pub duplicates: usize,
    /// Events that are dead.
    pub dead: usize,
}

impl Oracle {
    /// An oracle that has seen nothing and asks for no order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also asks that, within each aggregate, first deliveries come in order of sequence.
    #[must_use]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// The event's transaction committed. May follow [`Oracle::unknown`], once the table has told.
    pub fn committed(&self, id: Uuid) {
        self.journal().committed.insert(id);
    }

    /// The event's transaction was rolled back. May follow [`Oracle::unknown`], once the table has told.
    pub fn rolled_back(&self, id: Uuid) {
        self.journal().rolled_back.insert(id);
    }

    /// COMMIT was sent, but its answer was lost: the event may arrive or not.
    pub fn unknown(&self, id: Uuid) {
        self.journal().unknown.insert(id);
    }

    /// The event is dead, as the store says at the end.
    pub fn dead(&self, id: Uuid) {
        self.journal().dead.insert(id);
    }

    /// Asks that exactly these events be dead; an empty list means none.
    pub fn expect_dead(&self, ids: impl IntoIterator<Item = Uuid>) {
        self.journal().dead_expected.get_or_insert_default().extend(ids);
    }

    /// The event arrived; to be called in the order of arrival.
    pub fn delivered(&self, id: Uuid) {
        self.journal().deliveries.push(Delivered { id, place: None });
    }

    /// The event arrived, and has a place in the order of its aggregate.
    pub fn delivered_in(&self, id: Uuid, aggregate: impl Into<String>, sequence: i64) {
        self.journal().deliveries.push(Delivered { id, place: Some((aggregate.into(), sequence)) });
    }

    /// The events known to be committed, to compare with other sources.
    pub fn committed_ids(&self) -> BTreeSet<Uuid> {
        self.journal().committed.clone()
    }

    /// How many deliveries were noted, repeats included.
    pub fn deliveries(&self) -> usize {
        self.journal().deliveries.len()
    }

    /// Judges: the counts when every rule holds, else each broken rule with its first offenders.
    pub fn verdict(&self, max_duplicates: usize) -> Result<Report, String> {
        let journal = self.journal();
        let mut times: HashMap<Uuid, usize> = HashMap::new();
        for delivery in &journal.deliveries {
            *times.entry(delivery.id).or_default() += 1;
        }
        let delivered: BTreeSet<Uuid> = times.keys().copied().collect();
        let duplicates = journal.deliveries.len() - delivered.len();
        let mut faults = Faults::default();

        faults.note(
            "both committed and rolled back: the journal contradicts itself",
            journal.committed.intersection(&journal.rolled_back),
        );
        let lost = |id: &&Uuid| !delivered.contains(*id) && !journal.dead.contains(*id);
        faults.note("lost: committed, but neither delivered nor dead", journal.committed.iter().filter(lost));
        faults.note("delivered although rolled back", delivered.intersection(&journal.rolled_back));
        let known = |id: &&Uuid| {
            [&journal.committed, &journal.unknown, &journal.rolled_back].iter().any(|s| s.contains(*id))
        };
        faults.note("invented: delivered, but never written", delivered.iter().filter(|id| !known(id)));
        if duplicates > max_duplicates {
            let repeated: BTreeMap<_, _> = times.iter().filter(|(_, n)| **n > 1).collect();
            faults
                .note(&format!("{duplicates} duplicates, at most {max_duplicates} allowed"), repeated.iter());
        }
        if let Some(expected) = &journal.dead_expected {
            faults.note("dead, but not expected to be", journal.dead.difference(expected));
            faults.note("expected to be dead, but is not", expected.difference(&journal.dead));
        }
        if self.ordered {
            faults.note("first deliveries out of order", inversions(&journal.deliveries).iter());
        }
        faults.into_result().map(|()| Report {
            committed: journal.committed.len(),
            rolled_back: journal.rolled_back.len(),
            unknown: journal.unknown.iter().filter(|id| !journal.committed.contains(*id)).count(),
            delivered: delivered.len(),
            duplicates,
            dead: journal.dead.len(),
        })
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        // A test that panics while it notes something should fail with its own message, not with this one.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// First deliveries whose sequence is not above the one before in the same aggregate: aggregate, before, after.
fn inversions(deliveries: &[Delivered]) -> Vec<(&str, i64, i64)> {
    let mut seen = BTreeSet::new();
    let mut last: HashMap<&str, i64> = HashMap::new();
    let mut found = Vec::new();
    for delivery in deliveries {
        let Some((aggregate, sequence)) = &delivery.place else { continue };
        if !seen.insert(delivery.id) {
            continue;
        }
        match last.get(aggregate.as_str()) {
            Some(before) if before >= sequence => found.push((aggregate.as_str(), *before, *sequence)),
            _ => {
                last.insert(aggregate, *sequence);
            }
        }
    }
    found
}

/// Broken rules, one line each.
#[derive(Default)]
struct Faults(String);

impl Faults {
    fn note<T: Debug>(&mut self, rule: &str, offenders: impl Iterator<Item = T>) {
        let offenders: Vec<T> = offenders.collect();
        if !offenders.is_empty() {
            let shown = &offenders[..offenders.len().min(SHOWN)];
            let more = if shown.len() < offenders.len() { " …" } else { "" };
            writeln!(self.0, "{rule} ({}): {shown:?}{more}", offenders.len()).ok();
        }
    }

    fn into_result(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}

/// Reads what a file sink wrote, one JSON value per line; a file that is not there yet has no lines.
///
/// A last line without its end is left out: the writer was killed in the middle of it, or is still writing.
pub fn read_jsonl(path: impl AsRef<Path>) -> Vec<Value> {
    let path = path.as_ref();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => panic!("cannot read {}: {error}", path.display()),
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("{} line {}: {error}: {line}", path.display(), number + 1))
    };
    whole.lines().enumerate().filter(|(_, line)| !line.is_empty()).map(parse).collect()
}

#[cfg(test)]
mod tests;
