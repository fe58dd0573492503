//! ⑤ [`Lane`]: one sink's own queue, concurrency and circuit, so that no sink holds up another.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use metrics::Gauge;
use tokio::time::Instant;

use super::circuit::Circuit;
use super::deliveries::Deliveries;
use super::lease::{HeldKey, Load, key};
use super::queue::Queue;
use super::settings::Settings;
use super::shares::Shares;
use crate::dispatcher::{BoxDispatcher, Delivery, Dispatcher as _};
use crate::event::TenantId;
use crate::redact::Summary;
use crate::store::{Lease, Standing};
use crate::telemetry::Telemetry;
use crate::topic::Topic;

/// A claimed event that waits for its dispatch.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) lease: Lease,
    /// Boxed: it moves from queue to queue.
    pub(super) delivery: Box<Delivery>,
    /// Dispatched as a batch of one: a suspect, a probe, or what is left of a batch that panicked.
    pub(super) alone: bool,
    /// Sent although the circuit is open, to find out whether the sink is back.
    pub(super) probe: bool,
    /// Came straight from its commit in this process.
    pub(super) hot: bool,
}

/// Most topics that a lane remembers, so that foreign topics by the million cannot fill the memory. Events of
/// forgotten ones are claimed and put off again while the sink is down.
const TOPICS_KEPT: usize = 4096;

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: Arc<str>,
    pub(super) sink: BoxDispatcher,
    pub(super) circuit: Circuit,
    pub(super) queue: Queue,
    /// Dispatches that run.
    pub(super) running: usize,
    /// Rows claimed for this lane and not yet settled, and their bytes. Hot ones have a bound of their own.
    pub(super) held: usize,
    pub(super) held_bytes: usize,
    /// Rows that are to be settled and that somebody else has locked. They are not among those that it holds, and have a bound of their
    /// own.
    pub(super) busy: usize,
    /// What tenants have of it, where they share it.
    pub(super) shares: Option<Shares>,
    pub(super) last_error: Option<String>,
    pub(super) deliveries: Deliveries,
    /// So many of the next events are sent one by one: a whole batch got no answer, and one of them may be why.
    pub(super) careful: usize,
    /// A probe found no event to send.
    pub(super) nothing_waits: bool,
    topics: HashSet<Topic>,
    depth: Gauge,
    batch_limit: usize,
    concurrency: usize,
}

impl Lane {
    pub(super) fn new(name: String, sink: BoxDispatcher, settings: &Settings, telemetry: &Telemetry) -> Self {
        Self {
            depth: telemetry.queue_depth(&name),
            name: name.into(),
            batch_limit: sink.batch_limit().max(1),
            sink,
            circuit: Circuit::new(settings.circuit.clone()),
            queue: Queue::default(),
            running: 0,
            held: 0,
            held_bytes: 0,
            busy: 0,
            shares: None,
            last_error: None,
            deliveries: Deliveries::default(),
            careful: 0,
            nothing_waits: false,
            topics: HashSet::new(),
            concurrency: settings.concurrency,
        }
    }

    pub(super) fn learn(&mut self, topic: &Topic) {
        self.nothing_waits = false;
        if self.topics.contains(topic) {
            return;
        }
        // The newest are those that wait: a probe must know them.
        if self.topics.len() >= TOPICS_KEPT
            && let Some(old) = self.topics.iter().next().cloned()
        {
            self.topics.remove(&old);
        }
        self.topics.insert(topic.clone());
    }

    pub(super) fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.iter()
    }

    /// From now on tenants share it.
    pub(super) fn share(&mut self) {
        self.shares = Some(Shares::default());
        self.queue = Queue::by_turns();
    }

    /// A row was claimed for it.
    pub(super) fn take_on(&mut self, load: &Load) {
        self.held += 1;
        self.held_bytes += load.bytes;
        if let Some(shares) = &mut self.shares {
            shares.take_on(load);
        }
    }

    /// One was settled.
    pub(super) fn let_off(&mut self, load: &Load) {
        self.held -= 1;
        self.held_bytes -= load.bytes;
        if let Some(shares) = &mut self.shares {
            shares.let_off(load);
        }
    }

    /// A dispatch has ended, of this tenant's event if it was one alone.
    pub(super) fn over(&mut self, tenant: Option<TenantId>) {
        self.running -= 1;
        if let (Some(shares), Some(tenant)) = (&mut self.shares, tenant) {
            shares.over(tenant);
        }
    }

    pub(super) fn push(&mut self, item: Item) {
        self.queue.push_back(item);
        self.report_depth();
    }

    /// What cannot be sent yet is the next again.
    pub(super) fn push_front(&mut self, items: impl DoubleEndedIterator<Item = Item>) {
        items.rev().for_each(|item| self.queue.push_front(item));
        self.report_depth();
    }

    /// Takes out what waits under a lease that is gone.
    pub(super) fn forget(&mut self, forgotten: &HeldKey) {
        self.queue.retain(|item| key(&item.lease) != *forgotten);
        self.report_depth();
    }

    #[allow(clippy::cast_precision_loss, reason = "gauges are floating point")]
    fn report_depth(&self) {
        self.depth.set(self.queue.len() as f64);
    }

    /// The next events to dispatch together, if a slot is free. Where each event has a slot of its own, no tenant has all slots.
    pub(super) fn next_unit(&mut self) -> Option<Vec<Item>> {
        let free = self.concurrency.checked_sub(self.running).filter(|free| *free > 0)?;
        let shares = self.shares.as_ref().filter(|_| self.batch_limit == 1);
        let may = |tenant| shares.is_none_or(|shares| shares.may_start(tenant, free));
        if self.circuit.is_open() && !self.queue.front(may)?.probe {
            return None;
        }
        let mut first = self.queue.pop_front(may)?;
        if self.careful > 0 && !first.probe {
            self.careful -= 1;
            first.alone = true;
        }
        let mut unit = vec![first];
        while !unit[0].alone
            && unit.len() < self.batch_limit
            && self.queue.front(|_| true).is_some_and(|item| !item.alone)
        {
            unit.extend(self.queue.pop_front(|_| true));
        }
        self.running += 1;
        if let (Some(shares), Some(tenant)) = (&mut self.shares, tenant_of(&unit)) {
            shares.started(tenant);
        }
        self.report_depth();
        Some(unit)
    }

    /// Takes back what was claimed and waits.
    pub(super) fn drain_cold(&mut self) -> Vec<Item> {
        let items = self.queue.drain_cold();
        self.report_depth();
        items
    }

    /// Takes back what came straight from its commit and waits.
    pub(super) fn drain_hot(&mut self) -> Vec<Item> {
        let items = self.queue.drain_hot();
        self.report_depth();
        items
    }

    /// Takes back everything that waits and is not a probe.
    pub(super) fn drain_ordinary(&mut self) -> Vec<Item> {
        let (probes, mut ordinary): (Vec<Item>, Vec<Item>) =
            self.queue.drain_cold().into_iter().partition(|item| item.probe);
        for probe in probes {
            self.queue.push_back(probe);
        }
        ordinary.extend(self.queue.drain_hot());
        self.report_depth();
        ordinary
    }

    /// Whether a probe is due and none is under way.
    pub(super) fn wants_probe(&self, now: Instant) -> bool {
        self.held == 0 && self.circuit.probe_at().is_some_and(|at| at <= now)
    }

    /// Whether a hot event is its probe: where a relay stands by, no claim brings one. One at a time.
    pub(super) fn probes_with_hot(&mut self, standing: Standing, now: Instant, timeout: Duration) -> bool {
        let due = standing != Standing::Active && self.circuit.probe_at().is_some_and(|at| at <= now);
        if due {
            self.circuit.in_vain(now + timeout);
        }
        due
    }

    /// Why its events wait, if it is down.
    pub(super) fn down(&self, settings: &Settings) -> Option<Summary> {
        let error = self.last_error.as_deref().filter(|_| self.circuit.is_open())?;
        Some(Summary::new(error, settings.last_error_max_bytes))
    }

    /// How long its events wait for the next probe.
    pub(super) fn put_off(&self, now: Instant) -> Option<Duration> {
        self.circuit.put_off(now)
    }
}

/// Whose slot a dispatch takes, if it is somebody's alone.
pub(super) fn tenant_of(unit: &[Item]) -> Option<TenantId> {
    match unit {
        [item] => Some(item.delivery.meta.tenant_id),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::hot::delivery_for_tests;
    use crate::testing::FailingDispatcher;

    /// Something that waits.
    pub(in crate::relay) fn item(hot: bool) -> Item {
        let (lease, delivery) = delivery_for_tests();
        Item { lease, delivery: Box::new(delivery), alone: false, probe: false, hot }
    }

    #[test]
    fn the_depth_shown_is_that_of_the_queue_also_when_something_goes_back_or_is_forgotten() {
        let sink = BoxDispatcher::new(FailingDispatcher::times(0));
        let telemetry = Telemetry::new("outbox", "shop_outbox", 1);
        let mut lane = Lane::new("sink".to_owned(), sink, &Settings::default(), &telemetry);
        let depth = Arc::new(AtomicU64::new(0));
        lane.depth = Gauge::from_arc(Arc::clone(&depth));
        let shown = || f64::from_bits(depth.load(Ordering::Relaxed)).to_string();
        let first = item(false);
        let forgotten = key(&first.lease);
        lane.push(first);
        lane.push(item(false));
        let unit = lane.next_unit().unwrap();
        assert_eq!(shown(), "1");
        lane.push_front(unit.into_iter());
        assert_eq!(shown(), "2");
        lane.forget(&forgotten);
        assert_eq!((shown().as_str(), lane.queue.len()), ("1", 1));
    }
}
