//! The events of a table for people. There is no index by sequence (it would cost every event): what is looked at is
//! taken from the ends of the indexes that there are, and put in order of sequence afterwards.

use std::fmt::Write as _;

use postbox_core::{
    Browse, Content, Direction, EventDetail, EventId, EventStatus, EventSummary, Json, Layout, ListRequest,
    Page, Published, StoreError, TenantId,
};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

use super::admin::{Looked, PgAdmin, audit};
use super::error::classify;
use crate::audit::described;

/// The columns of an [`EventSummary`], in the order of [`summary`]. No payload: not everybody may read it.
const SUMMARY: &str =
    "event_id, sequence, tenant_id, topic, {{aggregate_type}} AS kind, {{aggregate_id}} AS aggregate,
    {{status}} AS status, attempts, {{time(created_at)}} AS created, {{time(available_at)}} AS available,
    {{time(published_at)}} AS published, CASE WHEN {{dead}} THEN {{time({{died}})}} END AS died, last_error";

/// What a replay does to a row.
const REVIVE: &str = "attempts = 0, available_at = now(), locked_at = NULL, last_error = NULL{{revive}}";

const BETWEEN: &str = "published_at >= $1 AND published_at < $2 AND ($3::text IS NULL OR topic = $3) ORDER BY published_at, sequence";

type Bound<'q> = Query<'q, Postgres, PgArguments>;

fn fill(looked: &Looked, sql: &str) -> String {
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
fn list_sql(looked: &Looked, request: &ListRequest) -> String {
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
    let bounded = |(at, (condition, down, up)): (usize, &Branch)| {
        let order = if newest { down } else { up };
        format!(
            "(SELECT {at} AS branch, {columns} FROM {{{{table}}}} WHERE {condition}{tenant} ORDER BY {order} LIMIT $9)"
        )
    };
    let whole = |(condition, ..): &Branch| format!("({condition})");
    let (seen, met) = if request.depth.is_some() {
        let all: Vec<String> = branches.iter().enumerate().map(bounded).collect();
        let met = "SELECT coalesce(max(n), 0) >= $9 FROM (SELECT count(*) AS n FROM seen GROUP BY branch) AS brought";
        (format!("MATERIALIZED ({})", all.join(" UNION ALL ")), met)
    } else {
        let all: Vec<String> = branches.iter().map(whole).collect();
        let all = all.join(" OR ");
        (format!("NOT MATERIALIZED (SELECT {columns} FROM {{{{table}}}} WHERE {all})"), "SELECT false")
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

fn summary(row: &PgRow) -> Result<EventSummary, sqlx::Error> {
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

fn parse_status(text: &str) -> Result<EventStatus, sqlx::Error> {
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn detail(row: &PgRow, with_content: bool) -> Result<EventDetail, sqlx::Error> {
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

fn uuids(events: &[EventId]) -> Vec<Uuid> {
    events.iter().map(|event| event.0).collect()
}

impl PgAdmin {
    /// One change of rows with its line in the audit log, in one transaction; answers the events.
    async fn change(
        &self,
        query: Bound<'_>,
        action: &str,
        what: &serde_json::Value,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let looked = self.looked().await?;
        let mut tx = self.pool.begin().await.map_err(classify)?;
        let rows = query.fetch_all(&mut *tx).await.map_err(classify)?;
        let events: Result<Vec<EventId>, sqlx::Error> =
            rows.iter().map(|row| Ok(EventId(row.try_get(0)?))).collect();
        let events = events.map_err(classify)?;
        if !events.is_empty() {
            audit(&mut tx, looked, who, action, what, events.len() as u64).await?;
        }
        tx.commit().await.map_err(classify)?;
        Ok(events)
    }
}

impl Browse for PgAdmin {
    async fn now(&self) -> Result<OffsetDateTime, StoreError> {
        sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&self.pool).await.map_err(classify)
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, StoreError> {
        let looked = self.looked().await?;
        let ListRequest { filter, after, limit, depth, .. } = request;
        let query = sqlx::query(AssertSqlSafe(list_sql(looked, request)))
            .bind(&filter.topic)
            .bind(filter.tenant_id.map(|tenant| tenant.0))
            .bind(&filter.aggregate_type)
            .bind(&filter.aggregate_id)
            .bind(filter.status.map(EventStatus::as_str))
            .bind(&filter.error)
            .bind(after)
            .bind(i64::from(*limit) + 1)
            .bind(depth.map(i64::from))
            .bind(filter.since)
            // Not kept: its plan depends on what was asked for.
            .persistent(false);
        let rows = query.fetch_all(&self.pool).await.map_err(classify)?;
        let read = || -> Result<(Vec<EventSummary>, bool), sqlx::Error> {
            let bounded = rows.first().map_or(Ok(false), |row| row.try_get(13))?;
            let mut events = Vec::with_capacity(rows.len());
            for row in &rows {
                if row.try_get::<Option<Uuid>, _>(0)?.is_some() {
                    events.push(summary(row)?);
                }
            }
            Ok((events, bounded))
        };
        let (mut events, bounded) = read().map_err(classify)?;
        let more = events.len() > *limit as usize;
        events.truncate(*limit as usize);
        let next = events.last().filter(|_| more).map(|event| event.sequence);
        Ok(Page { events, next, bounded })
    }

    async fn show(&self, event: EventId, with_content: bool) -> Result<Option<EventDetail>, StoreError> {
        let looked = self.looked().await?;
        let columns = match looked.layout {
            Layout::Full => {
                "headers::text, {{time(occurred_at)}}, schema_id, schema_version, routing_key, traceparent, tracestate, locked_by,
                 {{time(dlq_at)}}, content_type, attempts_log::text, sinks_done"
            }
            Layout::Bare => {
                "NULL::text, NULL::timestamptz, NULL::text, NULL::int, NULL::text, NULL::text, NULL::text, NULL::text,
                 NULL::timestamptz, NULL::text, NULL::text, NULL::text[]"
            }
        };
        let content = match (with_content, looked.layout) {
            (false, _) => "",
            (true, Layout::Full) => ", payload::text, payload_raw, metadata::text",
            (true, Layout::Bare) => ", payload::text, NULL::bytea, NULL::text",
        };
        let sql = format!(
            "SELECT {{{{summary}}}}, {{{{time(locked_at)}}}}, {columns}{content} FROM {{{{table}}}} WHERE event_id = $1"
        );
        let query = sqlx::query(AssertSqlSafe(fill(looked, &sql))).bind(event.0).persistent(false);
        let row = query.fetch_optional(&self.pool).await.map_err(classify)?;
        row.map(|row| detail(&row, with_content)).transpose().map_err(classify)
    }

    async fn statuses(&self, events: &[EventId]) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
        let sql = fill(
            self.looked().await?,
            "SELECT event_id, {{status}} FROM {{table}} WHERE event_id = ANY ($1::uuid[])",
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(uuids(events));
        let rows = query.fetch_all(&self.pool).await.map_err(classify)?;
        let read = |row: &PgRow| Ok((EventId(row.try_get(0)?), parse_status(&row.try_get::<String, _>(1)?)?));
        rows.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(classify)
    }

    async fn count_published(&self, which: &Published) -> Result<u64, StoreError> {
        let looked = self.looked().await?;
        let sql = match which {
            Published::Events { .. } => {
                "SELECT count(*) FROM {{table}} WHERE event_id = ANY ($1::uuid[]) AND published_at IS NOT NULL"
            }
            Published::Between { .. } => {
                "SELECT count(*) FROM (SELECT 1 FROM {{table}} WHERE {{between}}) AS found"
            }
        };
        let query = bind_published(AssertSqlSafe(fill(looked, sql)), which);
        let row = query.fetch_one(&self.pool).await.map_err(classify)?;
        Ok(u64::try_from(row.try_get::<i64, _>(0).map_err(classify)?).unwrap_or(0))
    }

    async fn replay_published(
        &self,
        which: &Published,
        limit: u32,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let looked = self.looked().await?;
        let (chosen, limit_place) = match which {
            Published::Events { .. } => (
                "event_id = ANY ($1::uuid[]) AND published_at IS NOT NULL ORDER BY published_at, sequence",
                "$2",
            ),
            Published::Between { .. } => ("{{between}}", "$4"),
        };
        let done = if looked.layout == Layout::Full { ", sinks_done = NULL" } else { "" };
        let sql = format!(
            "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{{{table}}}} WHERE {chosen} LIMIT {limit_place} FOR UPDATE SKIP LOCKED)
             UPDATE {{{{table}}}} SET {{{{set}}}}, published_at = NULL{done} WHERE id IN (SELECT id FROM chosen)
             RETURNING event_id"
        );
        let query = bind_published(AssertSqlSafe(fill(looked, &sql)), which).bind(i64::from(limit));
        let what = match which {
            Published::Events { event_ids } => described(event_ids),
            Published::Between { .. } => serde_json::json!({ "published": which }),
        };
        self.change(query, "replay published", &what, who).await
    }

    async fn replay_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        // In the order of locking of everybody else.
        let sql = fill(
            self.looked().await?,
            "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{table}} WHERE event_id = ANY ($1::uuid[]) AND {{dead}} ORDER BY id FOR UPDATE)
             UPDATE {{table}} SET {{set}} WHERE id IN (SELECT id FROM chosen) RETURNING event_id",
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(uuids(events));
        self.change(query, "replay", &described(events), who).await
    }

    async fn discard_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        let sql = fill(
            self.looked().await?,
            "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{table}} WHERE event_id = ANY ($1::uuid[]) AND {{dead}} ORDER BY id FOR UPDATE)
             DELETE FROM {{table}} WHERE id IN (SELECT id FROM chosen) RETURNING event_id",
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(uuids(events));
        self.change(query, "discard", &described(events), who).await
    }
}

fn bind_published(sql: AssertSqlSafe<String>, which: &Published) -> Bound<'_> {
    match which {
        Published::Events { event_ids } => sqlx::query(sql).bind(uuids(event_ids)),
        Published::Between { since, until, topic } => sqlx::query(sql).bind(since).bind(until).bind(topic),
    }
}
