//! [`Cleaner`]: deletes what was published long ago, forgets what arrived long ago, and does nothing else.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::Instrument as _;

use crate::code::Code;
use crate::inbox::InboxRetention;
use crate::store::{StoreError, StoreErrorKind};
use crate::table::inbox_beside;
use crate::telemetry::Telemetry;

/// Deletes old rows of one table, a batch at a time.
///
/// # Errors
/// When the table is missing or the database fails; [`StoreError::kind`] tells whether the same again may work.
///
/// # Cancel safety
/// A sweep that is dropped deletes its batch as a whole, or nothing. [`tidy`](Self::tidy) changes no row in any case.
pub trait Sweep: Send + Sync + 'static {
    /// The table's name, for logs and metrics.
    fn table(&self) -> &str;

    /// Deletes at most `batch` rows that are past their retention, in a transaction of its own. Rows that are
    /// neither published nor dead are never touched. Where another cleaner is at work, does nothing.
    fn sweep(&self, request: &SweepRequest) -> impl Future<Output = Result<Swept, StoreError>> + Send;

    /// Deletes at most `batch` messages from the inbox beside the table that were recorded longer ago than this, in a transaction of
    /// its own. Does nothing where there is no inbox, or another cleaner is at work.
    fn sweep_inbox(
        &self,
        retention: Duration,
        batch: u32,
    ) -> impl Future<Output = Result<Swept, StoreError>> + Send {
        let _ = (retention, batch);
        async { Ok(Swept::Deleted(0)) }
    }

    /// Makes room that settled rows have left usable again, where much of it has come together and the database would wait longer.
    fn tidy(&self) -> impl Future<Output = Result<Tidied, StoreError>> + Send {
        async { Ok(Tidied::Nothing) }
    }
}

/// Says beforehand what sweeps would delete.
///
/// # Errors
/// As [`Sweep`].
///
/// # Cancel safety
/// Only reads; may be dropped at any time.
pub trait SweepCount: Sweep {
    /// How many rows are past their retention now; `batch` has no part in it.
    fn due(&self, request: &SweepRequest) -> impl Future<Output = Result<Due, StoreError>> + Send;
}

/// What is past its retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Due {
    /// Published rows.
    pub published: u64,
    /// Dead rows.
    pub dead: u64,
}

/// What a sweep may delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepRequest {
    /// Published longer ago than this.
    pub retention: Duration,
    /// Dead for longer than this; dead rows are kept if not given.
    pub dead_retention: Option<Duration>,
    /// At most so many rows.
    pub batch: u32,
    /// What `max_attempts` is, for tables that have no `dead_at`.
    pub max_attempts: i32,
    /// Whether dead rows are kept that have not gone to the dead-letter route yet, however old they are.
    pub dead_letters: bool,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// It deleted so many rows.
    Deleted(u64),
    /// Another cleaner is at work.
    Busy,
}

/// What a look for room that can be used again came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tidied {
    /// There was nothing to do, or somebody else does it.
    Nothing,
    /// Room is usable again.
    Done,
    /// Most of it is not: a transaction that is older than the rows holds it.
    Held,
}

/// It looks for room at most this often, and may spend about one part in this many of the time on making it usable.
const TIDY_EVERY: Duration = Duration::from_secs(5);
const TIDY_SHARE: u32 = 10;
/// The longest time between two looks, where they are in vain or fail.
const TIDY_SELDOM: Duration = Duration::from_mins(10);

/// A century. Who keeps rows for longer keeps them for ever, and much more no database can subtract from its time.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// Runs sweeps every minute until it is closed.
///
/// ```
/// # use std::time::Duration;
/// # use postbox_core::{Cleaner, StoreError, testing::MemoryOutbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StoreError> {
/// # let store = MemoryOutbox::new().store();
/// // `store` is a `PgAdmin`, or that of another database.
/// let cleaner = Cleaner::new(store).retention(Duration::from_hours(24)).batch(1000);
/// let rows = cleaner.run_once().await?;
/// # assert_eq!(rows, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a cleaner does nothing until it runs"]
pub struct Cleaner<S> {
    store: S,
    request: SweepRequest,
    inbox: Option<InboxRetention>,
    interval: Duration,
    tidies: bool,
    telemetry: Telemetry,
    closed: watch::Sender<bool>,
}

impl<S: Sweep> Cleaner<S> {
    /// A cleaner with the documented defaults: every minute, after 7 days, 500 rows at a time, dead rows kept.
    pub fn new(store: S) -> Self {
        let telemetry = Telemetry::new("outbox", store.table(), crate::telemetry::DEFAULT_TOPIC_LABELS);
        let retention = Duration::from_hours(7 * 24);
        let request = SweepRequest {
            retention,
            dead_retention: None,
            batch: 500,
            max_attempts: 25,
            dead_letters: false,
        };
        Self {
            store,
            request,
            inbox: None,
            interval: Duration::from_mins(1),
            tidies: true,
            telemetry,
            closed: watch::Sender::new(false),
        }
    }

    /// Keeps published rows for so long.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.request.retention = retention.min(LONGEST);
        self
    }

    /// Deletes dead rows after so long; zero keeps them for ever.
    pub fn dead_retention(mut self, retention: Duration) -> Self {
        self.request.dead_retention = (!retention.is_zero()).then_some(retention.min(LONGEST));
        self
    }

    /// Whether there is a dead-letter route: dead rows that have not gone there yet are then kept, whatever their age.
    pub fn dead_letters(mut self, route: bool) -> Self {
        self.request.dead_letters = route;
        self
    }

    /// Also cleans the inbox beside the table, if there is one, after so long; without this it remembers for ever.
    pub fn inbox(mut self, retention: InboxRetention) -> Self {
        self.inbox = Some(retention);
        self
    }

    /// Deletes so many rows per transaction.
    pub fn batch(mut self, rows: u32) -> Self {
        self.request.batch = rows.max(1);
        self
    }

    /// What the relay's `max_attempts` is; matters only for tables without `dead_at`.
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.request.max_attempts = attempts;
        self
    }

    /// Runs so often.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.min(LONGEST);
        self
    }

    /// Whether it also makes room usable again that settled rows have left. PostgreSQL does so by itself, but looks once a minute: time
    /// enough for a busy table to grow by a gigabyte.
    pub fn vacuum(mut self, vacuum: bool) -> Self {
        self.tidies = vacuum;
        self
    }

    /// Metrics under another prefix than `outbox`.
    pub fn metrics_prefix(mut self, prefix: &str) -> Self {
        self.telemetry = self.telemetry.with_prefix(prefix);
        self
    }

    /// The name of the database, where a process works on several: a label of its metrics, and part of what it logs.
    pub fn database(mut self, name: &str) -> Self {
        self.telemetry = self.telemetry.with_database(name);
        self
    }

    /// Deletes everything that is due now; answers how many rows.
    ///
    /// # Errors
    /// When the database fails, or the cleaner was closed.
    ///
    /// # Cancel safety
    /// Cancel safe: batches that were committed stay deleted, the current one is rolled back.
    pub async fn run_once(&self) -> Result<u64, StoreError> {
        if *self.closed.borrow() {
            return Err(StoreError::new(Code::Closed, StoreErrorKind::Refused, "the cleaner was closed"));
        }
        let outbox = self.sweep(self.store.table(), &self.telemetry, None).await;
        // Trouble with the one does not keep the other from being cleaned.
        let inbox = match self.inbox {
            Some(retention) => {
                let table = inbox_beside(self.store.table());
                self.sweep(&table, &self.telemetry.with_table(&table), Some(retention)).await
            }
            None => Ok(0),
        };
        Ok(outbox? + inbox?)
    }

    /// Sweeps the table, or its inbox, until a batch is short, another cleaner is at work, or this one was closed.
    async fn sweep(
        &self,
        table: &str,
        telemetry: &Telemetry,
        inbox: Option<InboxRetention>,
    ) -> Result<u64, StoreError> {
        let mut total = 0;
        loop {
            let swept = match inbox {
                None => self.store.sweep(&self.request).await?,
                Some(retention) => {
                    self.store.sweep_inbox(retention.keep().min(LONGEST), self.request.batch).await?
                }
            };
            match swept {
                Swept::Busy => break,
                Swept::Deleted(rows) => {
                    total += rows;
                    telemetry.cleaned(rows);
                    if rows < u64::from(self.request.batch) || *self.closed.borrow() {
                        break;
                    }
                }
            }
        }
        if total > 0 {
            tracing::info!(table, rows = total, "cleaned");
        }
        Ok(total)
    }

    /// Makes [`run`](Self::run) return after the batch at hand.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Cleans every interval until closed. Failures are logged and tried again at the next interval.
    ///
    /// # Cancel safety
    /// As [`run_once`](Self::run_once).
    pub async fn run(&self) {
        let work = async { tokio::join!(self.run_sweeps(), self.run_tidying()) };
        work.instrument(self.telemetry.span()).await;
    }

    async fn run_sweeps(&self) {
        while !*self.closed.borrow() {
            if let Err(error) = self.run_once().await {
                tracing::error!(table = self.store.table(), %error, "cleaner failed");
            }
            self.pause(self.interval).await;
        }
    }

    async fn run_tidying(&self) {
        let mut pause = TIDY_EVERY;
        while self.tidies && !*self.closed.borrow() {
            self.pause(pause).await;
            if *self.closed.borrow() {
                break;
            }
            let started = Instant::now();
            pause = match self.store.tidy().await {
                Ok(Tidied::Nothing) => TIDY_EVERY,
                Ok(Tidied::Done) => TIDY_EVERY.max(started.elapsed() * TIDY_SHARE),
                Ok(Tidied::Held) => (pause * 2).max(started.elapsed() * TIDY_SHARE).min(TIDY_SELDOM),
                Err(error) => {
                    // Nothing depends on it, and a database that is away is told of by others.
                    tracing::debug!(table = self.store.table(), %error, "vacuum failed");
                    (pause * 2).min(TIDY_SELDOM)
                }
            };
        }
    }

    /// With some jitter: the cleaners of many replicas shall not all come at the same second.
    async fn pause(&self, time: Duration) {
        let mut closed = self.closed.subscribe();
        let pause = time.mul_f64(0.9 + 0.2 * fastrand::f64());
        let _ = tokio::time::timeout(pause, closed.wait_for(|closed| *closed)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Nothing to sweep; counts how often room is asked for.
    struct Tidy {
        looks: Arc<AtomicUsize>,
        says: Tidied,
    }

    impl Sweep for Tidy {
        fn table(&self) -> &'static str {
            "t"
        }

        async fn sweep(&self, _: &SweepRequest) -> Result<Swept, StoreError> {
            Ok(Swept::Deleted(0))
        }

        async fn tidy(&self) -> Result<Tidied, StoreError> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Ok(self.says)
        }
    }

    /// How often a cleaner looks within an hour, and then once it is closed.
    async fn looks(says: Tidied, vacuum: bool) -> (usize, usize) {
        let looks = Arc::new(AtomicUsize::new(0));
        let cleaner = Arc::new(Cleaner::new(Tidy { looks: Arc::clone(&looks), says }).vacuum(vacuum));
        let running = tokio::spawn({
            let cleaner = Arc::clone(&cleaner);
            async move { cleaner.run().await }
        });
        tokio::time::sleep(Duration::from_hours(1)).await;
        let before = looks.load(Ordering::Relaxed);
        cleaner.close();
        running.await.unwrap();
        (before, looks.load(Ordering::Relaxed) - before)
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_looked_for_every_few_seconds_and_never_at_a_stop() {
        let (often, after) = looks(Tidied::Done, true).await;
        assert!((600..=900).contains(&often), "{often}");
        assert_eq!(after, 0, "a stop starts no vacuum");
        assert_eq!(looks(Tidied::Nothing, false).await, (0, 0), "it was told not to");
    }

    #[test]
    fn for_ever_is_a_time_that_databases_know() {
        let tidy = Tidy { looks: Arc::default(), says: Tidied::Nothing };
        let cleaner = Cleaner::new(tidy).retention(Duration::MAX).dead_retention(Duration::MAX);
        assert_eq!((cleaner.request.retention, cleaner.request.dead_retention), (LONGEST, Some(LONGEST)));
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_room_is_held_it_is_looked_for_ever_more_seldom() {
        let (often, _) = looks(Tidied::Held, true).await;
        assert!((8..=16).contains(&often), "{often}");
    }
}
