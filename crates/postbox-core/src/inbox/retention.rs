//! [`InboxRetention`]: how long an inbox remembers, and why not shorter.

use std::time::Duration;

use crate::code::Code;
use crate::notation::show_duration;

/// How long an inbox remembers what it has seen: at least as long as its source may repeat it (hazard 45).
///
/// A message can come again for as long as it is anywhere on its way: in its outbox, from which published and dead events are
/// replayed, and in the broker. So the source's time is all of these together.
///
/// ```
/// use std::time::Duration;
/// use postbox_core::InboxRetention;
///
/// const DAY: Duration = Duration::from_hours(24);
/// let (published, dead, broker) = (7 * DAY, 30 * DAY, 14 * DAY);
/// assert!(InboxRetention::new(60 * DAY, published + dead + broker).is_ok());
/// assert!(InboxRetention::new(30 * DAY, published + dead + broker).is_err());
/// ```
///
/// Where dead events are kept for ever, as they are by default, nothing is long enough: clean no inbox then, or decide for how
/// long dead events are replayed and declare that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxRetention {
    keep: Duration,
}

/// Why an inbox must not be cleaned so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", Code::ConfigInvalid, self.message())]
pub struct InboxRetentionError {
    keep: Duration,
    // Not `source`: that is the name of an error's cause.
    repeats: Duration,
}

impl InboxRetention {
    /// Remembers for `keep` what its source repeats for `source` at most.
    ///
    /// # Errors
    /// When `keep` is shorter.
    pub const fn new(keep: Duration, source: Duration) -> Result<Self, InboxRetentionError> {
        if keep.as_nanos() < source.as_nanos() {
            return Err(InboxRetentionError { keep, repeats: source });
        }
        Ok(Self { keep })
    }

    /// How long it remembers.
    pub const fn keep(self) -> Duration {
        self.keep
    }
}

impl InboxRetentionError {
    /// The message, without the code in front.
    pub fn message(&self) -> String {
        format!(
            "an inbox that remembers for {} forgets messages that their source may repeat for {}, and their effect would \
             happen again: let it remember for at least as long",
            show_duration(self.keep),
            show_duration(self.repeats)
        )
    }

    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::ConfigInvalid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hazard_45_a_memory_shorter_than_its_source_is_refused() {
        let (day, week) = (Duration::from_hours(24), Duration::from_hours(7 * 24));
        assert_eq!(InboxRetention::new(week, week).unwrap().keep(), week);
        let error = InboxRetention::new(day, week).unwrap_err().to_string();
        assert!(error.contains("remembers for 1d") && error.contains("repeat for 7d"), "{error}");
        assert!(InboxRetention::new(week, week + Duration::from_nanos(1)).is_err());
    }
}
