//! The database's time. Statements compare with it by themselves; here it is only guessed between two looks, for what stays
//! in this process.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use time::macros::datetime;
use time::{OffsetDateTime, PrimitiveDateTime, UtcOffset};

pub(super) use crate::clock::{from_micros, micros, span};
use crate::row::{Cells as _, Times};

/// What the database's clock said, and when that was.
#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<(i64, Instant)>>);

impl Clock {
    /// Takes in what the clock says.
    pub(super) fn set(&self, now: i64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// What it says by now.
    pub(super) fn now(&self) -> i64 {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((at, since)) => at.saturating_add(span(since.elapsed())),
            None => micros(OffsetDateTime::now_utc()),
        }
    }
}

/// A time for SQL, which knows four digits of a year.
pub(super) fn at(time: OffsetDateTime) -> PrimitiveDateTime {
    const FIRST: OffsetDateTime = datetime!(0001-01-01 0:00 UTC);
    const LAST: OffsetDateTime = datetime!(9999-12-31 23:59:59.999_999 UTC);
    let time = time.clamp(FIRST, LAST).to_offset(UtcOffset::UTC);
    PrimitiveDateTime::new(time.date(), time.time())
}

impl Times for MySqlRow {
    /// What is none (a year zero that an old server let in) becomes 1970.
    fn time(&self, place: usize) -> Result<Option<OffsetDateTime>, sqlx::Error> {
        match self.try_get::<Option<PrimitiveDateTime>, _>(place) {
            Ok(at) => Ok(at.map(PrimitiveDateTime::assume_utc)),
            Err(sqlx::Error::ColumnDecode { .. }) => Ok(Some(OffsetDateTime::UNIX_EPOCH)),
            Err(error) => Err(error),
        }
    }

    fn micros(&self, place: usize) -> Result<i64, sqlx::Error> {
        Ok(micros(self.known_time(place)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_four_digits_and_in_utc() {
        let far = datetime!(9999-12-31 23:00 -5);
        assert_eq!(at(far), time::macros::datetime!(9999-12-31 23:59:59.999_999));
        assert_eq!(at(datetime!(2026-01-01 1:00 +1)), time::macros::datetime!(2026-01-01 0:00));
    }
}
