//! SQLite.

use postbox_core::InboxTrouble;
use sea_orm::{DbBackend, DbErr, QueryResult, Value as Sea};
use sqlx::Sqlite;
use sqlx::sqlite::SqliteError;

use super::Backend;
use crate::sqlite::inbox;
use crate::sqlite::session::Value;

impl Backend for Sqlite {
    const BACKEND: DbBackend = DbBackend::Sqlite;

    fn value(value: Value<'_>) -> Sea {
        match value {
            Value::Int(value) => value.into(),
            Value::Text(value) => Sea::String(value.map(ToOwned::to_owned)),
            Value::Bytes(value) => Sea::Bytes(value.map(ToOwned::to_owned)),
        }
    }

    fn text(row: &QueryResult) -> Result<String, DbErr> {
        row.try_get_by_index(0)
    }
}

/// What an error of this database means to whoever records a message.
pub(super) fn trouble(error: &sqlx::Error) -> Option<InboxTrouble> {
    error.as_database_error()?.try_downcast_ref::<SqliteError>()?;
    Some(inbox::trouble(error))
}
