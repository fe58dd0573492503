//! The end of a relay's life: what waits goes back, what runs may finish.

use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::lease::Stage;
use super::settle::Outcome;
use crate::failpoint;
use crate::store::{Lease, Store};

/// How often a stop looks whether transactions have ended whose events it waits for.
const LOOK: Duration = Duration::from_millis(20);

impl<S: Store> Engine<S> {
    /// Gives back everything that waits.
    pub(super) fn release_queued(&mut self) {
        self.release_cold();
        for number in 0..self.lanes.len() {
            for item in self.lanes[number].drain_hot() {
                self.give_back(number, item.lease, None, None);
            }
        }
    }

    /// Gives back what was claimed and waits.
    pub(super) fn release_cold(&mut self) {
        self.release_waiting();
        for number in 0..self.lanes.len() {
            for item in self.lanes[number].drain_cold() {
                self.give_back(number, item.lease, None, None);
            }
        }
    }

    /// Whether a stop has anything to wait for.
    pub(super) fn is_at_work(&self) -> bool {
        !self.held.is_empty() || self.claiming.is_some() || self.is_unsettled()
    }

    fn is_unsettled(&self) -> bool {
        !self.outcomes.is_empty() || self.settling.is_some()
    }

    /// Stops claiming, waits for what runs and for transactions that hold places on the hot path, settles it, releases the
    /// rest uncharged (hazard 31).
    pub(super) async fn drain(&mut self) {
        tracing::info!(table = self.store.table(), in_flight = self.held.len(), "stopping");
        self.stopping = true;
        self.close_hot();
        self.release_queued();
        failpoint::hit("drain.before", self.store.table()).await;
        let deadline = Instant::now() + self.settings.drain_timeout;
        let running = |engine: &Self| engine.lanes.iter().any(|lane| lane.running > 0);
        let busy = |engine: &Self| running(engine) || engine.claiming.is_some() || engine.hot_is_underway();
        while busy(self) && Instant::now() < deadline {
            self.start_settle();
            self.release_queued();
            if running(self) {
                self.start_beat(Instant::now());
            }
            // A transaction that is rolled back tells nobody: look now and then.
            let look = if self.hot_is_underway() { Instant::now() + LOOK } else { deadline };
            let turn = self.turn(Instant::now());
            let _ = tokio::time::timeout_at(look.min(deadline), turn).await;
        }
        self.units.abort_all();
        // What was reported until now has happened.
        while let Ok(report) = self.reports.try_recv() {
            self.ended(report);
        }
        self.release_waiting();
        let cut: Vec<Lease> = self
            .held
            .values()
            .filter(|held| held.stage != Stage::Settling)
            .map(|held| held.lease.clone())
            .collect();
        if !cut.is_empty() {
            tracing::warn!(
                table = self.store.table(),
                events = cut.len(),
                "drain_timeout is over: released, will be sent again"
            );
        }
        for lease in cut {
            let sinks_done = self.confirmed(&lease);
            let mut outcome = Outcome::release(lease, None);
            outcome.settlement.sinks_done = sinks_done;
            self.finish(outcome);
        }
        // The database may be away: its leases run out by themselves then.
        let last_call = Instant::now() + self.settings.drain_timeout.max(Duration::from_secs(2));
        while (self.is_unsettled() || self.claiming.is_some()) && Instant::now() < last_call {
            self.start_settle();
            let turn = self.turn(Instant::now());
            let _ = tokio::time::timeout_at(last_call, turn).await;
        }
    }
}
