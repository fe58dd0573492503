//! [`Moment`]: a time as the database keeps it, brought into the range that a client can hold.

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Postgres, Type};
use time::OffsetDateTime;
use time::macros::datetime;

const MILLION: i64 = 1_000_000;
/// What the database counts from.
const EPOCH: i64 = datetime!(2000-01-01 0:00 UTC).unix_timestamp();
/// The first and the last second that can be held; `infinity` and the year 10000 are brought here, so that one such row hurts
/// nobody else.
const FIRST: i64 = datetime!(0001-01-01 0:00 UTC).unix_timestamp();
const LAST: i64 = datetime!(9999-12-31 0:00 UTC).unix_timestamp();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment(pub(super) OffsetDateTime);

impl Type<Postgres> for Moment {
    fn type_info() -> PgTypeInfo {
        <OffsetDateTime as Type<Postgres>>::type_info()
    }

    fn compatible(kind: &PgTypeInfo) -> bool {
        <OffsetDateTime as Type<Postgres>>::compatible(kind)
    }
}

impl<'r> Decode<'r, Postgres> for Moment {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return <OffsetDateTime as Decode<Postgres>>::decode(value).map(Self);
        }
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        let seconds = (micros.div_euclid(MILLION) + EPOCH).clamp(FIRST, LAST);
        let rest = u32::try_from(micros.rem_euclid(MILLION))?;
        Ok(Self(OffsetDateTime::from_unix_timestamp(seconds)?.replace_microsecond(rest)?))
    }
}
