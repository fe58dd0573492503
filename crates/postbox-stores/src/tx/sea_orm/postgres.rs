//! PostgreSQL.

use std::fmt::Write as _;

use postbox_core::InboxTrouble;
use sea_orm::sea_query::ArrayType;
use sea_orm::{DbBackend, DbErr, QueryResult, Value as Sea};
use sqlx::Postgres;
use sqlx::postgres::PgDatabaseError;
use time::{OffsetDateTime, UtcOffset};

use super::Backend;
use crate::postgres::session::{self, Value};

impl Backend for Postgres {
    const BACKEND: DbBackend = DbBackend::Postgres;

    fn value(value: Value<'_>) -> Sea {
        match value {
            Value::Bool(value) => value.into(),
            Value::Int(value) => value.into(),
            Value::BigInt(value) => value.into(),
            Value::Uuid(value) => value.into(),
            Value::Text(value) => Sea::String(value.map(ToOwned::to_owned)),
            Value::Bytes(value) => Sea::Bytes(value.map(ToOwned::to_owned)),
            Value::Time(value) => Sea::TimeDateTimeWithTimeZone(value),
            Value::Bools(values) => array(ArrayType::Bool, values),
            Value::Ints(values) => array(ArrayType::Int, values),
            Value::BigInts(values) => array(ArrayType::BigInt, values),
            Value::Uuids(values) => array(ArrayType::Uuid, values),
            Value::Texts(values) => literal(values.into_iter().map(|value| value.map(ToOwned::to_owned))),
            Value::Blobs(values) => literal(values.into_iter().map(|value| value.map(hexadecimal))),
            Value::Times(values) => literal(values.into_iter().map(|value| value.map(moment))),
        }
    }

    fn text(row: &QueryResult) -> Result<String, DbErr> {
        row.try_get_by_index(0)
    }
}

fn array<T: Into<Sea>>(kind: ArrayType, values: Vec<T>) -> Sea {
    Sea::Array(kind, Some(Box::new(values.into_iter().map(Into::into).collect())))
}

/// An array as text, which the statement's cast makes one of: SeaORM's own arrays cannot hold NULL, and panic.
fn literal(values: impl Iterator<Item = Option<String>>) -> Sea {
    let mut text = String::from("{");
    for (place, value) in values.enumerate() {
        if place > 0 {
            text.push(',');
        }
        let Some(value) = value else {
            text.push_str("NULL");
            continue;
        };
        text.push('"');
        for character in value.chars() {
            if matches!(character, '"' | '\\') {
                text.push('\\');
            }
            text.push(character);
        }
        text.push('"');
    }
    text.push('}');
    text.into()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("\\x"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn moment(at: OffsetDateTime) -> String {
    let at = at.to_offset(UtcOffset::UTC);
    // There is no year zero here.
    let (year, era) = if at.year() > 0 { (at.year(), "") } else { (1 - at.year(), " BC") };
    let (month, day) = (u8::from(at.month()), at.day());
    let (hour, minute, second, micro) = (at.hour(), at.minute(), at.second(), at.microsecond());
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micro:06}+00{era}")
}

/// What an error of this database means to whoever records a message.
pub(super) fn trouble(error: &sqlx::Error) -> Option<InboxTrouble> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    Some(session::trouble(error.code()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn arrays_are_written_as_the_database_reads_them() {
        let texts = Value::Texts(vec![Some(r#"a "b" \c, {d}"#), None, Some("")]);
        assert_eq!(Postgres::value(texts), Sea::from(r#"{"a \"b\" \\c, {d}",NULL,""}"#));
        assert_eq!(Postgres::value(Value::Blobs(vec![Some(&[0, 255])])), Sea::from(r#"{"\\x00ff"}"#));
        let times =
            vec![Some(datetime!(2026-01-02 3:04:05.000_006 +1)), Some(datetime!(0000-12-31 0:00 UTC))];
        let text = r#"{"2026-01-02 02:04:05.000006+00","0001-12-31 00:00:00.000000+00 BC"}"#;
        assert_eq!(Postgres::value(Value::Times(times)), Sea::from(text));
    }
}
