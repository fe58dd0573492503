//! What dashboards want to know of a table beyond its counts, and its audit log.

use std::time::Duration;

use postbox_core::survey::MOST_WAITING;
use postbox_core::{
    AuditEntry, BlockedAggregate, Code, EventId, Json, Layout, Recent, StoreError, StoreErrorKind, Survey,
    TenantId,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::admin::{PgAdmin, audit};
use super::ask::{self, ask};
use super::error::classify;
use super::list::in_range;

/// The latest of one table by its index. `$1` seconds  `$2` rows
const LATEST: &str = "(SELECT published_at, created_at, available_at FROM {{place}}
    WHERE published_at > now() - make_interval(secs => $1) ORDER BY published_at DESC LIMIT $2)";

impl PgAdmin {
    /// How many events were ever written, as far as the sequence tells: what was rolled back counts, too. Who may not read
    /// the sequence is told nothing, and nothing fails.
    pub(super) async fn written(&self) -> Result<Option<i64>, StoreError> {
        let looked = self.looked().await?;
        let drawn =
            ask("SELECT CASE WHEN has_sequence_privilege(s, 'SELECT') THEN pg_sequence_last_value(s) END
                         FROM (SELECT pg_get_serial_sequence($1, 'sequence')::regclass AS s) AS drawn");
        let drawn = ask::one(&self.pool, drawn.bind(looked.name.quoted('"'))).await?;
        let drawn: Option<i64> = drawn.try_get(0).map_err(classify)?;
        // Writers that are put in order draw a second number, under their lock; an event without an aggregate does not, and such
        // a table has few of them.
        let each = if looked.order.triggered { 2 } else { 1 };
        Ok(drawn.map(|drawn| drawn / each))
    }
}

impl Survey for PgAdmin {
    async fn recent(&self, within: Duration, limit: u32) -> Result<Recent, StoreError> {
        let looked = self.looked().await?;
        // A bare table may lack the index by time of publication.
        let lags = if looked.layout == Layout::Bare {
            Vec::new()
        } else {
            let mut latest = LATEST.replace("{{place}}", "{{table}}");
            if looked.history.is_some() {
                latest = format!("{latest} UNION ALL {}", LATEST.replace("{{place}}", "{{history}}"));
            }
            let sql = format!(
                "SELECT greatest(extract(epoch FROM {{{{time(published_at)}}}} -
                     greatest({{{{time(created_at)}}}}, {{{{time(available_at)}}}})), 0)::float8
                 FROM ({latest}) AS latest ORDER BY published_at DESC LIMIT $2"
            );
            let query = ask(looked.template.fill(&in_range(&sql)));
            let query = query.bind(within.as_secs_f64()).bind(i64::from(limit));
            let rows = ask::all(&self.pool, query).await?;
            let read = |row: &PgRow| row.try_get::<f64, _>(0).map_err(classify);
            let lags: Vec<f64> = rows.iter().map(read).collect::<Result<_, _>>()?;
            lags.into_iter().map(|lag| Duration::try_from_secs_f64(lag).unwrap_or_default()).collect()
        };
        Ok(Recent { lags, written: self.written().await? })
    }

    async fn blocked(&self, limit: u32) -> Result<Option<Vec<BlockedAggregate>>, StoreError> {
        let looked = self.looked().await?;
        if !looked.order.indexed {
            return Ok(None);
        }
        let sql = looked.template.fill(&in_range(include_str!("sql/blocked_list.sql")));
        let query = ask(sql).bind(i64::from(limit)).bind(i64::from(MOST_WAITING));
        let read = |row: &PgRow| -> Result<BlockedAggregate, sqlx::Error> {
            Ok(BlockedAggregate {
                tenant_id: TenantId(row.try_get(0)?),
                aggregate_type: row.try_get(1)?,
                aggregate_id: row.try_get(2)?,
                waiting: u64::try_from(row.try_get::<i64, _>(3)?).unwrap_or(0),
                event_id: EventId(row.try_get(4)?),
                sequence: row.try_get(5)?,
                topic: row.try_get(6)?,
                dead_at: row.try_get(7)?,
                last_error: row.try_get(8)?,
            })
        };
        let rows = ask::all(&self.pool, query).await?;
        rows.iter().map(read).collect::<Result<_, _>>().map(Some).map_err(classify)
    }

    async fn audit_log(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        let looked = self.looked().await?;
        if looked.layout == Layout::Bare {
            let message = format!("{} has no audit log: it has only the standard columns", looked.key);
            return Err(StoreError::new(Code::ColumnMissing, StoreErrorKind::Refused, message));
        }
        let sql = looked.template.fill(&in_range(
            "SELECT id, {{time(at)}}, who, action, what::text, events FROM {{audit}}
             WHERE tbl = $1 AND ($2::bigint IS NULL OR id < $2) ORDER BY id DESC LIMIT $3",
        ));
        let query = ask(sql).bind(&looked.key).bind(before).bind(i64::from(limit));
        let read = |row: &PgRow| -> Result<AuditEntry, sqlx::Error> {
            Ok(AuditEntry {
                id: row.try_get(0)?,
                at: row.try_get(1)?,
                who: row.try_get(2)?,
                action: row.try_get(3)?,
                what: Json::trusted(row.try_get::<String, _>(4)?),
                events: row.try_get(5)?,
            })
        };
        let rows = ask::all(&self.pool, query).await?;
        rows.iter().map(read).collect::<Result<_, _>>().map_err(classify)
    }

    async fn note(&self, who: &str, action: &str, what: &serde_json::Value) -> Result<(), StoreError> {
        let looked = self.looked().await?;
        let mut tx = ask::begin(&self.pool).await?;
        audit(&mut tx, looked, who, action, what, 0).await?;
        ask::commit(tx).await
    }
}
