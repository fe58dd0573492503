//! Lists of events. There is no index by sequence (it would cost every event): what is looked at is taken from the ends of the
//! indexes that there are, and put in order of sequence afterwards.

use std::fmt::Write as _;

use postbox_core::{
    Content, Direction, EventDetail, EventId, EventStatus, EventSummary, Json, Layout, ListRequest, TenantId,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::admin::Looked;

/// The columns of an [`EventSummary`], in the order of [`summary`]. No payload: not everybody may read it.
const SUMMARY: &str =
    "event_id, sequence, tenant_id, topic, {{aggregate_type}} AS kind, {{aggregate_id}} AS aggregate,
    {{status}} AS status, attempts, {{time(created_at)}} AS created, {{time(available_at)}} AS available,
    {{time(published_at)}} AS published, CASE WHEN {{dead}} THEN {{time({{died}})}} END AS died, last_error";

/// What a replay does to a row.
const REVIVE: &str = "attempts = 0, available_at = now(), last_error = NULL{{revive}}";

const BETWEEN: &str = "published_at >= $1 AND published_at < $2 AND ($3::text IS NULL OR topic = $3)";

pub(super) fn fill(looked: &Looked, sql: &str) -> String {
    let died = if looked.layout == Layout::Full { "dead_at" } else { "available_at" };
    let sql = sql
        .replace("{{summary}}", SUMMARY)
        .replace("{{set}}", REVIVE)
        .replace("{{between}}", BETWEEN)
        .replace("{{died}}", died);
    looked.template.fill(&in_range(&sql))
}

/// Times that no client can hold (infinity, the year 10000) are brought into range: one such row must not hide the
/// others. Fills `{{time(…)}}`.
pub(super) fn in_range(sql: &str) -> String {
    let mut out = String::new();
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once("{{time(") {
        let Some((column, behind)) = after.split_once(")}}") else { break };
        out.push_str(before);
        // No time stays none: greatest and least would leave it out.
        let _ = write!(
            out,
            "CASE WHEN {column} IS NOT NULL THEN greatest(least({column}, '9999-12-31 00:00:00+00'), '0001-01-01 00:00:00+00') END"
        );
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Where to look: a condition that an index serves, and the order it serves it in, newest first and oldest first.
type Branch = (&'static str, &'static str, &'static str);

const DUE: Branch = (
    "published_at IS NULL AND {{alive}} AND available_at <= now()",
    "available_at DESC, sequence DESC",
    "available_at, sequence",
);
/// Apart from what is due, which events for next year would hide.
const LATER: Branch = (
    "published_at IS NULL AND {{alive}} AND available_at > now()",
    "available_at, sequence",
    "available_at, sequence",
);
const SENT: Branch = (
    "published_at IS NOT NULL AND ($10::timestamptz IS NULL OR published_at >= $10)",
    "published_at DESC, sequence DESC",
    "published_at, sequence",
);
const DEAD: Branch = ("{{dead}}", "{{died}} DESC, sequence DESC", "{{died}}, sequence");

/// The statement of a list; its last column says whether a branch met the depth, also where no event matches. `$1` topic
/// `$2` tenant `$3` aggregate type `$4` aggregate `$5` status `$6` error `$7` after `$8` rows `$9` depth `$10` since
pub(super) fn list_sql(looked: &Looked, request: &ListRequest) -> String {
    let newest = request.direction == Direction::NewestFirst;
    let branches: &[Branch] = match request.filter.status {
        Some(EventStatus::Sent) => &[SENT],
        Some(EventStatus::Dead) => &[DEAD],
        Some(_) => &[DUE, LATER],
        None => &[DUE, LATER, SENT, DEAD],
    };
    // A tenant has an index of its own.
    let tenant = if request.filter.tenant_id.is_some() { " AND tenant_id = $2" } else { "" };
    let columns = match looked.layout {
        Layout::Full => ", aggregate_type, aggregate_id, dead_at",
        Layout::Bare => "",
    };
    let columns = format!(
        "event_id, sequence, tenant_id, topic, attempts, created_at, available_at, published_at, locked_at, last_error{columns}"
    );
    let bounded = |at: usize, table: &str, (condition, down, up): &Branch, and: &str| {
        let order = if newest { down } else { up };
        format!(
            "(SELECT {at} AS branch, {columns} FROM {table} WHERE {condition}{and} ORDER BY {order} LIMIT $9)"
        )
    };
    let sent = matches!(request.filter.status, None | Some(EventStatus::Sent));
    let moved = looked.history.is_some() && sent;
    let whole = |(condition, ..): &Branch| format!("({condition})");
    let (seen, met) = if request.depth.is_some() {
        let one = |(at, branch): (usize, &Branch)| bounded(at, "{{table}}", branch, tenant);
        let mut all: Vec<String> = branches.iter().enumerate().map(one).collect();
        if moved {
            // No index by tenant there: the filter finds what is a tenant's among the rest.
            all.push(bounded(branches.len(), "{{history}}", &SENT, ""));
        }
        let met = "SELECT coalesce(max(n), 0) >= $9 FROM (SELECT count(*) AS n FROM seen GROUP BY branch) AS brought";
        (format!("MATERIALIZED ({})", all.join(" UNION ALL ")), met)
    } else {
        let all: Vec<String> = branches.iter().map(whole).collect();
        let all = all.join(" OR ");
        let mut seen = format!("SELECT {columns} FROM {{{{table}}}} WHERE {all}");
        if moved {
            seen = format!("{seen} UNION ALL SELECT {columns} FROM {{{{history}}}}");
        }
        (format!("NOT MATERIALIZED ({seen})"), "SELECT false")
    };
    let (compare, order) = if newest { ("<", "DESC") } else { (">", "ASC") };
    fill(
        looked,
        &format!(
            "WITH seen AS {seen}
             SELECT page.*, met.met FROM ({met}) AS met (met) LEFT JOIN (
                 SELECT {{{{summary}}}} FROM seen
                 WHERE ($1::text IS NULL OR topic = $1) AND ($2::uuid IS NULL OR tenant_id = $2)
                   AND ($3::text IS NULL OR {{{{aggregate_type}}}} = $3) AND ($4::text IS NULL OR {{{{aggregate_id}}}} = $4)
                   AND ($5::text IS NULL OR {{{{status}}}} = $5) AND ($6::text IS NULL OR strpos(last_error, $6) > 0)
                   AND ($7::bigint IS NULL OR sequence {compare} $7) AND ($10::timestamptz IS NULL OR created_at >= $10)
                 ORDER BY sequence {order} LIMIT $8
             ) AS page ON true ORDER BY page.sequence {order}"
        ),
    )
}

pub(super) fn summary(row: &PgRow) -> Result<EventSummary, sqlx::Error> {
    let status: String = row.try_get(6)?;
    Ok(EventSummary {
        event_id: EventId(row.try_get(0)?),
        sequence: row.try_get(1)?,
        tenant_id: TenantId(row.try_get(2)?),
        topic: row.try_get(3)?,
        aggregate_type: row.try_get(4)?,
        aggregate_id: row.try_get(5)?,
        status: parse_status(&status)?,
        attempts: row.try_get(7)?,
        created_at: row.try_get(8)?,
        available_at: row.try_get(9)?,
        published_at: row.try_get(10)?,
        dead_at: row.try_get(11)?,
        last_error: row.try_get(12)?,
    })
}

pub(super) fn parse_status(text: &str) -> Result<EventStatus, sqlx::Error> {
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

pub(super) fn detail(row: &PgRow, with_content: bool) -> Result<EventDetail, sqlx::Error> {
    let json = |place: usize| -> Result<Option<Json>, sqlx::Error> {
        Ok(row.try_get::<Option<String>, _>(place)?.map(Json::trusted))
    };
    let content = if with_content {
        Some(Content {
            payload: Json::trusted(row.try_get::<String, _>(26)?),
            payload_raw: row.try_get(27)?,
            metadata: json(28)?,
        })
    } else {
        None
    };
    Ok(EventDetail {
        summary: summary(row)?,
        locked_at: row.try_get(13)?,
        headers: json(14)?,
        occurred_at: row.try_get(15)?,
        schema_id: row.try_get(16)?,
        schema_version: row.try_get(17)?,
        routing_key: row.try_get(18)?,
        traceparent: row.try_get(19)?,
        tracestate: row.try_get(20)?,
        locked_by: row.try_get(21)?,
        dlq_at: row.try_get(22)?,
        content_type: row.try_get(23)?,
        attempts_log: json(24)?,
        sinks_done: row.try_get(25)?,
        content,
    })
}
