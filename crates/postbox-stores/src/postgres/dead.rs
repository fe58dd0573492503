//! Dead events: found by filter, grouped by cause, replayed or discarded, every change audited.

use postbox_core::{DeadCause, DeadEvent, DeadFilter, DeadLetters, EventId, StoreError, TenantId};
use sqlx::Row as _;
use time::OffsetDateTime;

use super::admin::{Looked, PgAdmin, audit};
use super::ask::{self, Ask, ask};
use super::error::classify;
use super::list::in_range;

/// An error without what differs from event to event.
const CAUSE: &str = "regexp_replace(coalesce(last_error, ''), \
    '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|[0-9]+', '#', 'g')";

/// The condition of a filter: `$1` to `$8`, each left out where it is null.
const WHERE: &str =
    "{{dead}} AND ($1::text IS NULL OR topic = $1) AND ($2::text IS NULL OR {{aggregate_type}} = $2)
    AND ($3::uuid IS NULL OR tenant_id = $3)
    AND ($4::float8 IS NULL OR {{died}} <= now() - make_interval(secs => $4))
    AND ($5::float8 IS NULL OR {{died}} >= now() - make_interval(secs => $5))
    AND ($6::text IS NULL OR strpos(last_error, $6) > 0) AND ($7::text IS NULL OR {{cause}} = $7)
    AND ($8::text IS NULL OR {{aggregate_id}} = $8)";

const REVIVE: &str = "attempts = 0, available_at = now(), last_error = NULL{{revive}}";

fn fill(looked: &Looked, sql: &str) -> String {
    // What takes many statements goes by the time of the first: else what it is about changes while it runs.
    let sql = sql.replace("{{where_then}}", &WHERE.replace("now()", "$10"));
    let sql = sql.replace("{{where}}", WHERE).replace("{{set}}", REVIVE);
    // A row with a time that no client can hold must not keep anybody from the others.
    let died = looked.template.fill("{{died}}");
    looked.template.clone().with("cause", CAUSE).fill(&in_range(&sql).replace("dead_time", &died))
}

/// A statement about what a filter finds.
fn about(sql: String, filter: &DeadFilter) -> Ask<'_> {
    ask(sql)
        .bind(&filter.topic)
        .bind(&filter.aggregate_type)
        .bind(filter.tenant_id.map(|tenant| tenant.0))
        .bind(filter.older_than.map(|age| age.as_secs_f64()))
        .bind(filter.newer_than.map(|age| age.as_secs_f64()))
        .bind(&filter.error)
        .bind(&filter.cause)
        .bind(&filter.aggregate_id)
}

impl PgAdmin {
    /// Changes what matches in batches, each with its line in the audit log. What dies again meanwhile is not touched
    /// a second time.
    async fn in_batches(
        &self,
        sql: &str,
        filter: &DeadFilter,
        batch: u32,
        action: &str,
        who: &str,
    ) -> Result<u64, StoreError> {
        let looked = self.looked().await?;
        let started = ask::one(&self.pool, ask("SELECT clock_timestamp()")).await?;
        let started: OffsetDateTime = started.try_get(0).map_err(classify)?;
        let what = serde_json::json!({ "filter": filter });
        let sql = fill(looked, sql);
        let mut total = 0;
        loop {
            let mut tx = ask::begin(&self.pool).await?;
            let query = about(sql.clone(), filter).bind(i64::from(batch)).bind(started);
            let rows = query.execute(&mut *tx).await.map_err(classify)?.rows_affected();
            if rows > 0 {
                audit(&mut tx, looked, who, action, &what, rows).await?;
            }
            ask::commit(tx).await?;
            total += rows;
            if rows < u64::from(batch) {
                return Ok(total);
            }
        }
    }
}

impl DeadLetters for PgAdmin {
    async fn query(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadEvent>, StoreError> {
        let looked = self.looked().await?;
        let sql = fill(
            looked,
            "SELECT event_id, tenant_id, topic, {{aggregate_type}}, {{aggregate_id}}, sequence, attempts, {{time(created_at)}},
                    {{time(dead_time)}}, last_error
             FROM {{table}} WHERE {{where}} ORDER BY {{died}}, sequence LIMIT $9",
        );
        let rows = ask::all(&self.pool, about(sql, filter).bind(i64::from(limit))).await?;
        let read = |row: &sqlx::postgres::PgRow| -> Result<DeadEvent, sqlx::Error> {
            Ok(DeadEvent {
                event_id: EventId(row.try_get(0)?),
                tenant_id: TenantId(row.try_get(1)?),
                topic: row.try_get(2)?,
                aggregate_type: row.try_get(3)?,
                aggregate_id: row.try_get(4)?,
                sequence: row.try_get(5)?,
                attempts: row.try_get(6)?,
                created_at: row.try_get(7)?,
                dead_at: row.try_get(8)?,
                last_error: row.try_get(9)?,
            })
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        let sql = fill(self.looked().await?, "SELECT count(*) FROM {{table}} WHERE {{where}}");
        let row = ask::one(&self.pool, about(sql, filter)).await?;
        Ok(u64::try_from(row.try_get::<i64, _>(0).map_err(classify)?).unwrap_or(0))
    }

    async fn causes(&self, filter: &DeadFilter) -> Result<Vec<DeadCause>, StoreError> {
        let sql = fill(
            self.looked().await?,
            "SELECT {{cause}}, topic, count(*), {{time(min(dead_time))}}, {{time(max(dead_time))}}, coalesce(min(last_error), '')
             FROM {{table}} WHERE {{where}} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 1000",
        );
        let rows = ask::all(&self.pool, about(sql, filter)).await?;
        let read = |row: &sqlx::postgres::PgRow| -> Result<DeadCause, sqlx::Error> {
            Ok(DeadCause {
                cause: row.try_get(0)?,
                example: row.try_get(5)?,
                topic: row.try_get(1)?,
                events: u64::try_from(row.try_get::<i64, _>(2)?).unwrap_or(0),
                first: row.try_get(3)?,
                last: row.try_get(4)?,
            })
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }

    async fn replay(&self, event: EventId, who: &str) -> Result<bool, StoreError> {
        let looked = self.looked().await?;
        let sql = fill(looked, "UPDATE {{table}} SET {{set}} WHERE event_id = $1 AND {{dead}}");
        let mut tx = ask::begin(&self.pool).await?;
        let query = ask(sql).bind(event.0).execute(&mut *tx);
        let rows = query.await.map_err(classify)?.rows_affected();
        if rows > 0 {
            audit(&mut tx, looked, who, "replay", &serde_json::json!({ "event_id": event }), rows).await?;
        }
        ask::commit(tx).await?;
        Ok(rows > 0)
    }

    async fn replay_all(&self, filter: &DeadFilter, batch: u32, who: &str) -> Result<u64, StoreError> {
        let sql = "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{table}} WHERE {{where_then}} AND {{died}} <= $10
                ORDER BY {{died}}, sequence LIMIT $9 FOR UPDATE SKIP LOCKED)
            UPDATE {{table}} SET {{set}} WHERE id IN (SELECT id FROM chosen)";
        self.in_batches(sql, filter, batch.max(1), "replay", who).await
    }

    async fn discard(&self, filter: &DeadFilter, who: &str) -> Result<u64, StoreError> {
        let sql = "WITH chosen AS MATERIALIZED (
                SELECT id FROM {{table}} WHERE {{where_then}} AND {{died}} <= $10
                ORDER BY {{died}}, sequence LIMIT $9 FOR UPDATE SKIP LOCKED)
            DELETE FROM {{table}} WHERE id IN (SELECT id FROM chosen)";
        self.in_batches(sql, filter, 500, "discard", who).await
    }
}
