//! The cleaner's work: what is past its retention is deleted, a batch at a time.

use std::time::Duration;

use postbox_core::StoreError;
use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept};
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite};

use super::admin::SqliteAdmin;
use super::clock::{now, span};
use super::error::classify;
use crate::row::Cells as _;

type Bound<'q> = Query<'q, Sqlite, SqliteArguments>;

impl Sweep for SqliteAdmin {
    fn table(&self) -> &str {
        &self.0.label
    }

    /// One writer at a time: cleaners cannot get in each other's way, so none is ever told that it is busy.
    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        let looked = self.0.looked().await?;
        let sql = looked.template.fill(include_str!("sql/sweep.sql"));
        let mut link = self.0.link.begin().await?;
        let delete = before(sqlx::query(AssertSqlSafe(sql)), request).bind(i64::from(request.batch));
        let delete = delete.bind(request.dead_letters);
        let mut deleted = delete.execute(&mut link.connection).await.map_err(classify)?.rows_affected();
        let room = i64::from(request.batch).saturating_sub_unsigned(deleted);
        if looked.history.is_some() && room > 0 {
            let sql = looked.template.fill(include_str!("sql/sweep_history.sql"));
            let until = now().saturating_sub(span(request.retention));
            let delete = sqlx::query(AssertSqlSafe(sql)).bind(until).bind(room);
            deleted += delete.execute(&mut link.connection).await.map_err(classify)?.rows_affected();
        }
        link.commit().await?;
        Ok(Swept::Deleted(deleted))
    }

    async fn sweep_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        self.clean_inbox(retention, batch).await
    }
}

impl SweepCount for SqliteAdmin {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        let looked = self.0.looked().await?;
        let moved = match looked.history {
            Some(_) => " + (SELECT count(*) FROM {{history}} {{by_history}} WHERE published_at < ?1)",
            None => "",
        };
        let sql = "SELECT (SELECT count(*) FROM {{table}} {{by_published}} WHERE published_at < ?1){{moved}},
                    (SELECT count(*) FROM {{table}} AS t {{by_dead}} WHERE dead_at < ?2 AND published_at IS NULL AND NOT {{kept}}
                        AND (dlq_at IS NOT NULL OR NOT ?3))";
        let sql = looked.template.fill(&sql.replace("{{moved}}", moved));
        let mut link = self.0.reader().await?;
        let query = sqlx::query(AssertSqlSafe(sql));
        let query = before(query, request).bind(request.dead_letters);
        let row = query.fetch_one(&mut link.connection).await.map_err(classify)?;
        link.keep();
        Ok(Due { published: row.count(0).map_err(classify)?, dead: row.count(1).map_err(classify)? })
    }
}

/// Until when events must have been published (`?1`) or dead (`?2`; null: they are kept) to be past their retention.
fn before<'q>(query: Bound<'q>, request: &SweepRequest) -> Bound<'q> {
    let now = now();
    let dead = request.dead_retention.map(|retention| now.saturating_sub(span(retention)));
    query.bind(now.saturating_sub(span(request.retention))).bind(dead)
}
