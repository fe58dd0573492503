//! ⑤ Dispatch: what waits in lanes is sent, and what is reported of it is taken in.

use tokio::time::Instant;
use tracing::Instrument as _;

use super::engine::Engine;
use super::lane::{self, Item};
use super::lease::{Stage, key};
use super::unit::Report;
use crate::store::Store;

impl<S: Store> Engine<S> {
    /// Starts all that has a free slot.
    pub(super) fn start_dispatches(&mut self, now: Instant) {
        let must_last = now + self.settings.dispatch_timeout;
        let alone = self.suspects.turn;
        for number in 0..self.lanes.len() {
            self.lanes[number].queue.hold_hot = alone;
            while let Some(unit) = self.lanes[number].next_unit() {
                // A lease that cannot cover the timeout is renewed first (hazard 2).
                let until = |item: &Item| self.held.get(&key(&item.lease)).map(|held| held.lease_until);
                if unit.iter().filter_map(until).any(|until| until < must_last) {
                    let lane = &mut self.lanes[number];
                    lane.over(lane::tenant_of(&unit));
                    lane.push_front(unit.into_iter());
                    self.next_extend = self.next_extend.min(now);
                    break;
                }
                for item in &unit {
                    self.tracker.start(item.delivery.meta.event_id, now);
                    if let Some(held) = self.held.get_mut(&key(&item.lease)) {
                        held.stage = Stage::Running;
                        if let Some(fan) = &mut held.fan {
                            fan.start(number);
                        }
                    }
                }
                let sink = self.lanes[number].sink.clone();
                self.units.spawn(self.dispatching.clone().run(number, sink, unit).in_current_span());
            }
        }
    }

    /// Takes in what became of some events.
    pub(super) fn ended(&mut self, report: Report) {
        let now = Instant::now();
        self.note_deliveries(&report);
        if report.over {
            self.lanes[report.lane].over(report.tenant);
        }
        let lane = &mut self.lanes[report.lane];
        lane.careful = lane.careful.max(report.silent);
        for ended in report.ended {
            self.tracker.end(ended.event_id);
            self.note_circuit(report.lane, &ended, now);
            let put_off = self.lanes[report.lane].put_off(now);
            self.conclude(report.lane, ended, put_off);
        }
        for item in report.again.into_iter().rev() {
            self.tracker.end(item.delivery.meta.event_id);
            let lane = &mut self.lanes[report.lane];
            if self.stopping || (lane.circuit.is_open() && !item.probe) {
                let (after, reason) = (lane.put_off(now), lane.down(&self.settings));
                self.give_back(report.lane, item.lease, after, reason);
            } else if let Some(held) = self.held.get_mut(&key(&item.lease)) {
                held.stage = held.fan.as_mut().map_or(Stage::Queued, |fan| fan.requeue(report.lane));
                lane.push_front(std::iter::once(item));
            }
        }
    }
}
