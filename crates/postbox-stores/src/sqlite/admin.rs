//! [`SqliteAdmin`]: what operators, dashboards and cleaners do with a table. `dead.rs` is about dead events,
//! `browse.rs` about all of them.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::{Inspect, Layout, StoreError, TableCounts, TableName, TableRelay};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};
use tokio::sync::OnceCell;

use super::clock::now;
use super::error::{classify, within};
use super::history;
use super::link::{Link, OPERATION_LIMIT, Taken};
use super::schema::{TableShape, in_main, names};
use crate::history::HistoryShape;
use crate::row::Cells as _;
use crate::shown;
use crate::table::Template;

/// Counts stop here; beyond, pending events are only counted, up to the second bound: then there are at least so many.
const BOUND: i64 = 10_000;
const ESTIMATE_BOUND: i64 = 100_000;

/// An outbox table in SQLite, for people who look after it. Cheap to clone; clones share one connection.
#[derive(Debug, Clone)]
pub struct SqliteAdmin(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) link: Link,
    table: TableName,
    pub(super) label: String,
    looked: OnceCell<Looked>,
}

/// What is known of the table once it was looked at.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) key: String,
    pub(super) template: Template,
    /// Where published events were moved to, if they were.
    pub(super) history: Option<HistoryShape>,
}

impl SqliteAdmin {
    /// Looks after a table in the file that a pool opens (but takes no connection from it).
    pub fn new(pool: &SqlitePool, table: TableName) -> Self {
        Self::connect((*pool.connect_options()).clone(), table)
    }

    /// Looks after a table through one connection, made when it is needed.
    pub fn connect(options: SqliteConnectOptions, table: TableName) -> Self {
        let label = table.to_string();
        Self(Arc::new(Inner { link: Link::new(options), table, label, looked: OnceCell::new() }))
    }

    /// The table's name, as it was given.
    pub fn table(&self) -> &TableName {
        &self.0.table
    }

    /// Which columns the table has: all of them. One that lacks some is refused until it was migrated.
    ///
    /// # Errors
    /// When the table is missing, lacks columns or is of another shape.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn layout(&self) -> Result<Layout, StoreError> {
        self.0.looked().await?;
        Ok(Layout::Full)
    }

    /// Whether the table has a history that published events can be moved to.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    ///
    /// # Cancel safety
    /// As [`layout`](Self::layout).
    pub async fn has_history(&self) -> Result<bool, StoreError> {
        Ok(self.0.looked().await?.history.is_some())
    }

    /// Stops delivery of the table, in every relay, until [`resume`](Self::resume). Outlives restarts. Answers
    /// whether it was running before.
    ///
    /// # Errors
    /// When the table is not one, or the database fails.
    ///
    /// # Cancel safety
    /// Dropped, both the change and its entry in the audit log are there, or neither is. It can be repeated.
    pub async fn pause(&self, who: &str, reason: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE {{relay}} SET paused_at = ?2, paused_by = ?3, paused_reason = ?4
                   WHERE tbl = ?1 AND paused_at IS NULL";
        self.set_pause(sql, "pause", who, reason).await
    }

    /// Starts delivery again. Answers whether it was paused.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    /// As [`pause`](Self::pause).
    pub async fn resume(&self, who: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE {{relay}} SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
                   WHERE tbl = ?1 AND paused_at IS NOT NULL";
        self.set_pause(sql, "resume", who, "").await
    }

    async fn set_pause(&self, sql: &str, action: &str, who: &str, reason: &str) -> Result<bool, StoreError> {
        let looked = self.0.looked().await?;
        let mut link = self.0.link.begin().await?;
        let mut change = sqlx::query(AssertSqlSafe(looked.template.fill(sql))).bind(&looked.key);
        if action == "pause" {
            change = change.bind(now()).bind(who).bind(reason);
        }
        let changed = change.execute(&mut link.connection).await.map_err(classify)?.rows_affected() > 0;
        if changed {
            let what = serde_json::json!({ "reason": reason });
            audit(&mut link.connection, looked, who, action, &what, 0).await?;
        }
        link.commit().await?;
        Ok(changed)
    }
}

impl Inner {
    pub(super) async fn looked(&self) -> Result<&Looked, StoreError> {
        self.looked
            .get_or_try_init(|| async {
                let table = in_main(&self.table)?;
                let mut link = self.link.take().await?;
                link.file().await?;
                TableShape::expect(&mut link.connection, &table).await?;
                let template = names(&mut link.connection, &table).await?;
                let history = history::find(&mut link.connection, &table).await.map_err(classify)?;
                link.keep();
                Ok(Looked { key: table.to_string(), template, history })
            })
            .await
    }

    /// The connection, to read from.
    pub(super) async fn reader(&self) -> Result<Taken<'_>, StoreError> {
        self.link.take().await
    }
}

/// Writes down who did what.
pub(super) async fn audit(
    connection: &mut SqliteConnection,
    looked: &Looked,
    who: &str,
    action: &str,
    what: &serde_json::Value,
    events: u64,
) -> Result<(), StoreError> {
    tracing::info!(table = looked.key, who, action, %what, events, "operator");
    let sql = "INSERT INTO {{audit}} (at, who, action, tbl, what, events) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    sqlx::query(AssertSqlSafe(looked.template.fill(sql)))
        .bind(now())
        .bind(who)
        .bind(action)
        .bind(&looked.key)
        .bind(what.to_string())
        .bind(i64::try_from(events).unwrap_or(i64::MAX))
        .execute(connection)
        .await
        .map_err(classify)?;
    Ok(())
}

impl Inspect for SqliteAdmin {
    async fn counts(&self) -> Result<TableCounts, StoreError> {
        let looked = self.0.looked().await?;
        let sql = counts_sql(&looked.template, looked.history.is_some());
        let mut link = self.0.reader().await?;
        let query = sqlx::query(AssertSqlSafe(sql)).bind(now()).bind(BOUND).bind(ESTIMATE_BOUND);
        let row = within(OPERATION_LIMIT, query.fetch_one(&mut link.connection)).await?;
        link.keep();
        let number = |place| row.count(place).map_err(classify);
        Ok(TableCounts {
            pending: number(0)?.max(number(6)?),
            locked: number(1)?,
            scheduled: number(2)?,
            dead: number(3)?,
            blocked: number(8)?,
            oldest_pending_age: Duration::from_micros(number(4)?),
            published_per_second: row.try_get(7).map_err(classify)?,
            estimated: row.try_get(5).map_err(classify)?,
        })
    }

    async fn relay(&self) -> Result<TableRelay, StoreError> {
        let looked = self.0.looked().await?;
        let sql = looked.template.fill(
            "SELECT CASE WHEN expires_at > ?2 THEN holder END, epoch, strategy, paused_at, paused_by, paused_reason
             FROM {{relay}} WHERE tbl = ?1",
        );
        let mut link = self.0.reader().await?;
        let query = sqlx::query(AssertSqlSafe(sql)).bind(&looked.key).bind(now());
        let row = within(OPERATION_LIMIT, query.fetch_optional(&mut link.connection)).await?;
        link.keep();
        let Some(row) = row else { return Ok(TableRelay::default()) };
        shown::relay(&row).map_err(classify)
    }
}

/// The statement of the counts. What was moved counts for the rate.
pub(super) fn counts_sql(template: &Template, history: bool) -> String {
    let recent = |table: &str, index: &str| {
        format!(
            "SELECT published_at FROM (SELECT published_at FROM {table} {index} WHERE published_at > ?1 - 10000000
                ORDER BY published_at DESC LIMIT ?2)"
        )
    };
    let any = |table: &str, index: &str| {
        format!("EXISTS (SELECT 1 FROM {table} {index} WHERE published_at IS NOT NULL)")
    };
    let mut places = vec![("{{table}}", "{{by_published}}")];
    if history {
        places.push(("{{history}}", "{{by_history}}"));
    }
    let recent: Vec<String> = places.iter().map(|(table, index)| recent(table, index)).collect();
    let any: Vec<String> = places.iter().map(|(table, index)| any(table, index)).collect();
    let sql = include_str!("sql/counts.sql")
        .replace("{{recent}}", &recent.join(" UNION ALL "))
        .replace("{{any}}", &any.join(" OR "));
    template.fill(&sql)
}
