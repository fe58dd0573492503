//! The statements of one table, their names filled in once.

use postbox_core::Layout;

use super::schema::TableShape;
use crate::table::Template;

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim_waiting: String,
    pub(super) claim_suspect: String,
    pub(super) claim_probe: String,
    pub(super) settle_delivered: Option<String>,
    pub(super) settle: String,
    pub(super) extend: String,
    pub(super) release_token: String,
    pub(super) lead: String,
    pub(super) renew: String,
    pub(super) resign: String,
    pub(super) gate: String,
}

const EXPIRED: &str = "locked_at < now() - make_interval(secs => $5)";

impl Statements {
    pub(super) fn new(shape: &TableShape) -> Self {
        let column = |name: &str| {
            let there = shape.columns.contains_key(name);
            if there { format!("c.{name}") } else { "NULL::text".to_owned() }
        };
        let base = Template::of(&shape.name, '"')
            .with("traceparent", column("traceparent"))
            .with("tracestate", column("tracestate"));
        let full = shape.layout() == Layout::Full;
        let claim_sql = if full { include_str!("sql/claim.sql") } else { include_str!("sql/claim_bare.sql") };
        let claim = |unlocked: &str, topics: &str, wanted: &str| {
            base.clone()
                .with("unlocked", unlocked)
                .with("topics", topics)
                .with("wanted", wanted)
                .fill(claim_sql)
        };
        let either = |bare: &str, whole: &str| base.fill(if full { whole } else { bare });
        Self {
            claim_waiting: claim(&format!("(locked_at IS NULL OR {EXPIRED})"), "topic <> ALL ($6)", "NOT suspect"),
            claim_suspect: claim(EXPIRED, "topic <> ALL ($6)", "suspect"),
            // The lease's seconds have no use here, but every statement takes the same parameters.
            claim_probe: claim("locked_at IS NULL AND $5::float8 IS NOT NULL", "topic = ANY ($6)", "NOT suspect"),
            settle_delivered: full.then(|| base.fill(include_str!("sql/settle_delivered.sql"))),
            settle: either(include_str!("sql/settle_bare.sql"), include_str!("sql/settle.sql")),
            extend: either(include_str!("sql/extend_bare.sql"), include_str!("sql/extend.sql")),
            release_token: base.fill(
                "UPDATE {{table}} SET locked_at = NULL, locked_by = NULL, attempts = greatest(attempts - 1, 0)
                 WHERE locked_by = $1 AND published_at IS NULL AND dead_at IS NULL",
            ),
            lead: base.fill(include_str!("sql/lead.sql")),
            renew: base.fill(
                "UPDATE {{relay}} SET expires_at = clock_timestamp() + make_interval(secs => $3)
                 WHERE tbl = $1 AND holder = $2",
            ),
            resign: base.fill("UPDATE {{relay}} SET holder = NULL, expires_at = NULL WHERE tbl = $1 AND holder = $2"),
            gate: base.fill(
                "SELECT paused_at IS NOT NULL, $2::text IS NULL OR (holder = $2 AND expires_at > clock_timestamp())
                 FROM {{relay}} WHERE tbl = $1",
            ),
        }
    }
}
