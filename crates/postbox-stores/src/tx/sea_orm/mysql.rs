//! MySQL and MariaDB.

use postbox_core::InboxTrouble;
use sea_orm::{DbBackend, DbErr, QueryResult, Value as Sea};
use sqlx::MySql;
use sqlx::mysql::MySqlDatabaseError;

use super::Backend;
use crate::mysql::session::{self, Value};

impl Backend for MySql {
    const BACKEND: DbBackend = DbBackend::MySql;

    fn value(value: Value<'_>) -> Sea {
        match value {
            Value::Int(value) => value.into(),
            Value::Text(value) => Sea::String(value.map(ToOwned::to_owned)),
            Value::Bytes(value) => Sea::Bytes(value.map(ToOwned::to_owned)),
            Value::Time(value) => Sea::TimeDateTime(value),
        }
    }

    fn text(row: &QueryResult) -> Result<String, DbErr> {
        let bytes: Vec<u8> = row.try_get_by_index(0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// What an error of this database means to whoever records a message.
pub(super) fn trouble(error: &sqlx::Error) -> Option<InboxTrouble> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(session::trouble(error.number()))
}
