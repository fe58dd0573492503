//! The events of a table for people: to look at, and to send again.

use postbox_core::{
    Browse, EventDetail, EventId, EventStatus, EventSummary, Layout, ListRequest, Page, Published, StoreError,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;
use uuid::Uuid;

use super::admin::{Looked, PgAdmin, audit};
use super::ask::{self, Ask, ask};
use super::error::classify;
use super::history;
use super::list::{detail, fill, list_sql, parse_status, summary};
use crate::audit::{described, published};
use crate::browse::{others, page};
use crate::history::HistoryShape;

fn uuids(events: &[EventId]) -> Vec<Uuid> {
    events.iter().map(|event| event.0).collect()
}

/// What has become of events, `$1`.
const STATUSES: &str = "SELECT event_id, {{status}} FROM {{table}} WHERE event_id = ANY ($1::uuid[])";

impl PgAdmin {
    async fn statuses_by(
        &self,
        looked: &Looked,
        sql: &str,
        events: &[EventId],
    ) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
        let rows = ask::all(&self.pool, ask(fill(looked, sql)).bind(uuids(events))).await?;
        let read = |row: &PgRow| Ok((EventId(row.try_get(0)?), parse_status(&row.try_get::<String, _>(1)?)?));
        rows.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(classify)
    }

    /// One change of rows with its line in the audit log, in one transaction; answers the events.
    async fn change(
        &self,
        query: Ask<'_>,
        action: &str,
        what: &serde_json::Value,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let looked = self.looked().await?;
        let mut tx = ask::begin(&self.pool).await?;
        if looked.history.is_some() {
            // For a trigger that draws sequences: what comes back has one.
            let keep = ask("SELECT set_config('postbox.keep_sequence', 'on', true)");
            keep.execute(&mut *tx).await.map_err(classify)?;
        }
        let rows = query.fetch_all(&mut *tx).await.map_err(classify)?;
        let events: Result<Vec<EventId>, sqlx::Error> =
            rows.iter().map(|row| Ok(EventId(row.try_get(0)?))).collect();
        let events = events.map_err(classify)?;
        if !events.is_empty() {
            audit(&mut tx, looked, who, action, what, events.len() as u64).await?;
        }
        ask::commit(tx).await?;
        Ok(events)
    }
}

impl Browse for PgAdmin {
    async fn now(&self) -> Result<OffsetDateTime, StoreError> {
        let row = ask::one(&self.pool, ask("SELECT clock_timestamp()")).await?;
        row.try_get(0).map_err(classify)
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, StoreError> {
        let looked = self.looked().await?;
        let ListRequest { filter, after, limit, depth, .. } = request;
        let query = ask(list_sql(looked, request))
            .bind(&filter.topic)
            .bind(filter.tenant_id.map(|tenant| tenant.0))
            .bind(&filter.aggregate_type)
            .bind(&filter.aggregate_id)
            .bind(filter.status.map(EventStatus::as_str))
            .bind(&filter.error)
            .bind(after)
            .bind(i64::from(*limit) + 1)
            .bind(depth.map(i64::from))
            .bind(filter.since);
        let rows = ask::all(&self.pool, query).await?;
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
        let (events, bounded) = read().map_err(classify)?;
        Ok(page(events, *limit, bounded))
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
        let sql = format!("SELECT {{{{summary}}}}, {{{{time(locked_at)}}}}, {columns}{content} FROM");
        let mut all = format!("{sql} {{{{table}}}} WHERE event_id = $1");
        if looked.history.is_some() {
            // There is no index for it: the history is only read if the table does not have it. The latest of several.
            let elsewhere = "NOT EXISTS (SELECT 1 FROM {{table}} WHERE event_id = $1)";
            all = format!(
                "{all} UNION ALL {sql} {{{{history}}}} WHERE event_id = $1 AND {elsewhere} ORDER BY published DESC LIMIT 1"
            );
        }
        let row = ask::optional(&self.pool, ask(fill(looked, &all)).bind(event.0)).await?;
        row.map(|row| detail(&row, with_content)).transpose().map_err(classify)
    }

    async fn statuses(&self, events: &[EventId]) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
        let looked = self.looked().await?;
        if looked.history.is_none() {
            return self.statuses_by(looked, STATUSES, events).await;
        }
        // There is no index for it. Who asks mostly asks about what was just published.
        let with = |moved: &str| {
            format!(
                "{STATUSES} UNION ALL SELECT DISTINCT event_id, 'SENT' FROM {moved} m WHERE event_id = ANY ($1::uuid[])
                 AND NOT EXISTS (SELECT 1 FROM {{{{table}}}} t WHERE t.event_id = m.event_id)"
            )
        };
        let latest =
            "(SELECT event_id FROM {{history}} ORDER BY published_at DESC, sequence DESC LIMIT 20000)";
        let mut found = self.statuses_by(looked, &with(latest), events).await?;
        let rest = others(events, &found);
        if !rest.is_empty() {
            found.extend(self.statuses_by(looked, &with("{{history}}"), &rest).await?);
        }
        Ok(found)
    }

    async fn count_published(&self, which: &Published) -> Result<u64, StoreError> {
        let looked = self.looked().await?;
        let condition = match which {
            Published::Events { .. } => "event_id = ANY ($1::uuid[]) AND published_at IS NOT NULL",
            Published::Between { .. } => "{{between}}",
        };
        let count = |table: &str| {
            format!("(SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {condition}) AS found)")
        };
        let mut sql = format!("SELECT {}", count("{{table}}"));
        if looked.history.is_some() {
            sql = format!("{sql} + {}", count("{{history}}"));
        }
        let row = ask::one(&self.pool, bind_published(fill(looked, &sql), which)).await?;
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
            Published::Events { .. } => ("event_id = ANY ($1::uuid[]) AND published_at IS NOT NULL", "$2"),
            Published::Between { .. } => ("{{between}}", "$4"),
        };
        let done = if looked.layout == Layout::Full { ", sinks_done = NULL" } else { "" };
        let sql = match &looked.history {
            Some(history) => replay_sql(looked, history, chosen, limit_place),
            None => format!(
            "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{{{table}}}} WHERE {chosen} ORDER BY published_at, sequence LIMIT {limit_place} FOR UPDATE SKIP LOCKED)
             UPDATE {{{{table}}}} SET {{{{set}}}}, published_at = NULL{done} WHERE id IN (SELECT id FROM chosen)
             RETURNING event_id"
            ),
        };
        let query = bind_published(fill(looked, &sql), which).bind(i64::from(limit));
        let what = published(which);
        self.change(query, "replay published", &what, who).await
    }

    async fn retry_now(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        // Whoever works on a row took it when it was due: one that is not is in nobody's hands. Attempts stay, and so does
        // what a settle goes by that is repeated for want of an answer.
        let sql = fill(
            self.looked().await?,
            "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{table}} WHERE event_id = ANY ($1::uuid[]) AND {{status}} = 'FAILED' AND available_at > now()
                ORDER BY id FOR UPDATE)
             UPDATE {{table}} SET available_at = now() WHERE id IN (SELECT id FROM chosen) RETURNING event_id",
        );
        let query = ask(sql).bind(uuids(events));
        self.change(query, "retry now", &described(events), who).await
    }

    async fn replay_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        // In the order of locking of everybody else.
        let sql = fill(
            self.looked().await?,
            "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{table}} WHERE event_id = ANY ($1::uuid[]) AND {{dead}} ORDER BY id FOR UPDATE)
             UPDATE {{table}} SET {{set}} WHERE id IN (SELECT id FROM chosen) RETURNING event_id",
        );
        let query = ask(sql).bind(uuids(events));
        self.change(query, "replay", &described(events), who).await
    }

    async fn discard_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        // As by a filter, what somebody holds is left alone: the others do not wait for it.
        let sql = fill(
            self.looked().await?,
            "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{table}} WHERE event_id = ANY ($1::uuid[]) AND {{dead}} ORDER BY id FOR UPDATE SKIP LOCKED)
             DELETE FROM {{table}} WHERE id IN (SELECT id FROM chosen) RETURNING event_id",
        );
        let query = ask(sql).bind(uuids(events));
        self.change(query, "discard", &described(events), who).await
    }
}

/// The replay of a table with a history: the oldest of both, in one statement. Those of the history come back into the table,
/// and only what has arrived there leaves: an event that was enqueued again meanwhile stays where it is. They keep their
/// sequence also where a trigger would draw a new one.
fn replay_sql(looked: &Looked, history: &HistoryShape, condition: &str, limit: &str) -> String {
    let back = history::come_back(history, &looked.name, "m.id IN (SELECT id FROM chosen WHERE was_moved)");
    format!(
        "WITH kept AS MATERIALIZED (
            SELECT id, published_at, sequence FROM {{{{table}}}} WHERE {condition}
            ORDER BY published_at, sequence LIMIT {limit} FOR UPDATE SKIP LOCKED
        ), moved AS MATERIALIZED (
            SELECT h.*, h.tableoid AS postbox_part, h.ctid AS postbox_place FROM {{{{history}}}} h
            WHERE {condition} AND NOT EXISTS (SELECT 1 FROM {{{{table}}}} t WHERE t.event_id = h.event_id)
            ORDER BY published_at, sequence LIMIT {limit} FOR UPDATE OF h SKIP LOCKED
        ), chosen AS MATERIALIZED (
            SELECT id, false AS was_moved, published_at, sequence FROM kept
            UNION ALL SELECT id, true, published_at, sequence FROM moved
            ORDER BY 3, 4 LIMIT {limit}
        ), revived AS (
            UPDATE {{{{table}}}} SET {{{{set}}}}, published_at = NULL, sinks_done = NULL
            WHERE id IN (SELECT id FROM chosen WHERE NOT was_moved) RETURNING event_id
        ), back AS (
            {back} RETURNING id, event_id
        ), gone AS (
            SELECT m.postbox_part AS part, m.postbox_place AS place FROM moved m JOIN back ON back.id = m.id
        ), left_behind AS (
            DELETE FROM {{{{history}}}}
            WHERE ctid = ANY (ARRAY(SELECT place FROM gone)) AND (tableoid, ctid) IN (SELECT part, place FROM gone)
        )
        SELECT event_id FROM revived UNION ALL SELECT event_id FROM back"
    )
}

fn bind_published(sql: String, which: &Published) -> Ask<'_> {
    match which {
        Published::Events { event_ids } => ask(sql).bind(uuids(event_ids)),
        Published::Between { since, until, topic } => ask(sql).bind(since).bind(until).bind(topic),
    }
}
