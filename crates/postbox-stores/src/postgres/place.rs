//! [`Place`]: where a row lies in its table (`ctid`), the quickest way back to it.
//!
//! A row that is changed moves, and its place may be another's after a while. So a place is only ever asked for together with the
//! row's id, and who does not find it there looks by id.

use std::fmt::Write as _;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

/// As it is sent, also by `tidsend`: block, then offset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place([u8; 6]);

/// How a parameter that is a list of places stands in a statement. The driver asks the server for their type when it prepares one;
/// behind a pooler, where statements have no names, its question would then stand in the statement's place. There they are text.
pub(super) fn parameter(parameter: &str, pooled: bool) -> String {
    if pooled { format!("{parameter}::text::tid[]") } else { format!("{parameter}::tid[]") }
}

/// The text of such a list.
pub(super) fn literal(places: &[Option<Place>]) -> String {
    let mut list = String::with_capacity(places.len() * 16);
    for place in places {
        let before = if list.is_empty() { '{' } else { ',' };
        let _ = match place {
            Some(Place([block @ .., high, low])) => {
                let (block, offset) = (u32::from_be_bytes(*block), u16::from_be_bytes([*high, *low]));
                write!(list, "{before}\"({block},{offset})\"")
            }
            None => write!(list, "{before}NULL"),
        };
    }
    if list.is_empty() { "{}".to_owned() } else { list + "}" }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_server_reads_them() {
        assert_eq!(literal(&[]), "{}");
        let last = Place([0xff, 0xff, 0xff, 0xfe, 0x01, 0x02]);
        assert_eq!(
            literal(&[Some(Place([0, 0, 0, 7, 0, 1])), None, Some(last)]),
            r#"{"(7,1)",NULL,"(4294967294,258)"}"#
        );
    }
}
