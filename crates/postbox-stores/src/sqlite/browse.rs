//! The events of a table for people: shown, watched, sent again. `list.rs` lists them.

use postbox_core::{Browse, EventDetail, EventId, EventStatus, ListRequest, Page, Published, StoreError};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};
use time::OffsetDateTime;

use super::admin::{Looked, SqliteAdmin, audit};
use super::clock::{from_micros, micros, now};
use super::dead::{DISCARD, REVIVE};
use super::error::classify;
use super::history;
use super::list::{self, fill};
use crate::audit::{described, published};
use crate::browse::{others, page};
use crate::sequenced::array;
use crate::shown;

/// What a replay does to a published row beyond what it does to a dead one.
const AGAIN: &str = ", published_at = NULL, sinks_done = NULL";

/// `?1` ids, as a JSON array of hexadecimal digits.
const CHOSEN: &str = "event_id IN (SELECT unhex(value) FROM json_each(?1))";

/// What was moved to the history last.
const LATEST: &str =
    "(SELECT event_id FROM {{history}} {{by_history}} ORDER BY published_at DESC, sequence DESC LIMIT 20000)";

/// `?1` since `?2` until `?3` topic
const BETWEEN: &str = "published_at >= ?1 AND published_at < ?2 AND (?3 IS NULL OR topic = ?3)";

fn digits(events: &[EventId]) -> String {
    let ids: Vec<String> = events.iter().map(|event| event.0.simple().to_string()).collect();
    serde_json::json!(ids).to_string()
}

/// A change that answers the ids of its rows.
struct Change<'a> {
    sql: String,
    chosen: String,
    action: &'a str,
    what: serde_json::Value,
}

impl SqliteAdmin {
    /// One change of rows with its line in the audit log, in one transaction; answers the events. `?1` rows `?2` now
    async fn change(
        &self,
        looked: &Looked,
        change: Change<'_>,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let mut link = self.0.link.begin().await?;
        let rows = sqlx::query(AssertSqlSafe(change.sql)).bind(change.chosen).bind(now());
        let rows = rows.fetch_all(&mut link.connection).await.map_err(classify)?;
        let events: Vec<EventId> = rows.iter().map(|row| shown::event_id(row, 0)).collect();
        if !events.is_empty() {
            let number = events.len() as u64;
            audit(&mut link.connection, looked, who, change.action, &change.what, number).await?;
        }
        link.commit().await?;
        Ok(events)
    }

    /// Has rows delivered once more that are as they were when they were chosen: `kept` changes those of the table, those of
    /// the history come back into it.
    async fn replay_chosen(
        &self,
        looked: &Looked,
        kept: &str,
        chosen: &[Chosen],
        what: &serde_json::Value,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let part = |moved: bool| {
            let part = chosen.iter().filter(|row| row.2 == moved).map(|row| (row.0, row.1));
            serde_json::json!(part.collect::<Vec<_>>()).to_string()
        };
        let mut link = self.0.link.begin().await?;
        let rows = sqlx::query(AssertSqlSafe(kept.to_owned())).bind(part(false)).bind(now());
        let mut rows = rows.fetch_all(&mut link.connection).await.map_err(classify)?;
        if let Some(history) = looked.history.as_ref().filter(|_| chosen.iter().any(|row| row.2)) {
            let back = format!(
                "{} FROM json_each(?1) AS s CROSS JOIN {{{{history}}}} AS h ON h.sequence = s.value ->> 0
                 WHERE +h.published_at = s.value ->> 1 ON CONFLICT DO NOTHING RETURNING event_id, sequence",
                history::come_back(history)
            );
            let back = sqlx::query(AssertSqlSafe(fill(looked, &back))).bind(part(true)).bind(now());
            let back = back.fetch_all(&mut link.connection).await.map_err(classify)?;
            let sequences = back.iter().map(|row| row.try_get(1)).collect::<Result<Vec<i64>, _>>();
            let left = "DELETE FROM {{history}} WHERE sequence IN (SELECT value FROM json_each(?1))";
            let left = sqlx::query(AssertSqlSafe(fill(looked, left)))
                .bind(array(sequences.map_err(classify)?.into_iter()));
            left.execute(&mut link.connection).await.map_err(classify)?;
            rows.extend(back);
        }
        let events: Vec<EventId> = rows.iter().map(|row| shown::event_id(row, 0)).collect();
        if !events.is_empty() {
            let number = events.len() as u64;
            audit(&mut link.connection, looked, who, "replay published", what, number).await?;
        }
        link.commit().await?;
        Ok(events)
    }

    async fn change_dead(
        &self,
        change: &str,
        action: &str,
        events: &[EventId],
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let looked = self.0.looked().await?;
        let sql = format!(
            "{change} WHERE {CHOSEN} AND +dead_at IS NOT NULL AND +published_at IS NULL RETURNING event_id"
        );
        let (chosen, what) = (digits(events), described(events));
        self.change(looked, Change { sql: fill(looked, &sql), chosen, action, what }, who).await
    }
}

/// A published row: its sequence, when it was published, and whether it is in the history.
type Chosen = (i64, i64, bool);

/// The first rows of what is meant, oldest first, and when they were published; found without a lock.
async fn choose(
    connection: &mut SqliteConnection,
    looked: &Looked,
    which: &Published,
    limit: u32,
) -> Result<Vec<Chosen>, StoreError> {
    let limit = i64::from(limit);
    let choose = |condition: &str, (index, history_index): (&str, &str), place: &str| {
        let first = |moved: u8, from: &str, and: &str| {
            format!(
                "SELECT sequence, published_at, {moved} FROM (SELECT sequence, published_at FROM {from} WHERE {condition}{and}
                 ORDER BY published_at, sequence LIMIT {place})"
            )
        };
        let mut sql = first(0, &format!("{{{{table}}}} {index}"), "");
        if looked.history.is_some() {
            // What was enqueued again meanwhile stays where it is.
            let alone = " AND NOT EXISTS (SELECT 1 FROM {{table}} AS t WHERE t.event_id = h.event_id)";
            let moved = first(1, &format!("{{{{history}}}} AS h {history_index}"), alone);
            sql = format!("{sql} UNION ALL {moved} ORDER BY 2, 1 LIMIT {place}");
        }
        fill(looked, &sql)
    };
    let chosen = match which {
        Published::Events { event_ids } => {
            let sql = choose(&format!("{CHOSEN} AND +published_at IS NOT NULL"), ("", ""), "?2");
            sqlx::query_as(AssertSqlSafe(sql)).bind(digits(event_ids)).bind(limit).fetch_all(connection).await
        }
        Published::Between { since, until, topic } => {
            let query =
                sqlx::query_as(AssertSqlSafe(choose(BETWEEN, ("{{by_published}}", "{{by_history}}"), "?4")));
            let query = query.bind(micros(*since)).bind(micros(*until)).bind(topic).bind(limit);
            query.fetch_all(connection).await
        }
    };
    chosen.map_err(classify)
}

async fn statuses(
    connection: &mut SqliteConnection,
    looked: &Looked,
    sql: &str,
    events: &[EventId],
) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
    let query = sqlx::query(AssertSqlSafe(fill(looked, sql))).bind(digits(events));
    let rows = query.fetch_all(connection).await.map_err(classify)?;
    let read = |row: &SqliteRow| Ok((EventId(row.try_get(0)?), shown::status(row, 1)?));
    rows.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(classify)
}

impl Browse for SqliteAdmin {
    async fn now(&self) -> Result<OffsetDateTime, StoreError> {
        Ok(from_micros(now()))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, StoreError> {
        let looked = self.0.looked().await?;
        let mut link = self.0.reader().await?;
        let (events, bounded) = list::list(&mut link.connection, looked, request).await?;
        link.keep();
        Ok(page(events, request.limit, bounded))
    }

    async fn show(&self, event: EventId, with_content: bool) -> Result<Option<EventDetail>, StoreError> {
        let looked = self.0.looked().await?;
        let content = if with_content { ", payload, payload_raw, metadata" } else { "" };
        let sql = format!(
            "SELECT {{{{summary}}}}, locked_at, headers, occurred_at, schema_id, schema_version, routing_key,
                    traceparent, tracestate, locked_by, dlq_at, content_type, attempts_log, sinks_done{content}
             FROM"
        );
        let mut all = format!("{sql} {{{{table}}}} WHERE event_id = ?1");
        if looked.history.is_some() {
            // There is no index for it: the history is only read if the table does not have it. The latest of several.
            let elsewhere = "NOT EXISTS (SELECT 1 FROM {{table}} WHERE event_id = ?1)";
            all = format!(
                "{all} UNION ALL {sql} {{{{history}}}} WHERE event_id = ?1 AND {elsewhere} ORDER BY 11 DESC LIMIT 1"
            );
        }
        let mut link = self.0.reader().await?;
        let query = sqlx::query(AssertSqlSafe(fill(looked, &all))).bind(event.0);
        let row = query.fetch_optional(&mut link.connection).await.map_err(classify)?;
        link.keep();
        row.map(|row| shown::detail(&row, with_content)).transpose().map_err(classify)
    }

    async fn statuses(&self, events: &[EventId]) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
        let looked = self.0.looked().await?;
        let in_table = format!("SELECT event_id, {{{{status}}}} FROM {{{{table}}}} WHERE {CHOSEN}");
        let with = |moved: &str| {
            format!(
                "{in_table} UNION ALL SELECT DISTINCT event_id, 'SENT' FROM {moved} AS m WHERE {CHOSEN}
                 AND NOT EXISTS (SELECT 1 FROM {{{{table}}}} AS t WHERE t.event_id = m.event_id)"
            )
        };
        let mut link = self.0.reader().await?;
        let found = if looked.history.is_some() {
            // There is no index for it. Who asks mostly asks about what was just published.
            let mut found = statuses(&mut link.connection, looked, &with(LATEST), events).await?;
            let rest = others(events, &found);
            if !rest.is_empty() {
                found.extend(statuses(&mut link.connection, looked, &with("{{history}}"), &rest).await?);
            }
            found
        } else {
            statuses(&mut link.connection, looked, &in_table, events).await?
        };
        link.keep();
        Ok(found)
    }

    async fn count_published(&self, which: &Published) -> Result<u64, StoreError> {
        let looked = self.0.looked().await?;
        let count = |condition: &str, index: &str, history_index: &str| {
            let mut sql = format!("SELECT (SELECT count(*) FROM {{{{table}}}} {index} WHERE {condition})");
            if looked.history.is_some() {
                let moved =
                    format!(" + (SELECT count(*) FROM {{{{history}}}} {history_index} WHERE {condition})");
                sql.push_str(&moved);
            }
            fill(looked, &sql)
        };
        let mut link = self.0.reader().await?;
        let count: Result<i64, sqlx::Error> = match which {
            Published::Events { event_ids } => {
                let sql = count(&format!("{CHOSEN} AND +published_at IS NOT NULL"), "", "");
                let query = sqlx::query_scalar(AssertSqlSafe(sql)).bind(digits(event_ids));
                query.fetch_one(&mut link.connection).await
            }
            Published::Between { since, until, topic } => {
                let query =
                    sqlx::query_scalar(AssertSqlSafe(count(BETWEEN, "{{by_published}}", "{{by_history}}")));
                let query = query.bind(micros(*since)).bind(micros(*until)).bind(topic);
                query.fetch_one(&mut link.connection).await
            }
        };
        let count = count.map_err(classify)?;
        link.keep();
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn replay_published(
        &self,
        which: &Published,
        limit: u32,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let looked = self.0.looked().await?;
        // Not if it was replayed and published again since it was chosen.
        let sql = format!(
            "{REVIVE}{AGAIN} FROM (SELECT value ->> 0 AS chosen, value ->> 1 AS at FROM json_each(?1))
             WHERE sequence = chosen AND +published_at = at RETURNING event_id"
        );
        let sql = fill(looked, &sql);
        let what = published(which);
        loop {
            let mut reader = self.0.reader().await?;
            let chosen = choose(&mut reader.connection, looked, which, limit).await?;
            reader.keep();
            if chosen.is_empty() {
                return Ok(Vec::new());
            }
            let events = self.replay_chosen(looked, &sql, &chosen, &what, who).await?;
            // None is the end, unless somebody else was quicker with all of these.
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    async fn retry_now(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        let looked = self.0.looked().await?;
        // Whoever works on a row took it when it was due: one that is not is in nobody's hands.
        let sql = format!(
            "UPDATE {{{{table}}}} SET available_at = ?2
             WHERE {CHOSEN} AND {{{{status}}}} = 'FAILED' AND +available_at > ?2 RETURNING event_id"
        );
        let (chosen, what) = (digits(events), described(events));
        let change = Change { sql: fill(looked, &sql), chosen, action: "retry now", what };
        self.change(looked, change, who).await
    }

    async fn replay_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        self.change_dead(REVIVE, "replay", events, who).await
    }

    async fn discard_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        self.change_dead(DISCARD, "discard", events, who).await
    }
}
