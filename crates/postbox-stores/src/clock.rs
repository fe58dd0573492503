//! Times as numbers: microseconds since 1970, UTC.

use std::time::Duration;

use time::OffsetDateTime;

/// A time as a number.
pub(crate) fn micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}

/// A duration in the same unit.
pub(crate) fn span(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A time from a number; what is no time (a number that somebody made up) becomes 1970, and so does one before the first
/// year that RFC 3339, and with it JSON, can write.
pub(crate) fn from_micros(micros: i64) -> OffsetDateTime {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).ok();
    at.filter(|at| at.year() >= 0).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_table() {
        let at = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
        assert_eq!(from_micros(micros(at)), at);
        assert_eq!(from_micros(i64::MAX), OffsetDateTime::UNIX_EPOCH);
        assert_eq!(from_micros(-99_999_999_999_999_999), OffsetDateTime::UNIX_EPOCH, "1200 BC");
        assert_eq!(span(Duration::MAX), i64::MAX);
    }
}
