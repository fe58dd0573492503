//! Dead events: found by filter, grouped by cause, replayed or discarded, every change audited.

use futures_util::TryStreamExt as _;
use postbox_core::{DeadCause, DeadEvent, DeadFilter, DeadLetters, EventId, StoreError};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::admin::{Change, Looked, MySqlAdmin, count};
use super::clause::{Clause, among};
use super::clock::span;
use super::error::classify;
use crate::cause::{Causes, has_cause};
use crate::row::Cells as _;
use crate::shown;

/// What a replay does to rows.
///
/// An owner whose settle had no answer repeats it, and knows the row by nothing but its attempts: one that it may still settle is
/// locked like a lease that ran out, which no owner settles, and is claimed by lease. That goes by when the row was available, so
/// it comes first: each assignment sees those before it.
pub(super) const REVIVE: &str = "UPDATE {{table}} FORCE INDEX (PRIMARY)
    SET locked_at = CASE WHEN {{unsettled}} THEN '1970-01-01 00:00:01' END, locked_by = CASE WHEN {{unsettled}} THEN 'replayed' END,
    attempts = 0, available_at = UTC_TIMESTAMP(6), last_error = NULL, dead_at = NULL, dlq_at = NULL{{more}} WHERE sequence IN (<in>)";
pub(super) const DISCARD: &str = "DELETE FROM {{table}} WHERE sequence IN (<in>)";

/// The condition of a filter. Causes are compared outside of SQL.
fn condition(filter: &DeadFilter) -> Clause {
    let mut clause = Clause::new("published_at IS NULL AND dead_at IS NOT NULL");
    clause.and("topic = ?", filter.topic.as_deref());
    clause.and("aggregate_type = ?", filter.aggregate_type.as_deref());
    clause.and("aggregate_id = ?", filter.aggregate_id.as_deref());
    clause.and("tenant_id = ?", filter.tenant_id.map(|tenant| tenant.0));
    clause.and("dead_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", filter.older_than.map(span));
    clause.and("dead_at >= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND", filter.newer_than.map(span));
    clause.and("LOCATE(?, last_error) > 0", filter.error.as_deref());
    clause
}

impl MySqlAdmin {
    /// Walks over the rows that match, oldest first, until `each` has had enough; the columns are those of [`shown::dead`].
    async fn walk(
        &self,
        looked: &Looked,
        filter: &DeadFilter,
        limit: i64,
        mut each: impl FnMut(&MySqlRow) -> Result<bool, sqlx::Error> + Send,
    ) -> Result<(), StoreError> {
        let mut clause = Clause::new(looked.template.fill(
            "SELECT event_id, tenant_id, topic, aggregate_type, aggregate_id, sequence, attempts, created_at, dead_at, last_error
             FROM {{table}} {{by_pending}} WHERE ",
        ));
        clause.append(&condition(filter));
        clause.push(" ORDER BY dead_at, sequence LIMIT ?", [limit.into()]);
        let mut link = self.0.link.take().await?;
        {
            let mut rows = clause.query().fetch(&mut link.connection);
            while let Some(row) = rows.try_next().await.map_err(classify)? {
                let error = row.text(9).map_err(classify)?;
                if has_cause(filter, error.as_deref()) && !each(&row).map_err(classify)? {
                    break;
                }
            }
        }
        link.keep();
        Ok(())
    }

    /// Changes what matches in batches, each with its line in the audit log. What dies again meanwhile is not touched
    /// a second time.
    async fn in_batches(
        &self,
        change: &str,
        filter: &DeadFilter,
        batch: u32,
        action: &str,
        who: &str,
    ) -> Result<u64, StoreError> {
        let looked = self.0.looked().await?;
        let what = serde_json::json!({ "filter": filter });
        // Found without a lock, changed in short transactions.
        let mut chosen: Vec<(i64, time::OffsetDateTime)> = Vec::new();
        self.walk(looked, filter, i64::MAX, |row| {
            chosen.push((row.try_get(5)?, row.known_time(8)?));
            Ok(true)
        })
        .await?;
        let Some(latest) = chosen.iter().map(|(_, dead_at)| *dead_at).max() else { return Ok(0) };
        let mut total = 0;
        for part in chosen.chunks(usize::try_from(batch).unwrap_or(usize::MAX).max(1)) {
            let sequences: Vec<i64> = part.iter().map(|(sequence, _)| *sequence).collect();
            let mut find = Clause::new(
                looked.template.fill("SELECT sequence, event_id FROM {{table}} FORCE INDEX (PRIMARY) WHERE "),
            );
            find.append(&among("sequence", &sequences));
            find.and("published_at IS NULL AND dead_at <= ?", Some(super::clock::at(latest)));
            find.push(" FOR UPDATE", []);
            let then = vec![looked.template.fill(change)];
            total += self.change(&Change { find, then, action, what: &what, who }).await?.len() as u64;
        }
        Ok(total)
    }
}

/// What a replay of dead events does.
pub(super) fn revive() -> String {
    REVIVE.replace("{{more}}", "")
}

impl DeadLetters for MySqlAdmin {
    async fn query(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadEvent>, StoreError> {
        let (looked, wanted) = (self.0.looked().await?, usize::try_from(limit).unwrap_or(usize::MAX));
        let mut events = Vec::new();
        if wanted == 0 {
            return Ok(events);
        }
        let rows = if filter.cause.is_none() { i64::from(limit) } else { i64::MAX };
        self.walk(looked, filter, rows, |row| {
            events.push(shown::dead(row)?);
            Ok(events.len() < wanted)
        })
        .await?;
        Ok(events)
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        let looked = self.0.looked().await?;
        if filter.cause.is_none() {
            let mut clause =
                Clause::new(looked.template.fill("SELECT COUNT(*) FROM {{table}} {{by_pending}} WHERE "));
            clause.append(&condition(filter));
            return count(&self.0.row(&clause).await?, 0);
        }
        let mut number = 0;
        self.walk(looked, filter, i64::MAX, |_| {
            number += 1;
            Ok(true)
        })
        .await?;
        Ok(number)
    }

    async fn causes(&self, filter: &DeadFilter) -> Result<Vec<DeadCause>, StoreError> {
        let looked = self.0.looked().await?;
        let mut causes = Causes::default();
        self.walk(looked, filter, i64::MAX, |row| {
            let (topic, error) = (row.text(2)?.unwrap_or_default(), row.text(9)?.unwrap_or_default());
            causes.add(&topic, &error, row.known_time(8)?);
            Ok(true)
        })
        .await?;
        Ok(causes.ranked())
    }

    async fn replay(&self, event: EventId, who: &str) -> Result<bool, StoreError> {
        let looked = self.0.looked().await?;
        let what = serde_json::json!({ "event_id": event });
        let find = dead_ones(looked, &[event]);
        let then = vec![looked.template.fill(&revive())];
        let done = self.change(&Change { find, then, action: "replay", what: &what, who }).await?;
        Ok(!done.is_empty())
    }

    async fn replay_all(&self, filter: &DeadFilter, batch: u32, who: &str) -> Result<u64, StoreError> {
        self.in_batches(&revive(), filter, batch, "replay", who).await
    }

    async fn discard(&self, filter: &DeadFilter, who: &str) -> Result<u64, StoreError> {
        self.in_batches(DISCARD, filter, 500, "discard", who).await
    }
}

/// Finds those of these events that are dead, and locks them.
pub(super) fn dead_ones(looked: &Looked, events: &[EventId]) -> Clause {
    let ids: Vec<uuid::Uuid> = events.iter().map(|event| event.0).collect();
    let mut find = Clause::new(looked.template.fill("SELECT sequence, event_id FROM {{table}} WHERE "));
    find.append(&among("event_id", &ids));
    find.push(" AND published_at IS NULL AND dead_at IS NOT NULL FOR UPDATE", []);
    find
}
