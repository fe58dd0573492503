//! ④ What a claim brought is taken in: whether this relay may work, and where each row goes.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::claim::Asked;
use super::engine::Engine;
use super::lane::Item;
use super::lease::Load;
use super::order::Cut;
use super::settle::Outcome;
use crate::code::Code;
use crate::dispatcher::Meta;
use crate::store::{Claim, ClaimMode, Claimed, Lease, Standing, Store, StoreError, Undecodable};
use crate::topic::Topic;

/// What the rows of one claim have in common while they are taken in.
struct Intake<'a> {
    asked: Instant,
    mode: &'a ClaimMode,
    now: Instant,
    /// Whether this relay may not work: everything goes back.
    gives_back: bool,
    /// For each lane, whether it had no room when the claim came.
    full: Vec<bool>,
    cut: Cut,
    /// The topic of the row before, and its lane: neighbours often have the same.
    last: Option<(Topic, usize)>,
}

impl<S: Store> Engine<S> {
    pub(super) fn claimed(&mut self, asked: Instant, wanted: &Asked, answer: Result<Claim, StoreError>) {
        let probed = self.probing.take();
        match answer {
            Ok(claim) => self.answered(asked, wanted, claim, probed),
            Err(error) => self.unanswered(&error),
        }
    }

    fn answered(&mut self, asked: Instant, wanted: &Asked, claim: Claim, probed: Option<usize>) {
        let now = Instant::now();
        if self.failures > 0 {
            tracing::info!(table = self.store.table(), "the store answers again");
            self.failures = 0;
            self.health.update(|health| health.error = None);
        }
        let empty = claim.rows.is_empty() && claim.undecodable.is_empty();
        let soon = now + self.settings.poll_interval;
        match wanted {
            Asked::Rows(ClaimMode::Suspect) => {
                let found = !empty || !claim.buried.is_empty();
                self.suspects.answered(found, claim.suspects, soon);
                for lane in self.lanes.iter_mut().filter(|lane| empty && lane.wants_probe(now)) {
                    lane.circuit.in_vain(soon);
                }
            }
            Asked::Rows(ClaimMode::Waiting) => {
                self.suspects.waiting |= claim.suspects;
                let more = claim.more || std::mem::take(&mut self.detour.has_less);
                self.next_claim = if more { now } else { soon };
                if empty && self.detour.lanes.iter().any(|lane| self.starves(*lane)) {
                    self.detour.was_in_vain(asked, now);
                }
            }
            Asked::Rows(ClaimMode::Probe(_)) => {
                self.suspects.waiting |= claim.suspects;
                let lane = probed.and_then(|number| self.lanes.get_mut(number));
                if let Some(lane) = lane.filter(|_| empty) {
                    lane.nothing_waits |= !claim.suspects;
                    // Where only suspects wait for it, one of them is its probe, as soon as it is their turn.
                    let turn = self.suspects.not_before.clamp(now, soon);
                    lane.circuit.in_vain(if claim.suspects { turn } else { soon });
                }
            }
            Asked::Nothing => {}
        }
        self.stand(claim.standing, claim.paused);
        if let Asked::Rows(mode) = wanted {
            self.accept(asked, mode, claim);
        }
    }

    fn unanswered(&mut self, error: &StoreError) {
        self.failures += 1;
        let waits = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5));
        self.next_claim = Instant::now() + waits.after(self.failures);
        tracing::error!(table = self.store.table(), %error, failures = self.failures, "claim failed, trying again");
        // Who leads is not known without an answer; it is certainly not for this relay to say.
        self.standing = Standing::Standby;
        self.telemetry.leader(false);
        self.health.update(|health| {
            health.standing = Standing::Standby;
            health.error = Some(error.to_string());
        });
    }

    /// Takes in whether this relay may work; what waits goes back when it may not.
    pub(super) fn stand(&mut self, standing: Standing, paused: bool) {
        let paused = paused || standing == Standing::Paused;
        if paused && self.paused != Some(true) {
            self.release_queued();
        }
        self.paused = Some(paused);
        if standing == Standing::Standby {
            // Whoever has the table now dispatches it. Said at every such answer: after a claim that failed it is no news, and some of the
            // queue may still be here. Hot events are handled where they were written, whoever relays.
            self.release_cold();
        }
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
    }

    /// Puts the rows of a claim where they go.
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
            self.bury_undecodable(asked, row);
        }
        for lease in claim.returned {
            self.hold(asked, &lease, Load::default(), Duration::ZERO, None);
            self.finish(Outcome::release(lease, None));
        }
        let mut intake = Intake {
            asked,
            mode,
            now: Instant::now(),
            gives_back: self.stopping || self.standing != Standing::Active,
            full: self.lanes.iter().map(|lane| self.blocked(lane)).collect(),
            cut: Cut::default(),
            last: None,
        };
        for row in claim.rows {
            self.take_in(&mut intake, row);
        }
        self.note_waiting();
    }

    fn take_in(&mut self, intake: &mut Intake<'_>, mut claimed: Claimed) {
        let (asked, now) = (intake.asked, intake.now);
        let strand = self.strands.of(claimed.strand);
        if intake.cut.has(strand) {
            self.hold(asked, &claimed.lease, Load::default(), claimed.age, None);
            return self.finish(Outcome::release(claimed.lease, None));
        }
        if let Err(missing) = self.routes.address(&mut claimed.delivery) {
            let Claimed { lease, delivery, age, .. } = claimed;
            self.hold(asked, &lease, Load::of(&delivery), age, None);
            self.bury(lease, delivery.meta, Code::Rejected, &missing.to_string());
            return intake.cut.off(strand);
        }
        let known = intake.last.as_ref().filter(|(topic, _)| *topic == claimed.delivery.meta.topic);
        let lanes = match known {
            Some((_, number)) => Some(std::slice::from_ref(number)),
            None => self.routes.lanes_of(&claimed.delivery.meta.topic),
        };
        if lanes.is_some_and(|lanes| lanes.len() > 1 || !claimed.sinks_done.is_empty()) {
            if !self.take_in_fan(asked, intake.mode, claimed, &intake.full, strand) {
                intake.cut.off(strand);
            }
            return;
        }
        let Claimed { lease, delivery, age, .. } = claimed;
        let load = Load::of(&delivery);
        let Some(&number) = lanes.and_then(<[usize]>::first) else {
            self.hold(asked, &lease, load, age, None);
            let reason = format!("no route matches the topic {}", delivery.meta.topic);
            self.bury(lease, delivery.meta, Code::Unroutable, &reason);
            return intake.cut.off(strand);
        };
        if known.is_none() {
            self.lanes[number].learn(&delivery.meta.topic);
            intake.last = Some((delivery.meta.topic.clone(), number));
        }
        self.hold(asked, &lease, Load { lane: Some(number), ..load }, age, None);
        let lane = &mut self.lanes[number];
        let alone = *intake.mode != ClaimMode::Waiting;
        let probe = lane.circuit.is_open() && alone;
        if self.tracker.is_running(delivery.meta.event_id, now) {
            // Its lease ended while it is being dispatched here: that one may still arrive.
            self.finish(Outcome::release(lease, Some(self.settings.poll_interval)));
            intake.cut.off(strand);
        } else if intake.gives_back || (lane.circuit.is_open() && !probe) {
            let (after, reason) = (lane.put_off(now), lane.down(&self.settings));
            self.finish(Outcome::put_off(lease, after, reason));
            intake.cut.off(strand);
        } else {
            self.line_up(strand, number, Item { lease, delivery, alone, probe, hot: false });
        }
    }

    fn bury_undecodable(&mut self, asked: Instant, row: Undecodable) {
        tracing::error!(
            table = self.store.table(), topic = row.topic, event_id = %row.event_id, reason = row.reason,
            code = Code::Undecodable.as_str(), "row is not an event"
        );
        self.hold(asked, &row.lease, Load::default(), Duration::ZERO, None);
        let event = (topic_or_none(row.topic), row.event_id);
        self.finish(Outcome::bury(row.lease, event, Code::Undecodable, &row.reason, &self.settings));
    }

    /// An event that cannot even be sent is dead.
    pub(super) fn bury(&mut self, lease: Lease, meta: Meta, code: Code, reason: &str) {
        let (topic, event_id) = (meta.topic, meta.event_id);
        tracing::error!(table = self.store.table(), %topic, %event_id, %code, reason, "an event cannot be sent");
        self.finish(Outcome::bury(lease, (topic, event_id), code, reason, &self.settings));
    }
}

/// The topic of a row that may have none: it is dead all the same, and counted.
fn topic_or_none(text: String) -> Topic {
    Topic::lenient(text).unwrap_or(const { Topic::from_static("postbox.undecodable.topic.v1") })
}
