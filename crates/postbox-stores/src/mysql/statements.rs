//! The statements of one table, their names filled in once. `<in>` and `<topics>` are places for lists, which are filled when
//! a statement is used.

use postbox_core::OnDead;
use postbox_core::store::Tenants;

use super::gone::Gone;
use super::owner::Own;
use super::tenants::{self, ByTenant};
use crate::history::Sent;
use crate::table::Template;

/// What rows carry, in the order in which they are decoded.
pub(super) const CONTENT: &str =
    "sequence, event_id, tenant_id, topic, created_at, available_at, payload, payload_raw, content_type, headers,
       aggregate_type, aggregate_id, occurred_at, schema_id, schema_version, routing_key, metadata, traceparent, tracestate,
       sinks_done";

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) pick_waiting: String,
    /// Where tenants are claimed apart.
    pub(super) by_tenant: Option<ByTenant>,
    pub(super) pick_suspect: String,
    pub(super) pick_probe: String,
    pub(super) suspects_among: String,
    pub(super) lock_unlocked: String,
    pub(super) lock_suspect: String,
    pub(super) lease: String,
    pub(super) bury: String,
    pub(super) release: String,
    pub(super) ahead: String,
    pub(super) verify_blocking: String,
    pub(super) verify_skipping: String,
    pub(super) settle_delivered: String,
    /// Which of some rows are there, and when they were published.
    pub(super) published: String,
    /// Which of them nobody else has locked; they are locked now.
    pub(super) free: String,
    pub(super) held: String,
    pub(super) settle: String,
    pub(super) extend: String,
    pub(super) may_lead: String,
    pub(super) place: String,
    pub(super) lead: String,
    pub(super) renew: String,
    pub(super) resign: String,
    pub(super) gate: String,
    pub(super) mark: String,
    /// Where delivered rows do not stay.
    pub(super) gone: Option<Gone>,
    /// Where the relay owns the table.
    pub(super) own: Option<Own>,
    pub(super) owners: Owners,
    pub(super) letters: String,
    pub(super) lock_letters: String,
    pub(super) lease_letters: String,
    pub(super) held_letters: String,
    pub(super) settle_letters: String,
    pub(super) long_dead: String,
    pub(super) any_to_redrive: String,
    pub(super) redrive: String,
    pub(super) audit: String,
}

/// What relays of a table tell each other, where some own it and others share it.
#[derive(Debug)]
pub(super) struct Owners {
    /// The strategy of the active relay and its name, and who shares the table, as far as they live.
    pub(super) others: String,
    pub(super) share: String,
    pub(super) unshare: String,
    /// What the last owner had in flight, as it wrote it down.
    pub(super) window: String,
    /// Which of these rows still are, locked, as far as nobody else has locked them.
    pub(super) in_flight: String,
    /// Charges an attempt for those.
    pub(super) left_behind: String,
    /// Begins a window.
    pub(super) reign: String,
}

impl Owners {
    fn new(base: &Template) -> Self {
        Self {
            others: base.fill(
                "SELECT CASE WHEN expires_at > UTC_TIMESTAMP(6) THEN strategy END, holder,
                        CASE WHEN shared_until > UTC_TIMESTAMP(6) THEN shared_by END
                 FROM {{relay}} WHERE tbl = ?",
            ),
            share: base.fill(
                "UPDATE {{relay}} SET shared_by = ?, shared_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE tbl = ?",
            ),
            unshare: base.fill(
                "UPDATE {{relay}} SET shared_by = NULL, shared_until = NULL WHERE tbl = ? AND shared_by = ?",
            ),
            window: base.fill("SELECT epoch, win, win_to FROM {{window}} WHERE tbl = ? FOR UPDATE"),
            // What was put off since, or is somebody's, was not in flight. What an outsider has locked keeps nobody from taking over: it
            // waits like any other, and its last owner settles it no more.
            in_flight: base.fill(
                "SELECT sequence FROM {{table}} FORCE INDEX (PRIMARY)
                 WHERE sequence IN (<in>) AND available_at <= ?
                   AND published_at IS NULL AND dead_at IS NULL AND locked_at IS NULL
                 FOR UPDATE SKIP LOCKED",
            ),
            // They look like leases that ran out long ago, so that they are claimed one by one.
            left_behind: base.fill(
                "UPDATE {{table}} FORCE INDEX (PRIMARY)
                 SET locked_at = '1970-01-01 00:00:01', locked_by = 'left behind',
                     attempts = LEAST(GREATEST(attempts, 0), 2147483646) + 1
                 WHERE sequence IN (<in>)",
            ),
            reign: base.fill(
                "INSERT INTO {{window}} (tbl, epoch) VALUES (?, ?) ON DUPLICATE KEY UPDATE epoch = ?, win = NULL, win_to = NULL",
            ),
        }
    }
}

/// Whether the place of the active relay is free for a relay, by its name, which holds the session lock or not. Nobody owns what
/// others share.
const TAKEABLE: &str = "(holder IS NULL OR holder = ? OR COALESCE(expires_at, '1970-01-01') < UTC_TIMESTAMP(6) OR (? AND session))
                   AND {{unshared}}";

/// Whether a relay may work: the table, and twice the relay (null: many may work, unless somebody owns it).
const MAY_WORK: &str = "EXISTS (SELECT 1 FROM {{relay}} AS r WHERE r.tbl = ? AND r.paused_at IS NULL
                   AND ((? IS NULL AND NOT COALESCE(r.strategy = 'owner' AND r.expires_at > UTC_TIMESTAMP(6), FALSE))
                        OR (r.holder = ? AND r.expires_at > UTC_TIMESTAMP(6))))";

/// What changes when somebody commits events: the last sequence, and how many rows could be claimed, as far as few can.
const MARK: &str = "(SELECT sequence FROM {{table}} ORDER BY sequence DESC LIMIT 1),
    (SELECT COUNT(*) FROM (SELECT 1 FROM {{table}} {{by_pending}} WHERE published_at IS NULL AND dead_at IS NULL
        AND available_at <= UTC_TIMESTAMP(6) AND locked_at IS NULL LIMIT 200) AS waiting)";

/// The log of attempts with one more, of which the last ten are kept.
const LOG: &str = "JSON_ARRAY_APPEND(
        IF(JSON_LENGTH({{old}}) >= 10, JSON_REMOVE({{old}}, '$[0]'), {{old}}), '$', JSON_EXTRACT(s.failure, '$'))";
const OLD_LOG: &str = "IF(COALESCE(JSON_TYPE(IF(JSON_VALID(t.attempts_log), t.attempts_log, 'null')), '') = 'ARRAY', t.attempts_log, '[]')";

impl Statements {
    /// `owned` is the table's key where the relay owns it.
    pub(super) fn new(names: &Template, sent: &Sent, tenants: &Tenants, owned: Option<&str>) -> Self {
        let unshared = match owned {
            Some(_) => "(shared_until IS NULL OR shared_until < UTC_TIMESTAMP(6))",
            None => "TRUE",
        };
        let base = Template::default()
            .with("may_work", MAY_WORK)
            .with("takeable", TAKEABLE)
            .with("unshared", unshared)
            .with("mark", MARK)
            .with("content", CONTENT)
            .with("log", LOG)
            .with("old", OLD_LOG)
            .with("tenants", tenants::condition(tenants))
            .and(names);
        let expired = "locked_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND";
        // Every statement takes the same parameters.
        let unlocked = "locked_at IS NULL AND ? IS NOT NULL";
        let fill = |sql: &str, unlocked: &str| base.fill(&sql.replace("{{unlocked}}", unlocked));
        let (pick, lock) = (include_str!("sql/pick.sql"), include_str!("sql/lock.sql"));
        let verify =
            |not_dead: &str| base.fill(&include_str!("sql/verify.sql").replace("{{not_dead}}", not_dead));
        Self {
            pick_waiting: fill(pick, &format!("(locked_at IS NULL OR {expired})")),
            by_tenant: ByTenant::new(&base, tenants),
            pick_suspect: fill(pick, expired),
            pick_probe: fill(pick, unlocked),
            suspects_among: base.fill(&format!(
                "SELECT EXISTS (SELECT 1 FROM {{{{table}}}} {{{{by_pending}}}}
                    WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= UTC_TIMESTAMP(6)
                    AND {expired} AND {{{{tenants}}}} AND <topics>)"
            )),
            lock_unlocked: fill(lock, unlocked),
            lock_suspect: fill(lock, expired),
            lease: base.fill(include_str!("sql/lease.sql")),
            bury: base.fill(include_str!("sql/bury.sql")),
            release: base.fill(
                "UPDATE {{table}} FORCE INDEX (PRIMARY) SET attempts = GREATEST(attempts - 1, 0), locked_at = NULL, locked_by = NULL
                 WHERE sequence IN (<in>) AND locked_by = ? AND published_at IS NULL AND dead_at IS NULL",
            ),
            ahead: base.fill(include_str!("sql/ahead.sql")),
            verify_blocking: verify(""),
            verify_skipping: verify(" AND dead_at IS NULL"),
            settle_delivered: base.fill(include_str!("sql/settle_delivered.sql")),
            published: base.fill("SELECT sequence, published_at FROM {{table}} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>)"),
            free: base.fill(
                "SELECT sequence FROM {{table}} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>) FOR UPDATE SKIP LOCKED",
            ),
            held: base.fill(include_str!("sql/held.sql")),
            settle: base.fill(include_str!("sql/settle.sql")),
            extend: base.fill(include_str!("sql/extend.sql")),
            may_lead: base.fill("SELECT {{takeable}} FROM {{relay}} WHERE tbl = ?"),
            // Locked: a settle that is under way is waited for, and one that comes later sees the next epoch.
            place: base.fill(
                "SELECT {{takeable}}, COALESCE(holder = ?, FALSE), epoch FROM {{relay}} WHERE tbl = ? FOR UPDATE",
            ),
            lead: base.fill(
                "UPDATE {{relay}} SET epoch = ?, strategy = ?, holder = ?, session = ?,
                     expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
                 WHERE tbl = ?",
            ),
            renew: base.fill(
                "UPDATE {{relay}} SET expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, session = ?
                 WHERE tbl = ? AND holder = ?",
            ),
            resign: base
                .fill("UPDATE {{relay}} SET holder = NULL, expires_at = NULL WHERE tbl = ? AND holder = ?"),
            gate: base.fill(
                "SELECT paused_at IS NOT NULL,
                        CASE WHEN ? IS NULL THEN NOT COALESCE(strategy = 'owner' AND expires_at > UTC_TIMESTAMP(6), FALSE)
                             ELSE COALESCE(holder = ? AND expires_at > UTC_TIMESTAMP(6), FALSE) END,
                        UTC_TIMESTAMP(6), {{mark}}
                 FROM {{relay}} WHERE tbl = ?",
            ),
            mark: base.fill("SELECT {{mark}}"),
            gone: Gone::new(&base, sent),
            own: owned.map(|key| {
                Own::new(&base, key, sent, [&format!("(locked_at IS NULL OR {expired})"), unlocked])
            }),
            owners: Owners::new(&base),
            letters: base.fill(include_str!("sql/letters.sql")),
            lock_letters: base.fill(include_str!("sql/lock_letters.sql")),
            lease_letters: base.fill(include_str!("sql/lease_letters.sql")),
            held_letters: base.fill(include_str!("sql/held_letters.sql")),
            settle_letters: base.fill(include_str!("sql/settle_letters.sql")),
            long_dead: base.fill(
                "SELECT dead_at, sequence FROM {{table}} {{by_pending}}
                 WHERE published_at IS NULL AND dead_at IS NOT NULL AND dead_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
                   AND dead_at >= ? AND (dead_at > ? OR sequence > ?) AND {{tenants}}
                 ORDER BY dead_at, sequence LIMIT ?",
            ),
            any_to_redrive: base.fill(
                "SELECT EXISTS (SELECT 1 FROM {{table}} FORCE INDEX (PRIMARY) WHERE sequence IN (<in>)
                    AND dead_at IS NOT NULL AND COALESCE(redrives, 0) < ?
                    AND (last_error IS NULL OR LEFT(last_error, 18) <> 'OUTBOX_UNDECODABLE'))",
            ),
            redrive: base.fill(include_str!("sql/redrive.sql")),
            audit: base.fill(super::admin::AUDIT),
        }
    }

    /// What tells of others before a run.
    pub(super) fn verify(&self, on_dead: OnDead) -> &str {
        match on_dead {
            OnDead::Block => &self.verify_blocking,
            OnDead::Skip => &self.verify_skipping,
        }
    }
}

#[cfg(test)]
mod tests {
    use postbox_testkit::MariaDbServer;
    use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};

    use super::super::connect_options;
    use super::super::migrate::{Extras, Ordered, up_with};
    use super::super::schema::names;
    use super::*;

    /// A statement with values in its places: what kind they are of makes no difference here.
    fn with_values(sql: &str) -> String {
        let sql = sql
            .replace("<in>", "11, 12, 13")
            .replace("<topics>", "TRUE")
            .replace("<beyond>", "sequence + 0 NOT IN (4, 5)")
            .replace("LIMIT ?", "LIMIT 10");
        // A list of aggregates, and documents.
        let sql = sql.replace("aggregate_id IN (11, 12, 13)", "aggregate_id IN ('11', '12')");
        sql.replace("JSON_TABLE(?", "JSON_TABLE('[[1, \"a\", 1]]'").replace('?', "'2020-01-01'")
    }

    /// Rows are found by an index or by their key, never by a walk over the table, whatever the server has counted.
    #[tokio::test]
    async fn every_statement_has_a_plan_that_fits_a_large_table() {
        let db = MariaDbServer::shared().database();
        let table = "org_outbox".parse().unwrap();
        let mut connection = connect_options(&db.url).unwrap().connect().await.unwrap();
        let extras = Extras { tenants: true, ordered: Ordered::Index, ..Extras::default() };
        up_with(&mut connection, &table, extras, |_| {}).await.unwrap();
        db.sql(
            "insert into org_outbox (tenant_id, topic, payload, event_id, aggregate_id)
             select unhex(md5(seq % 7)), 't', '{}', unhex(md5(seq)), seq % 50 from seq_1_to_3000",
        );
        let (pending, key) = ("org_outbox_pending_by_available", "PRIMARY");
        for life in [
            "analyze table org_outbox",
            "update org_outbox set published_at = utc_timestamp(6) where sequence < 2900; analyze table org_outbox",
            "update org_outbox set published_at = null, dead_at = utc_timestamp(6); analyze table org_outbox",
        ] {
            db.sql(life);
            let names = names(&mut connection, &db.name, &table).await.unwrap();
            let tenants = Tenants { fair: true, ..Tenants::default() };
            let s = Statements::new(&names, &Sent::Kept, &tenants, Some("org_outbox"));
            let (own, owners) = (s.own.as_ref().unwrap(), &s.owners);
            for (sql, wanted, sorts) in [
                (&s.pick_waiting, pending, false),
                (&s.pick_suspect, pending, false),
                (&s.pick_probe, pending, false),
                (&s.suspects_among, pending, false),
                (&s.lock_unlocked, key, false),
                (&s.lock_suspect, key, false),
                (&s.lease, key, false),
                (&s.bury, key, false),
                (&s.settle_delivered, key, false),
                (&s.free, key, false),
                (&s.held, key, false),
                (&s.settle, key, false),
                (&s.extend, key, false),
                (&own.waiting, pending, false),
                (&own.probe, pending, false),
                (&own.large, key, false),
                (&own.delivered[0], key, false),
                (&own.held, key, false),
                (&own.settle, key, false),
                (&owners.in_flight, key, false),
                (&owners.left_behind, key, false),
                (&s.ahead, "org_outbox_unpublished_by_sequence", false),
                (&s.verify_blocking, "org_outbox_unpublished_by_aggregate", false),
                // Of dead events alone.
                (&s.letters, pending, true),
                (&s.long_dead, pending, true),
            ] {
                let explain = format!("EXPLAIN {}", with_values(sql));
                let plan = sqlx::query(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
                let steps: Vec<(Option<String>, Option<String>, Option<String>)> =
                    plan.iter().map(|row| (row.get("table"), row.get("key"), row.get("Extra"))).collect();
                let ours = |table: &Option<String>| matches!(table.as_deref(), Some("org_outbox" | "t"));
                assert!(
                    steps
                        .iter()
                        .filter(|(table, ..)| ours(table))
                        .all(|(_, key, _)| key.as_deref() == Some(wanted)),
                    "{life}: {steps:?}\n{sql}"
                );
                let sorted = steps.iter().any(|(table, _, extra)| {
                    ours(table) && extra.as_deref().is_some_and(|extra| extra.contains("filesort"))
                });
                assert!(sorts || !sorted, "{life}: {steps:?}\n{sql}");
            }
        }
    }
}
