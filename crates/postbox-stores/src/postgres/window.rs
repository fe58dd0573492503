//! What an owner has in flight, as others see it. Its rows are not locked: they stand in its row of `postbox_relay`.

use postbox_core::TableName;
use sqlx::{PgConnection, Row as _};

use super::ask::ask;
use crate::table::Template;

/// Whether the table of owners has windows: one that an earlier version made has none until it is migrated.
pub(super) async fn are_there(connection: &mut PgConnection, table: &TableName) -> Result<bool, sqlx::Error> {
    let row = ask(
        "SELECT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'win_to' AND NOT attisdropped)",
    );
    let row = row.bind(table.quoted_sibling("postbox_relay", '"')).fetch_one(connection).await?;
    row.try_get(0)
}

/// Whether a row is in the window of the active relay: the condition in SQL, true or false and never null. `row` is what stands
/// before its columns, such as `m.`.
///
/// A window is written when rows come into it, so that it may still name some that have left. What was put off lies behind
/// its end; what was delivered or died is told by its own columns.
pub(super) fn in_flight(table: &TableName, row: &str) -> String {
    condition(table, row, " AND w.expires_at > clock_timestamp()")
}

/// The same, also after the owner's time is over: until another has taken its place, what it settles still counts.
pub(super) fn may_be_settled(table: &TableName, row: &str) -> String {
    condition(table, row, "")
}

/// The owner's row is read once for a whole statement, whatever the number of rows.
fn condition(table: &TableName, row: &str, and: &str) -> String {
    let key = table.to_string().replace('\'', "''");
    let of = |column: &str| format!("(SELECT {column} FROM {{{{relay}}}} w WHERE w.tbl = '{key}'{and})");
    let (win, to) = (of("w.win || '{}'"), of("w.win_to"));
    let sql =
        format!("coalesce(width_bucket({row}sequence, {win}) % 2 = 1 AND {row}available_at <= {to}, false)");
    Template::of(table, '"').fill(&sql)
}
