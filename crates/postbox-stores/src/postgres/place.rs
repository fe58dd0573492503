//! [`Place`]: where a row lies in its table (`ctid`), the quickest way back to it.
//!
//! A row that is changed moves, and its place may be another's after a while. So a place is only ever asked for together with the
//! row's id, and who does not find it there looks by id.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

/// As it is sent, also by `tidsend`: block, then offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place([u8; 6]);

impl Type<Postgres> for Place {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(27))
    }
}

impl PgHasArrayType for Place {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1010))
    }
}

impl Encode<'_, Postgres> for Place {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Postgres> for Place {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(value.as_bytes()?.try_into()?))
    }
}
