//! [`MySqlAdmin`]: what operators, dashboards and cleaners do with a table. `dead.rs` is about dead events, `browse.rs` about
//! all of them.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::{EventId, Inspect, Layout, StoreError, TableCounts, TableName, TableRelay};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::clause::{Clause, bind_list, with_list};
use super::error::{classify, within};
use super::history;
use super::link::{Link, OPERATION_LIMIT, Taken, Tries};
use super::schema::{TableShape, locate, names};
use super::version::Server;
use crate::history::HistoryShape;
use crate::shown;
use crate::table::Template;

/// Counts stop here.
const BOUND: u64 = 10_000;

/// Who, what, table, details, events.
pub(super) const AUDIT: &str =
    "INSERT INTO {{audit}} (who, action, tbl, what, events) VALUES (?, ?, ?, ?, ?)";

/// An outbox table in MySQL or MariaDB, for people who look after it. Cheap to clone; clones share one connection.
#[derive(Debug, Clone)]
pub struct MySqlAdmin(pub(super) Arc<Inner>);

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
    pub(super) schema: String,
    pub(super) template: Template,
    /// Where published events were moved to, if they were.
    pub(super) history: Option<HistoryShape>,
}

impl MySqlAdmin {
    /// Looks after a table in the database that a pool connects to (but takes no connection from it).
    pub fn new(pool: &MySqlPool, table: TableName) -> Self {
        Self::connect((*pool.connect_options()).clone(), table)
    }

    /// Looks after a table through one connection, made when it is needed.
    pub fn connect(options: MySqlConnectOptions, table: TableName) -> Self {
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

    /// Whether the table has the indexes that delivery in order needs.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    ///
    /// # Cancel safety
    /// As [`layout`](Self::layout).
    pub async fn ordered(&self) -> Result<bool, StoreError> {
        Ok(super::schema::is_ordered(&self.0.looked().await?.template))
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
        let looked = self.0.looked().await?;
        let sql = "UPDATE {{relay}} SET paused_at = UTC_TIMESTAMP(6), paused_by = ?, paused_reason = ?
                   WHERE tbl = ? AND paused_at IS NULL";
        let change = Clause::new(looked.template.fill(sql)).with(who).with(reason).with(&*looked.key);
        self.set_pause(looked, &change, "pause", who, reason).await
    }

    /// Starts delivery again. Answers whether it was paused.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    /// As [`pause`](Self::pause).
    pub async fn resume(&self, who: &str) -> Result<bool, StoreError> {
        let looked = self.0.looked().await?;
        let sql = "UPDATE {{relay}} SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
                   WHERE tbl = ? AND paused_at IS NOT NULL";
        let change = Clause::new(looked.template.fill(sql)).with(&*looked.key);
        self.set_pause(looked, &change, "resume", who, "").await
    }

    async fn set_pause(
        &self,
        looked: &Looked,
        change: &Clause,
        action: &str,
        who: &str,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let what = serde_json::json!({ "reason": reason });
        let mut tries = Tries::new();
        loop {
            let mut link = self.0.link.take().await?;
            match pause_once(&mut link, looked, change, (action, who), &what).await {
                Ok(changed) => {
                    link.keep();
                    return Ok(changed);
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }

    /// Changes rows that `find` finds and locks (their sequence first, then their event), with a line in the audit log, in
    /// one transaction; answers their events. Each change has a list of sequences.
    pub(super) async fn change(&self, change: &Change<'_>) -> Result<Vec<EventId>, StoreError> {
        let looked = self.0.looked().await?;
        let mut tries = Tries::new();
        loop {
            let mut link = self.0.link.take().await?;
            match change.once(&mut link, looked).await {
                Ok(events) => {
                    link.keep();
                    return Ok(events);
                }
                Err(error) => tries.again(link, error).await?,
            }
        }
    }
}

async fn pause_once(
    link: &mut Taken<'_>,
    looked: &Looked,
    change: &Clause,
    (action, who): (&str, &str),
    what: &serde_json::Value,
) -> Result<bool, StoreError> {
    link.begin().await?;
    let changed = change.query().execute(&mut link.connection);
    let changed = within(OPERATION_LIMIT, changed).await?.rows_affected() > 0;
    if changed {
        audit(&mut link.connection, looked, who, action, what, 0).await?;
    }
    link.commit().await?;
    Ok(changed)
}

/// A change of rows by an operator.
pub(super) struct Change<'a> {
    /// Finds them, and locks them.
    pub(super) find: Clause,
    /// What is done to them, each with a list of their sequences.
    pub(super) then: Vec<String>,
    pub(super) action: &'a str,
    pub(super) what: &'a serde_json::Value,
    pub(super) who: &'a str,
}

impl Change<'_> {
    async fn once(&self, link: &mut Taken<'_>, looked: &Looked) -> Result<Vec<EventId>, StoreError> {
        link.begin().await?;
        let found = within(OPERATION_LIMIT, self.find.query().fetch_all(&mut link.connection)).await?;
        let (mut sequences, mut events): (Vec<i64>, Vec<EventId>) = (Vec::new(), Vec::new());
        for row in &found {
            sequences.push(row.try_get(0).map_err(classify)?);
            events.push(EventId(row.try_get::<Uuid, _>(1).map_err(classify)?));
        }
        if !events.is_empty() {
            for sql in &self.then {
                let query = sqlx::query(AssertSqlSafe(with_list(sql, sequences.len())));
                let change = bind_list(query, &sequences).execute(&mut link.connection);
                within(OPERATION_LIMIT, change).await?;
            }
            audit(&mut link.connection, looked, self.who, self.action, self.what, events.len() as u64)
                .await?;
        }
        link.commit().await?;
        Ok(events)
    }
}

impl Inner {
    pub(super) async fn looked(&self) -> Result<&Looked, StoreError> {
        self.looked
            .get_or_try_init(|| async {
                let mut link = self.link.take().await?;
                let connection = &mut link.connection;
                Server::expect(connection).await?;
                let (schema, table) = locate(connection, &self.table).await?;
                TableShape::expect(connection, &schema, &table).await?;
                let template = names(connection, &schema, &table).await?;
                let history = history::find(connection, &schema, &table).await.map_err(classify)?;
                link.keep();
                Ok(Looked { key: table.table().to_owned(), schema, template, history })
            })
            .await
    }

    /// Asks for rows.
    pub(super) async fn rows(&self, question: &Clause) -> Result<Vec<sqlx::mysql::MySqlRow>, StoreError> {
        let mut link = self.link.take().await?;
        let rows = question.query().fetch_all(&mut link.connection).await.map_err(classify)?;
        link.keep();
        Ok(rows)
    }

    /// Asks for one.
    pub(super) async fn row(&self, question: &Clause) -> Result<sqlx::mysql::MySqlRow, StoreError> {
        let mut link = self.link.take().await?;
        let row = question.query().fetch_one(&mut link.connection).await.map_err(classify)?;
        link.keep();
        Ok(row)
    }
}

/// Writes down who did what.
pub(super) async fn audit(
    connection: &mut MySqlConnection,
    looked: &Looked,
    who: &str,
    action: &str,
    what: &serde_json::Value,
    events: u64,
) -> Result<(), StoreError> {
    tracing::info!(table = looked.key, who, action, %what, events, "operator");
    let audit = sqlx::query(AssertSqlSafe(looked.template.fill(AUDIT)))
        .bind(who)
        .bind(action)
        .bind(&looked.key)
        .bind(what.to_string())
        .bind(i64::try_from(events).unwrap_or(i64::MAX))
        .execute(connection);
    within(OPERATION_LIMIT, audit).await.map(|_| ())
}

/// A number that cannot be below zero.
pub(super) fn count(row: &sqlx::mysql::MySqlRow, place: usize) -> Result<u64, StoreError> {
    Ok(u64::try_from(row.try_get::<i64, _>(place).map_err(classify)?).unwrap_or(0))
}

/// Published per second, of late: over ten seconds, or over the time that as many as the bound took. What was moved counts.
fn rate_sql(looked: &Looked) -> String {
    let recent = |table: &str, index: &str| {
        format!(
            "SELECT published_at FROM (SELECT published_at FROM {table} {index}
                 WHERE published_at > UTC_TIMESTAMP(6) - INTERVAL 10 SECOND ORDER BY published_at DESC LIMIT {BOUND}) AS r"
        )
    };
    let any = |table: &str, index: &str| {
        format!("EXISTS (SELECT 1 FROM {table} {index} WHERE published_at IS NOT NULL)")
    };
    let mut places = vec![("{{table}}", "{{by_pending}}")];
    if looked.history.is_some() {
        places.push(("{{history}}", "{{by_history}}"));
    }
    let recent: Vec<String> = places.iter().map(|(table, index)| recent(table, index)).collect();
    let any: Vec<String> = places.iter().map(|(table, index)| any(table, index)).collect();
    looked.template.fill(&format!(
        "SELECT COUNT(*), COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(published_at), UTC_TIMESTAMP(6)), 0), {}
         FROM (SELECT published_at FROM ({}) AS a ORDER BY published_at DESC LIMIT {BOUND}) AS recent",
        any.join(" OR "),
        recent.join(" UNION ALL ")
    ))
}

impl Inspect for MySqlAdmin {
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    async fn counts(&self) -> Result<TableCounts, StoreError> {
        let looked = self.0.looked().await?;
        let row = self.0.row(&Clause::new(looked.template.fill(include_str!("sql/counts.sql")))).await?;
        let rate = self.0.row(&Clause::new(rate_sql(looked))).await?;
        let (recent, micros) = (count(&rate, 0)?, count(&rate, 1)?);
        let any: bool = rate.try_get(2).map_err(classify)?;
        let seconds = if recent < BOUND { 10.0 } else { (micros as f64 / 1e6).max(0.001) };
        Ok(TableCounts {
            pending: count(&row, 0)?.max(count(&row, 6)?),
            locked: count(&row, 1)?,
            scheduled: count(&row, 2)?,
            dead: count(&row, 3)?,
            blocked: count(&row, 7)?,
            oldest_pending_age: Duration::from_micros(count(&row, 4)?),
            published_per_second: any.then_some(recent as f64 / seconds),
            estimated: row.try_get(5).map_err(classify)?,
        })
    }

    async fn relay(&self) -> Result<TableRelay, StoreError> {
        let looked = self.0.looked().await?;
        let sql = looked.template.fill(
            "SELECT CASE WHEN expires_at > UTC_TIMESTAMP(6) THEN holder END, epoch, strategy, paused_at, paused_by, paused_reason
             FROM {{relay}} WHERE tbl = ?",
        );
        let rows = self.0.rows(&Clause::new(sql).with(&*looked.key)).await?;
        let Some(row) = rows.first() else { return Ok(TableRelay::default()) };
        shown::relay(row).map_err(classify)
    }
}
