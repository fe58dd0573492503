//! ② The statements that write events, and the values for them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use postbox_core::{Availability, Json, Layout, OutboxTable, Record, TableName};
use uuid::Uuid;

use super::session::Value;
use super::{order, wake};
use crate::table::Template;
use crate::tx;

/// Which statement is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each adds a part to the statement")]
pub(super) struct Form {
    /// For one event, without arrays.
    pub(super) one: bool,
    /// Rows can be born leased: by the clock, since `now()` is when the transaction began (hazard 4).
    pub(super) birth: bool,
    /// The locks of several aggregates are taken before the first row is written, where the table's trigger would take them one
    /// by one.
    pub(super) locks: bool,
    /// A relay that sleeps hears of the commit.
    pub(super) rings: bool,
}

/// Statements that were put together before: that takes longer than to send one. Few, unless somebody makes up tables by the
/// thousand.
static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(RwLock::default);
type Known = HashMap<(TableName, Layout, Form), Arc<str>>;
const MOST_KNOWN: usize = 512;

/// The statement for a table.
pub(super) fn sql(table: &OutboxTable, form: Form) -> Arc<str> {
    let key = (table.name.clone(), table.layout, form);
    if let Some(sql) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Arc::clone(sql);
    }
    let sql: Arc<str> = write(&table.name, table.layout, form).into();
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= MOST_KNOWN {
        known.clear();
    }
    known.insert(key, Arc::clone(&sql));
    sql
}

fn write(name: &TableName, layout: Layout, Form { one, birth, locks, rings }: Form) -> String {
    let sql = match (layout, one) {
        (Layout::Full, false) => include_str!("sql/insert.sql"),
        (Layout::Full, true) => include_str!("sql/insert_one.sql"),
        (Layout::Bare, false) => include_str!("sql/insert_bare.sql"),
        (Layout::Bare, true) => include_str!("sql/insert_one_bare.sql"),
    };
    let part = |text: &'static str| if birth { text } else { "" };
    let oid = format!("'{}'::regclass::oid", name.quoted('"'));
    let leased = if one { "$20::bool" } else { "leased" };
    let lease = format!(
        ", CASE WHEN {leased} THEN $21 END, CASE WHEN {leased} THEN clock_timestamp() END, {leased}::int"
    );
    let first = if birth { 22 } else { 20 };
    let taken = format!(
        "WITH locks AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(key) FROM (
        SELECT DISTINCT {} AS key
        FROM unnest(${}::uuid[], ${}::text[], ${}::text[]) AS a (tenant_id, aggregate_type, aggregate_id)
        WHERE EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = '{}'::regclass AND tgname = '{}' AND tgenabled <> 'D')
        ORDER BY 1
    ) AS k
)
",
        order::writers_lock("a.", &oid),
        first,
        first + 1,
        first + 2,
        name.quoted('"'),
        order::TRIGGER,
    );
    Template::of(name, '"')
        .with("locks", if locks { taken.as_str() } else { "" })
        .with("after_locks", if locks { "WHERE (SELECT count(*) FROM locks) >= 0\n" } else { "" })
        .with("birth_columns", part(", locked_by, locked_at, attempts"))
        .with("birth", if birth { lease } else { String::new() })
        .with("birth_argument", part(", $20::bool[]"))
        .with("birth_name", part(", leased"))
        .with("birth_row", part(", id"))
        .with("ring", if rings { format!(", {}", wake::ring(&oid)) } else { String::new() })
        .fill(sql)
}

/// The headers of these events as text, for [`values`] to borrow.
pub(super) fn headers(records: &[(&Record, bool)]) -> Vec<Option<String>> {
    records.iter().map(|(record, _)| tx::headers(record)).collect()
}

/// All columns of these events: arrays of them, or those of one alone.
pub(super) fn values<'q>(
    layout: Layout,
    records: &[(&'q Record, bool)],
    headers: &'q [Option<String>],
    one: bool,
) -> Vec<Value<'q>> {
    let mut values = Vec::with_capacity(24);
    macro_rules! column {
        ($one:ident, $many:ident, $record:ident => $value:expr) => {
            values.push(match records {
                [($record, _)] if one => Value::$one($value),
                _ => Value::$many(records.iter().map(|($record, _)| $value).collect()),
            });
        };
    }
    column!(Uuid, Uuids, r => r.event_id.0);
    column!(Uuid, Uuids, r => r.tenant_id.0);
    column!(Text, Texts, r => Some(r.topic.as_str()));
    column!(Text, Texts, r => Some(tx::payload(r).0));
    column!(Time, Times, r => match r.available {
        Availability::At(at) => Some(at),
        Availability::Now | Availability::After(_) => None,
    });
    column!(BigInt, BigInts, r => match r.available {
        Availability::After(delay) => i64::try_from(delay.as_micros()).unwrap_or(i64::MAX),
        Availability::Now | Availability::At(_) => 0,
    });
    if layout == Layout::Bare {
        return values;
    }
    column!(Text, Texts, r => r.aggregate.as_ref().map(|a| a.kind.as_str()));
    column!(Text, Texts, r => r.aggregate.as_ref().map(|a| a.id.as_str()));
    values.push(match headers {
        [headers] if one => Value::Text(headers.as_deref()),
        _ => Value::Texts(headers.iter().map(Option::as_deref).collect()),
    });
    column!(Time, Times, r => Some(r.occurred_at));
    column!(Text, Texts, r => r.schema_id.as_deref());
    column!(Int, Ints, r => r.schema_version);
    column!(Text, Texts, r => r.routing_key.as_deref());
    column!(Text, Texts, r => r.metadata.as_ref().map(Json::as_str));
    column!(Text, Texts, r => r.traceparent.as_deref());
    column!(Text, Texts, r => r.tracestate.as_deref());
    column!(Bytes, Blobs, r => tx::payload(r).1);
    column!(Text, Texts, r => tx::payload(r).2);
    // Rising, where the table's own default is random: the newest rows are beside each other in the index of the key.
    column!(Uuid, Uuids, _r => Uuid::now_v7());
    values
}
