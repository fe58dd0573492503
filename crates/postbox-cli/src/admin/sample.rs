//! What is seen of tables, again and again, once for all who look.
//!
//! While somebody looks, every two seconds; else now and then, so that the charts have a past. What a look costs is bounded
//! by the store, and one that takes too long is given up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postbox_core::relay::SinkHealth;
use postbox_core::{Inspect as _, Layout, StoreError, Survey as _, TableCounts, TableRelay};
use postbox_stores::postgres::migrate::Ordered;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};

use super::answer::{Refusal, time};
use super::jobs::Jobs;
use super::overview;
use super::table::Table;

/// How often tables are looked at while somebody watches, and while nobody does.
const OFTEN: Duration = Duration::from_secs(2);
const SELDOM: Duration = Duration::from_secs(15);

/// Who has asked within this time still watches.
const WATCHES_FOR: Duration = Duration::from_secs(30);

/// No look takes longer.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// The past of the charts, and the most points it has.
const PAST: Duration = Duration::from_mins(15);
const MOST_POINTS: usize = 450;

/// Over how long what comes in is measured, and what was published is looked at for its lag.
const RATE_OVER: Duration = Duration::from_secs(10);
const LAG_OVER: Duration = Duration::from_mins(1);
const LAG_EVENTS: u32 = 1000;

/// What was seen of a table.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) last: Option<Sample>,
    /// Why there is no newer one.
    pub(super) error: Option<Refusal>,
    points: VecDeque<(Instant, Value)>,
    written: Rate,
    /// Of each sink of the relay here, by its name.
    confirmed: HashMap<Arc<str>, Rate>,
}

/// One look.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: OffsetDateTime,
    pub(super) taken: Instant,
    pub(super) layout: Layout,
    pub(super) ordered: Option<Ordered>,
    pub(super) has_history: bool,
    pub(super) counts: TableCounts,
    pub(super) relay: TableRelay,
    /// How long deliveries take: half of them, and all but one in a hundred.
    pub(super) lag: Option<(Duration, Duration)>,
    pub(super) in_per_second: Option<f64>,
    pub(super) sinks: Vec<Flow>,
}

/// What goes through a sink, from the relay here.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) sink: Arc<str>,
    pub(super) per_second: Option<f64>,
    pub(super) lag: Option<(Duration, Duration)>,
}

/// When somebody last looked, and the way to wake those who look for them.
#[derive(Debug)]
pub(super) struct Pulse {
    started: Instant,
    /// Milliseconds since `started`, from 1.
    looked: AtomicU64,
    wake: Notify,
    /// The state of everything: when it was put together, its number, and its text.
    pub(super) overview: watch::Sender<Arc<Snapshot>>,
}

/// The overview at one time.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) version: u64,
    pub(super) made: Option<Instant>,
    pub(super) text: String,
}

impl Pulse {
    pub(super) fn new() -> Self {
        let overview = watch::Sender::new(Arc::new(Snapshot::default()));
        Self { started: Instant::now(), looked: AtomicU64::new(0), wake: Notify::new(), overview }
    }

    /// Somebody looks.
    pub(super) fn look(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        self.looked.store(now, Ordering::Relaxed);
        self.wake.notify_waiters();
    }

    fn is_watched(&self) -> bool {
        let looked = self.looked.load(Ordering::Relaxed);
        looked > 0 && self.started.elapsed().saturating_sub(Duration::from_millis(looked)) < WATCHES_FOR
    }
}

/// Looks at a table for ever.
pub(super) async fn watch(table: Arc<Table>, pulse: Arc<Pulse>, done: Arc<Notify>) {
    loop {
        let began = Instant::now();
        let looked = Box::pin(tokio::time::timeout(LONGEST_LOOK, look(&table))).await;
        let result = match looked {
            Ok(Ok(sample)) => Ok(sample),
            Ok(Err(error)) => Err(Refusal::store(&table.name, &error)),
            Err(_) => Err(Refusal::too_late(&table.name)),
        };
        note(&table, result, began);
        done.notify_one();
        // One who comes while nobody watches is not kept waiting; those who watch do not make it faster.
        loop {
            let pause = if pulse.is_watched() { OFTEN } else { SELDOM };
            let left = pause.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                () = pulse.wake.notified() => {}
            }
        }
    }
}

async fn look(table: &Table) -> Result<Sample, StoreError> {
    let store = &table.watch;
    let layout = store.layout().await?;
    let (ordered, has_history) = (store.ordered().await?, store.has_history().await?);
    let (counts, relay) = (store.counts().await?, store.relay().await?);
    let recent = store.recent(LAG_OVER, LAG_EVENTS).await?;
    let taken = Instant::now();
    let in_per_second = recent.written.and_then(|written| table.seen().written.at(taken, written));
    let lag = percentiles(recent.lags);
    let at = OffsetDateTime::now_utc();
    let sinks = flows(table, taken);
    Ok(Sample { at, taken, layout, ordered, has_history, counts, relay, lag, in_per_second, sinks })
}

fn flows(table: &Table, taken: Instant) -> Vec<Flow> {
    let Some(watched) = &table.watched else { return Vec::new() };
    let (health, _) = watched.now();
    let (sinks, mut seen) = (health.now().sinks, table.seen());
    let flow = |sink: &SinkHealth| {
        let rate = seen.confirmed.entry(Arc::clone(&sink.name)).or_default();
        let events = i64::try_from(sink.deliveries.events()).unwrap_or(i64::MAX);
        let (per_second, lag) = (rate.at(taken, events), percentiles(sink.deliveries.lags(LAG_OVER)));
        Flow { sink: Arc::clone(&sink.name), per_second, lag }
    };
    sinks.iter().map(flow).collect()
}

fn percentiles(mut lags: Vec<Duration>) -> Option<(Duration, Duration)> {
    lags.sort_unstable();
    let last = lags.len().checked_sub(1)?;
    Some((lags[last / 2], lags[last * 99 / 100]))
}

fn note(table: &Arc<Table>, result: Result<Sample, Refusal>, began: Instant) {
    let point = result.as_ref().ok().map(|sample| point(table, sample));
    let mut seen = table.seen();
    match result {
        Ok(sample) => (seen.last, seen.error) = (Some(sample), None),
        Err(error) => seen.error = Some(error),
    }
    if let Some(point) = point {
        seen.points.push_back((began, point));
    }
    while seen.points.len() > MOST_POINTS || seen.points.front().is_some_and(|(at, _)| at.elapsed() > PAST) {
        seen.points.pop_front();
    }
}

fn point(table: &Arc<Table>, sample: &Sample) -> Value {
    let Sample { counts, relay, .. } = sample;
    let down = table.watched.as_ref().map(|watched| {
        let (health, _) = watched.now();
        health.now().sinks.iter().filter(|sink| sink.open_since.is_some()).count()
    });
    json!({
        "at": time(sample.at),
        "waiting": counts.pending,
        "oldest_seconds": counts.oldest_pending_age.as_secs_f64(),
        "scheduled": counts.scheduled,
        "in_flight": counts.locked,
        "dead": counts.dead,
        "blocked": counts.blocked,
        "in_per_second": sample.in_per_second,
        "out_per_second": counts.published_per_second,
        "lag_p50_seconds": sample.lag.map(|(half, _)| half.as_secs_f64()),
        "lag_p99_seconds": sample.lag.map(|(_, most)| most.as_secs_f64()),
        "epoch": relay.epoch,
        "paused": relay.paused_at.is_some(),
        "sinks_down": down,
    })
}

impl Seen {
    /// The past of the charts.
    pub(super) fn points(&self) -> Vec<Value> {
        self.points.iter().map(|(_, point)| point.clone()).collect()
    }
}

/// How fast a number grows: what it was, some seconds back.
#[derive(Debug, Default)]
struct Rate(VecDeque<(Instant, i64)>);

impl Rate {
    /// Per second, now that it is this.
    fn at(&mut self, now: Instant, head: i64) -> Option<f64> {
        let heads = &mut self.0;
        // Rows that left take the highest sequence with them in some databases, and a relay that starts again has confirmed nothing:
        // then nothing is known for a while.
        if heads.back().is_some_and(|(_, before)| *before > head) {
            heads.clear();
        }
        heads.push_back((now, head));
        while heads.len() > 2 && heads.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RATE_OVER) {
            heads.pop_front();
        }
        let (at, before) = heads.front().copied()?;
        let seconds = now.duration_since(at).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        (seconds >= 0.5).then(|| (head - before) as f64 / seconds)
    }
}

/// Puts the overview together whenever a table was looked at, once for all who want it.
pub(super) async fn compose(
    tables: Arc<[Arc<Table>]>,
    pulse: Arc<Pulse>,
    jobs: Arc<Jobs>,
    done: Arc<Notify>,
) {
    let mut version = 0_u64;
    loop {
        done.notified().await;
        version += 1;
        let text = overview::of(&tables, version, jobs.running()).to_string();
        let snapshot = Snapshot { version, made: Some(Instant::now()), text };
        pulse.overview.send_replace(Arc::new(snapshot));
        // Tables that are looked at at the same time are told of together.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The overview, not older than some seconds unless the databases are away.
pub(super) async fn fresh(pulse: &Pulse) -> Arc<Snapshot> {
    let asked = Instant::now();
    pulse.look();
    let is_fresh = |snapshot: &Arc<Snapshot>| {
        snapshot
            .made
            .is_some_and(|made| asked.saturating_duration_since(made) < OFTEN + Duration::from_secs(1))
    };
    let mut receiver = pulse.overview.subscribe();
    let waited = tokio::time::timeout(OFTEN, receiver.wait_for(is_fresh)).await;
    drop(waited);
    Arc::clone(&pulse.overview.borrow())
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, Rate, percentiles};

    #[test]
    fn half_of_the_deliveries_and_all_but_one_in_a_hundred() {
        let lags: Vec<Duration> = (1..=1000).rev().map(Duration::from_millis).collect();
        let (half, most) = percentiles(lags).unwrap();
        assert_eq!((half.as_millis(), most.as_millis()), (500, 990));
        assert_eq!(percentiles(Vec::new()), None);
    }

    #[test]
    fn what_comes_in_is_measured_over_some_seconds_and_never_below_zero() {
        let (mut seen, start) = (Rate::default(), Instant::now());
        let mut rate = |seconds: u64, head: i64| seen.at(start + Duration::from_secs(seconds), head);
        assert_eq!(rate(0, 100), None);
        assert_eq!(rate(2, 120), Some(10.0));
        assert_eq!(rate(4, 140), Some(10.0));
        assert_eq!(rate(20, 140), Some(0.0), "the old ones are forgotten");
        assert_eq!(rate(22, 7), None, "rows have left");
        assert_eq!(rate(24, 9), Some(1.0));
    }
}
