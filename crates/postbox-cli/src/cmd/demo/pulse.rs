//! What the live view draws of the recent past, and how long deliveries took: always the same little memory, however
//! long the demo runs.

use std::collections::VecDeque;
use std::time::Duration;

/// Each power of two is divided into so many buckets: a percentile is off by three in a hundred at most.
const PARTS: u64 = 16;
const PARTS_LOG2: u32 = PARTS.ilog2();
/// Up to 38 hours; what took longer is counted there.
const BUCKETS: usize = 544;

/// How long things took, as counts in buckets of microseconds.
#[derive(Clone)]
pub(super) struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket(micros)) {
            *count = count.saturating_add(1);
            self.total += 1;
        }
    }

    /// The time that so many in a hundred did not exceed; none while there are none.
    pub(super) fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        });
        found.map(|bucket| Duration::from_micros(middle(bucket)))
    }

    fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count = count.saturating_add(*more);
        }
        self.total += other.total;
    }
}

fn bucket(micros: u64) -> usize {
    let power = micros.max(PARTS).ilog2() - PARTS_LOG2;
    let number = u64::from(power) * PARTS + (micros >> power);
    usize::try_from(number).map_or(BUCKETS - 1, |number| number.min(BUCKETS - 1))
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let power = (bucket / PARTS).saturating_sub(1);
    ((bucket - power * PARTS) << power) + ((1 << power) >> 1)
}

/// What happened in one second.
#[derive(Clone, Default)]
pub(super) struct Second {
    pub(super) written: u64,
    pub(super) delivered: u64,
    /// What waited when it was last looked at.
    pub(super) waiting: u64,
    lags: Histogram,
}

impl Second {
    pub(super) fn delivered(&mut self, lag: Duration) {
        self.delivered += 1;
        self.lags.add(lag);
    }
}

/// The last minute, second by second.
#[derive(Default)]
pub(super) struct Minute {
    /// The newest is at the back and not over yet.
    seconds: VecDeque<Second>,
    newest: u64,
}

impl Minute {
    pub(super) const LENGTH: usize = 60;
    /// The lag that is shown is that of so many seconds: one sees it rise, and fall again.
    const RECENT: usize = 10;

    /// The second that it is now, counted from the start.
    pub(super) fn at(&mut self, second: u64) -> &mut Second {
        // A machine that slept for a night must not be made up for second by second.
        let missed = second.saturating_sub(self.newest).min(Self::LENGTH as u64 + 1);
        for _ in 0..missed {
            let waiting = self.seconds.back().map_or(0, |second| second.waiting);
            self.seconds.push_back(Second { waiting, ..Second::default() });
        }
        while self.seconds.len() > Self::LENGTH + 1 {
            self.seconds.pop_front();
        }
        self.newest = self.newest.max(second);
        if self.seconds.is_empty() {
            self.seconds.push_back(Second::default());
        }
        let last = self.seconds.len() - 1;
        &mut self.seconds[last]
    }

    /// The seconds that are over, the newest last.
    pub(super) fn over(&self) -> impl DoubleEndedIterator<Item = &Second> {
        self.seconds.range(..self.seconds.len().saturating_sub(1))
    }

    /// The lag of what was delivered lately.
    pub(super) fn lags(&self) -> Histogram {
        let mut lags = Histogram::default();
        for second in self.seconds.iter().rev().take(Self::RECENT) {
            lags.merge(&second.lags);
        }
        lags
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Duration, Histogram, Minute, bucket, middle};

    #[test]
    fn buckets_follow_each_other_and_keep_their_precision() {
        assert_eq!((bucket(0), bucket(15), bucket(16), bucket(31), bucket(32)), (0, 15, 16, 31, 32));
        for at in 1..BUCKETS {
            assert_eq!(bucket(middle(at)), at);
            assert!(middle(at) > middle(at - 1), "{at}");
        }
        assert!(middle(BUCKETS - 1) > 36 * 3_600_000_000, "{}", middle(BUCKETS - 1));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_close_to_the_truth() {
        let mut histogram = Histogram::default();
        assert!(histogram.percentile(50).is_none());
        for ms in 1..=1000 {
            histogram.add(Duration::from_millis(ms));
        }
        for (percent, truth) in [(1, 10.0), (50, 500.0), (99, 990.0), (100, 1000.0)] {
            let found = histogram.percentile(percent).unwrap().as_secs_f64() * 1e3;
            assert!((found / truth - 1.0).abs() < 0.04, "p{percent}: {found}");
        }
    }

    #[test]
    fn a_minute_holds_a_minute_whatever_happens() {
        let mut minute = Minute::default();
        for second in 0..1000 {
            minute.at(second).written = second;
        }
        minute.at(1000).delivered(Duration::from_millis(5));
        assert_eq!(
            minute.over().map(|second| second.written).collect::<Vec<_>>(),
            (940..1000).collect::<Vec<_>>()
        );
        assert!(minute.lags().percentile(50).is_some());
        minute.at(1000).waiting = 7;
        // The lid was closed for a day.
        minute.at(90_000).written = 1;
        assert_eq!(minute.over().count(), Minute::LENGTH);
        assert!(minute.over().all(|second| second.waiting == 7 && second.written == 0));
        assert!(minute.lags().percentile(50).is_none());
    }
}
