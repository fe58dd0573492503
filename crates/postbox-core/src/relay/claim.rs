//! ④ What the loop claims next: how much, and what it leaves out.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::engine::Engine;
use super::lane::Lane;
use super::shares::Shares;
use crate::event::TenantId;
use crate::failpoint;
use crate::store::{Claim, ClaimMode, ClaimRequest, Crowding, Standing, Store, StoreError};

/// A claim's answer, with when it was asked (leases count from before the question) and what for.
pub(super) type Answer = (Instant, Asked, Result<Claim, StoreError>);

/// What a claim asked for; nothing, to show that the relay lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Rows(ClaimMode),
    Nothing,
}

/// A claim that leaves out what waits for a lane that is full looks through all of that for what waits for others. Where
/// there is much, that takes long. So after one that was in vain while the full lane ran empty, the next has to wait: all of
/// them may take about one part in this many of the time.
const DETOURS_SHARE: u32 = 10;
/// One that took no longer than this counts as none.
const SHORT: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// What the last claim left out although its sinks work, and when such a claim may be made again.
#[derive(Debug)]
pub(super) struct Detour {
    /// Tenants that had their share: there may be more as soon as they have less.
    pub(super) tenants: bool,
    /// Lanes that were full.
    pub(super) lanes: Vec<usize>,
    /// These have less since that claim was asked.
    pub(super) has_less: bool,
    /// No claim that leaves out lanes is made before this.
    pub(super) not_before: Instant,
}

impl Detour {
    pub(super) fn new(now: Instant) -> Self {
        Self { tenants: false, lanes: Vec::new(), has_less: false, not_before: now }
    }

    /// A claim that left something out found nothing, and what it left out has run empty meanwhile.
    pub(super) fn was_in_vain(&mut self, asked: Instant, now: Instant) {
        let took = now.duration_since(asked);
        if took > SHORT {
            self.not_before = now + (took * DETOURS_SHARE).min(LONGEST_PAUSE);
        }
    }
}

impl<S: Store> Engine<S> {
    pub(super) fn start_claim(&mut self, now: Instant) {
        if self.claiming.is_some() {
            return;
        }
        if let Some(wanted) = self.what_to_claim(now) {
            self.ask(now, wanted);
        }
    }

    /// The sign of life of a relay that stops: without it another would take over what still runs here.
    pub(super) fn start_beat(&mut self, now: Instant) {
        let answers = self.failures == 0 || now >= self.next_claim;
        if self.claiming.is_none() && now >= self.next_beat && answers {
            self.ask(now, Asked::Nothing);
        }
    }

    /// Claims in a task of its own: whoever waits for it may be dropped.
    pub(super) fn ask(&mut self, now: Instant, wanted: Asked) {
        let request = match &wanted {
            Asked::Nothing => self.request(ClaimMode::Waiting, 0),
            Asked::Rows(mode) => self.request(mode.clone(), self.limit(mode)),
        };
        if wanted == Asked::Rows(ClaimMode::Waiting) {
            let full = (0..self.lanes.len()).filter(|number| self.full(&self.lanes[*number]));
            self.detour.lanes = full.collect();
            (self.detour.tenants, self.detour.has_less) = (!request.crowding.is_empty(), false);
        }
        self.next_beat = now + self.settings.poll_interval;
        let store = self.store.clone();
        let claim = async move {
            failpoint::hit("claim.before", store.table()).await;
            let asked = Instant::now();
            let answer = store.claim(request).await;
            failpoint::hit("claim.after", store.table()).await;
            (asked, wanted, answer)
        };
        self.claiming = Some(tokio::spawn(claim.in_current_span()));
    }

    pub(super) fn limit(&self, mode: &ClaimMode) -> usize {
        match mode {
            ClaimMode::Waiting => self.room().min(self.settings.batch_size),
            ClaimMode::Suspect | ClaimMode::Probe(_) => 1,
        }
    }

    pub(super) fn what_to_claim(&mut self, now: Instant) -> Option<Asked> {
        let beat = (now >= self.next_beat && now >= self.next_claim).then_some(Asked::Nothing);
        if self.failures > 0 && now < self.next_claim {
            return None;
        }
        if self.suspects_turn(now) {
            if self.nothing_at_work() {
                self.suspects.turn_since.get_or_insert(now);
                return Some(Asked::Rows(ClaimMode::Suspect));
            }
            return beat;
        }
        // A relay that stands by claims no event to probe with: the next hot one is its probe.
        let probes = self.standing == Standing::Active;
        if let Some(number) = self.lanes.iter().position(|lane| probes && lane.wants_probe(now)) {
            return Some(Asked::Rows(self.probe(number)));
        }
        if now < self.next_claim {
            return None;
        }
        let room_for_a_batch = self.room() >= self.settings.batch_size.min(self.lane_capacity());
        let too_soon = now < self.detour.not_before && self.lanes.iter().any(|lane| self.full(lane));
        let claims = room_for_a_batch && !too_soon && self.lanes.iter().any(|lane| !self.blocked(lane));
        self.make_room(claims, now);
        if claims { Some(Asked::Rows(ClaimMode::Waiting)) } else { beat }
    }

    /// Claims an event to find out whether this lane's sink is back.
    pub(super) fn probe(&mut self, number: usize) -> ClaimMode {
        self.probing = Some(number);
        ClaimMode::Probe(self.lanes[number].topics().cloned().collect())
    }

    /// Of events for several sinks that wait for others of their strand: they are in no lane yet, which would count them.
    pub(super) fn bytes_behind_others(&self) -> usize {
        if self.routes.widest() > 1 { self.strands.bytes_for_several() } else { 0 }
    }

    /// Rows that one lane may hold: one batch at work, one in the queue, one being settled, and one that waits behind others, or to
    /// be settled next. With three, the next claim waited for the end of a settle.
    pub(super) fn lane_capacity(&self) -> usize {
        (4 * self.settings.batch_size).max(self.settings.concurrency)
    }

    pub(super) fn lane_bytes(&self) -> usize {
        (self.settings.max_in_flight_bytes / self.lanes.len().max(1)).max(1)
    }

    /// A lane that is down or full: its topics are left out of the claim.
    pub(super) fn blocked(&self, lane: &Lane) -> bool {
        let most = self.lane_capacity();
        lane.circuit.is_open()
            || lane.held >= most
            || lane.held_bytes >= self.lane_bytes()
            || lane.busy >= most
    }

    /// A lane whose sink works, and that has all it may have.
    fn full(&self, lane: &Lane) -> bool {
        !lane.circuit.is_open() && self.blocked(lane)
    }

    /// One that was full has less than half of what it may have.
    pub(super) fn starves(&self, number: usize) -> bool {
        let lane = &self.lanes[number];
        let most = self.lane_capacity();
        lane.busy < most && lane.held * 2 < most && lane.held_bytes * 2 < self.lane_bytes()
    }

    /// Whether a tenant has so much of a lane that it gets no more.
    pub(super) fn crowds(&self, lane: &Lane, tenant: TenantId) -> bool {
        let rows = self.lane_capacity().saturating_sub(lane.held);
        let bytes = self.lane_bytes().saturating_sub(lane.held_bytes);
        lane.shares.as_ref().is_some_and(|shares| shares.crowds(tenant, rows, bytes))
    }

    /// What the claim leaves out of tenants that have their share of some lanes.
    fn crowding(&self) -> Arc<[Crowding]> {
        let tenants = self.lanes.iter().filter_map(|lane| lane.shares.as_ref()).flat_map(Shares::tenants);
        let tenants: HashSet<TenantId> = tenants.collect();
        let left_out = |tenant: TenantId| {
            // Of a lane that is full or down, everybody is left out.
            if !self.lanes.iter().any(|lane| !self.blocked(lane) && self.crowds(lane, tenant)) {
                return None;
            }
            let shut = |lane: &Lane| self.blocked(lane) || self.crowds(lane, tenant);
            if self.lanes.iter().all(shut) {
                return Some(Crowding::Whole(tenant));
            }
            let (exclude, spent) = self.left_out(shut);
            Some(Crowding::Some { tenant, exclude, spent })
        };
        tenants.into_iter().filter_map(left_out).collect()
    }

    pub(super) fn room(&self) -> usize {
        let all = self.lane_capacity().saturating_mul(self.lanes.len());
        all.saturating_sub(self.held.len() - self.held_hot - self.held_busy)
    }

    pub(super) fn request(&self, mode: ClaimMode, limit: usize) -> ClaimRequest {
        let held_bytes =
            self.lanes.iter().map(|lane| lane.held_bytes).sum::<usize>() + self.bytes_behind_others();
        let (exclude, spent) = match mode {
            ClaimMode::Probe(_) => {
                (Vec::new(), self.probing.map(|number| self.not_for(number)).unwrap_or_default())
            }
            ClaimMode::Waiting => self.left_out(|lane| self.blocked(lane)),
            // If only suspects wait for a sink that is down, one of them is its probe.
            ClaimMode::Suspect => {
                let now = Instant::now();
                self.left_out(|lane| lane.circuit.is_open() && !lane.wants_probe(now))
            }
        };
        // An event that goes to several sinks is in memory once for each.
        let max_bytes = self.settings.max_in_flight_bytes.saturating_sub(held_bytes) / self.routes.widest();
        let crowding = if mode == ClaimMode::Waiting { self.crowding() } else { Arc::default() };
        ClaimRequest {
            mode,
            limit,
            max_bytes,
            lock_ttl: self.settings.lock_ttl,
            poll_interval: self.settings.poll_interval,
            max_attempts: self.settings.max_attempts,
            exclude: exclude.into(),
            spent: spent.into(),
            crowding,
        }
    }
}
