//! ⑥ Settle: outcomes become verdicts, and verdicts one fenced statement.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::engine::Engine;
use super::fan::Answer;
use super::lane::Lane;
use super::lease::{Stage, key};
use super::settings::Settings;
use super::unit::{End, Ended};
use crate::code::Code;
use crate::event::EventId;
use crate::failpoint;
use crate::redact::Summary;
use crate::store::{Failure, Lease, Settled, Settlement, Store, StoreErrorKind, Verdict};
use crate::topic::Topic;

/// In order the events of a strand follow one after the other, and so do their outcomes: for so long they are gathered, or the first of
/// them would be settled alone, and the others wait for that.
const GATHERED_FOR: Duration = Duration::from_millis(2);

/// Rows of one settle, at the most. One that is larger than a server takes would be repeated for ever: a statement of MySQL has at most
/// 65,535 arguments.
const MOST_ROWS: usize = 8_192;

/// And bytes of errors, which are escaped and written: its default for a packet is 16 MiB.
const MOST_BYTES: usize = 4 << 20;

/// A settlement with what its end is counted and told by.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) settlement: Settlement,
    pub(super) event: Option<(Topic, EventId)>,
}

impl Outcome {
    /// What becomes of an event that was dispatched; `put_off` is how long its sink will be left alone, if it is down.
    pub(super) fn of(ended: Ended, settings: &Settings, put_off: Option<Duration>) -> Self {
        let Ended { lease, event_id, topic, took, end, .. } = ended;
        let failure = |outcome, error: &Summary| {
            let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            let relay = Arc::clone(&settings.name);
            Some(Box::new(Failure { relay, duration_ms, outcome, error: error.to_string() }))
        };
        let (verdict, failure) = match end {
            End::Delivered => (Verdict::Delivered, None),
            End::Unavailable { error } => (Verdict::Release { after: put_off, reason: Some(error) }, None),
            End::Reject { error } => {
                let failure = failure("reject", &error);
                (Verdict::Dead { reason: error }, failure)
            }
            End::Retry { after, outcome, error } => {
                let failure = failure(outcome, &error);
                let last = lease.attempts >= settings.max_attempts;
                let after = after.unwrap_or_else(|| settings.backoff.after(lease.attempts));
                let verdict = if last {
                    Verdict::Dead { reason: error }
                } else {
                    Verdict::Retry { after, reason: error }
                };
                (verdict, failure)
            }
        };
        let settlement = Settlement { failure, ..Settlement::new(lease, verdict) };
        Self { settlement, event: Some((topic, event_id)) }
    }

    /// Goes back as if it had not been claimed.
    pub(super) fn release(lease: Lease, after: Option<Duration>) -> Self {
        Self::put_off(lease, after, None)
    }

    /// The same, because its destination is down.
    pub(super) fn put_off(lease: Lease, after: Option<Duration>, reason: Option<Summary>) -> Self {
        Self { settlement: Settlement::new(lease, Verdict::Release { after, reason }), event: None }
    }

    /// Dead without a dispatch.
    pub(super) fn bury(
        lease: Lease,
        event: (Topic, EventId),
        code: Code,
        reason: &str,
        settings: &Settings,
    ) -> Self {
        let reason = Summary::new(&format!("{code}: {reason}"), settings.last_error_max_bytes);
        let failure = Failure {
            relay: Arc::clone(&settings.name),
            duration_ms: 0,
            outcome: "dead",
            error: reason.to_string(),
        };
        let settlement = Settlement::new(lease, Verdict::Dead { reason });
        Self { settlement: Settlement { failure: Some(Box::new(failure)), ..settlement }, event: Some(event) }
    }
}

/// Outcomes that are settled together, in two lists: the store looks at the settlements where they lie, however often it has to be
/// asked.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    settlements: Vec<Settlement>,
    /// For each of them.
    events: Vec<Option<(Topic, EventId)>>,
    /// When the first of them came.
    since: Option<Instant>,
}

impl Outcomes {
    pub(super) fn is_empty(&self) -> bool {
        self.settlements.is_empty()
    }

    fn push(&mut self, Outcome { settlement, event }: Outcome) {
        self.settlements.push(settlement);
        self.events.push(event);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Takes as many as one settle may have, the first ones first; the next one takes the rest.
    fn take(&mut self) -> Self {
        let mut bytes = 0;
        let fits = |settlement: &&Settlement| {
            bytes += said(settlement);
            bytes <= MOST_BYTES
        };
        let count = self.settlements.iter().take(MOST_ROWS).take_while(fits).count().max(1);
        let settlements = self.settlements.split_off(count.min(self.settlements.len()));
        let events = self.events.split_off(count.min(self.events.len()));
        let since = self.since.filter(|_| !settlements.is_empty());
        std::mem::replace(self, Self { settlements, events, since })
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.settlements.iter().map(|settlement| &settlement.lease)
    }

    fn into_each(self) -> impl Iterator<Item = Outcome> {
        let each = self.settlements.into_iter().zip(self.events);
        each.map(|(settlement, event)| Outcome { settlement, event })
    }
}

/// How many bytes of errors a settlement has.
fn said(Settlement { verdict, failure, .. }: &Settlement) -> usize {
    let reason = match verdict {
        Verdict::Delivered | Verdict::Release { reason: None, .. } => 0,
        Verdict::Retry { reason, .. }
        | Verdict::Dead { reason }
        | Verdict::Release { reason: Some(reason), .. } => reason.as_str().len(),
    };
    reason + failure.as_ref().map_or(0, |failure| failure.error.len())
}

impl<S: Store> Engine<S> {
    /// What became of an event in one lane; `put_off` is how long that one's sink will be left alone, if it is down. One that goes to
    /// several sinks is settled when the last of them has answered.
    pub(super) fn conclude(&mut self, lane: usize, ended: Ended, put_off: Option<Duration>) {
        let key = key(&ended.lease);
        let fans = match self.held.get(&key) {
            Some(held) => held.fan.is_some(),
            // One of several answers about an event that is held no more settles nothing.
            None if self.routes.lanes_of(&ended.topic).is_some_and(|lanes| lanes.len() > 1) => return,
            None => false,
        };
        if !fans {
            return self.finish(Outcome::of(ended, &self.settings, put_off));
        }
        let Ended { took, end, .. } = ended;
        let answer = match end {
            // How long it is left alone is known now and not when the last answer comes.
            End::Unavailable { error } => Answer::NotAsked { after: put_off, reason: Some(error) },
            end => Answer::Said { end, took },
        };
        self.answer(&key, lane, answer);
    }

    /// What waited in a lane goes back: by itself, or as one way of several.
    pub(super) fn give_back(
        &mut self,
        lane: usize,
        lease: Lease,
        after: Option<Duration>,
        reason: Option<Summary>,
    ) {
        let key = key(&lease);
        if self.held.get(&key).is_some_and(|held| held.fan.is_some()) {
            self.answer(&key, lane, Answer::NotAsked { after, reason });
        } else {
            self.finish(Outcome::put_off(lease, after, reason));
        }
    }

    /// Takes an outcome in for the next settle.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        let key = key(&outcome.settlement.lease);
        let mut strand = None;
        if let Some(held) = self.held.get_mut(&key) {
            held.stage = Stage::Settling;
            strand = held.strand.map(|strand| (strand, outcome.settlement.verdict.clone()));
        }
        self.outcomes.push(outcome);
        if let Some((strand, verdict)) = strand {
            self.strand_after(strand, &key, &verdict);
        }
    }

    pub(super) fn start_settle(&mut self) {
        let gathers = self.gathers_until().is_some_and(|until| Instant::now() < until);
        if self.settling.is_none() && !self.outcomes.is_empty() && !gathers {
            let batch = self.outcomes.take();
            self.settling =
                Some(tokio::spawn(settle_until_done(self.store.clone(), batch).in_current_span()));
        }
    }

    /// Until when it is worth waiting for more outcomes: while there is less than a batch, and events of strands are on their way.
    pub(super) fn gathers_until(&self) -> Option<Instant> {
        let busy = |lane: &Lane| lane.running > 0 || lane.queue.len() > 0;
        let few = self.outcomes.settlements.len() < self.settings.batch_size;
        let gathers = self.strands.ordered() && !self.stopping && few && self.lanes.iter().any(busy);
        self.outcomes.since.filter(|_| gathers).map(|since| since + GATHERED_FOR)
    }

    pub(super) fn settled(&mut self, batch: Outcomes, settled: &Settled) {
        let lag = self.telemetry.lag();
        let (mut delivered, now) = (0, Instant::now());
        if !settled.lost.is_empty() {
            self.telemetry.lease_lost(settled.lost.len());
            let rows = settled.lost.len();
            tracing::warn!(table = self.store.table(), rows, "lease lost: another relay has these rows");
        }
        for outcome in batch.into_each() {
            let (lease, row) = (&outcome.settlement.lease, outcome.settlement.lease.row);
            if settled.busy.contains(&row) {
                self.note_busy(&key(lease));
                self.outcomes.push(outcome);
                continue;
            }
            let held = self.settled_one(&key(lease));
            let lost = settled.lost.contains(&row);
            if let Some(strand) = held.as_ref().and_then(|held| held.strand) {
                self.strand_settled(strand, &key(lease), &outcome.settlement.verdict, lost);
            }
            if lost {
                self.failing.forget(&row);
                self.report.lost += 1;
                continue;
            }
            match &outcome.settlement.verdict {
                Verdict::Retry { .. } => {
                    self.report.retried += 1;
                    self.failing.note(row);
                    continue;
                }
                Verdict::Delivered => {
                    delivered += 1;
                    if let Some(held) = held {
                        lag.record(held.age + now.duration_since(held.claimed_at));
                    }
                }
                Verdict::Release { .. } => self.report.released += 1,
                Verdict::Dead { reason } => {
                    self.report.dead += 1;
                    if let Some((topic, event_id)) = &outcome.event {
                        self.telemetry.died(topic);
                        let reason = reason.as_str();
                        tracing::error!(table = self.store.table(), %topic, %event_id, reason, "event is dead");
                    }
                }
            }
            self.failing.forget(&row);
        }
        let has_room = |number: &usize| !self.blocked(&self.lanes[*number]);
        if (self.detour.tenants || self.detour.lanes.iter().any(has_room)) && self.failures == 0 {
            (self.next_claim, self.detour.has_less) = (now, true);
        }
        self.report.delivered += delivered;
        if delivered > 0 {
            self.health.update(|health| {
                health.last_delivery = Some(std::time::Instant::now());
                health.waiting_since = None;
            });
        }
        self.note_waiting();
    }
}

/// Settles until the store has answered: what was delivered must be written down, however long the database is gone.
/// Runs in a task of its own, so that nothing can interrupt it half-way (hazards 24, 25).
pub(super) async fn settle_until_done<S: Store>(store: S, batch: Outcomes) -> (Outcomes, Settled) {
    failpoint::hit("settle.before", store.table()).await;
    let mut wait = Duration::from_millis(20);
    let started = Instant::now();
    loop {
        match store.settle(&batch.settlements).await {
            Ok(settled) => {
                failpoint::hit("settle.after", store.table()).await;
                return (batch, settled);
            }
            Err(error) => {
                if error.kind() != StoreErrorKind::Conflict {
                    let (rows, seconds) = (batch.settlements.len(), started.elapsed().as_secs());
                    tracing::error!(table = store.table(), rows, seconds, %error, "settle failed, trying again");
                }
                tokio::time::sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
                wait = (wait * 2).min(Duration::from_secs(5));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_BYTES, MOST_ROWS, Outcome, Outcomes};
    use crate::redact::Summary;
    use crate::store::{Lease, Settlement, Verdict};
    use time::OffsetDateTime;
    use uuid::Uuid;

    fn outcomes(count: usize, error: usize) -> Outcomes {
        let mut outcomes = Outcomes::default();
        for _ in 0..count {
            let lease = Lease {
                row: Uuid::new_v4(),
                token: "a".into(),
                attempts: 1,
                since: OffsetDateTime::UNIX_EPOCH,
            };
            let reason = Summary::new(&"x".repeat(error), usize::MAX);
            let settlement = Settlement::new(lease, Verdict::Dead { reason });
            outcomes.push(Outcome { settlement, event: None });
        }
        outcomes
    }

    /// The sizes of the settles that it takes, until nothing is left.
    fn parts(mut outcomes: Outcomes) -> Vec<usize> {
        let rows: Vec<Uuid> = outcomes.settlements.iter().map(|one| one.lease.row).collect();
        let (mut sizes, mut taken) = (Vec::new(), Vec::new());
        while !outcomes.is_empty() {
            assert!(outcomes.since.is_some());
            let part = outcomes.take();
            assert_eq!(part.settlements.len(), part.events.len());
            sizes.push(part.settlements.len());
            taken.extend(part.settlements.iter().map(|one| one.lease.row));
        }
        assert!(taken == rows, "each once, and in order");
        sizes
    }

    #[test]
    fn a_settle_has_a_bounded_number_of_rows() {
        assert_eq!(parts(outcomes(3, 0)), [3]);
        assert_eq!(parts(outcomes(MOST_ROWS, 0)), [MOST_ROWS]);
        assert_eq!(parts(outcomes(2 * MOST_ROWS + 1, 0)), [MOST_ROWS, MOST_ROWS, 1]);
    }

    #[test]
    fn and_of_bytes_but_never_none() {
        assert_eq!(parts(outcomes(5, MOST_BYTES / 2)), [2, 2, 1]);
        assert_eq!(parts(outcomes(2, MOST_BYTES + 1)), [1, 1]);
    }
}
