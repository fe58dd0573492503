//! The statements of one table, their names filled in once.

use postbox_core::TableName;

use crate::table::Template;

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) pick_waiting: String,
    pub(super) pick_suspect: String,
    pub(super) pick_probe: String,
    pub(super) suspects_among: String,
    pub(super) claim_unlocked: String,
    pub(super) claim_suspect: String,
    pub(super) settle_delivered: String,
    pub(super) settle: String,
    pub(super) extend: String,
    pub(super) may_lead: String,
    pub(super) lead: String,
    pub(super) renew: String,
    pub(super) resign: String,
    pub(super) gate: String,
}

/// Whether the place of the active relay is free for `?2`, which holds the lock file or not (`?3`), at `?4`.
const TAKEABLE: &str = "(holder IS NULL OR holder = ?2 OR coalesce(expires_at, 0) < ?4 OR (?3 AND session))";

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let base = Template::of(table, '"').with("takeable", TAKEABLE);
        let pick = |unlocked: &str, topics: &str| {
            base.clone().with("unlocked", unlocked).with("topics", topics).fill(include_str!("sql/pick.sql"))
        };
        let claim =
            |unlocked: &str| base.clone().with("unlocked", unlocked).fill(include_str!("sql/claim.sql"));
        let without = "topic NOT IN (SELECT value FROM json_each(?5))";
        Self {
            pick_waiting: pick("(locked_at IS NULL OR locked_at < ?4)", without),
            pick_suspect: pick("locked_at < ?4", without),
            // The lease has no use here, but every statement takes the same parameters.
            pick_probe: pick(
                "locked_at IS NULL AND ?4 IS NOT NULL",
                "topic IN (SELECT value FROM json_each(?5))",
            ),
            suspects_among: base.fill(
                "SELECT EXISTS (SELECT 1 FROM {{table}} WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= ?1
                    AND locked_at < ?2 AND topic IN (SELECT value FROM json_each(?3)))",
            ),
            claim_unlocked: claim("locked_at IS NULL AND ?3 IS NOT NULL"),
            claim_suspect: claim("locked_at < ?3"),
            settle_delivered: base.fill(include_str!("sql/settle_delivered.sql")),
            settle: base.fill(include_str!("sql/settle.sql")),
            extend: base.fill(include_str!("sql/extend.sql")),
            may_lead: base.fill("SELECT {{takeable}} FROM {{relay}} WHERE tbl = ?1"),
            lead: base.fill(include_str!("sql/lead.sql")),
            renew: base
                .fill("UPDATE {{relay}} SET expires_at = ?4, session = ?3 WHERE tbl = ?1 AND holder = ?2"),
            resign: base
                .fill("UPDATE {{relay}} SET holder = NULL, expires_at = NULL WHERE tbl = ?1 AND holder = ?2"),
            gate: base.fill(
                "SELECT paused_at IS NOT NULL, ?2 IS NULL OR (holder = ?2 AND expires_at > ?3)
                 FROM {{relay}} WHERE tbl = ?1",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Row as _, SqliteConnection};

    use super::super::migrate::{Format, print_up};
    use super::*;

    /// Rows are found by an index or by their key, never by a walk over the table.
    #[tokio::test]
    async fn every_statement_has_a_plan_that_fits_a_large_table() {
        let table: TableName = "org_outbox".parse().unwrap();
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let ddl = print_up(&table, Format::Sql).unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(ddl)).execute(&mut connection).await.unwrap();
        let s = Statements::new(&table);
        let fill = |sql: &str| Template::of(&table, '"').fill(sql);
        let pending = "USING INDEX org_outbox_pending_by_available (available_at>? AND available_at<?)";
        let key = "USING INTEGER PRIMARY KEY (rowid=?)";
        for (sql, wanted) in [
            (s.pick_waiting, vec![pending]),
            (s.pick_suspect, vec![pending]),
            (s.pick_probe, vec![pending]),
            (s.suspects_among, vec!["USING INDEX org_outbox_pending_by_available (available_at<?)"]),
            (s.claim_unlocked, vec![key]),
            (s.claim_suspect, vec![key]),
            (s.settle_delivered, vec![key]),
            (s.settle, vec![key]),
            (s.extend, vec![key]),
            (
                fill(include_str!("sql/sweep.sql")),
                vec![
                    key,
                    "org_outbox_published_by_time (published_at<?)",
                    "org_outbox_dead_by_time (dead_at<?)",
                ],
            ),
            (fill(include_str!("sql/guard.sql")), vec![key]),
            (
                fill(include_str!("sql/counts.sql")),
                vec!["org_outbox_pending_by_available", "org_outbox_dead_by_time"],
            ),
        ] {
            let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let rows = sqlx::query(explain).fetch_all(&mut connection).await.unwrap();
            let plan: Vec<String> = rows.iter().map(|row| row.get::<String, _>(3)).collect();
            let plan = plan.join("\n");
            for part in wanted {
                assert!(plan.contains(part), "no {part} in:\n{plan}\n\n{sql}");
            }
            for bad in ["SCAN org_outbox\n", "SCAN t\n", "TEMP B-TREE FOR ORDER BY"] {
                assert!(!format!("{plan}\n").contains(bad), "{bad} in:\n{plan}\n\n{sql}");
            }
        }
    }
}
