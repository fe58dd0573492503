//! [`Settings`]: what a relay can be told, with the documented defaults.

use std::sync::Arc;
use std::time::Duration;

use super::backoff::Backoff;
use super::error::RelayError;
use crate::redact::LAST_ERROR_MAX_BYTES;

/// A year. Beyond it a wait is beyond all sense, and somewhere beyond what clocks and databases can add to a time.
pub(super) const LONGEST: Duration = Duration::from_hours(365 * 24);

/// The settings of a relay; each has its documented default.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long an idle relay waits before it looks again (1 s).
    pub poll_interval: Duration,
    /// Most rows per claim (100).
    pub batch_size: usize,
    /// How long a lease lasts without renewal (60 s).
    pub lock_ttl: Duration,
    /// After so many attempts an event is dead (25).
    pub max_attempts: i32,
    /// How long one dispatch may take (30 s).
    pub dispatch_timeout: Duration,
    /// Most dispatches at a time, per sink (16).
    pub concurrency: usize,
    /// How long a stop waits for what runs (5 s).
    pub drain_timeout: Duration,
    /// Most bytes of payload in memory (16 MiB); one event is always allowed.
    pub max_in_flight_bytes: usize,
    /// The wait before the next attempt.
    pub backoff: Backoff,
    /// The wait before a sink that is down is tried again.
    pub circuit: Backoff,
    /// The longest `last_error` in bytes (2048).
    pub last_error_max_bytes: usize,
    /// Replays dead events by itself after so long; never, if not given.
    pub redrive_after: Option<Duration>,
    /// Each at most so often (3).
    pub redrive_max: i32,
    /// Whether logs hide tenant ids.
    pub mask_tenants: bool,
    /// The relay's name in logs and in the table.
    pub name: Arc<str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(1),
            batch_size: 100,
            lock_ttl: Duration::from_mins(1),
            max_attempts: 25,
            dispatch_timeout: Duration::from_secs(30),
            concurrency: 16,
            drain_timeout: Duration::from_secs(5),
            max_in_flight_bytes: 16 << 20,
            backoff: Backoff::default(),
            circuit: Backoff::exponential(Duration::from_secs(1), Duration::from_secs(30)),
            last_error_max_bytes: LAST_ERROR_MAX_BYTES,
            redrive_after: None,
            redrive_max: 3,
            mask_tenants: false,
            name: Arc::from(format!("relay-{}", std::process::id())),
        }
    }
}

impl Settings {
    /// What cannot work, in a sentence with the next step.
    ///
    /// # Errors
    /// When a value or a combination cannot work.
    pub fn check(&self) -> Result<(), RelayError> {
        let fail = |problem: String| Err(RelayError::Settings(problem));
        for (name, time) in [
            ("poll_interval", self.poll_interval),
            ("lock_ttl", self.lock_ttl),
            ("dispatch_timeout", self.dispatch_timeout),
            ("drain_timeout", self.drain_timeout),
        ] {
            if time > LONGEST {
                return fail(format!("{name} is {time:?}; use a year or less"));
            }
        }
        if self.batch_size == 0 || self.batch_size > 10_000 {
            return fail(format!("batch_size is {}; use 1 to 10000", self.batch_size));
        }
        if self.concurrency == 0 {
            return fail("concurrency is 0; use 1 or more".into());
        }
        if self.max_attempts < 1 {
            return fail(format!("max_attempts is {}; use 1 or more", self.max_attempts));
        }
        if self.poll_interval < Duration::from_millis(1) {
            return fail("poll_interval is 0; use 10ms or more".into());
        }
        if self.dispatch_timeout.is_zero() || self.lock_ttl < self.dispatch_timeout.mul_f64(1.5) {
            return fail(format!(
                "lock_ttl {:?} is too short for dispatch_timeout {:?}: leases are renewed at a third of lock_ttl and \
                 what is left must cover a dispatch; use a lock_ttl of at least {:?}",
                self.lock_ttl,
                self.dispatch_timeout,
                self.dispatch_timeout.mul_f64(1.5)
            ));
        }
        if self.redrive_after.is_some_and(|after| after.is_zero()) || self.redrive_max < 1 {
            return fail(
                "redrive_after and redrive_max must be more than 0; leave redrive_after out for never".into(),
            );
        }
        if self.max_in_flight_bytes == 0 {
            return fail("max_in_flight_bytes is 0; use 1MiB or more".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check().unwrap_err().to_string()
    }

    /// For ever is what many write who want no limit; a clock cannot add it to its time.
    #[test]
    fn a_time_without_end_is_refused_in_words() {
        assert!(Settings::default().check().is_ok());
        for (name, problem) in [
            ("poll_interval", problem(|settings| settings.poll_interval = Duration::MAX)),
            ("lock_ttl", problem(|settings| settings.lock_ttl = Duration::MAX)),
            ("dispatch_timeout", problem(|settings| settings.dispatch_timeout = Duration::MAX)),
            ("drain_timeout", problem(|settings| settings.drain_timeout = Duration::MAX)),
        ] {
            let start = format!("OUTBOX_CONFIG_INVALID: {name} is ");
            assert!(problem.starts_with(&start) && problem.ends_with("; use a year or less"), "{problem}");
        }
    }
}
