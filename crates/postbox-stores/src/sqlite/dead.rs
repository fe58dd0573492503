//! Dead events: found by filter, grouped by cause, replayed or discarded, every change audited.

use futures_util::TryStreamExt as _;
use postbox_core::{DeadCause, DeadEvent, DeadFilter, DeadLetters, EventId, StoreError};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection};

use super::admin::{Looked, SqliteAdmin, audit};
use super::clock::{now, span};
use super::error::classify;
use crate::cause::{Causes, has_cause};
use crate::row::Cells as _;
use crate::shown;

/// The condition of a filter: `?1` to `?7`, each left out where it is null. Causes are compared outside of SQL, which
/// has no regular expressions here.
const WHERE: &str = "dead_at IS NOT NULL AND published_at IS NULL
    AND (?1 IS NULL OR topic = ?1) AND (?2 IS NULL OR aggregate_type = ?2) AND (?3 IS NULL OR tenant_id = ?3)
    AND (?4 IS NULL OR dead_at <= ?4) AND (?5 IS NULL OR dead_at >= ?5)
    AND (?6 IS NULL OR instr(last_error, ?6) > 0) AND (?7 IS NULL OR aggregate_id = ?7)";

/// What a replay does to a row. `?2` now
pub(super) const REVIVE: &str =
    "UPDATE {{table}} SET attempts = 0, available_at = ?2, locked_at = NULL, locked_by = NULL,
    last_error = NULL, dead_at = NULL, dlq_at = NULL";
pub(super) const DISCARD: &str = "DELETE FROM {{table}}";

fn fill(looked: &Looked, sql: &str) -> String {
    looked.template.fill(&sql.replace("{{where}}", WHERE))
}

type Filtered<'q> = Query<'q, Sqlite, SqliteArguments>;

fn bind<'q>(query: Filtered<'q>, filter: &'q DeadFilter, now: i64) -> Filtered<'q> {
    query
        .bind(&filter.topic)
        .bind(&filter.aggregate_type)
        .bind(filter.tenant_id.map(|tenant| tenant.0))
        .bind(filter.older_than.map(|age| now.saturating_sub(span(age))))
        .bind(filter.newer_than.map(|age| now.saturating_sub(span(age))))
        .bind(&filter.error)
        .bind(&filter.aggregate_id)
}

/// Walks over the rows that match, oldest first, until `each` has had enough; the columns are those of [`shown::dead`].
async fn walk(
    connection: &mut SqliteConnection,
    looked: &Looked,
    filter: &DeadFilter,
    mut each: impl FnMut(&SqliteRow) -> Result<bool, sqlx::Error>,
) -> Result<(), StoreError> {
    let sql = fill(
        looked,
        "SELECT event_id, tenant_id, topic, aggregate_type, aggregate_id, sequence, attempts, created_at, dead_at,
                last_error
         FROM {{table}} {{by_dead}} WHERE {{where}} ORDER BY dead_at, sequence",
    );
    let mut rows = bind(sqlx::query(AssertSqlSafe(sql)), filter, now()).fetch(connection);
    while let Some(row) = rows.try_next().await.map_err(classify)? {
        let error = row.text(9).map_err(classify)?;
        if has_cause(filter, error.as_deref()) && !each(&row).map_err(classify)? {
            break;
        }
    }
    Ok(())
}

impl SqliteAdmin {
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
        let sql = fill(
            looked,
            &format!("{change} WHERE sequence IN (SELECT value FROM json_each(?1)) AND +dead_at <= ?3"),
        );
        let started = now();
        // Found without a lock, changed in short transactions.
        let mut chosen: Vec<i64> = Vec::new();
        let mut reader = self.0.reader().await?;
        walk(&mut reader.connection, looked, filter, |row| {
            chosen.push(row.try_get(5)?);
            Ok(true)
        })
        .await?;
        reader.keep();
        let mut total = 0;
        for part in chosen.chunks(usize::try_from(batch).unwrap_or(usize::MAX).max(1)) {
            let mut link = self.0.link.begin().await?;
            let query = sqlx::query(AssertSqlSafe(sql.as_str()))
                .bind(serde_json::json!(part).to_string())
                .bind(now())
                .bind(started);
            let rows = query.execute(&mut link.connection).await.map_err(classify)?.rows_affected();
            if rows > 0 {
                audit(&mut link.connection, looked, who, action, &what, rows).await?;
            }
            link.commit().await?;
            total += rows;
        }
        Ok(total)
    }
}

impl DeadLetters for SqliteAdmin {
    async fn query(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadEvent>, StoreError> {
        let (looked, limit) = (self.0.looked().await?, usize::try_from(limit).unwrap_or(usize::MAX));
        let mut events = Vec::new();
        if limit == 0 {
            return Ok(events);
        }
        let mut link = self.0.reader().await?;
        walk(&mut link.connection, looked, filter, |row| {
            events.push(shown::dead(row)?);
            Ok(events.len() < limit)
        })
        .await?;
        link.keep();
        Ok(events)
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        let looked = self.0.looked().await?;
        let mut link = self.0.reader().await?;
        if filter.cause.is_none() {
            let sql = fill(looked, "SELECT count(*) FROM {{table}} {{by_dead}} WHERE {{where}}");
            let query = bind(sqlx::query(AssertSqlSafe(sql)), filter, now());
            let row = query.fetch_one(&mut link.connection).await.map_err(classify)?;
            link.keep();
            return Ok(u64::try_from(row.try_get::<i64, _>(0).map_err(classify)?).unwrap_or(0));
        }
        let mut count = 0;
        walk(&mut link.connection, looked, filter, |_| {
            count += 1;
            Ok(true)
        })
        .await?;
        link.keep();
        Ok(count)
    }

    async fn causes(&self, filter: &DeadFilter) -> Result<Vec<DeadCause>, StoreError> {
        let looked = self.0.looked().await?;
        let mut link = self.0.reader().await?;
        let mut causes = Causes::default();
        walk(&mut link.connection, looked, filter, |row| {
            let (topic, error) = (row.text(2)?.unwrap_or_default(), row.text(9)?.unwrap_or_default());
            causes.add(&topic, &error, row.known_time(8)?);
            Ok(true)
        })
        .await?;
        link.keep();
        Ok(causes.ranked())
    }

    async fn replay(&self, event: EventId, who: &str) -> Result<bool, StoreError> {
        let looked = self.0.looked().await?;
        let sql = fill(
            looked,
            &format!("{REVIVE} WHERE event_id = ?1 AND +dead_at IS NOT NULL AND +published_at IS NULL"),
        );
        let mut link = self.0.link.begin().await?;
        let query = sqlx::query(AssertSqlSafe(sql)).bind(event.0).bind(now());
        let rows = query.execute(&mut link.connection).await.map_err(classify)?.rows_affected();
        if rows > 0 {
            let what = serde_json::json!({ "event_id": event });
            audit(&mut link.connection, looked, who, "replay", &what, rows).await?;
        }
        link.commit().await?;
        Ok(rows > 0)
    }

    async fn replay_all(&self, filter: &DeadFilter, batch: u32, who: &str) -> Result<u64, StoreError> {
        self.in_batches(REVIVE, filter, batch, "replay", who).await
    }

    async fn discard(&self, filter: &DeadFilter, who: &str) -> Result<u64, StoreError> {
        self.in_batches(DISCARD, filter, 500, "discard", who).await
    }
}
