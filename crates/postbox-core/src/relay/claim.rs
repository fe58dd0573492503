//! What the loop claims next, and what it does with what it got.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::backoff::Backoff;
use super::lane::{Item, Lane};
use super::lease::Load;
use super::order::Cut;
use super::run::{Asked, Engine, SUSPECTS_TURN};
use super::settle::Outcome;
use super::shares::Shares;
use crate::code::Code;
use crate::dispatcher::Meta;
use crate::event::TenantId;
use crate::failpoint;
use crate::store::{Claim, ClaimMode, ClaimRequest, Claimed, Crowding, Lease, Standing, Store, StoreError};
use crate::topic::Topic;

/// A claim that leaves out what waits for a lane that is full looks through all of that for what waits for others. Where there is much, that takes
/// long. So after one that was in vain while the full lane ran empty, the next has to wait: all of them have this share of the time.
const SHORT_DETOUR: Duration = Duration::from_millis(50);
const DETOURS_SHARE: u32 = 10;
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

impl<S: Store> Engine<S> {
    pub(super) fn start_claim(&mut self, now: Instant) {
        if self.claiming.is_some() {
            return;
        }
        let Some(wanted) = self.what_to_claim(now) else { return };
        let request = match &wanted {
            Asked::Nothing => self.request(ClaimMode::Waiting, 0),
            Asked::Rows(mode) => self.request(mode.clone(), self.limit(mode)),
        };
        if wanted == Asked::Rows(ClaimMode::Waiting) {
            self.left_out_lanes =
                (0..self.lanes.len()).filter(|number| self.full(&self.lanes[*number])).collect();
            (self.left_out_tenants, self.have_less) = (!request.crowding.is_empty(), false);
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
            if self.nothing_at_work() && self.outcomes.is_empty() {
                self.suspects.turn_since.get_or_insert(now);
                return Some(Asked::Rows(ClaimMode::Suspect));
            }
            return beat;
        }
        if let Some(number) = self.lanes.iter().position(|lane| lane.wants_probe(now)) {
            self.probing = Some(number);
            return Some(Asked::Rows(ClaimMode::Probe(self.lanes[number].topics().cloned().collect())));
        }
        if now < self.next_claim {
            return None;
        }
        let room_for_a_batch = self.room() >= self.settings.batch_size.min(self.lane_capacity());
        let too_soon = now < self.detour_from && self.lanes.iter().any(|lane| self.full(lane));
        if room_for_a_batch && !too_soon && self.lanes.iter().any(|lane| !self.blocked(lane)) {
            return Some(Asked::Rows(ClaimMode::Waiting));
        }
        self.make_room(now);
        beat
    }

    /// Whether suspects have the relay for themselves now. What only waits in a queue goes back for it, so that nobody
    /// is held up for longer than what runs, and then the suspect, may take.
    pub(super) fn suspects_turn(&mut self, now: Instant) -> bool {
        let due =
            self.suspects.waiting && now >= self.suspects.not_before && self.standing == Standing::Active;
        let over = self.suspects.turn_since.filter(|since| now.duration_since(*since) > SUSPECTS_TURN);
        if let Some(since) = over.filter(|_| due && self.nothing_at_work()) {
            self.suspects.not_before = now + now.duration_since(since);
        }
        if !due || now < self.suspects.not_before {
            (self.suspects.turn, self.suspects.turn_since) = (false, None);
            return false;
        }
        if !self.suspects.turn {
            self.suspects.turn = true;
            self.release_cold();
        }
        true
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
        lane.circuit.is_open() || lane.held >= self.lane_capacity() || lane.held_bytes >= self.lane_bytes()
    }

    /// A lane whose sink works, and that has all it may have.
    fn full(&self, lane: &Lane) -> bool {
        !lane.circuit.is_open() && self.blocked(lane)
    }

    /// One that was full has less than half of what it may have.
    fn starves(&self, number: usize) -> bool {
        let lane = &self.lanes[number];
        lane.held * 2 < self.lane_capacity() && lane.held_bytes * 2 < self.lane_bytes()
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
        (self.lane_capacity() * self.lanes.len()).saturating_sub(self.held.len() - self.held_hot)
    }

    pub(super) fn request(&self, mode: ClaimMode, limit: usize) -> ClaimRequest {
        let held_bytes: usize = self.lanes.iter().map(|lane| lane.held_bytes).sum();
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

    pub(super) fn claimed(&mut self, asked: Instant, wanted: &Asked, answer: Result<Claim, StoreError>) {
        let now = Instant::now();
        let probed = self.probing.take();
        match answer {
            Ok(claim) => {
                if self.failures > 0 {
                    tracing::info!(table = self.store.table(), "the store answers again");
                    self.failures = 0;
                    self.health.update(|health| health.error = None);
                }
                let empty = claim.rows.is_empty() && claim.undecodable.is_empty();
                let soon = now + self.settings.poll_interval;
                match wanted {
                    Asked::Rows(ClaimMode::Suspect) => {
                        self.suspects.waiting = !empty || claim.suspects || !claim.buried.is_empty();
                        for lane in self.lanes.iter_mut().filter(|lane| empty && lane.wants_probe(now)) {
                            lane.circuit.in_vain(soon);
                        }
                    }
                    Asked::Rows(ClaimMode::Waiting) => {
                        self.suspects.waiting |= claim.suspects;
                        let more = claim.more || std::mem::take(&mut self.have_less);
                        self.next_claim = if more { now } else { soon };
                        let took = now.duration_since(asked);
                        if empty
                            && took > SHORT_DETOUR
                            && self.left_out_lanes.iter().any(|lane| self.starves(*lane))
                        {
                            self.detour_from = now + (took * DETOURS_SHARE).min(LONGEST_PAUSE);
                        }
                    }
                    Asked::Rows(ClaimMode::Probe(_)) => {
                        self.suspects.waiting |= claim.suspects;
                        let lane = probed.and_then(|number| self.lanes.get_mut(number));
                        if let Some(lane) = lane.filter(|_| empty && !claim.suspects) {
                            lane.nothing_waits = true;
                            lane.circuit.in_vain(soon);
                        }
                    }
                    Asked::Nothing => {}
                }
                self.stand(claim.standing, claim.paused);
                if let Asked::Rows(mode) = wanted {
                    self.accept(asked, mode, claim);
                }
            }
            Err(error) => {
                self.failures += 1;
                let waits = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5));
                self.next_claim = now + waits.after(self.failures);
                tracing::error!(table = self.store.table(), %error, failures = self.failures, "claim failed, trying again");
                // Who leads is not known without an answer; it is certainly not for this relay to say.
                self.standing = Standing::Standby;
                self.telemetry.leader(false);
                self.health.update(|health| {
                    health.standing = Standing::Standby;
                    health.error = Some(error.to_string());
                });
            }
        }
    }

    /// Takes in whether this relay may work; what waits goes back when it may not.
    pub(super) fn stand(&mut self, standing: Standing, paused: bool) {
        let paused = paused || standing == Standing::Paused;
        if paused && self.paused != Some(true) {
            self.release_queued();
        }
        self.paused = Some(paused);
        if self.standing == standing {
            return;
        }
        tracing::info!(
            table = self.store.table(),
            relay = &*self.settings.name,
            ?standing,
            "standing changed"
        );
        self.standing = standing;
        self.telemetry.leader(standing != Standing::Standby);
        self.health.update(|health| health.standing = standing);
        if standing == Standing::Standby {
            // Hot events are handled where they were written, whoever relays.
            self.release_cold();
        }
    }

    pub(super) fn accept(&mut self, asked: Instant, mode: &ClaimMode, claim: Claim) {
        self.report.claimed += claim.rows.len() + claim.undecodable.len();
        if !claim.rows.is_empty() {
            self.telemetry.cold_enqueued(claim.rows.len());
        }
        for buried in claim.buried {
            self.report.dead += 1;
            tracing::error!(
                table = self.store.table(), topic = buried.topic, event_id = %buried.event_id,
                sequence = buried.sequence, code = Code::Exhausted.as_str(), "event is dead"
            );
            self.telemetry.died(&topic_or_none(buried.topic));
        }
        for row in claim.undecodable {
            tracing::error!(
                table = self.store.table(), topic = row.topic, event_id = %row.event_id, reason = row.reason,
                code = Code::Undecodable.as_str(), "row is not an event"
            );
            self.hold(asked, &row.lease, Load::default(), Duration::ZERO, None);
            let topic = topic_or_none(row.topic);
            self.finish(Outcome::bury(
                row.lease,
                Some(topic),
                Code::Undecodable,
                &row.reason,
                &self.settings,
            ));
        }
        for lease in claim.returned {
            self.hold(asked, &lease, Load::default(), Duration::ZERO, None);
            self.finish(Outcome::release(lease, None));
        }
        let give_back = self.stopping || self.standing != Standing::Active;
        let now = Instant::now();
        let full: Vec<bool> = self.lanes.iter().map(|lane| self.blocked(lane)).collect();
        let mut cut = Cut::default();
        // The topic of the event before, and its lane: neighbours often have the same.
        let mut last: Option<(Topic, usize)> = None;
        for mut claimed in claim.rows {
            let strand = self.strands.of(claimed.strand);
            if cut.has(strand) {
                self.hold(asked, &claimed.lease, Load::default(), claimed.age, None);
                self.finish(Outcome::release(claimed.lease, None));
                continue;
            }
            if let Err(missing) = self.routes.address(&mut claimed.delivery) {
                let Claimed { lease, delivery, age, .. } = claimed;
                self.hold(asked, &lease, Load::of(&delivery), age, None);
                self.bury(lease, delivery.meta, Code::Rejected, &missing.to_string());
                cut.off(strand);
                continue;
            }
            let known = last.as_ref().filter(|(topic, _)| *topic == claimed.delivery.meta.topic);
            let lanes = match known {
                Some((_, number)) => Some(std::slice::from_ref(number)),
                None => self.routes.lanes_of(&claimed.delivery.meta.topic),
            };
            if lanes.is_some_and(|lanes| lanes.len() > 1 || !claimed.sinks_done.is_empty()) {
                if !self.take_in_fan(asked, mode, claimed, &full, strand) {
                    cut.off(strand);
                }
                continue;
            }
            let Claimed { lease, delivery, age, .. } = claimed;
            let load = Load::of(&delivery);
            let Some(&number) = lanes.and_then(<[usize]>::first) else {
                self.hold(asked, &lease, load, age, None);
                let reason = format!("no route matches the topic {}", delivery.meta.topic);
                self.bury(lease, delivery.meta, Code::Unroutable, &reason);
                cut.off(strand);
                continue;
            };
            if known.is_none() {
                self.lanes[number].learn(&delivery.meta.topic);
                last = Some((delivery.meta.topic.clone(), number));
            }
            self.hold(asked, &lease, Load { lane: Some(number), ..load }, age, None);
            let lane = &mut self.lanes[number];
            let probe = lane.circuit.is_open() && *mode != ClaimMode::Waiting;
            if self.tracker.is_running(delivery.meta.event_id, now) {
                // Its lease ended while it is being dispatched here: that one may still arrive.
                self.finish(Outcome::release(lease, Some(self.settings.poll_interval)));
                cut.off(strand);
            } else if give_back || (lane.circuit.is_open() && !probe) {
                let (after, reason) = (lane.put_off(now), lane.down(&self.settings));
                self.finish(Outcome::put_off(lease, after, reason));
                cut.off(strand);
            } else {
                let alone = *mode != ClaimMode::Waiting;
                self.line_up(strand, number, Item { lease, delivery, alone, probe, hot: false });
            }
        }
        self.note_waiting();
    }

    /// An event that cannot even be sent is dead.
    pub(super) fn bury(&mut self, lease: Lease, meta: Meta, code: Code, reason: &str) {
        let (topic, event_id) = (meta.topic, meta.event_id);
        tracing::error!(table = self.store.table(), %topic, %event_id, %code, reason, "an event cannot be sent");
        self.finish(Outcome::bury(lease, Some(topic), code, reason, &self.settings));
    }
}

/// The topic of a row that may have none: it is dead all the same, and counted.
fn topic_or_none(text: String) -> Topic {
    Topic::lenient(text).unwrap_or(const { Topic::from_static("postbox.undecodable.topic.v1") })
}
