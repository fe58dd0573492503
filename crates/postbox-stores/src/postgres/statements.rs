//! The statements of one table, their names filled in once.

use postbox_core::Layout;
use postbox_core::store::Tenants;

use super::durable::DISK_HAS_ALL;
use super::facts::FACTS;
use super::history;
use super::letters::Letters;
use super::place;
use super::schema::TableShape;
use super::tenants;
use super::topics::REMAINS;
use crate::history::Sent;
use crate::table::Template;

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claims: Claims,
    pub(super) settle_delivered: Option<String>,
    pub(super) settle: String,
    pub(super) extend: String,
    pub(super) release_token: String,
    pub(super) lead: String,
    pub(super) renew: String,
    pub(super) resign: String,
    pub(super) gate: String,
    pub(super) others: String,
    pub(super) share: String,
    pub(super) unshare: String,
    pub(super) suspects_among: String,
    pub(super) due: String,
    /// Fails as a claim does over a row that cannot be shown.
    pub(super) show: String,
    pub(super) bury: String,
    pub(super) free: String,
    pub(super) there: String,
    pub(super) taken: String,
    /// Which leases are still what they were.
    pub(super) held: String,
    /// Where there are columns for dead letters.
    pub(super) letters: Option<Letters>,
    /// Where the relay owns the table.
    pub(super) own: Option<Own>,
}

/// The statements that lease rows.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) waiting: String,
    /// Of each tenant some, where they are claimed apart.
    pub(super) by_tenant: Option<String>,
    pub(super) suspect: String,
    pub(super) probe: String,
}

impl Claims {
    /// `without` leaves out topics, `of` takes some alone.
    fn new(base: &Template, full: bool, [without, of]: [&str; 2], tenants: &Tenants) -> Self {
        let sql = if full { include_str!("sql/claim.sql") } else { include_str!("sql/claim_bare.sql") };
        let claim = |rows: &Template, unlocked: &str, topics: &str, wanted: &str| {
            let rows = rows.clone().with("unlocked", unlocked).with("topics", topics);
            rows.with("wanted", wanted).fill(sql)
        };
        // What stands in a place may have places itself: those are filled after it.
        let by_time = Template::default()
            .with("recursive", "")
            .with("picked", include_str!("sql/picked.sql"))
            .with("by_key", "available_at, sequence")
            .with("counted", "count(*)")
            .with("ring", "")
            .and(base);
        let by_tenant = Template::default()
            .with("recursive", "RECURSIVE ")
            .with("picked", include_str!("sql/picked_by_tenant.sql"))
            .with("by_key", "turn, available_at, sequence")
            .with("counted", "count(*) FILTER (WHERE NOT suspect)")
            .with("expired", EXPIRED)
            .with("ring_of", tenants::ring_of(tenants))
            .with("list", tenants::list(tenants))
            .with("ring", tenants::RING)
            .and(base);
        let waiting = format!("(locked_at IS NULL OR {EXPIRED})");
        let apart = full && tenants.apart();
        Self {
            waiting: claim(&by_time, &waiting, without, "NOT suspect"),
            by_tenant: apart.then(|| claim(&by_tenant, &waiting, without, "NOT suspect")),
            suspect: claim(&by_time, EXPIRED, without, "suspect"),
            // The lease's seconds have no use here, but every statement takes the same parameters.
            probe: claim(&by_time, "locked_at IS NULL AND $5::float8 IS NOT NULL", of, "NOT suspect"),
        }
    }
}

/// The statements of an owner.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) waiting: String,
    pub(super) probe: String,
    pub(super) settle: String,
    pub(super) settle_delivered: String,
    /// Those that are still to be delivered, and those that were read without their payload.
    pub(super) unsettled: String,
    pub(super) payloads: String,
    pub(super) journal: String,
    pub(super) journal_soon: String,
    pub(super) is_mine: String,
    pub(super) bury: String,
}

/// Whether a relay may work: the active one, or, where several share the table (no relay is named), all as long as nobody
/// owns it.
pub(super) fn mine(relay: &str) -> String {
    format!(
        "CASE WHEN {relay}::text IS NULL THEN NOT coalesce(r.strategy = 'owner' AND r.expires_at > clock_timestamp(), false)
              ELSE coalesce(r.holder = {relay} AND r.expires_at > clock_timestamp(), false) END"
    )
}

/// A column that a bare table may lack.
fn text_column(shape: &TableShape, name: &str) -> String {
    let there = shape.columns.contains_key(name);
    if there { format!("c.{name}") } else { "NULL::text".to_owned() }
}

/// The settle where delivered rows stay, or the one where they go.
fn settles(base: &Template, shape: &TableShape, sent: &Sent, stay: &str, go: &str) -> String {
    let (gone, arrive) = match sent {
        Sent::Kept => return base.fill(stay),
        Sent::Moved(history) => {
            let arrive = history::arrive(history, &shape.name, "g.settled_attempts");
            ("t.*, s.attempts AS settled_attempts", format!("{arrive}\n    RETURNING id"))
        }
        Sent::Deleted => ("t.id", "SELECT id FROM gone".to_owned()),
    };
    base.clone().with("gone", gone).with("arrive", arrive).fill(go)
}

/// The same for an owner's rows that all arrived at the same attempt: it answers no rows, only how many there were.
fn settles_alike(base: &Template, shape: &TableShape, sent: &Sent) -> String {
    let (gone, arrive) = match sent {
        Sent::Kept => return base.fill(include_str!("sql/own_settle_delivered.sql")),
        Sent::Moved(history) => (
            ", gone AS (",
            format!("    RETURNING t.*\n)\n{}", history::arrive(history, &shape.name, "$2::int")),
        ),
        Sent::Deleted => ("", String::new()),
    };
    base.clone().with("gone", gone).with("arrive", arrive).fill(include_str!("sql/own_gone_delivered.sql"))
}

impl Own {
    /// `topics` are the conditions for an ordinary claim and for a probe.
    fn new(
        base: &Template,
        topics: [&str; 2],
        (settle, settle_delivered): (String, String),
        knows_its_disk: bool,
    ) -> Self {
        let read = |unlocked: &str, topics: &str| {
            let base = base.clone().with("unlocked", unlocked).with("topics", topics);
            base.fill(include_str!("sql/own.sql"))
        };
        Self {
            waiting: read(&format!("(locked_at IS NULL OR {EXPIRED})"), topics[0]),
            probe: read("locked_at IS NULL AND $5::float8 IS NOT NULL", topics[1]),
            settle,
            settle_delivered,
            unsettled: base
                .fill("SELECT id FROM {{table}} WHERE id = ANY ($1) AND (published_at IS NULL) IS TRUE"),
            payloads: base.fill(
                "SELECT id, payload::text, payload_raw, content_type FROM {{table}} WHERE id = ANY ($1)",
            ),
            journal: base.fill(&journal(if knows_its_disk { Wait::IfNeeded } else { Wait::Always })),
            journal_soon: base.fill(&journal(Wait::Never)),
            is_mine: base.fill(
                "SELECT EXISTS (SELECT 1 FROM {{relay}} WHERE tbl = $1 AND holder = $2 AND epoch = $3)",
            ),
            bury: base.fill(
                "UPDATE {{table}} SET dead_at = now(), last_error = $2
                 WHERE id = ANY (ARRAY(SELECT id FROM {{table}}
                       WHERE id = ANY ($1) AND coalesce(published_at, dead_at, locked_at) IS NULL AND attempts >= $3
                       FOR UPDATE SKIP LOCKED))
                 RETURNING topic, event_id, sequence",
            ),
        }
    }
}

/// Whether a journal waits for the disk.
#[derive(Clone, Copy)]
enum Wait {
    /// It commits synchronously, and with it whatever was committed before it: a writer may have left that to a crash (hazard 33).
    Always,
    /// The same, unless the disk has that already.
    IfNeeded,
    /// For rows that are known to be there. What a server that fails may forget of it is that rows were in flight, and they are still
    /// there.
    Never,
}

fn journal(wait: Wait) -> String {
    // In a table of its own: it is asked before the update writes to the log.
    let (asked, commit) = match wait {
        Wait::Always => (String::new(), ""),
        Wait::IfNeeded => (
            format!("FROM (SELECT {DISK_HAS_ALL}) AS disk (has_all)"),
            ", CASE WHEN disk.has_all THEN set_config('synchronous_commit', 'off', true) END",
        ),
        Wait::Never => (String::new(), ", set_config('synchronous_commit', 'off', true)"),
    };
    format!(
        "UPDATE {{{{relay}}}} SET win = $4, win_from = $5, win_to = $6,
                expires_at = clock_timestamp() + make_interval(secs => $7)
         {asked} WHERE tbl = $1 AND holder = $2 AND epoch = $3 RETURNING paused_at IS NOT NULL{commit}"
    )
}

/// What a settle adds to a row: sinks that have confirmed it, and why it was not delivered.
const NOTED: &str = include_str!("sql/noted.sql");

const EXPIRED: &str = "locked_at < now() - make_interval(secs => $5)";

impl Statements {
    pub(super) fn new(
        shape: &TableShape,
        sent: &Sent,
        tenants: &Tenants,
        pooled: bool,
        knows_its_disk: bool,
    ) -> Self {
        let base = Template::of(&shape.name, '"')
            .with("mine", mine("$1"))
            .with("places", place::parameter("$6", pooled))
            .with("facts", FACTS)
            .with("noted", NOTED.trim_end())
            .with("tenants", tenants::condition(tenants))
            .with("traceparent", text_column(shape, "traceparent"))
            .with("tracestate", text_column(shape, "tracestate"));
        let full = shape.layout() == Layout::Full;
        let pending = if full {
            base.clone()
                .with("pending", "published_at IS NULL AND dead_at IS NULL")
                .with("die", "locked_by = NULL, dead_at = now()")
        } else {
            base.clone()
                .with("pending", "published_at IS NULL")
                .with("die", "attempts = greatest(attempts, $3)")
        };
        let settles = |stay: &str, go: &str| settles(&base, shape, sent, stay, go);
        let remains = if full { format!(" AND {REMAINS}") } else { String::new() };
        let (without, of) = (format!("topic <> ALL ($6){remains}"), format!("topic = ANY ($6){remains}"));
        let own = full.then(|| {
            let settle = settles(include_str!("sql/own_settle.sql"), include_str!("sql/own_gone.sql"));
            Own::new(&base, [&without, &of], (settle, settles_alike(&base, shape, sent)), knows_its_disk)
        });
        let either = |bare: &str, whole: &str| base.fill(if full { whole } else { bare });
        Self {
            own,
            letters: full.then(|| Letters::new(&base, shape)),
            claims: Claims::new(&base, full, [&without, &of], tenants),
            settle_delivered: full.then(|| {
                settles(include_str!("sql/settle_delivered.sql"), include_str!("sql/gone_delivered.sql"))
            }),
            settle: if full {
                settles(include_str!("sql/settle.sql"), include_str!("sql/gone.sql"))
            } else {
                base.fill(include_str!("sql/settle_bare.sql"))
            },
            extend: either(include_str!("sql/extend_bare.sql"), include_str!("sql/extend.sql")),
            release_token: base.fill(
                "WITH lost AS MATERIALIZED (
                     SELECT id FROM {{table}} WHERE locked_by = $1 AND published_at IS NULL AND dead_at IS NULL FOR UPDATE SKIP LOCKED)
                 UPDATE {{table}} t SET locked_at = NULL, locked_by = NULL, attempts = greatest(t.attempts - 1, 0)
                 FROM lost l WHERE t.id = ANY (ARRAY[l.id])",
            ),
            lead: base.fill(include_str!("sql/lead.sql")),
            // A window of what has long left it is of no use to anybody; $4 says that nothing is in flight.
            renew: base.fill(
                "UPDATE {{relay}} SET expires_at = clock_timestamp() + make_interval(secs => $3),
                        win = CASE WHEN $4 THEN NULL ELSE win END
                 WHERE tbl = $1 AND holder = $2",
            ),
            resign: base.fill("UPDATE {{relay}} SET holder = NULL, expires_at = NULL, win = NULL WHERE tbl = $1 AND holder = $2"),
            gate: base.fill(&format!(
                "SELECT r.paused_at IS NOT NULL, {} FROM {{{{relay}}}} r WHERE r.tbl = $1",
                mine("$2")
            )),
            others: base.fill(
                "SELECT CASE WHEN expires_at > clock_timestamp() THEN strategy END, holder,
                        CASE WHEN shared_until > clock_timestamp() THEN shared_by END
                 FROM {{relay}} WHERE tbl = $1",
            ),
            share: base.fill(
                "UPDATE {{relay}} SET shared_by = $2, shared_until = clock_timestamp() + make_interval(secs => $3) WHERE tbl = $1",
            ),
            unshare: base.fill(
                "UPDATE {{relay}} SET shared_by = NULL, shared_until = NULL WHERE tbl = $1 AND shared_by = $2",
            ),
            suspects_among: pending.fill(
                "SELECT EXISTS (SELECT 1 FROM {{table}} WHERE {{pending}} AND topic = ANY ($1) AND {{tenants}}
                    AND locked_at < now() - make_interval(secs => $2))",
            ),
            due: pending.fill(
                "SELECT id FROM {{table}} WHERE {{pending}} AND available_at <= now() AND {{tenants}} AND $2::int IS NOT NULL
                 ORDER BY available_at, sequence LIMIT $1",
            ),
            // Of a payload that can be, no more than its length is sent: it may be large.
            show: either(
                "SELECT octet_length(convert_to(payload::text, 'UTF8')) FROM {{table}} WHERE id = $1",
                "SELECT octet_length(convert_to(c.payload::text, 'UTF8')), {{facts}} FROM {{table}} c WHERE c.id = $1",
            ),
            bury: pending.fill(
                "UPDATE {{table}} SET last_error = $2, locked_at = NULL, {{die}} WHERE id = $1 AND {{pending}}
                 AND $3::int IS NOT NULL RETURNING topic, event_id, sequence",
            ),
            there: base.fill("SELECT id FROM {{table}} WHERE id = ANY ($1)"),
            free: base.fill("SELECT id FROM {{table}} WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED"),
            held: either(
                "SELECT t.id FROM {{table}} t JOIN unnest($1::uuid[], $2::timestamptz[], $3::int[]) AS s (id, since, attempts)
                 ON t.id = ANY (ARRAY[s.id]) WHERE t.attempts = s.attempts AND t.locked_at = s.since AND t.published_at IS NULL",
                "SELECT t.id FROM {{table}} t JOIN unnest($1::uuid[], $2::text[], $3::int[]) AS s (id, token, attempts)
                 ON t.id = ANY (ARRAY[s.id]) WHERE t.attempts = s.attempts AND t.locked_by = s.token AND t.published_at IS NULL",
            ),
            taken: either(
                "SELECT t.id FROM {{table}} t JOIN unnest($1::uuid[], $2::text[], $3::int[]) AS s (id, token, attempts)
                 ON t.id = ANY (ARRAY[s.id]) WHERE t.attempts > s.attempts OR t.locked_at IS NOT NULL",
                "SELECT t.id FROM {{table}} t JOIN unnest($1::uuid[], $2::text[], $3::int[]) AS s (id, token, attempts)
                 ON t.id = ANY (ARRAY[s.id]) WHERE t.attempts > s.attempts OR t.locked_by <> s.token",
            ),
        }
    }
}
