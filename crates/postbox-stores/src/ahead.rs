//! [`Ahead`]: what a relay knows of the rows that wait, where the events of an aggregate go in order.
//!
//! Rows are read in order of `sequence`, also those that cannot be claimed now. So whoever looks at a row has seen all that is
//! before it in its strand, as far as nothing commits behind a sequence that was read: SQLite has one writer, and where there
//! are several, whoever leases rows makes sure of it once more. Dead rows are read, too: one that is replayed behind the back
//! of the reader must not be overtaken. On SQLite an index by aggregate would tell the same, but cost as much at every settle
//! as all the rest of it, since its pages lie everywhere.
//!
//! All of this can be wrong a moment later. That costs time only: a lease is given by the row's state in the table, and a run
//! whose row could not be had ends there. What is not known here any more is read again by the next sweep.

mod choose;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use postbox_core::OnDead;

use crate::left_out::{Confirmed, Lane};
use crate::seen::{Row, Seen};
pub(crate) use choose::Wanted;

/// So many rows are remembered; beyond, what cannot be claimed anyway is forgotten until the next sweep.
const MOST_ROWS: usize = 50_000;
/// Then, so many of one strand.
const MOST_OF_ONE: usize = 1_000;

/// What became of a row that was claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrived.
    Delivered,
    /// It waits again, with so many attempts; until then, if it is to be later; these sinks have confirmed it.
    Back {
        attempts: i64,
        until: Option<i64>,
        done: Box<[Arc<str>]>,
    },
    Dead,
    /// It is another relay's, or nobody knows.
    Lost,
}

/// The rows of one strand that wait, in order.
#[derive(Debug, Default)]
struct Strand {
    rows: VecDeque<Row>,
    /// How many are claimed by this relay and not settled.
    claimed: usize,
    /// The last of these.
    last_claimed: i64,
    /// There are more that are not known here.
    cut: bool,
    /// It stands in one of the queues.
    queued: bool,
}

#[derive(Debug)]
pub(crate) struct Ahead {
    on_dead: OnDead,
    strands: HashMap<i64, Strand>,
    /// Nothing of these can be claimed before the next sweep.
    closed: HashSet<i64>,
    /// Rows that this relay has claimed.
    claimed: HashMap<i64, Row>,
    /// Strands whose first row can be claimed, as far as is known.
    ready: VecDeque<i64>,
    /// Those whose first row was left behind by a relay that died.
    suspects: VecDeque<i64>,
    /// Those whose first row is left out, by its lane.
    parked: HashMap<Lane, VecDeque<i64>>,
    /// Those whose first row is for later.
    asleep: BinaryHeap<Reverse<(i64, i64)>>,
    confirmed: Confirmed,
    rows: usize,
    /// The last sequence that was read.
    pub(crate) cursor: i64,
    /// Rows were forgotten, and nothing else is in the way of them.
    pub(crate) hungry: bool,
}

impl Strand {
    fn claim(&mut self, row: &Row) {
        self.last_claimed =
            if self.claimed == 0 { row.sequence } else { self.last_claimed.max(row.sequence) };
        self.claimed += 1;
    }

    /// Whether it has rows, and all that are claimed are before this one. Those that wait are: rows are read in order.
    fn goes_on_before(&self, sequence: i64) -> bool {
        match self.claimed {
            0 => !self.rows.is_empty(),
            _ => self.last_claimed < sequence,
        }
    }
}

impl Ahead {
    pub(crate) fn new(on_dead: OnDead) -> Self {
        Self {
            on_dead,
            strands: HashMap::new(),
            closed: HashSet::new(),
            claimed: HashMap::new(),
            ready: VecDeque::new(),
            suspects: VecDeque::new(),
            parked: HashMap::new(),
            asleep: BinaryHeap::new(),
            confirmed: Confirmed::default(),
            rows: 0,
            cursor: i64::MIN,
            hungry: false,
        }
    }

    /// Begins again at the start. What is claimed is still claimed.
    pub(crate) fn restart(&mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        let confirmed = std::mem::take(&mut self.confirmed);
        *self = Self { confirmed, ..Self::new(self.on_dead) };
        for row in claimed.values() {
            self.strands.entry(row.strand).or_default().claim(row);
        }
        self.claimed = claimed;
    }

    /// Whether anything is known that can be claimed now.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether there is something that a relay left behind when it died, of a lane that counts.
    pub(crate) fn has_suspects(&self, counts: impl Fn(Lane, &Confirmed) -> bool) -> bool {
        let first = |strand: &i64| self.strands.get(strand)?.rows.front();
        self.suspects.iter().filter_map(first).any(|row| counts(row.lane, &self.confirmed))
    }

    /// Takes in rows in the order in which they were read.
    pub(crate) fn take_in(&mut self, seen: impl Iterator<Item = Seen>, now: i64) {
        for Seen { mut row, locked, dead, done } in seen {
            self.cursor = row.sequence;
            row.lane.done = self.confirmed.with(0, &done);
            if self.claimed.contains_key(&row.sequence) {
                if locked {
                    continue;
                }
                // Settled a moment ago, or given up by whoever claimed it here.
                self.claimed.remove(&row.sequence);
                if let Some(strand) = self.strands.get_mut(&row.strand) {
                    strand.claimed = strand.claimed.saturating_sub(1);
                }
            }
            let passed = dead && (self.on_dead == OnDead::Skip || !row.bound);
            if passed || self.closed.contains(&row.strand) {
                continue;
            }
            if locked || dead {
                // What is before it may go on, nothing behind it; not even what was claimed here and comes back.
                match self.strands.get_mut(&row.strand) {
                    Some(strand) if strand.goes_on_before(row.sequence) => strand.cut = true,
                    _ => self.close(row.strand),
                }
                continue;
            }
            let strand = self.strands.entry(row.strand).or_default();
            if !strand.cut {
                strand.rows.push_back(row);
                self.rows += 1;
                self.queue(row.strand, now);
            }
        }
        if self.rows > MOST_ROWS {
            self.forget_some();
        }
    }

    /// Puts a strand where its first row belongs.
    fn queue(&mut self, number: i64, now: i64) {
        let Some(strand) = self.strands.get_mut(&number) else { return };
        if strand.queued || strand.claimed > 0 {
            return;
        }
        let Some(first) = strand.rows.front() else {
            if strand.cut {
                self.hungry = true;
                self.close(number);
            } else {
                self.strands.remove(&number);
            }
            return;
        };
        strand.queued = true;
        if first.expired {
            self.suspects.push_back(number);
        } else if first.available_at > now {
            self.asleep.push(Reverse((first.available_at, number)));
        } else {
            self.ready.push_back(number);
        }
    }

    /// Nothing of a strand can be claimed until it is looked at again.
    fn close(&mut self, number: i64) {
        if let Some(strand) = self.strands.remove(&number) {
            self.rows -= strand.rows.len();
        }
        self.closed.insert(number);
    }

    /// Too many rows are known that cannot be claimed.
    fn forget_some(&mut self) {
        let waiting: HashSet<i64> = self.ready.iter().chain(&self.suspects).copied().collect();
        let idle = |(number, strand): (&i64, &Strand)| {
            (strand.claimed == 0 && !waiting.contains(number)).then_some(*number)
        };
        let idle: Vec<i64> = self.strands.iter().filter_map(idle).collect();
        for number in idle {
            self.close(number);
        }
        (self.parked, self.asleep) = (HashMap::new(), BinaryHeap::new());
        for strand in self.strands.values_mut() {
            if strand.rows.len() > MOST_OF_ONE {
                self.rows -= strand.rows.len() - MOST_OF_ONE;
                strand.rows.truncate(MOST_OF_ONE);
                strand.cut = true;
            }
        }
    }

    /// What became of a row that was claimed.
    pub(crate) fn settled(&mut self, sequence: i64, fate: Fate, now: i64) {
        let Some(mut row) = self.claimed.remove(&sequence) else { return };
        let Some(strand) = self.strands.get_mut(&row.strand) else { return };
        strand.claimed = strand.claimed.saturating_sub(1);
        match fate {
            Fate::Delivered => {}
            Fate::Dead if self.on_dead == OnDead::Skip || !row.bound => {}
            Fate::Dead | Fate::Lost => return self.close(row.strand),
            // It will be read, and in its place: what is before it may have come back, too, and is not known yet.
            Fate::Back { .. } if sequence > self.cursor => {}
            Fate::Back { attempts, until, done } => {
                row.attempts = attempts;
                row.lane.done = self.confirmed.with(row.lane.done, &done);
                row.expired = false;
                row.available_at = until.unwrap_or(row.available_at);
                let place = strand.rows.partition_point(|other| other.sequence < sequence);
                strand.rows.insert(place, row);
                self.rows += 1;
            }
        }
        self.queue(row.strand, now);
    }

    /// Time has passed, and others are left out than before.
    pub(crate) fn wake(&mut self, wanted: Wanted<'_>) {
        while let Some(Reverse((at, number))) = self.asleep.peek().copied() {
            if at > wanted.now {
                break;
            }
            self.asleep.pop();
            self.requeue(number, wanted.now);
        }
        let goes_on = |lane: &&Lane| !wanted.left_out.holds(**lane, &self.confirmed);
        let again: Vec<Lane> = self.parked.keys().filter(goes_on).copied().collect();
        for lane in again {
            for number in self.parked.remove(&lane).unwrap_or_default() {
                self.requeue(number, wanted.now);
            }
        }
    }

    fn requeue(&mut self, number: i64, now: i64) {
        if let Some(strand) = self.strands.get_mut(&number) {
            strand.queued = false;
            self.queue(number, now);
        }
    }
}

#[cfg(test)]
mod tests;
