//! Waiting for events. Neither MySQL nor MariaDB tells anybody of a commit: a relay looks, which costs a fraction of a
//! millisecond, and hears of the commits of its own process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postbox_core::StoreError;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::store::Inner;

/// Tells the relays of this process that it has committed events: they look at once. Whoever commits elsewhere, or by a
/// transaction of the driver's own, is found by looking.
pub(super) static COMMITTED: Notify = Notify::const_new();

/// How often a waiting relay looks, at first and after a while in vain.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_SELDOM: Duration = Duration::from_millis(40);

/// What tells that somebody has committed: the last sequence, and how many rows could be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(Option<i64>, i64);

impl Mark {
    /// Reads it from two columns.
    pub(super) fn read(row: &MySqlRow, place: usize) -> Result<Self, sqlx::Error> {
        Ok(Self(row.try_get(place)?, row.try_get(place + 1)?))
    }
}

/// What the last claim saw before it looked for rows.
#[derive(Debug, Default)]
pub(super) struct Watch {
    mark: Mutex<Option<Mark>>,
    /// Whether this relay may claim at all.
    active: AtomicBool,
}

impl Watch {
    /// A claim begins: what commits after this must end the next wait.
    pub(super) fn saw(&self, mark: Mark, active: bool) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
        self.active.store(active, Ordering::Relaxed);
    }

    fn differs_from(&self, mark: Mark) -> bool {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|seen| seen != mark)
    }
}

impl Inner {
    /// Waits until rows may have become available.
    pub(super) async fn wait(self: &Arc<Self>, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut pause = LOOK;
        loop {
            // Who stands by has nothing to look for.
            let next = if self.seen.active.load(Ordering::Relaxed) { Instant::now() + pause } else { until };
            tokio::select! {
                () = tokio::time::sleep_until(until.min(next)) => {}
                () = COMMITTED.notified() => {}
                // What was behind a row that is settled now can be claimed.
                () = self.news.came() => return,
            }
            if Instant::now() >= until || !self.seen.active.load(Ordering::Relaxed) {
                return tokio::time::sleep_until(until).await;
            }
            // In a task of its own: whoever waits may lose patience, and a look that is broken off costs its connection.
            let inner = Arc::clone(self);
            match tokio::spawn(async move { inner.has_changed().await }).await {
                Ok(Ok(false)) => pause = (pause + LOOK / 5).min(LOOK_SELDOM),
                Ok(Ok(true)) => return,
                // For the next claim to tell, when its time has come.
                Ok(Err(_)) | Err(_) => return tokio::time::sleep_until(until).await,
            }
        }
    }

    /// Whether anybody has committed since the last claim looked, or something has become due.
    async fn has_changed(&self) -> Result<bool, StoreError> {
        let opened = self.opened().await?;
        let mut watch = self.watch.take().await?;
        let look =
            sqlx::query(AssertSqlSafe(opened.statements.mark.as_str())).fetch_one(&mut watch.connection);
        let row = within(OPERATION_LIMIT, look).await?;
        watch.keep();
        Ok(self.seen.differs_from(Mark::read(&row, 0).map_err(classify)?))
    }
}
