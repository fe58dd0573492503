//! The books of the demo: who ordered what, what arrived, and whether that is the same.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postbox_core::{DeadFilter, DeadLetters as _, TableName};
use postbox_stores::sqlite::SqliteAdmin;
use sqlx::SqlitePool;
use uuid::Uuid;

use crate::report::{Failure, Problem};

/// Kept by both sides, apart from the database: what is compared with what the table says.
#[derive(Default)]
pub(super) struct Books(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    committed: HashSet<Uuid>,
    rolled_back: HashSet<Uuid>,
    /// How often each arrived.
    arrived: HashMap<Uuid, u32>,
    lags: Vec<Duration>,
    retried: u64,
    failed: u64,
}

impl Books {
    pub(super) fn committed(&self, event: Uuid) {
        self.pages().committed.insert(event);
    }

    pub(super) fn rolled_back(&self, event: Uuid) {
        self.pages().rolled_back.insert(event);
    }

    pub(super) fn failed(&self) {
        self.pages().failed += 1;
    }

    pub(super) fn retried(&self) {
        self.pages().retried += 1;
    }

    pub(super) fn delivered(&self, event: Uuid, lag: Duration) {
        let mut pages = self.pages();
        *pages.arrived.entry(event).or_default() += 1;
        pages.lags.push(lag);
    }

    /// How things stand, in one line.
    pub(super) fn line(&self, second: u64) -> String {
        let pages = self.pages();
        let [p50, p99] = percentiles(&pages.lags, [50, 99]);
        format!(
            "{:02}:{:02}  written {:>6}  rolled back {:>5}  delivered {:>6}  retried {:>4}  lag p50 {} p99 {}",
            second / 60,
            second % 60,
            pages.committed.len(),
            pages.rolled_back.len(),
            pages.arrived.len(),
            pages.retried,
            short(p50),
            short(p99),
        )
    }

    /// Waits until everything has been delivered or is dead, and makes the account.
    pub(super) async fn settle(
        &self,
        pool: &SqlitePool,
        table: &TableName,
        patience: Duration,
    ) -> Result<Account, Failure> {
        let admin = SqliteAdmin::new(pool, table.clone());
        let started = Instant::now();
        loop {
            let dead = admin.query(&DeadFilter::default(), 1_000_000).await;
            let dead = dead.map_err(|error| Problem::about(table, &error))?;
            let account = self.account(&dead.iter().map(|event| event.event_id.0).collect());
            if account.missing == 0 || started.elapsed() > patience {
                return Ok(account);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn account(&self, dead: &HashSet<Uuid>) -> Account {
        let pages = self.pages();
        let there = |event: &&Uuid| pages.arrived.contains_key(*event) || dead.contains(*event);
        let [p50, p99] = percentiles(&pages.lags, [50, 99]);
        Account {
            written: pages.committed.len(),
            rolled_back: pages.rolled_back.len(),
            delivered: pages.committed.iter().filter(|event| pages.arrived.contains_key(*event)).count(),
            dead: dead.len(),
            missing: pages.committed.len() - pages.committed.iter().filter(there).count(),
            invented: pages.arrived.keys().filter(|event| !pages.committed.contains(*event)).count(),
            repeated: pages.arrived.values().map(|times| u64::from(*times) - 1).sum(),
            retried: pages.retried,
            failed: pages.failed,
            p50,
            p99,
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of it all.
pub(super) struct Account {
    written: usize,
    rolled_back: usize,
    delivered: usize,
    dead: usize,
    /// Written, and neither delivered nor dead.
    missing: usize,
    /// Delivered without having been written.
    invented: usize,
    repeated: u64,
    retried: u64,
    failed: u64,
    p50: Duration,
    p99: Duration,
}

impl Account {
    /// Nothing is lost and nothing was made up.
    pub(super) fn balances(&self) -> bool {
        self.missing == 0 && self.invented == 0
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "balances": self.balances(), "written": self.written, "rolled_back": self.rolled_back, "delivered": self.delivered,
            "dead": self.dead, "missing": self.missing, "invented": self.invented, "repeated": self.repeated,
            "retried": self.retried, "orders_not_placed": self.failed,
            "lag_p50_ms": self.p50.as_secs_f64() * 1e3, "lag_p99_ms": self.p99.as_secs_f64() * 1e3,
        })
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nThe account")?;
        writeln!(f, "  orders written, each with its event     {:>8}", self.written)?;
        writeln!(f, "  delivered to the warehouse              {:>8}", self.delivered)?;
        writeln!(f, "  refused for good: dead, and kept        {:>8}", self.dead)?;
        writeln!(f, "  lost                                    {:>8}", self.missing)?;
        writeln!(f, "  rolled back, and never heard of         {:>8}", self.rolled_back)?;
        writeln!(f, "  delivered though rolled back            {:>8}", self.invented)?;
        writeln!(
            f,
            "  delivered again after a kill            {:>8}   consumers see the same event_id",
            self.repeated
        )?;
        writeln!(
            f,
            "  lag from written to delivered           p50 {}, p99 {}",
            short(self.p50),
            short(self.p99)
        )?;
        let verdict =
            if self.balances() { "✓ The books balance." } else { "✗ The books do not balance." };
        write!(f, "{verdict}")
    }
}

fn percentiles<const N: usize>(lags: &[Duration], wanted: [usize; N]) -> [Duration; N] {
    let mut sorted = lags.to_vec();
    sorted.sort_unstable();
    wanted.map(|percent| {
        sorted
            .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    })
}

fn short(time: Duration) -> String {
    match time.as_millis() {
        0..10_000 => format!("{}ms", time.as_millis()),
        _ => format!("{}s", time.as_secs()),
    }
}
