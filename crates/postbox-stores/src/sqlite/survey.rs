//! What dashboards want to know of a table beyond its counts, and its audit log.

use std::time::Duration;

use postbox_core::{AuditEntry, BlockedAggregate, Recent, StoreError, Survey};
use sqlx::AssertSqlSafe;

use super::admin::{SqliteAdmin, audit};
use super::clock::{now, span};
use super::error::{classify, within as in_time};
use super::link::OPERATION_LIMIT;
use crate::shown;

/// The latest of one table by its index. `?1` from  `?2` rows
const LATEST: &str = "SELECT * FROM (SELECT published_at, created_at, available_at FROM {{place}}
    WHERE published_at > ?1 ORDER BY published_at DESC LIMIT ?2)";

impl Survey for SqliteAdmin {
    async fn recent(&self, within: Duration, limit: u32) -> Result<Recent, StoreError> {
        let looked = self.0.looked().await?;
        let mut latest = LATEST.replace("{{place}}", "{{table}} {{by_published}}");
        if looked.history.is_some() {
            latest =
                format!("{latest} UNION ALL {}", LATEST.replace("{{place}}", "{{history}} {{by_history}}"));
        }
        let sql = looked.template.fill(&format!(
            "SELECT max(published_at - max(created_at, available_at), 0) FROM ({latest})
             ORDER BY published_at DESC LIMIT ?2"
        ));
        let mut link = self.0.reader().await?;
        let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql))
            .bind(now().saturating_sub(span(within)))
            .bind(i64::from(limit));
        let lags = in_time(OPERATION_LIMIT, query.fetch_all(&mut link.connection)).await?;
        let head = sqlx::query_scalar::<_, i64>("SELECT seq FROM sqlite_sequence WHERE name = ?1");
        let head = head.bind(self.table().table()).fetch_optional(&mut link.connection);
        let head = in_time(OPERATION_LIMIT, head).await?;
        link.keep();
        let lags = lags.into_iter().map(|micros| Duration::from_micros(micros.unsigned_abs())).collect();
        // Nothing was ever written.
        Ok(Recent { lags, written: Some(head.unwrap_or_default()) })
    }

    async fn blocked(&self, limit: u32) -> Result<Option<Vec<BlockedAggregate>>, StoreError> {
        let looked = self.0.looked().await?;
        let sql = looked.template.fill(include_str!("sql/blocked_list.sql"));
        let mut link = self.0.reader().await?;
        let query = sqlx::query(AssertSqlSafe(sql)).bind(i64::from(limit));
        let rows = in_time(OPERATION_LIMIT, query.fetch_all(&mut link.connection)).await?;
        link.keep();
        rows.iter().map(shown::blocked).collect::<Result<_, _>>().map(Some).map_err(classify)
    }

    async fn audit_log(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        let looked = self.0.looked().await?;
        let sql = looked.template.fill(
            "SELECT id, at, who, action, what, events FROM {{audit}}
             WHERE tbl = ?1 AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
        );
        let mut link = self.0.reader().await?;
        let query = sqlx::query(AssertSqlSafe(sql)).bind(&looked.key).bind(before).bind(i64::from(limit));
        let rows = in_time(OPERATION_LIMIT, query.fetch_all(&mut link.connection)).await?;
        link.keep();
        rows.iter().map(shown::audited).collect::<Result<_, _>>().map_err(classify)
    }

    async fn note(&self, who: &str, action: &str, what: &serde_json::Value) -> Result<(), StoreError> {
        let looked = self.0.looked().await?;
        let mut link = self.0.link.begin().await?;
        audit(&mut link.connection, looked, who, action, what, 0).await?;
        link.commit().await
    }
}
