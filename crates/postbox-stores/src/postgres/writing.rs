//! The statements that write events, and what is bound to them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use postbox_core::{Availability, Json, Layout, OutboxTable, Payload, Record, TableName};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use uuid::Uuid;

use super::{order, wake};
use crate::table::Template;

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

type Insert<'q> = Query<'q, Postgres, PgArguments>;

/// Binds all columns of these events: arrays of them, or those of one alone.
pub(super) fn bind<'q>(
    mut query: Insert<'q>,
    layout: Layout,
    records: &[(&'q Record, bool)],
    one: bool,
) -> Insert<'q> {
    macro_rules! column {
        ($record:ident => $value:expr) => {
            query = match records {
                [($record, _)] if one => query.bind($value),
                _ => query.bind(records.iter().map(|($record, _)| $value).collect::<Vec<_>>()),
            };
        };
    }
    column!(r => r.event_id.0);
    column!(r => r.tenant_id.0);
    column!(r => r.topic.as_str());
    column!(r => match &r.payload {
        Payload::Json(json) => json.as_str(),
        Payload::Bytes { .. } => "null",
    });
    column!(r => match r.available {
        Availability::At(at) => Some(at),
        Availability::Now | Availability::After(_) => None,
    });
    column!(r => match r.available {
        Availability::After(delay) => i64::try_from(delay.as_micros()).unwrap_or(i64::MAX),
        Availability::Now | Availability::At(_) => 0,
    });
    if layout == Layout::Bare {
        return query;
    }
    column!(r => r.aggregate.as_ref().map(|a| a.kind.as_str()));
    column!(r => r.aggregate.as_ref().map(|a| a.id.as_str()));
    column!(r => (!r.headers.is_empty()).then(|| serde_json::to_string(&r.headers).unwrap_or_default()));
    column!(r => r.occurred_at);
    column!(r => r.schema_id.as_deref());
    column!(r => r.schema_version);
    column!(r => r.routing_key.as_deref());
    column!(r => r.metadata.as_ref().map(Json::as_str));
    column!(r => r.traceparent.as_deref());
    column!(r => r.tracestate.as_deref());
    column!(r => match &r.payload {
        Payload::Bytes { bytes, .. } => Some(&**bytes),
        Payload::Json(_) => None,
    });
    column!(r => match &r.payload {
        Payload::Bytes { content_type, .. } => Some(content_type.as_str()),
        Payload::Json(_) => None,
    });
    // Rising, where the table's own default is random: the newest rows are beside each other in the index of the key.
    column!(_r => Uuid::now_v7());
    query
}
