//! The rows that are leased to this relay: held from the claim to the end of the settle, renewed on the way.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;
use uuid::Uuid;

use super::engine::Engine;
use super::fan::Fan;
use super::lane::Lane;
use super::settle::Outcome;
use crate::dispatcher::Delivery;
use crate::event::TenantId;
use crate::failpoint;
use crate::hot::Slot;
use crate::store::{Lease, Renewed, Store, StoreError};

/// What a renewal was asked for, and what it was told.
pub(super) type Renewal = (Vec<Lease>, Result<Renewed, StoreError>);

/// A row under one claim. A row can be claimed again while its first dispatch still runs (an operator's repair, a relay
/// with a shorter lease): those are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldKey {
    row: Uuid,
    /// The token's hash and not a clone: all tasks would contend for its reference count.
    claim: u64,
}

impl Hash for HeldKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.row.hash(state);
    }
}

pub(super) fn key(lease: &Lease) -> HeldKey {
    HeldKey { row: lease.row, claim: lease.token.hash() }
}

/// What a row counts for, and where.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) lane: Option<usize>,
    pub(super) bytes: usize,
    pub(super) tenant: TenantId,
}

impl Load {
    /// Of an event that is in no lane yet.
    pub(super) fn of(delivery: &Delivery) -> Self {
        Self { lane: None, bytes: delivery.payload.len(), tenant: delivery.meta.tenant_id }
    }
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease: Lease,
    pub(super) load: Load,
    pub(super) stage: Stage,
    /// Somebody else had locked its row when it was to be settled. Its lanes do not count it any more.
    pub(super) busy: bool,
    pub(super) lease_until: Instant,
    pub(super) claimed_at: Instant,
    /// How long it had been due when it was claimed.
    pub(super) age: Duration,
    /// Its place on the hot path, if it came that way; free when this is dropped.
    pub(super) slot: Option<Slot>,
    /// Its strand, where order is kept.
    pub(super) strand: Option<i64>,
    /// Where it goes, if that is several sinks; its load has no lane then.
    pub(super) fan: Option<Box<Fan>>,
    /// It was given back, and came again under the same claim, as an owner's rows do: so many settles of before are yet to be heard of.
    pub(super) earlier: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Queued,
    Running,
    Settling,
}

impl<S: Store> Engine<S> {
    pub(super) fn hold(
        &mut self,
        asked: Instant,
        lease: &Lease,
        load: Load,
        age: Duration,
        slot: Option<Slot>,
    ) {
        if slot.is_some() {
            self.held_hot += 1;
        } else if let Some(lane) = load.lane.and_then(|lane| self.lanes.get_mut(lane)) {
            lane.take_on(&load);
        }
        let lease_until = asked + self.settings.lock_ttl;
        let mut held = Held {
            load,
            stage: Stage::Queued,
            busy: false,
            lease_until,
            claimed_at: asked,
            age,
            lease: lease.clone(),
            slot,
            strand: None,
            fan: None,
            earlier: 0,
        };
        // A row that was given back may come again before it is known that this was written down.
        if let Some(before) = self.held.remove(&key(lease)) {
            self.uncount(&before);
            held.earlier = before.earlier + usize::from(before.stage == Stage::Settling);
        }
        self.held.insert(key(lease), held);
    }

    /// A settle of this row was heard of: it is held no more, unless it came again meanwhile.
    pub(super) fn settled_one(&mut self, key: &HeldKey) -> Option<Held> {
        if let Some(held) = self.held.get_mut(key)
            && held.earlier > 0
        {
            held.earlier -= 1;
            return None;
        }
        self.let_go(key)
    }

    pub(super) fn let_go(&mut self, key: &HeldKey) -> Option<Held> {
        let held = self.held.remove(key)?;
        self.uncount(&held);
        Some(held)
    }

    fn uncount(&mut self, held: &Held) {
        if held.slot.is_some() {
            self.held_hot -= 1;
        }
        if !held.busy {
            return each_lane(&mut self.lanes, held, |lane| lane.let_off(&held.load));
        }
        self.held_busy -= usize::from(held.slot.is_none());
        each_lane(&mut self.lanes, held, |lane| lane.busy -= 1);
    }

    /// Somebody has locked a row that is to be settled: meanwhile its sinks have room for others, and can be probed.
    pub(super) fn note_busy(&mut self, key: &HeldKey) {
        let held = self.held.get_mut(key).filter(|held| held.stage == Stage::Settling && held.earlier == 0);
        if let Some(held) = held.filter(|held| !held.busy) {
            held.busy = true;
            self.held_busy += usize::from(held.slot.is_none());
            each_lane(&mut self.lanes, held, |lane| {
                lane.let_off(&held.load);
                lane.busy += 1;
            });
        }
    }

    pub(super) fn start_extend(&mut self, now: Instant) {
        if self.extending.is_some() || now < self.next_extend.max(self.extend_pause) {
            return;
        }
        self.next_extend = now + self.settings.lock_ttl / 3;
        let old = now + self.settings.lock_ttl.mul_f64(0.7);
        let at_work =
            self.held.values().filter(|held| held.stage != Stage::Settling && held.lease_until < old);
        let leases: Vec<Lease> = at_work.map(|held| held.lease.clone()).collect();
        if leases.is_empty() {
            return;
        }
        let store = self.store.clone();
        let extend = async move {
            failpoint::hit("extend.before", store.table()).await;
            let renewed = store.extend(leases.clone()).await;
            failpoint::hit("extend.after", store.table()).await;
            (leases, renewed)
        };
        self.extending = Some(tokio::spawn(extend.in_current_span()));
    }

    pub(super) fn extended(&mut self, leases: &[Lease], renewed: Result<Renewed, StoreError>) {
        let now = Instant::now();
        let Renewed { lost, busy } = match renewed {
            Ok(renewed) => renewed,
            Err(error) => {
                tracing::error!(table = self.store.table(), %error, "leases could not be renewed, trying again");
                return self.extend_again(now);
            }
        };
        let busy: HashSet<HeldKey> = busy.iter().map(key).collect();
        for key in leases.iter().map(key).filter(|key| !busy.contains(key)) {
            if let Some(held) = self.held.get_mut(&key) {
                // Counted from after the answer, a lease would seem longer than it is; a second is more than enough.
                held.lease_until =
                    now + self.settings.lock_ttl - Duration::from_secs(1).min(self.settings.lock_ttl / 10);
            }
        }
        for lease in lost {
            // What is being settled meanwhile is not locked any more, and not lost either.
            let key = key(&lease);
            match self.held.get(&key).map(|held| held.stage) {
                Some(Stage::Queued) => self.forget(&key),
                Some(Stage::Running) => {
                    self.strand_broken(&key);
                    self.drop_waiting(&key);
                }
                Some(Stage::Settling) | None => {}
            }
        }
        if !busy.is_empty() {
            self.extend_again(now);
        }
        for key in busy {
            if self.held.get(&key).is_some_and(|held| held.lease_until < now + self.settings.dispatch_timeout)
            {
                self.give_back_short(&key);
            }
        }
    }

    /// Too little is left of its lease to be sent under, and it cannot be renewed: where it waits it would keep its place from the
    /// others. It goes back uncharged, as soon as its row is free.
    fn give_back_short(&mut self, key: &HeldKey) {
        let Some(held) = self.held.get(key) else { return };
        let (lease, strand, lane) = (held.lease.clone(), held.strand, held.load.lane);
        match held.stage {
            Stage::Queued | Stage::Running if held.fan.is_some() => self.drop_waiting(key),
            Stage::Running | Stage::Settling => {}
            Stage::Queued => match strand {
                Some(strand) if !self.strands.is_first(strand, key) => self.release_strand(strand),
                Some(_) | None => {
                    if let Some(lane) = lane {
                        self.lanes[lane].forget(key);
                    }
                    self.finish(Outcome::release(lease, None));
                }
            },
        }
    }

    /// Some leases are as old as they were: to be renewed soon.
    fn extend_again(&mut self, now: Instant) {
        self.next_extend = now;
        self.extend_pause = now + (self.settings.lock_ttl / 30).max(Duration::from_millis(100));
        self.drop_expired(now);
    }

    /// Leases that ran out while the database was away belong to nobody: what waits is dropped, not dispatched.
    pub(super) fn drop_expired(&mut self, now: Instant) {
        let expired = self.held.values().filter(|held| held.lease_until <= now);
        let keys: Vec<HeldKey> = expired.map(|held| key(&held.lease)).collect();
        for key in keys {
            // Looked at again: what waits behind one that was dropped is on its way back already.
            match self.held.get(&key).map(|held| held.stage) {
                Some(Stage::Queued) => self.forget(&key),
                Some(Stage::Running) => self.strand_broken(&key),
                Some(Stage::Settling) | None => {}
            }
        }
    }

    pub(super) fn forget(&mut self, forgotten: &HeldKey) {
        if let Some(held) = self.let_go(forgotten) {
            let lanes = held.fan.iter().flat_map(|fan| fan.lanes()).chain(held.load.lane);
            for number in lanes {
                self.lanes[number].forget(forgotten);
            }
            self.store.forget(std::slice::from_ref(&held.lease));
            self.report.lost += 1;
            self.telemetry.lease_lost(1);
            if let Some(strand) = held.strand {
                self.strand_lost(strand, forgotten);
            }
        }
    }
}

/// Each lane that counts it.
fn each_lane(lanes: &mut [Lane], held: &Held, change: impl Fn(&mut Lane)) {
    let lane = held.load.lane.filter(|_| held.slot.is_none());
    for number in held.fan.iter().flat_map(|fan| fan.counted()).chain(lane) {
        change(&mut lanes[number]);
    }
}
