//! The statements of one table, their names filled in once.

use super::settling::Gone;
use super::tenants::{self, ByTenant};
use crate::history::Sent;
use crate::table::Template;
use postbox_core::store::Tenants;

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) pick_waiting: String,
    /// Where tenants are claimed apart.
    pub(super) by_tenant: Option<ByTenant>,
    pub(super) pick_suspect: String,
    pub(super) pick_probe: String,
    pub(super) suspects_among: String,
    pub(super) content: String,
    pub(super) ahead: String,
    pub(super) lease_unlocked: String,
    pub(super) lease_suspect: String,
    pub(super) leased: String,
    pub(super) bury_unlocked: String,
    pub(super) bury_suspect: String,
    pub(super) settle_delivered: String,
    pub(super) not_settled: String,
    pub(super) settle: String,
    pub(super) extend: String,
    pub(super) may_lead: String,
    pub(super) lead: String,
    pub(super) renew: String,
    pub(super) resign: String,
    pub(super) gate: String,
    /// Where delivered rows do not stay.
    pub(super) gone: Option<Gone>,
    pub(super) letters: String,
    pub(super) letter_content: String,
    pub(super) lease_letters: String,
    pub(super) settle_letters: String,
    pub(super) long_dead: String,
    pub(super) any_to_redrive: String,
    pub(super) redrive: String,
    pub(super) audit: String,
}

/// Whether a row is none of those that only sinks lack which are down or busy, `?5` being the list. Rows that no sink has
/// confirmed alone, the most of them, are not looked at any further.
const REMAINS: &str = "(sinks_done IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(?5) AS spent
        WHERE spent.type = 'array' AND spent.value ->> 0 = topic AND NOT EXISTS (
            SELECT 1 FROM json_each(spent.value) AS sink WHERE sink.key > 0 AND sink.value NOT IN (
                SELECT value FROM json_each(CASE WHEN json_valid(sinks_done) THEN sinks_done ELSE '[]' END)))))";

/// Whether the place of the active relay is free for `?2`, which holds the lock file or not (`?3`), at `?4`.
const TAKEABLE: &str = "(holder IS NULL OR holder = ?2 OR coalesce(expires_at, 0) < ?4 OR (?3 AND session))";

/// Whether the relay `?7` (null: many may work) may work on the table `?6`, at `?1`.
const MAY_WORK: &str = "EXISTS (SELECT 1 FROM {{relay}} r WHERE r.tbl = ?6 AND r.paused_at IS NULL
                   AND (?7 IS NULL OR (r.holder = ?7 AND r.expires_at > ?1)))";

impl Statements {
    pub(super) fn new(names: &Template, sent: &Sent, tenants: &Tenants) -> Self {
        let base = names.clone().with("takeable", TAKEABLE).with("tenants", tenants::condition(tenants));
        let pick = |unlocked: &str, topics: &str| {
            base.clone().with("unlocked", unlocked).with("topics", topics).fill(include_str!("sql/pick.sql"))
        };
        let take = |unlocked: &str, sql: &str| {
            base.fill(&sql.replace("{{unlocked}}", unlocked).replace("{{may_work}}", MAY_WORK))
        };
        let (lease, bury) = (include_str!("sql/lease.sql"), include_str!("sql/bury.sql"));
        let (unlocked, expired) = ("locked_at IS NULL AND ?3 IS NOT NULL", "locked_at < ?3");
        let without = &format!("topic NOT IN (SELECT value FROM json_each(?5)) AND {REMAINS}");
        let content = include_str!("sql/content.sql");
        Self {
            pick_waiting: pick("(locked_at IS NULL OR locked_at < ?4)", without),
            by_tenant: ByTenant::new(&base, tenants, without),
            pick_suspect: pick("locked_at < ?4", without),
            // The lease has no use here, but every statement takes the same parameters.
            pick_probe: pick(
                "locked_at IS NULL AND ?4 IS NOT NULL",
                &format!("topic IN (SELECT value FROM json_each(?5)) AND {REMAINS}"),
            ),
            suspects_among: base.fill(
                "SELECT EXISTS (SELECT 1 FROM {{table}} {{by_pending}}
                    WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= ?1
                    AND locked_at < ?2 AND topic IN (SELECT value FROM json_each(?3)) AND {{tenants}})",
            ),
            letters: base.fill(include_str!("sql/letters.sql")),
            letter_content: base.fill(&content.replace("sinks_done\n", "sinks_done, dead_at, last_error\n")),
            lease_letters: take("", include_str!("sql/lease_letters.sql")),
            settle_letters: base.fill(include_str!("sql/settle_letters.sql")),
            long_dead: base.fill(
                "SELECT dead_at, sequence FROM {{table}} {{by_dead}}
                 WHERE dead_at IS NOT NULL AND dead_at <= ?1 AND (dead_at, sequence) > (?2, ?3) AND published_at IS NULL
                   AND {{tenants}}
                 ORDER BY dead_at, sequence LIMIT ?4",
            ),
            any_to_redrive: base.fill(
                "SELECT EXISTS (SELECT 1 FROM {{table}} NOT INDEXED WHERE sequence IN (SELECT value FROM json_each(?1))
                    AND +dead_at IS NOT NULL AND coalesce(redrives, 0) < ?2
                    AND (last_error IS NULL OR substr(last_error, 1, 18) <> 'OUTBOX_UNDECODABLE'))",
            ),
            redrive: take("", include_str!("sql/redrive.sql")),
            audit: base.fill(
                "INSERT INTO {{audit}} (at, who, action, tbl, what, events) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            ),
            content: base.fill(content),
            ahead: base.fill(include_str!("sql/ahead.sql")),
            lease_unlocked: take(unlocked, lease),
            lease_suspect: take(expired, lease),
            leased: base.fill(
                "SELECT sequence, attempts FROM {{table}}
                 WHERE sequence IN (SELECT value FROM json_each(?1)) AND locked_by = ?2",
            ),
            bury_unlocked: take(unlocked, bury),
            bury_suspect: take(expired, bury),
            settle_delivered: base.fill(include_str!("sql/settle_delivered.sql")),
            not_settled: base.fill(
                "SELECT value FROM json_each(?2)
                 WHERE NOT EXISTS (SELECT 1 FROM {{table}} t WHERE t.sequence = value AND +t.published_at = ?1)",
            ),
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
            gone: Gone::new(&base, sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::admin::counts_sql;
    use super::super::plans::{lives, plan};
    use super::*;

    /// Rows are found by an index or by their key, never by a walk over the table or over all that waits.
    #[tokio::test]
    async fn every_statement_has_a_plan_that_fits_a_large_table() {
        let pending = "USING INDEX org_outbox_pending_by_available (available_at>? AND available_at<?)";
        let key = "USING INTEGER PRIMARY KEY (rowid=?)";
        for (life, mut connection, names) in lives().await {
            let s = Statements::new(&names, &Sent::Kept, &Tenants::default());
            for (sql, wanted) in [
                (s.pick_waiting, vec![pending]),
                (s.pick_suspect, vec![pending]),
                (s.pick_probe, vec![pending]),
                (s.suspects_among, vec!["USING INDEX org_outbox_pending_by_available (available_at<?)"]),
                (s.content, vec![key]),
                (s.ahead, vec!["USING INDEX org_outbox_unpublished_by_sequence (sequence>?)"]),
                (s.lease_unlocked, vec![key]),
                (s.lease_suspect, vec![key]),
                (s.leased, vec![key]),
                (s.bury_unlocked, vec![key]),
                (s.bury_suspect, vec![key]),
                (s.settle_delivered, vec![key]),
                (s.not_settled, vec![key]),
                (s.settle, vec![key]),
                (s.extend, vec![key]),
                (s.letters, vec!["USING INDEX org_outbox_letters_waiting (available_at<?)"]),
                (s.letter_content, vec![key]),
                (s.lease_letters, vec![key]),
                (s.settle_letters, vec![key]),
                (s.long_dead, vec!["USING INDEX org_outbox_dead_by_time (dead_at>? AND dead_at<?)"]),
                (s.any_to_redrive, vec![key]),
                (s.redrive, vec![key]),
                (
                    names.fill(include_str!("sql/sweep.sql")),
                    vec![
                        key,
                        "org_outbox_published_by_time (published_at<?)",
                        "org_outbox_dead_by_time (dead_at<?)",
                    ],
                ),
                (names.fill(include_str!("sql/guard.sql")), vec![key]),
                (
                    counts_sql(&names, false),
                    vec![
                        "org_outbox_pending_by_available",
                        "org_outbox_dead_by_time",
                        "org_outbox_dead_by_aggregate (aggregate_id=? AND aggregate_type=? AND tenant_id=? AND sequence<?)",
                    ],
                ),
            ] {
                let plan = plan(&mut connection, &sql).await;
                for part in wanted {
                    assert!(plan.contains(part), "{life}: no {part} in:\n{plan}\n{sql}");
                }
                let elsewhere =
                    ["SCAN org_outbox\n", "SCAN t\n", "TEMP B-TREE FOR ORDER BY", "tenant_published"];
                for bad in elsewhere {
                    assert!(!plan.contains(bad), "{life}: {bad} in:\n{plan}\n{sql}");
                }
            }
        }
    }
}
