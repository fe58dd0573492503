//! [`Patience`]: waiting for the write lock so that everybody gets it.
//!
//! SQLite lets one connection write at a time and keeps no queue. Its own `busy_timeout` sleeps longer and longer, so
//! that of two busy processes one gets everything and the other nothing. Short random pauses share the lock evenly.

use std::time::{Duration, Instant};

use super::error::is_busy;

/// How long an operation waits for a lock before it is an error.
pub(super) const OPERATION_LIMIT: Duration = Duration::from_secs(10);

/// The longest pause: who waits long shall not lose too much when the lock is free at last.
const LONGEST: u64 = 3_000;

#[derive(Debug)]
pub(super) struct Patience {
    until: Instant,
    tries: u64,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self::of(OPERATION_LIMIT)
    }

    pub(super) fn of(limit: Duration) -> Self {
        Self { until: Instant::now() + limit, tries: 0 }
    }

    /// Pauses if the error is a lock that somebody holds and there is time left; any other error is handed back.
    pub(super) async fn pause(&mut self, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if !is_busy(&error) || Instant::now() >= self.until {
            return Err(error);
        }
        let micros = fastrand::u64(50..=310) + (10 * self.tries).min(LONGEST);
        self.tries += 1;
        let pause = Duration::from_micros(micros);
        if micros < 1000 {
            // The runtime's timers have a grain of a millisecond.
            let _ = tokio::task::spawn_blocking(move || std::thread::sleep(pause)).await;
        } else {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}
