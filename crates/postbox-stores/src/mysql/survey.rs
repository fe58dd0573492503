//! What dashboards want to know of a table beyond its counts, and its audit log.

use std::time::Duration;

use postbox_core::{AuditEntry, BlockedAggregate, Recent, StoreError, Survey};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::admin::{MySqlAdmin, audit};
use super::clause::{Arg, Clause};
use super::error::classify;
use super::schema::is_ordered;
use crate::shown;

/// The latest of one table by its index: how long they took, and when it was.
const LATEST: &str = "SELECT * FROM (SELECT published_at,
        GREATEST(TIMESTAMPDIFF(MICROSECOND, GREATEST(created_at, available_at), published_at), 0) AS lag
    FROM {{place}} WHERE published_at > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY published_at DESC LIMIT ?) AS r";

impl Survey for MySqlAdmin {
    async fn recent(&self, within: Duration, limit: u32) -> Result<Recent, StoreError> {
        let looked = self.0.looked().await?;
        let (micros, limit) = (i64::try_from(within.as_micros()).unwrap_or(i64::MAX), i64::from(limit));
        let mut places = vec![("{{table}} {{by_pending}}", "{{table}}")];
        if looked.history.is_some() {
            places.push(("{{history}} {{by_history}}", "{{history}}"));
        }
        let (mut latest, mut head) = (Clause::new("SELECT lag FROM ("), Vec::new());
        for (at, (place, table)) in places.into_iter().enumerate() {
            let union = if at > 0 { " UNION ALL " } else { "" };
            let sql = format!("{union}{}", LATEST.replace("{{place}}", place));
            latest.push(&looked.template.fill(&sql), [Arg::Number(micros), Arg::Number(limit)]);
            head.push(format!("SELECT MAX(sequence) AS head FROM {table}"));
        }
        latest.push(") AS latest ORDER BY published_at DESC LIMIT ?", [Arg::Number(limit)]);
        let lags = self.0.rows(&latest).await?;
        let read = |row: &MySqlRow| row.try_get::<i64, _>(0).map_err(classify);
        let lags: Vec<i64> = lags.iter().map(read).collect::<Result<_, _>>()?;
        let head = format!("SELECT COALESCE(MAX(head), 0) FROM ({}) AS heads", head.join(" UNION ALL "));
        let head = self.0.row(&Clause::new(looked.template.fill(&head))).await?;
        let lags = lags.into_iter().map(|micros| Duration::from_micros(micros.unsigned_abs())).collect();
        Ok(Recent { lags, written: Some(head.try_get(0).map_err(classify)?) })
    }

    async fn blocked(&self, limit: u32) -> Result<Option<Vec<BlockedAggregate>>, StoreError> {
        let looked = self.0.looked().await?;
        if !is_ordered(&looked.template) {
            return Ok(None);
        }
        let sql = looked.template.fill(include_str!("sql/blocked_list.sql"));
        let rows = self.0.rows(&Clause::new(sql).with(i64::from(limit))).await?;
        rows.iter().map(shown::blocked).collect::<Result<_, _>>().map(Some).map_err(classify)
    }

    async fn audit_log(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        let looked = self.0.looked().await?;
        let mut question = Clause::new(
            looked.template.fill("SELECT id, at, who, action, what, events FROM {{audit}} WHERE tbl = ?"),
        )
        .with(&*looked.key);
        question.and("id < ?", before);
        question.push(" ORDER BY id DESC LIMIT ?", [Arg::Number(i64::from(limit))]);
        let rows = self.0.rows(&question).await?;
        rows.iter().map(shown::audited).collect::<Result<_, _>>().map_err(classify)
    }

    async fn note(&self, who: &str, action: &str, what: &serde_json::Value) -> Result<(), StoreError> {
        let looked = self.0.looked().await?;
        // One statement, which is a transaction of its own.
        let mut link = self.0.link.take().await?;
        audit(&mut link.connection, looked, who, action, what, 0).await?;
        link.keep();
        Ok(())
    }
}
