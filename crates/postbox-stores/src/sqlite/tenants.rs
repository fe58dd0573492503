//! ④ Claims tenant by tenant: a relay that is for some of them only, or one that they share.

use postbox_core::StoreError;
use postbox_core::store::{ClaimRequest, Crowding, Tenants};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::claim::{candidate, list};
use super::clock::{now, span};
use super::error::within;
use super::link::OPERATION_LIMIT;
use crate::ring::{Looked, Ring};
use crate::seen::Candidate;
use crate::table::Template;

/// Tenants that have something waiting, from one on, each with whether something of it is due: "id0;id1;…".
/// ?1 now  ?2 the first  ?3 how many
const ALL: &str = "WITH RECURSIVE ring (tenant_id, due, looked) AS (
        SELECT tenant_id, available_at <= ?1, 1 FROM {{table}}
        WHERE sequence = (
            SELECT s.sequence FROM {{table}} s {{by_tenants_waiting}}
            WHERE s.published_at IS NULL AND s.dead_at IS NULL AND s.tenant_id >= ?2
            ORDER BY s.tenant_id, s.available_at, s.sequence LIMIT 1)
        UNION ALL
        SELECT n.tenant_id, n.available_at <= ?1, r.looked + 1
        FROM ring r CROSS JOIN {{table}} n ON n.sequence = (
            SELECT s.sequence FROM {{table}} s {{by_tenants_waiting}}
            WHERE s.published_at IS NULL AND s.dead_at IS NULL AND s.tenant_id > r.tenant_id
            ORDER BY s.tenant_id, s.available_at, s.sequence LIMIT 1)
        WHERE r.looked < ?3
    )
    SELECT group_concat(hex(tenant_id) || due, ';') FROM ring";

/// The same of some.
const SOME: &str = "SELECT group_concat(hex(tenant_id) || coalesce((
            SELECT s.available_at <= ?1 FROM {{table}} s {{by_tenants_waiting}}
            WHERE s.tenant_id = l.tenant_id AND s.published_at IS NULL AND s.dead_at IS NULL
            ORDER BY s.available_at, s.sequence LIMIT 1), 0), ';')
    FROM (SELECT column1 AS tenant_id FROM (VALUES {{listed}}) WHERE column1 >= ?2 ORDER BY column1 LIMIT ?3) AS l";

/// What to leave out of a tenant: `?6` has arrays of a tenant, a topic, and sinks that must all have confirmed.
const CROWDING: &str = "NOT EXISTS (
        SELECT 1 FROM json_each(?6) AS crowding
        WHERE crowding.value ->> 0 = hex(tenant_id) AND crowding.value ->> 1 = topic AND NOT EXISTS (
            SELECT 1 FROM json_each(crowding.value) AS sink WHERE sink.key > 1 AND sink.value NOT IN (
                SELECT value FROM json_each(CASE WHEN json_valid(sinks_done) THEN sinks_done ELSE '[]' END))))";

/// The statements.
#[derive(Debug)]
pub(super) struct ByTenant {
    ring: String,
    pick: String,
}

impl ByTenant {
    /// None where tenants are not claimed apart.
    pub(super) fn new(base: &Template, tenants: &Tenants, topics: &str) -> Option<Self> {
        let ids: Vec<String> = tenants.only.iter().map(|id| format!("(x'{}')", id.0.simple())).collect();
        let base =
            base.clone().with("listed", ids.join(", ")).with("topics", topics).with("crowding", CROWDING);
        tenants.apart().then(|| Self {
            ring: base.fill(if tenants.only.is_empty() { ALL } else { SOME }),
            pick: base.fill(include_str!("sql/pick_by_tenant.sql")),
        })
    }

    /// Looks for some rows of each tenant.
    pub(super) async fn look(
        &self,
        connection: &mut SqliteConnection,
        ring: &mut Ring,
        request: &ClaimRequest,
    ) -> Result<Looked, StoreError> {
        let (now, limit) = (now(), request.limit);
        let look = sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(self.ring.as_str()))
            .bind(now)
            .bind(ring.from.as_slice())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_one(&mut *connection);
        let tenants = within(OPERATION_LIMIT, look).await?.unwrap_or_default();
        let tenants: Vec<&str> = tenants.split(';').filter(|entry| !entry.is_empty()).collect();
        let last = tenants.iter().max().copied().unwrap_or_default();
        let next = if tenants.len() < limit { Vec::new() } else { behind(last) };
        let (whole, parts) = left_out(&request.crowding);
        let due = tenants.iter().filter_map(|entry| entry.strip_suffix('1'));
        let eligible: Vec<&str> = due.filter(|tenant| !whole.iter().any(|one| one == tenant)).collect();
        if eligible.is_empty() {
            return Ok(ring.looked_in_vain(next));
        }
        let share = (limit / eligible.len()).max(1);
        let pick = sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(self.pick.as_str()))
            .bind(now)
            .bind(json!(eligible).to_string())
            .bind(i64::try_from(share).unwrap_or(i64::MAX))
            .bind(now.saturating_sub(span(request.lock_ttl)))
            .bind(list(&request.exclude, &request.spent))
            .bind(Value::from(parts).to_string())
            .fetch_one(connection);
        let answer = within(OPERATION_LIMIT, pick).await?.unwrap_or_default();
        let found = answer.split(';').filter_map(|row| row.split_once(' '));
        let found: Vec<(&str, Candidate)> =
            found.filter_map(|(tenant, row)| Some((tenant, candidate(row)?))).collect();
        Ok(ring.looked(next, found, share, limit))
    }
}

/// Whether a row is for this relay.
pub(super) fn condition(tenants: &Tenants) -> String {
    let ids: Vec<String> = tenants.only.iter().map(|id| format!("x'{}'", id.0.simple())).collect();
    if ids.is_empty() { "1".to_owned() } else { format!("+tenant_id IN ({})", ids.join(", ")) }
}

/// The smallest id behind that of an entry.
fn behind(entry: &str) -> Vec<u8> {
    let hex = &entry.as_bytes()[..entry.len().saturating_sub(1)];
    let digit =
        |hex: u8| char::from(hex).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0);
    let bytes = hex.chunks_exact(2).map(|pair| digit(pair[0]) * 16 + digit(pair[1]));
    bytes.chain([0]).collect()
}

/// Tenants to leave out, as they are written here, and topics of others.
fn left_out(crowding: &[Crowding]) -> (Vec<String>, Vec<Value>) {
    let hex = |tenant: &postbox_core::TenantId| tenant.0.simple().to_string().to_uppercase();
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    for one in crowding {
        match one {
            Crowding::Whole(tenant) => whole.push(hex(tenant)),
            Crowding::Some { tenant, exclude, spent } => {
                parts.extend(exclude.iter().map(|topic| json!([hex(tenant), topic.as_str()])));
                parts.extend(spent.iter().map(|spent| {
                    let start = [hex(tenant), spent.topic.as_str().to_owned()];
                    let sinks = spent.sinks.iter().map(ToString::to_string);
                    start.into_iter().chain(sinks).collect::<Value>()
                }));
            }
        }
    }
    (whole, parts)
}

#[cfg(test)]
mod tests {
    use postbox_core::TenantId;

    use super::super::plans::{lives, plan};
    use super::*;

    /// Nothing is read but what is taken, and one row of each tenant.
    #[tokio::test]
    async fn tenants_are_found_by_their_index() {
        let some = Tenants { only: vec![TenantId::NIL, TenantId::from_name("acme")], fair: false };
        for tenants in [Tenants { fair: true, ..Tenants::default() }, some] {
            for (life, mut connection, names) in lives().await {
                let by_tenant = ByTenant::new(&names, &tenants, "topic <> 'x'").unwrap();
                for sql in [by_tenant.ring, by_tenant.pick] {
                    let plan = plan(&mut connection, &sql).await;
                    assert!(
                        plan.contains("USING INDEX org_outbox_tenants_waiting (tenant_id")
                            || plan.contains("USING COVERING INDEX org_outbox_tenants_waiting (tenant_id"),
                        "{life}:\n{plan}"
                    );
                    for bad in
                        ["SCAN org_outbox\n", "SCAN s\n", "SCAN t\n", "SCAN n\n", "TEMP B-TREE FOR ORDER BY"]
                    {
                        assert!(
                            !plan.contains(bad) || sql.contains("VALUES"),
                            "{life}: {bad} in:\n{plan}\n{sql}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_behind_an_id_is_behind_it_alone() {
        assert_eq!(behind("00FF1"), [0x00, 0xff, 0x00]);
        assert_eq!(behind(""), [0]);
    }
}
