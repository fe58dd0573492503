//! The time. SQLite has no server and so no clock of its own; everybody who opens the file is on the same machine and goes
//! by that machine's clock. Tables hold microseconds since 1970.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use time::OffsetDateTime;

pub(super) use crate::clock::{from_micros, micros, span};
use crate::row::Times;

/// Now.
pub(super) fn now() -> i64 {
    micros(OffsetDateTime::now_utc())
}

impl Times for SqliteRow {
    fn time(&self, place: usize) -> Result<Option<OffsetDateTime>, sqlx::Error> {
        Ok(self.try_get::<Option<i64>, _>(place)?.map(from_micros))
    }

    fn micros(&self, place: usize) -> Result<i64, sqlx::Error> {
        self.try_get(place)
    }
}
