//! Events that come straight from their commit in this process: the same engine, one queue more.

use tokio::time::Instant;

use super::engine::Engine;
use super::lane::Item;
use super::lease::Load;
use super::settle::Outcome;
use crate::code::Code;
use crate::hot::{HotEnd, HotEvent};
use crate::store::Store;

/// Waits for the next one; for ever where there is no hot path.
pub(super) async fn next(hot: &mut Option<HotEnd>) -> Option<HotEvent> {
    match hot {
        Some(hot) => hot.receiver.recv().await,
        None => std::future::pending().await,
    }
}

impl<S: Store> Engine<S> {
    /// Rows are born leased as long as they would be handled: not while the table is paused, nor before that is known. Where
    /// order is kept they go the way over the table, which alone knows what is before them.
    pub(super) fn open_hot(&self) {
        if let Some(hot) = &self.hot {
            hot.open(self.paused == Some(false) && !self.strands.ordered());
        }
    }

    /// Whether places are taken by transactions that are still open, or by events that are on their way here.
    pub(super) fn hot_is_underway(&self) -> bool {
        self.hot.as_ref().is_some_and(|hot| hot.used() > self.held_hot)
    }

    /// No more rows are born leased; what has arrived meanwhile is given back.
    pub(super) fn close_hot(&mut self) {
        if let Some(hot) = &mut self.hot {
            hot.open(false);
        }
        self.take_in_hot();
    }

    /// An event has arrived, and perhaps more.
    pub(super) fn arrived(&mut self, event: HotEvent) {
        self.admit(event);
        self.take_in_hot();
        self.note_waiting();
    }

    fn take_in_hot(&mut self) {
        while let Some(event) = self.hot.as_mut().and_then(|hot| hot.receiver.try_recv().ok()) {
            self.admit(event);
        }
    }

    fn admit(&mut self, event: HotEvent) {
        let HotEvent { lease, mut delivery, born, late, slot } = event;
        let (asked, age) = (Instant::from_std(born), std::time::Duration::ZERO);
        let load = Load::of(&delivery);
        if let Err(missing) = self.routes.address(&mut delivery) {
            self.hold(asked, &lease, load, age, Some(slot));
            return self.bury(lease, delivery.meta, Code::Rejected, &missing.to_string());
        }
        let Some(lanes) = self.routes.lanes_of(&delivery.meta.topic) else {
            self.hold(asked, &lease, load, age, Some(slot));
            let reason = format!("no route matches the topic {}", delivery.meta.topic);
            return self.bury(lease, delivery.meta, Code::Unroutable, &reason);
        };
        let open = !late && !self.stopping && self.paused != Some(true);
        let &[number] = lanes else {
            self.hold(asked, &lease, load, age, Some(slot));
            return self.spread_hot(&lease, &delivery, open);
        };
        self.hold(asked, &lease, Load { lane: Some(number), ..load }, age, Some(slot));
        let now = Instant::now();
        let lane = &mut self.lanes[number];
        lane.learn(&delivery.meta.topic);
        let probe = open && lane.probes_with_hot(self.standing, now, self.settings.dispatch_timeout);
        if open && (probe || !lane.circuit.is_open()) {
            lane.push(Item { lease, delivery: Box::new(delivery), alone: probe, probe, hot: true });
        } else {
            let (after, reason) = (lane.put_off(now), lane.down(&self.settings));
            self.finish(Outcome::put_off(lease, after, reason));
        }
    }
}
