//! [`Micros`]: a time as the database keeps it, brought into the range that a client can hold.

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Postgres, Type};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

const MILLION: i64 = 1_000_000;
/// What the database counts from.
const EPOCH: i64 = datetime!(2000-01-01 0:00 UTC).unix_timestamp();
/// The first and the last second that can be held; `infinity` and the year 10000 are brought here, so that one such row hurts
/// nobody else.
const FIRST: i64 = datetime!(0001-01-01 0:00 UTC).unix_timestamp();
const LAST: i64 = datetime!(9999-12-31 0:00 UTC).unix_timestamp();

/// What the database keeps: microseconds since the year 2000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Micros(pub(super) i64);

/// The time that was last asked for: to make one of microseconds is dear, and many rows have the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latest(Micros, OffsetDateTime);

impl Default for Latest {
    fn default() -> Self {
        let start = Micros(0);
        Self(start, start.time())
    }
}

impl Latest {
    pub(super) fn time(&mut self, micros: Micros) -> OffsetDateTime {
        if self.0 != micros {
            *self = Self(micros, micros.time());
        }
        self.1
    }
}

impl Micros {
    pub(super) fn time(self) -> OffsetDateTime {
        let seconds = (self.0.div_euclid(MILLION) + EPOCH).clamp(FIRST, LAST);
        let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        time + Duration::microseconds(self.0.rem_euclid(MILLION))
    }
}

impl Type<Postgres> for Micros {
    fn type_info() -> PgTypeInfo {
        <OffsetDateTime as Type<Postgres>>::type_info()
    }

    fn compatible(kind: &PgTypeInfo) -> bool {
        <OffsetDateTime as Type<Postgres>>::compatible(kind)
    }
}

impl<'r> Decode<'r, Postgres> for Micros {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        // Statements of the relay are prepared, and answered in this form.
        if value.format() == PgValueFormat::Text {
            return Err("a time as text".into());
        }
        Ok(Self(i64::from_be_bytes(value.as_bytes()?.try_into()?)))
    }
}
