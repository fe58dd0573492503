//! ④ Claims tenant by tenant: a relay that is for some of them only, or one that they share.

use postbox_core::store::Tenants;
use postbox_core::{Layout, StoreError};
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::classify;
use super::schema::TableShape;

/// The index by which a claim goes from tenant to tenant: the end of its name, its columns and its condition.
pub(super) const INDEX: (&str, &str, &str) =
    ("tenants_waiting", "(tenant_id, available_at, sequence)", "published_at IS NULL AND dead_at IS NULL");

/// All tenants that have something waiting, from one on.
const ALL: &str = "SELECT f.tenant_id, f.due, 1::bigint AS looked
    FROM (
        SELECT t.tenant_id, t.available_at <= now() AS due
        FROM {{table}} t
        WHERE t.published_at IS NULL AND t.dead_at IS NULL AND t.tenant_id >= $3
          AND (SELECT mine AND NOT paused FROM gate)
        ORDER BY t.tenant_id, t.available_at, t.sequence
        LIMIT 1
    ) f
    UNION ALL
    SELECT n.tenant_id, n.due, r.looked + 1
    FROM ring r
    CROSS JOIN LATERAL (
        SELECT t.tenant_id, t.available_at <= now() AS due
        FROM {{table}} t
        WHERE t.published_at IS NULL AND t.dead_at IS NULL AND t.tenant_id > r.tenant_id
        ORDER BY t.tenant_id, t.available_at, t.sequence
        LIMIT 1
    ) n
    WHERE r.looked < $4";

/// These, from one on.
const SOME: &str = "SELECT l.tenant_id, coalesce(f.due, false) AS due, 1::bigint AS looked
    FROM (
        SELECT l.tenant_id FROM unnest({{list}}) AS l (tenant_id)
        WHERE l.tenant_id >= $3 AND (SELECT mine AND NOT paused FROM gate)
        ORDER BY l.tenant_id
        LIMIT $4
    ) l
    LEFT JOIN LATERAL (
        SELECT t.available_at <= now() AS due
        FROM {{table}} t
        WHERE t.tenant_id = l.tenant_id AND t.published_at IS NULL AND t.dead_at IS NULL
        ORDER BY t.tenant_id, t.available_at, t.sequence
        LIMIT 1
    ) f ON true";

/// What such a claim says besides: where the next one goes on (null: it has come round), and whether some tenant may have more.
pub(super) const RING: &str = ",
       (SELECT CASE WHEN count(*) >= $4 THEN (array_agg(tenant_id ORDER BY tenant_id DESC))[1] END FROM ring),
       (SELECT coalesce(max(turn), 0) FROM picked) >= (SELECT rows FROM share)";

/// The tenants that a claim looks at.
pub(super) fn ring_of(tenants: &Tenants) -> &'static str {
    if tenants.only.is_empty() { ALL } else { SOME }
}

/// A list of tenants as SQL. They are numbers: nothing has to be quoted.
pub(super) fn list(tenants: &Tenants) -> String {
    let ids: Vec<String> = tenants.only.iter().map(ToString::to_string).collect();
    format!("'{{{}}}'::uuid[]", ids.join(","))
}

/// Whether a row is for this relay.
pub(super) fn condition(tenants: &Tenants) -> String {
    if tenants.only.is_empty() { "true".to_owned() } else { format!("tenant_id = ANY ({})", list(tenants)) }
}

/// Where the next claim goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Ring {
    /// The first tenant to look at.
    pub(super) from: Uuid,
    /// Whether claims of this round have found anything.
    found: bool,
    /// Which sleep the relay slept when this round began: only what was seen since then was seen for it.
    sleep: Option<u64>,
}

impl Ring {
    /// Which sleep a claim that begins now is a look for.
    pub(super) fn begun(&mut self, sleep: Option<u64>) -> Option<u64> {
        if self.from.is_nil() {
            self.sleep = sleep;
        }
        self.sleep
    }

    /// Takes in how far a claim has come, and answers whether there may be more: the rest of the round, or, if the round took
    /// several claims and found something, what has come meanwhile.
    pub(super) fn looked(&mut self, last: Option<Uuid>, found: bool) -> bool {
        let began_late = !self.from.is_nil();
        self.found |= found;
        let next = last.and_then(|last| last.as_u128().checked_add(1));
        self.from = Uuid::from_u128(next.unwrap_or_default());
        let mid_way = !self.from.is_nil();
        mid_way || (std::mem::take(&mut self.found) && began_late)
    }
}

/// Whether a table has the index by tenant.
pub(super) async fn is_indexed(
    connection: &mut PgConnection,
    shape: &TableShape,
) -> Result<bool, StoreError> {
    let there = "SELECT EXISTS (SELECT 1 FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
                 WHERE x.indrelid = to_regclass($1) AND x.indisvalid AND i.relname = $2)";
    let (table, name) = (shape.name.quoted('"'), format!("{}_{}", shape.name.table(), INDEX.0));
    let there = sqlx::query_scalar::<_, bool>(there).bind(table).bind(name).persistent(false);
    Ok(shape.layout() == Layout::Full && there.fetch_one(connection).await.map_err(classify)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_goes_on_behind_the_last_and_begins_anew_after_the_end() {
        let mut ring = Ring::default();
        assert!(!ring.looked(None, true), "all of them at once");
        assert_eq!(ring.begun(Some(1)), Some(1));
        assert!(ring.looked(Some(Uuid::from_u128(6)), true), "the rest of the round");
        assert_eq!((ring.from, ring.begun(Some(2))), (Uuid::from_u128(7), Some(1)));
        assert!(ring.looked(None, false), "the first ones were not looked at this time");
        assert!(ring.from.is_nil());
        assert!(ring.looked(Some(Uuid::from_u128(6)), false));
        assert!(!ring.looked(None, false), "a round that found nothing is the last");
        assert!(!ring.looked(Some(Uuid::max()), true), "there is none behind the last");
    }
}
