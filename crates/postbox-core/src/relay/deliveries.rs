//! [`Deliveries`]: what a sink has confirmed of late, for people who look.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::lease::key;
use super::unit::{End, Report};
use crate::store::Store;

/// Most answers of a sink that are remembered.
const KEPT: usize = 512;

/// What a sink has confirmed since its relay started. Written once for each answer of the sink, which may be of many events.
#[derive(Debug, Clone, Default)]
pub struct Deliveries(Arc<Mutex<Confirmed>>);

#[derive(Debug, Default)]
struct Confirmed {
    events: u64,
    lags: VecDeque<(Instant, Duration)>,
}

impl Deliveries {
    /// How many events.
    pub fn events(&self) -> u64 {
        self.confirmed().events
    }

    /// How long events had been due when they were confirmed: of each of the latest answers within so long, the first event's.
    pub fn lags(&self, within: Duration) -> Vec<Duration> {
        let lately = |(at, _): &&(Instant, Duration)| at.elapsed() <= within;
        self.confirmed().lags.iter().rev().take_while(lately).map(|(_, lag)| *lag).collect()
    }

    fn confirm(&self, events: u64, lag: Option<Duration>) {
        let mut confirmed = self.confirmed();
        confirmed.events += events;
        let Some(lag) = lag else { return };
        if confirmed.lags.len() == KEPT {
            confirmed.lags.pop_front();
        }
        confirmed.lags.push_back((Instant::now(), lag));
    }

    fn confirmed(&self) -> MutexGuard<'_, Confirmed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Engine<S> {
    /// Before the report is settled: its rows are still held.
    pub(super) fn note_deliveries(&self, report: &Report) {
        let mut confirmed = report.ended.iter().filter(|ended| matches!(ended.end, End::Delivered));
        let Some(first) = confirmed.next() else { return };
        let lag = self.held.get(&key(&first.lease)).map(|held| held.age + held.claimed_at.elapsed());
        self.lanes[report.lane].deliveries.confirm(1 + confirmed.count() as u64, lag);
    }
}

#[cfg(test)]
mod tests {
    use super::{Deliveries, Duration, KEPT};

    #[test]
    fn events_are_counted_and_the_lags_of_the_latest_answers_kept() {
        let deliveries = Deliveries::default();
        assert_eq!((deliveries.events(), deliveries.lags(Duration::MAX).len()), (0, 0));
        for answer in 0..=KEPT {
            deliveries.clone().confirm(10, Some(Duration::from_secs(answer as u64)));
        }
        deliveries.confirm(1, None);
        assert_eq!(deliveries.events(), 10 * (KEPT as u64 + 1) + 1);
        let lags = deliveries.lags(Duration::from_mins(5));
        assert_eq!(lags.len(), KEPT);
        assert_eq!((lags[0], lags[KEPT - 1]), (Duration::from_secs(KEPT as u64), Duration::from_secs(1)));
        assert_eq!(deliveries.lags(Duration::ZERO).len(), 0, "not of late");
    }
}
