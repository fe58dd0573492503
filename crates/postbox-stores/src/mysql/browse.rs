//! The events of a table for people: shown, watched, sent again. `list.rs` lists them.

use std::collections::HashSet;

use postbox_core::{Browse, EventDetail, EventId, EventStatus, ListRequest, Page, Published, StoreError};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};
use time::{OffsetDateTime, PrimitiveDateTime};
use uuid::Uuid;

use super::admin::{Change, Looked, MySqlAdmin, audit, count};
use super::clause::{Clause, among};
use super::clause::{bind_list, with_list};
use super::clock::at;
use super::dead::{DISCARD, REVIVE, dead_ones, revive};
use super::error::{classify, within};
use super::history;
use super::link::{OPERATION_LIMIT, Taken, Tries};
use super::list::{self, STATUS, fill};
use crate::audit::{described, published};
use crate::browse::{others, page};
use crate::row::{Cells as _, Times as _};
use crate::shown;

/// What a replay does to a published row beyond what it does to a dead one.
const AGAIN: &str = ", published_at = NULL, sinks_done = NULL";

/// What was moved to the history last.
const LATEST: &str =
    "(SELECT event_id FROM {{history}} {{by_history}} ORDER BY published_at DESC, sequence DESC LIMIT 20000)";

fn ids(events: &[EventId]) -> Vec<Uuid> {
    events.iter().map(|event| event.0).collect()
}

/// Which published rows are meant.
fn meant(which: &Published) -> Clause {
    match which {
        Published::Events { event_ids } => {
            let mut clause = among("event_id", &ids(event_ids));
            clause.push(" AND published_at IS NOT NULL", []);
            clause
        }
        Published::Between { since, until, topic } => {
            let mut clause =
                Clause::new("published_at >= ? AND published_at < ?").with(at(*since)).with(at(*until));
            clause.and("topic = ?", topic.as_deref());
            clause
        }
    }
}

/// The tables that published rows are in, with the indexes that find them.
fn places(looked: &Looked, which: &Published) -> Vec<(&'static str, &'static str)> {
    let mut places = match which {
        Published::Events { .. } => vec![("{{table}}", ""), ("{{history}}", "")],
        Published::Between { .. } => vec![("{{table}}", "{{by_pending}}"), ("{{history}}", "{{by_history}}")],
    };
    if looked.history.is_none() {
        places.truncate(1);
    }
    places
}

/// A published row: its sequence, its event, when it was published, and whether it is in the history.
type Chosen = (i64, EventId, PrimitiveDateTime, bool);

impl MySqlAdmin {
    /// The first rows of what is meant, oldest first; found without a lock.
    async fn choose(
        &self,
        looked: &Looked,
        which: &Published,
        limit: u32,
    ) -> Result<Vec<Chosen>, StoreError> {
        let limit = i64::from(limit);
        let mut clause = Clause::default();
        for (moved, (table, index)) in places(looked, which).into_iter().enumerate() {
            let union = if moved > 0 { " UNION ALL " } else { "" };
            clause.push(
                &format!(
                    "{union}SELECT * FROM (SELECT sequence, event_id, published_at, {moved} AS moved FROM {table} AS h {index} WHERE "
                ),
                [],
            );
            clause.append(&meant(which));
            if moved > 0 {
                // What was enqueued again meanwhile stays where it is.
                clause
                    .push(" AND NOT EXISTS (SELECT 1 FROM {{table}} AS t WHERE t.event_id = h.event_id)", []);
            }
            clause.push(&format!(" ORDER BY published_at, sequence LIMIT ?) AS part{moved}"), [limit.into()]);
        }
        clause.push(" ORDER BY 3, 1 LIMIT ?", [limit.into()]);
        clause.sql = looked.template.fill(&clause.sql);
        let rows = self.0.rows(&clause).await?;
        let read = |row: &MySqlRow| -> Result<Chosen, sqlx::Error> {
            let event = shown::event_id(row, 1);
            Ok((row.try_get(0)?, event, at(row.known_time(2)?), row.try_get(3)?))
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }

    /// Has rows delivered once more that are as they were when they were chosen: those of the table are changed, those of the
    /// history come back into it.
    async fn replay_chosen(
        &self,
        looked: &Looked,
        chosen: &[Chosen],
        what: &serde_json::Value,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let mut tries = Tries::new();
        loop {
            let mut link = self.0.link.take().await?;
            match replay_once(&mut link, looked, chosen, what, who).await {
                Ok(events) => {
                    link.keep();
                    return Ok(events);
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }

    async fn change_dead(
        &self,
        change: &str,
        action: &str,
        events: &[EventId],
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let looked = self.0.looked().await?;
        let (find, then, what) =
            (dead_ones(looked, events), vec![looked.template.fill(change)], described(events));
        self.change(&Change { find, then, action, what: &what, who }).await
    }

    async fn find_statuses(
        &self,
        looked: &Looked,
        moved: Option<&str>,
        events: &[EventId],
    ) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
        let mut clause = Clause::new(format!("SELECT event_id, {STATUS} FROM {{{{table}}}} WHERE "));
        clause.append(&among("event_id", &ids(events)));
        if let Some(moved) = moved {
            clause.push(&format!(" UNION ALL SELECT DISTINCT event_id, 'SENT' FROM {moved} AS m WHERE "), []);
            clause.append(&among("event_id", &ids(events)));
            clause.push(" AND NOT EXISTS (SELECT 1 FROM {{table}} AS t WHERE t.event_id = m.event_id)", []);
        }
        clause.sql = looked.template.fill(&clause.sql);
        let rows = self.0.rows(&clause).await?;
        let read = |row: &MySqlRow| Ok((EventId(row.try_get(0)?), shown::status(row, 1)?));
        rows.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(classify)
    }
}

/// Rows of a table that are still as they were chosen, locked.
async fn still_so(
    link: &mut Taken<'_>,
    looked: &Looked,
    table: &str,
    chosen: &[&Chosen],
) -> Result<Vec<i64>, StoreError> {
    let sequences: Vec<i64> = chosen.iter().map(|row| row.0).collect();
    if sequences.is_empty() {
        return Ok(sequences);
    }
    let sql = format!(
        "SELECT sequence, published_at FROM {table} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>) FOR UPDATE"
    );
    let lock = sqlx::query(AssertSqlSafe(with_list(&looked.template.fill(&sql), sequences.len())));
    let rows = bind_list(lock, &sequences).fetch_all(&mut link.connection);
    let mut found = HashSet::new();
    for row in within(OPERATION_LIMIT, rows).await? {
        let read = || Ok((row.try_get::<i64, _>(0)?, row.time(1)?.map(at)));
        found.insert(read().map_err(classify)?);
    }
    let so = chosen.iter().filter(|row| found.contains(&(row.0, Some(row.2))));
    Ok(so.map(|row| row.0).collect())
}

async fn run(link: &mut Taken<'_>, sql: String, sequences: &[i64]) -> Result<Vec<MySqlRow>, StoreError> {
    let query = bind_list(sqlx::query(AssertSqlSafe(with_list(&sql, sequences.len()))), sequences);
    within(OPERATION_LIMIT, query.fetch_all(&mut link.connection)).await
}

async fn replay_once(
    link: &mut Taken<'_>,
    looked: &Looked,
    chosen: &[Chosen],
    what: &serde_json::Value,
    who: &str,
) -> Result<Vec<EventId>, StoreError> {
    let (moved, kept): (Vec<&Chosen>, Vec<&Chosen>) = chosen.iter().partition(|row| row.3);
    link.begin().await?;
    let mut done = still_so(link, looked, "{{table}}", &kept).await?;
    if !done.is_empty() {
        run(link, looked.template.fill(&REVIVE.replace("{{more}}", AGAIN)), &done).await?;
    }
    if let Some(history) = looked.history.as_ref().filter(|_| !moved.is_empty()) {
        let back = still_so(link, looked, "{{history}}", &moved).await?;
        if !back.is_empty() {
            // One whose event was enqueued again meanwhile stays: only what has come is taken out of the history.
            let insert = format!(
                "{} FROM {{{{history}}}} AS h WHERE h.sequence IN (<in>)",
                history::come_back(history)
            );
            let insert = insert.replacen("INSERT INTO", "INSERT IGNORE INTO", 1);
            run(link, looked.template.fill(&insert), &back).await?;
            let there = "SELECT sequence FROM {{table}} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>)";
            let there = run(link, looked.template.fill(there), &back).await?;
            let there: Vec<i64> =
                there.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(classify)?;
            if !there.is_empty() {
                let leave = "DELETE FROM {{history}} WHERE sequence IN (<in>)";
                run(link, looked.template.fill(leave), &there).await?;
            }
            done.extend(there);
        }
    }
    let done: HashSet<i64> = done.into_iter().collect();
    let events: Vec<EventId> = chosen.iter().filter(|row| done.contains(&row.0)).map(|row| row.1).collect();
    if !events.is_empty() {
        let number = events.len() as u64;
        audit(&mut link.connection, looked, who, "replay published", what, number).await?;
    }
    link.commit().await?;
    Ok(events)
}

impl Browse for MySqlAdmin {
    async fn now(&self) -> Result<OffsetDateTime, StoreError> {
        let row = self.0.row(&Clause::new("SELECT UTC_TIMESTAMP(6)")).await?;
        row.known_time(0).map_err(classify)
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, StoreError> {
        let looked = self.0.looked().await?;
        let (events, bounded) = list::list(self, looked, request).await?;
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
        let table =
            Clause::new(fill(looked, &format!("{sql} {{{{table}}}} WHERE event_id = ?"))).with(event.0);
        let mut row = self.0.rows(&table).await?.pop();
        if row.is_none() && looked.history.is_some() {
            // There is no index for it: the history is only read if the table does not have it. The latest of several.
            let moved =
                format!("{sql} {{{{history}}}} WHERE event_id = ? ORDER BY published_at DESC LIMIT 1");
            row = self.0.rows(&Clause::new(fill(looked, &moved)).with(event.0)).await?.pop();
        }
        row.map(|row| shown::detail(&row, with_content)).transpose().map_err(classify)
    }

    async fn statuses(&self, events: &[EventId]) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
        let looked = self.0.looked().await?;
        if looked.history.is_none() {
            return self.find_statuses(looked, None, events).await;
        }
        // There is no index for it. Who asks mostly asks about what was just published.
        let mut found = self.find_statuses(looked, Some(LATEST), events).await?;
        let rest = others(events, &found);
        if !rest.is_empty() {
            found.extend(self.find_statuses(looked, Some("{{history}}"), &rest).await?);
        }
        Ok(found)
    }

    async fn count_published(&self, which: &Published) -> Result<u64, StoreError> {
        let looked = self.0.looked().await?;
        let mut total = 0;
        for (table, index) in places(looked, which) {
            let mut clause =
                Clause::new(looked.template.fill(&format!("SELECT COUNT(*) FROM {table} {index} WHERE ")));
            clause.append(&meant(which));
            total += count(&self.0.row(&clause).await?, 0)?;
        }
        Ok(total)
    }

    async fn replay_published(
        &self,
        which: &Published,
        limit: u32,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        let looked = self.0.looked().await?;
        let what = published(which);
        loop {
            let chosen = self.choose(looked, which, limit).await?;
            if chosen.is_empty() {
                return Ok(Vec::new());
            }
            let events = self.replay_chosen(looked, &chosen, &what, who).await?;
            // None is the end, unless somebody else was quicker with all of these.
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    async fn retry_now(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        let looked = self.0.looked().await?;
        // Whoever works on a row took it when it was due: one that is not is in nobody's hands. Attempts stay, and so does
        // what a settle goes by that is repeated for want of an answer.
        let mut find = Clause::new(looked.template.fill("SELECT sequence, event_id FROM {{table}} WHERE "));
        find.append(&among("event_id", &ids(events)));
        find.push(
            " AND published_at IS NULL AND dead_at IS NULL AND locked_at IS NULL AND attempts > 0
              AND available_at > UTC_TIMESTAMP(6) FOR UPDATE",
            [],
        );
        let now = "UPDATE {{table}} FORCE INDEX (PRIMARY) SET available_at = UTC_TIMESTAMP(6) WHERE sequence IN (<in>)";
        let (then, what) = (vec![looked.template.fill(now)], described(events));
        self.change(&Change { find, then, action: "retry now", what: &what, who }).await
    }

    async fn replay_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        self.change_dead(&revive(), "replay", events, who).await
    }

    async fn discard_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        self.change_dead(DISCARD, "discard", events, who).await
    }
}
