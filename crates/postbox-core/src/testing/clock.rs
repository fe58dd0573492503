//! [`FakeClock`]: time that passes when a test says so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;

/// A clock that stands still until it is moved. Clones share the time.
///
/// ```
/// # use std::time::Duration;
/// # use postbox_core::testing::FakeClock;
/// let clock = FakeClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(90));
/// assert_eq!(clock.now() - before, Duration::from_secs(90));
/// ```
#[derive(Debug, Clone)]
pub struct FakeClock(Arc<Mutex<OffsetDateTime>>);

impl FakeClock {
    /// A clock that shows the time at which it was made.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(OffsetDateTime::now_utc())))
    }

    /// What it shows.
    pub fn now(&self) -> OffsetDateTime {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    /// Sets it.
    pub fn set(&self, to: OffsetDateTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}
