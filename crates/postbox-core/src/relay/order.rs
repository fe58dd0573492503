//! Order within an aggregate: the events of a strand are dispatched one at a time, by sequence.
//!
//! The first of a strand is in its lane like any other event; those behind it wait here, leased and renewed like
//! everything that is held. When the first has arrived, the next goes on. When it has not, what waits behind it goes back
//! uncharged in the same settle that writes what became of it: nobody overtakes it (hazard 19).

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::fan::Spread;
use super::lane::Item;
use super::lease::{HeldKey, Stage, key};
use super::settle::Outcome;
use crate::hash::RowMap;
use crate::store::{Lease, OnDead, Order, Standing, Store, Verdict};

/// A first of a strand that takes longer than this gives up the places of those behind it when there is no room for others.
const SLOW: Duration = Duration::from_secs(1);
/// How often that is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// The strands that have an event at work.
#[derive(Debug)]
pub(super) struct Strands {
    order: Order,
    at_work: RowMap<i64, Strand>,
    /// Events that wait behind the first of their strand, in all strands.
    waiting: usize,
    /// When it was last looked for one that is slow.
    looked: Instant,
}

#[derive(Debug)]
struct Strand {
    /// The one that is in its lane, is dispatched, or died and is being settled.
    first: HeldKey,
    /// Since when.
    since: Instant,
    /// Those behind it.
    waiting: VecDeque<Behind>,
}

/// An event that waits behind another of its strand.
#[derive(Debug)]
pub(super) enum Behind {
    /// For one sink: its lane.
    One(usize, Item),
    /// For several.
    Several(Box<Spread>),
}

impl Behind {
    fn lease(&self) -> &Lease {
        match self {
            Self::One(_, item) => &item.lease,
            Self::Several(spread) => &spread.lease,
        }
    }

    fn into_lease(self) -> Lease {
        match self {
            Self::One(_, item) => item.lease,
            Self::Several(spread) => spread.lease,
        }
    }
}

/// What an outcome means for those behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The next goes on, before this one is settled: should the relay die now, this one is delivered once more, but it was first.
    Next,
    /// The next goes on when this is written. Should the relay die before, this one is not dead, and still first.
    NextWhenSettled,
    /// They go back.
    Back,
}

impl Strands {
    pub(super) fn new(order: Order) -> Self {
        Self { order, at_work: RowMap::default(), waiting: 0, looked: Instant::now() }
    }

    /// The strand that an event has to keep to.
    pub(super) fn of(&self, strand: Option<i64>) -> Option<i64> {
        match self.order {
            Order::None => None,
            Order::Aggregate(_) => strand,
        }
    }

    /// Whether this relay keeps to an order at all.
    pub(super) fn ordered(&self) -> bool {
        self.order != Order::None
    }

    /// The bytes of events for several sinks that wait.
    pub(super) fn bytes_for_several(&self) -> usize {
        let bytes = |event: &Behind| match event {
            Behind::One(..) => 0,
            Behind::Several(spread) => spread.bytes(),
        };
        self.at_work.values().flat_map(|strand| &strand.waiting).map(bytes).sum()
    }

    fn then(&self, verdict: &Verdict) -> Then {
        match (verdict, self.order) {
            (Verdict::Delivered, _) => Then::Next,
            (Verdict::Dead { .. }, Order::Aggregate(OnDead::Skip)) => Then::NextWhenSettled,
            (Verdict::Dead { .. }, Order::None | Order::Aggregate(OnDead::Block))
            | (Verdict::Retry { .. } | Verdict::Release { .. }, _) => Then::Back,
        }
    }

    /// Takes out those that wait behind the first.
    fn take_waiting(&mut self, strand: i64) -> VecDeque<Behind> {
        let waiting = self.at_work.get_mut(&strand).map(|strand| std::mem::take(&mut strand.waiting));
        let waiting = waiting.unwrap_or_default();
        self.waiting -= waiting.len();
        waiting
    }

    /// Takes out a strand whose first this is.
    fn remove(&mut self, strand: i64) -> VecDeque<Behind> {
        let waiting = self.take_waiting(strand);
        self.at_work.remove(&strand);
        waiting
    }

    pub(super) fn is_first(&self, strand: i64, key: &HeldKey) -> bool {
        self.at_work.get(&strand).is_some_and(|strand| strand.first == *key)
    }
}

impl<S: Store> Engine<S> {
    /// Puts a claimed event into its lane, or behind the others of its strand.
    pub(super) fn line_up(&mut self, strand: Option<i64>, lane: usize, item: Item) {
        let Some(number) = strand else { return self.lanes[lane].push(item) };
        match self.queue_up(number, Behind::One(lane, item)) {
            Some(Behind::One(lane, item)) => self.lanes[lane].push(item),
            Some(Behind::Several(_)) | None => {}
        }
    }

    /// Puts an event behind the others of its strand; it comes back if it is the first.
    pub(super) fn queue_up(&mut self, number: i64, event: Behind) -> Option<Behind> {
        let key = key(event.lease());
        if let Some(held) = self.held.get_mut(&key) {
            held.strand = Some(number);
        }
        if let Some(strand) = self.strands.at_work.get_mut(&number) {
            strand.waiting.push_back(event);
            self.strands.waiting += 1;
            return None;
        }
        let strand = Strand { first: key, since: Instant::now(), waiting: VecDeque::new() };
        self.strands.at_work.insert(number, strand);
        Some(event)
    }

    /// An outcome of this event is taken in for the next settle: what becomes of those behind it?
    pub(super) fn strand_after(&mut self, strand: i64, key: &HeldKey, verdict: &Verdict) {
        if !self.strands.is_first(strand, key) {
            return;
        }
        match self.strands.then(verdict) {
            Then::Next => self.go_on(strand),
            Then::NextWhenSettled => {}
            Then::Back => {
                let waiting = self.strands.remove(strand);
                self.give_back_those(waiting);
            }
        }
    }

    /// The outcome is written, or the row turned out to be another relay's.
    pub(super) fn strand_settled(&mut self, strand: i64, key: &HeldKey, verdict: &Verdict, lost: bool) {
        if lost {
            // Somebody else is at work on this strand.
            self.release_strand(strand);
        }
        if self.strands.is_first(strand, key) && self.strands.then(verdict) == Then::NextWhenSettled {
            self.go_on(strand);
        }
    }

    /// The next of a strand becomes its first.
    fn go_on(&mut self, number: i64) {
        let stays = self.stopping || self.standing != Standing::Active || self.suspects.turn;
        let Some(strand) = self.strands.at_work.get_mut(&number) else { return };
        let Some(next) = strand.waiting.pop_front() else {
            self.strands.at_work.remove(&number);
            return;
        };
        self.strands.waiting -= 1;
        strand.first = key(next.lease());
        strand.since = Instant::now();
        // What goes back takes those behind it along: it is the first now.
        match next {
            _ if stays => self.finish(Outcome::release(next.into_lease(), None)),
            Behind::One(lane, item) if self.lanes[lane].circuit.is_open() && !item.probe => {
                let lane = &self.lanes[lane];
                let (after, reason) = (lane.put_off(Instant::now()), lane.down(&self.settings));
                self.finish(Outcome::put_off(item.lease, after, reason));
            }
            Behind::One(lane, item) => self.lanes[lane].push(item),
            Behind::Several(spread) => {
                let full: Vec<bool> = self.lanes.iter().map(|lane| self.blocked(lane)).collect();
                self.spread(*spread, &full);
            }
        }
    }

    fn give_back_those(&mut self, waiting: VecDeque<Behind>) {
        for event in waiting {
            self.finish(Outcome::release(event.into_lease(), None));
        }
    }

    /// A row of a strand is no longer this relay's, and was let go: what waits here of the strand goes back. It could
    /// overtake what another relay dispatches now.
    pub(super) fn strand_lost(&mut self, strand: i64, lost: &HeldKey) {
        let mut waiting = if self.strands.is_first(strand, lost) {
            self.strands.remove(strand)
        } else {
            self.strands.take_waiting(strand)
        };
        waiting.retain(|event| key(event.lease()) != *lost);
        self.give_back_those(waiting);
    }

    /// The same of a row that is being dispatched here: nothing can call that back, but nobody follows it.
    pub(super) fn strand_broken(&mut self, running: &HeldKey) {
        let strand = self.held.get(running).filter(|held| held.stage == Stage::Running);
        if let Some(strand) = strand.and_then(|held| held.strand) {
            self.release_strand(strand);
        }
    }

    /// What waits behind the first of a strand goes back.
    pub(super) fn release_strand(&mut self, strand: i64) {
        let waiting = self.strands.take_waiting(strand);
        self.give_back_those(waiting);
    }

    /// Gives back all that waits behind others.
    pub(super) fn release_waiting(&mut self) {
        self.release_waiting_if(|_, _| true);
    }

    /// A lane is down: its events do not wait behind those of other lanes, so that it can be probed.
    pub(super) fn release_waiting_for(&mut self, down: usize) {
        let mut back = VecDeque::new();
        for strand in self.strands.at_work.values_mut() {
            let waits =
                |event: &Behind| matches!(event, Behind::One(lane, item) if *lane == down && !item.probe);
            if let Some(from) = strand.waiting.iter().position(waits) {
                back.extend(strand.waiting.drain(from..));
            }
        }
        self.strands.waiting -= back.len();
        self.give_back_those(back);
    }

    fn release_waiting_if(&mut self, which: impl Fn(&Strand, usize) -> bool) {
        if self.strands.waiting == 0 {
            return;
        }
        let mut back = VecDeque::new();
        for strand in self.strands.at_work.values_mut() {
            if which(strand, strand.waiting.len()) {
                back.append(&mut strand.waiting);
            }
        }
        self.strands.waiting -= back.len();
        self.give_back_those(back);
    }

    /// Events behind one that takes long shall not keep other aggregates out (P5): neither many, when there is no room for a claim, nor
    /// large ones, when there would be. It is seldom looked for, since each strand is looked at.
    pub(super) fn make_room(&mut self, claims: bool, now: Instant) {
        if self.strands.waiting == 0 || now.duration_since(self.strands.looked) <= LOOK {
            return;
        }
        self.strands.looked = now;
        let many = !claims && self.strands.waiting * 2 > self.held.len() - self.held_hot;
        if many || self.bytes_behind_others() * 2 > self.settings.max_in_flight_bytes {
            self.release_waiting_if(|strand, waiting| waiting > 0 && now.duration_since(strand.since) > SLOW);
        }
    }
}

/// Strands of which no more can be taken from a claim, since one of their events goes back or dies at once.
#[derive(Debug, Default)]
pub(super) struct Cut(HashSet<i64>);

impl Cut {
    /// The rest of this strand goes back.
    pub(super) fn off(&mut self, strand: Option<i64>) {
        self.0.extend(strand);
    }

    pub(super) fn has(&self, strand: Option<i64>) -> bool {
        strand.is_some_and(|strand| self.0.contains(&strand))
    }
}

#[cfg(test)]
mod tests;
