//! [`Circuit`]: a destination that is down costs no attempts and holds up nobody else (hazards 27, 28).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::engine::Engine;
use super::unit::{End, Ended};
use crate::store::Store;

/// The state of one sink's circuit.
#[derive(Debug)]
pub(crate) struct Circuit {
    state: State,
    waits: Backoff,
}

#[derive(Debug)]
enum State {
    Closed,
    /// Nothing is sent until the probe is due; then one event at a time.
    Open {
        probes: i32,
        probe_at: Instant,
        since: Instant,
    },
}

impl Circuit {
    pub(crate) fn new(waits: Backoff) -> Self {
        Self { state: State::Closed, waits }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Since when nothing gets through.
    pub(crate) fn open_since(&self) -> Option<Instant> {
        match self.state {
            State::Open { since, .. } => Some(since),
            State::Closed => None,
        }
    }

    /// When the next probe may be sent, if the circuit is open.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        match self.state {
            State::Open { probe_at, .. } => Some(probe_at),
            State::Closed => None,
        }
    }

    /// The destination did not answer: opens, or, if that was a probe or one is due, waits longer for the next. Reports of what was sent
    /// before the circuit opened do not count again. Answers whether it was closed before.
    fn failed(&mut self, probe: bool, now: Instant) -> bool {
        match &mut self.state {
            State::Closed => {
                self.state = State::Open { probes: 1, probe_at: now + self.waits.after(1), since: now };
                true
            }
            State::Open { probes, probe_at, .. } => {
                if probe || *probe_at <= now {
                    *probes = probes.saturating_add(1);
                    *probe_at = now + self.waits.after(*probes);
                }
                false
            }
        }
    }

    /// What an outcome says about the destination as a whole: whether it is down, if that has changed.
    pub(super) fn heard(&mut self, ended: &Ended, now: Instant) -> Option<bool> {
        match &ended.end {
            End::Unavailable { .. } => self.failed(ended.probe, now).then_some(true),
            // Only a probe's answer closes a circuit: others may have been sent before it opened.
            End::Delivered | End::Reject { .. } | End::Retry { .. } => {
                (ended.probe && self.worked()).then_some(false)
            }
        }
    }

    /// There was nothing to probe with: looks again soon, which says nothing about the destination.
    pub(super) fn in_vain(&mut self, again: Instant) {
        if let State::Open { probe_at, .. } = &mut self.state {
            *probe_at = again;
        }
    }

    /// Something got through, or was refused by a destination that lives. Answers whether it was open before.
    fn worked(&mut self) -> bool {
        let was_open = self.is_open();
        self.state = State::Closed;
        was_open
    }

    /// How long events of this sink are to be put off.
    pub(crate) fn put_off(&self, now: Instant) -> Option<Duration> {
        self.probe_at().map(|at| at.saturating_duration_since(now))
    }
}

impl<S: Store> Engine<S> {
    /// What an outcome says about the sink as a whole.
    pub(super) fn note_circuit(&mut self, number: usize, ended: &Ended, now: Instant) {
        let lane = &mut self.lanes[number];
        if let End::Unavailable { error } = &ended.end {
            lane.last_error = Some(error.to_string());
        }
        let Some(open) = lane.circuit.heard(ended, now) else { return };
        let name = Arc::clone(&lane.name);
        if open {
            let error = lane.last_error.as_deref().unwrap_or_default();
            tracing::error!(
                table = self.store.table(),
                sink = &*name,
                error,
                "sink is down, its events wait"
            );
            let (after, reason, waiting) =
                (lane.put_off(now), lane.down(&self.settings), lane.drain_ordinary());
            for item in waiting {
                self.give_back(number, item.lease, after, reason.clone());
            }
            self.release_waiting_for(number);
        } else {
            lane.last_error = None;
            tracing::info!(table = self.store.table(), sink = &*name, "sink is back");
            self.next_claim = now;
        }
        self.telemetry.circuit(&name, open);
        self.note_sinks();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn opens_on_failure_waits_longer_each_time_and_closes_on_success() {
        let wait = Duration::from_secs(1);
        let mut circuit = Circuit::new(Backoff::custom(move |n| wait * n.unsigned_abs()));
        let start = Instant::now();
        assert!(circuit.failed(false, start));
        assert_eq!(circuit.probe_at(), Some(start + wait));
        assert!(!circuit.failed(false, start), "a late report of the same outage");
        assert_eq!(circuit.probe_at(), Some(start + wait));
        assert!(!circuit.failed(false, start + wait), "what is due failed");
        assert_eq!(circuit.probe_at(), Some(start + wait + wait * 2));
        // While one is under way no other is sent for as long as it may take. It may fail at once.
        circuit.in_vain(start + wait * 100);
        assert!(!circuit.failed(true, start + wait * 3), "the probe failed");
        assert_eq!(circuit.probe_at(), Some(start + wait * 6));
        assert_eq!(circuit.open_since(), Some(start));
        assert!(circuit.worked() && !circuit.is_open() && !circuit.worked());
    }
}
