//! [`PgAdmin`]: what operators, dashboards and cleaners do with a table. `dead.rs` is about dead events.

use std::time::Duration;

use postbox_core::{Code, Inspect, Layout, StoreError, StoreErrorKind, TableCounts, TableName, TableRelay};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{PgConnection, Row as _};
use tokio::sync::OnceCell;

use super::ask::{self, Limited, ask};
use super::error::classify;
use super::migrate::Ordered;
use super::order::{TableOrder, with_strands};
use super::schema::TableShape;
use super::{history, window};
use crate::history::HistoryShape;
use crate::table::Template;

/// Counts stop here; beyond, estimates do.
const BOUND: i64 = 10_000;

/// An outbox table in PostgreSQL, for people who look after it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PgAdmin {
    pub(super) pool: Limited,
    table: TableName,
    pub(super) label: String,
    max_attempts: i32,
    lock_ttl: Duration,
    looked: OnceCell<Looked>,
}

/// What is known of the table once it was looked at.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    pub(super) layout: Layout,
    pub(super) key: String,
    pub(super) name: TableName,
    pub(super) template: Template,
    pending_index: String,
    pub(super) order: TableOrder,
    /// Where published events were moved to, if they were.
    pub(super) history: Option<HistoryShape>,
}

impl PgAdmin {
    /// Looks after a table through a pool.
    pub fn new(pool: PgPool, table: TableName) -> Self {
        Self {
            pool: Limited { pool, limit: None },
            label: table.to_string(),
            table,
            max_attempts: 25,
            lock_ttl: Duration::from_mins(1),
            looked: OnceCell::new(),
        }
    }

    /// Looks after a table through two connections at most, made when they are needed.
    pub fn connect(options: PgConnectOptions, table: TableName) -> Self {
        let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(Duration::from_secs(10));
        Self::new(pool.connect_lazy_with(options), table)
    }

    /// What the relay's `max_attempts` is; matters only for tables without `dead_at`.
    #[must_use]
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.max_attempts = attempts;
        self.looked = OnceCell::new();
        self
    }

    /// What the relay's `lock_ttl` is; matters only for tables without `dead_at`.
    #[must_use]
    pub fn lock_ttl(mut self, ttl: Duration) -> Self {
        self.lock_ttl = ttl;
        self.looked = OnceCell::new();
        self
    }

    /// No statement takes longer than this, and none waits longer for a lock: for dashboards, which must not hurt the table.
    #[must_use]
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.pool.limit = Some(limit);
        self
    }

    /// The table's name, as it was given.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// Which columns the table has.
    ///
    /// # Errors
    /// When the table is missing or of another shape.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn layout(&self) -> Result<Layout, StoreError> {
        Ok(self.looked().await?.layout)
    }

    /// Whether the table has a history that published events can be moved to.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    ///
    /// # Cancel safety
    /// As [`layout`](Self::layout).
    pub async fn has_history(&self) -> Result<bool, StoreError> {
        Ok(self.looked().await?.history.is_some())
    }

    /// What the table has for delivery in order.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    ///
    /// # Cancel safety
    /// As [`layout`](Self::layout).
    pub async fn ordered(&self) -> Result<Ordered, StoreError> {
        Ok(self.looked().await?.order.migrated())
    }

    pub(super) async fn looked(&self) -> Result<&Looked, StoreError> {
        self.looked
            .get_or_try_init(|| async {
                let mut connection = ask::begin(&self.pool).await?;
                let shape = TableShape::expect(&mut connection, &self.table).await?;
                let layout = shape.layout();
                let order = TableOrder::read(&mut connection, &shape).await?;
                // Where there is no `dead_at`, dead is what has used up its attempts and is not being tried.
                let max = self.max_attempts;
                let live = format!("now() - interval '{} milliseconds'", self.lock_ttl.as_millis());
                let template = with_strands(Template::of(&shape.name, '"'));
                // A dead event that others of its aggregate wait for is kept: without it they would go on by themselves.
                let holds_nobody = "NOT EXISTS (SELECT 1 FROM {{table}} p WHERE p.published_at IS NULL AND p.dead_at IS NULL \
                                    AND {{p_strand}} = {{t_strand}} AND p.sequence > t.sequence)";
                let holds_nobody = if order.indexed { template.fill(holds_nobody) } else { "true".to_owned() };
                let template = template.with("holds_nobody", holds_nobody);
                let when = |owned: fn(&TableName, &str) -> String| match layout {
                    Layout::Full => owned(&shape.name, ""),
                    Layout::Bare => "false".to_owned(),
                };
                let (in_flight, unsettled) = (when(window::in_flight), when(window::may_be_settled));
                let template = template.with("in_flight", format!("(locked_at IS NOT NULL OR {in_flight})"));
                let template = match layout {
                    Layout::Full => template
                        .with("alive", "dead_at IS NULL")
                        .with("dead", "(dead_at IS NOT NULL AND published_at IS NULL)")
                        .with(
                            "status",
                            format!(
                                "CASE WHEN published_at IS NOT NULL THEN 'SENT' WHEN dead_at IS NOT NULL THEN 'DEAD' \
                                 WHEN locked_at IS NOT NULL OR {in_flight} THEN 'PUBLISHING' WHEN attempts > 0 THEN 'FAILED' \
                                 ELSE 'NEW' END"
                            ),
                        )
                        .with("letter", "dlq_at IS NULL")
                        .with("died", "dead_at")
                        .with("dead_since", "dead_at")
                        .with("aggregate_type", "aggregate_type")
                        .with("aggregate_id", "aggregate_id")
                        .with(
                            "revive",
                            // An owner whose settle had no answer repeats it, and knows the row by nothing but its attempts:
                            // one that it may still settle is locked like a lease that ran out, which no owner settles, and
                            // is claimed by lease.
                            format!(
                                ", locked_at = CASE WHEN {unsettled} THEN to_timestamp(0) END, \
                                 locked_by = CASE WHEN {unsettled} THEN 'replayed' END, dead_at = NULL, dlq_at = NULL"
                            ),
                        ),
                    Layout::Bare => template
                        .with("alive", format!("(attempts < {max} OR locked_at >= {live})"))
                        .with(
                            "status",
                            format!(
                                "CASE WHEN published_at IS NOT NULL THEN 'SENT' WHEN locked_at >= {live} THEN 'PUBLISHING' \
                                 WHEN attempts >= {max} THEN 'DEAD' WHEN locked_at IS NOT NULL THEN 'PUBLISHING' \
                                 WHEN attempts > 0 THEN 'FAILED' ELSE 'NEW' END"
                            ),
                        )
                        .with("dead", format!("(published_at IS NULL AND attempts >= {max} AND (locked_at IS NULL OR locked_at < {live}))"))
                        // There is no dead-letter route for such a table.
                        .with("letter", "false")
                        .with("died", "available_at")
                        .with("dead_since", "created_at")
                        .with("aggregate_type", "NULL::text")
                        .with("aggregate_id", "NULL::text")
                        .with("revive", ", locked_at = NULL"),
                };
                let history = match layout {
                    Layout::Full => history::find(&mut connection, &shape.name).await.map_err(classify)?,
                    Layout::Bare => None,
                };
                let index = format!("{}_pending_by_available", shape.name.table());
                let pending_index = shape.name.quoted_sibling(&index, '"');
                let key = shape.name.to_string();
                ask::commit(connection).await?;
                Ok(Looked { layout, key, template, pending_index, order, name: shape.name, history })
            })
            .await
    }

    /// Stops delivery of the table, in every relay, until [`resume`](Self::resume). Outlives restarts. Answers
    /// whether it was running before.
    ///
    /// # Errors
    /// When the table is bare or the database fails.
    ///
    /// # Cancel safety
    /// Dropped, both the change and its entry in the audit log are there, or neither is. It can be repeated.
    pub async fn pause(&self, who: &str, reason: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE {{relay}} SET paused_at = now(), paused_by = $2, paused_reason = $3
                   WHERE tbl = $1 AND paused_at IS NULL";
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
                   WHERE tbl = $1 AND paused_at IS NOT NULL AND $2::text IS NOT NULL AND $3::text IS NOT NULL";
        self.set_pause(sql, "resume", who, "").await
    }

    async fn set_pause(&self, sql: &str, action: &str, who: &str, reason: &str) -> Result<bool, StoreError> {
        let looked = self.looked().await?;
        if looked.layout == Layout::Bare {
            let message = format!("{} cannot be paused: it has only the standard columns", looked.key);
            return Err(StoreError::new(Code::ColumnMissing, StoreErrorKind::Refused, message));
        }
        let mut tx = ask::begin(&self.pool).await?;
        let sql = looked.template.fill(sql);
        let change = ask(sql).bind(&looked.key).bind(who).bind(reason).execute(&mut *tx);
        let changed = change.await.map_err(classify)?.rows_affected() > 0;
        if changed {
            audit(&mut tx, looked, who, action, &serde_json::json!({ "reason": reason }), 0).await?;
        }
        ask::commit(tx).await?;
        Ok(changed)
    }
}

/// Writes down who did what. A bare table has no place for it: then the log has to do.
pub(super) async fn audit(
    connection: &mut PgConnection,
    looked: &Looked,
    who: &str,
    action: &str,
    what: &serde_json::Value,
    events: u64,
) -> Result<(), StoreError> {
    tracing::info!(table = looked.key, who, action, %what, events, "operator");
    if looked.layout == Layout::Bare {
        return Ok(());
    }
    let sql = looked
        .template
        .fill("INSERT INTO {{audit}} (who, action, tbl, what, events) VALUES ($1, $2, $3, $4, $5)");
    ask(sql)
        .bind(who)
        .bind(action)
        .bind(&looked.key)
        .bind(what)
        .bind(i64::try_from(events).unwrap_or(i64::MAX))
        .execute(connection)
        .await
        .map_err(classify)?;
    Ok(())
}

impl Inspect for PgAdmin {
    async fn counts(&self) -> Result<TableCounts, StoreError> {
        let looked = self.looked().await?;
        // A bare table may lack the index by time of publication.
        let rate = match (looked.layout, &looked.history) {
            (Layout::Full, None) => include_str!("sql/rate.sql"),
            (Layout::Full, Some(_)) => include_str!("sql/rate_history.sql"),
            (Layout::Bare, _) => "NULL::float8",
        };
        let blocked = if looked.order.indexed { include_str!("sql/blocked.sql") } else { "0::bigint" };
        let sql = include_str!("sql/counts.sql").replace("{{rate}}", rate).replace("{{blocked}}", blocked);
        let sql = looked.template.fill(&sql);
        let row = ask::one(&self.pool, ask(sql).bind(BOUND).bind(&looked.pending_index)).await?;
        let number = |place| -> Result<u64, StoreError> {
            Ok(u64::try_from(row.try_get::<i64, _>(place).map_err(classify)?).unwrap_or(0))
        };
        let many: bool = row.try_get(5).map_err(classify)?;
        let (pending, dead) = (number(0)?, number(3)?);
        let age: f64 = row.try_get(4).map_err(classify)?;
        Ok(TableCounts {
            pending: if many { pending.max(number(6)?) } else { pending },
            locked: number(1)?,
            scheduled: number(2)?,
            dead,
            blocked: number(8)?,
            oldest_pending_age: Duration::try_from_secs_f64(age).unwrap_or_default(),
            published_per_second: row.try_get(7).map_err(classify)?,
            // Dead events that were not counted to the end are no exact number either.
            estimated: many || dead >= BOUND.unsigned_abs(),
        })
    }

    async fn relay(&self) -> Result<TableRelay, StoreError> {
        let looked = self.looked().await?;
        if looked.layout == Layout::Bare {
            return Ok(TableRelay::default());
        }
        // One that led by a session lock which nobody holds any more has died, however long its row still lasts.
        let sql = looked.template.fill(
            "SELECT CASE WHEN expires_at > clock_timestamp() AND (NOT session OR EXISTS (
                        SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
                          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                          AND (classid::bigint << 32 | objid::bigint) = $2)) THEN holder END,
                    epoch, strategy, paused_at, paused_by, paused_reason FROM {{relay}} WHERE tbl = $1",
        );
        let lock = super::store::fnv1a(&format!("outbox:{}", looked.key));
        let row = ask::optional(&self.pool, ask(sql).bind(&looked.key).bind(lock)).await?;
        let Some(row) = row else { return Ok(TableRelay::default()) };
        let read = || -> Result<TableRelay, sqlx::Error> {
            Ok(TableRelay {
                leader: row.try_get(0)?,
                epoch: row.try_get(1)?,
                strategy: row.try_get(2)?,
                paused_at: row.try_get(3)?,
                paused_by: row.try_get(4)?,
                paused_reason: row.try_get(5)?,
            })
        };
        read().map_err(classify)
    }

    async fn oldest_transaction(&self) -> Result<Option<Duration>, StoreError> {
        let row = ask::one(&self.pool, ask(include_str!("sql/oldest_transaction.sql"))).await?;
        let age: f64 = row.try_get(0).map_err(classify)?;
        Ok(Some(Duration::try_from_secs_f64(age).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    /// ORDER BY means a name of the answer before it means a column: one that is given to something else sorts all that waits.
    #[test]
    fn counts_are_ordered_by_columns_of_the_index() {
        let sql = include_str!("sql/counts.sql");
        assert!(sql.contains("ORDER BY available_at, sequence"), "{sql}");
        assert!(!sql.contains("AS available_at") && !sql.contains("AS sequence"), "{sql}");
    }
}
