//! ④ Claims tenant by tenant: a relay that is for some of them only, or one that they share.

use postbox_core::store::{ClaimRequest, Crowding, Tenants};
use postbox_core::{StoreError, TenantId};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use uuid::Uuid;

use super::claim::candidate;
use super::clock::span;
use super::error::{classify, within};
use super::link::OPERATION_LIMIT;
use super::topics::Condition;
use crate::ring::{Looked, Ring};
use crate::seen::Candidate;
use crate::table::Template;

/// So many tenants are looked at by one statement; the server goes no further than a thousand.
const MOST: usize = 500;
/// So many have their rows picked by one.
const PART: usize = 50;

/// Whether something of a tenant is due.
const IS_DUE: &str = "SELECT f.available_at <= UTC_TIMESTAMP(6) FROM {{table}} AS f {{by_tenants_waiting}}
    WHERE f.published_at IS NULL AND f.dead_at IS NULL AND f.tenant_id = ? ORDER BY f.available_at LIMIT 1";

/// Rows of one tenant. ? tenant  … topics  ? rows
const PICK: &str = "(SELECT sequence, available_at, attempts, FALSE, LENGTH(payload) + COALESCE(LENGTH(payload_raw), 0), tenant_id
    FROM {{table}} {{by_tenants_waiting}}
    WHERE published_at IS NULL AND dead_at IS NULL AND tenant_id = ? AND available_at <= UTC_TIMESTAMP(6)
      AND locked_at IS NULL AND <topics>
    ORDER BY available_at, sequence LIMIT ?)";

/// Those whose lease ran out take nobody's share. Such rows are old: to look at what is in front is enough.
/// ? tenant  ? rows to look at  ? lease microseconds  … topics
const LATE: &str = "(SELECT sequence, available_at, attempts, TRUE, bytes, tenant_id FROM (
        SELECT sequence, available_at, attempts, LENGTH(payload) + COALESCE(LENGTH(payload_raw), 0) AS bytes, tenant_id, locked_at,
               topic, sinks_done
        FROM {{table}} {{by_tenants_waiting}}
        WHERE published_at IS NULL AND dead_at IS NULL AND tenant_id = ? AND available_at <= UTC_TIMESTAMP(6)
        ORDER BY available_at, sequence LIMIT ?
    ) AS front WHERE locked_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND AND <topics>)";

/// The statements.
#[derive(Debug)]
pub(super) struct ByTenant {
    ring: String,
    is_due: String,
    pick: String,
    late: String,
    /// Those that it is for; all, if there are none.
    only: Vec<TenantId>,
}

impl ByTenant {
    /// None where tenants are not claimed apart.
    pub(super) fn new(base: &Template, tenants: &Tenants) -> Option<Self> {
        tenants.apart().then(|| Self {
            ring: base.fill(include_str!("sql/ring.sql")),
            is_due: base.fill(IS_DUE),
            pick: base.fill(PICK),
            late: base.fill(LATE),
            only: tenants.only.clone(),
        })
    }

    /// Tenants that have something waiting, from one on, each with whether something of it is due.
    async fn ring(
        &self,
        connection: &mut MySqlConnection,
        from: &[u8],
        most: usize,
    ) -> Result<Vec<(Uuid, bool)>, StoreError> {
        let mut ring = Vec::new();
        if self.only.is_empty() {
            let rows = sqlx::query(AssertSqlSafe(self.ring.as_str()))
                .bind(from)
                .bind(i64::try_from(most).unwrap_or(i64::MAX))
                .fetch_all(connection);
            for row in within(OPERATION_LIMIT, rows).await? {
                let read = || Ok((row.try_get(0)?, row.try_get::<Option<bool>, _>(1)?.unwrap_or(false)));
                ring.push(read().map_err(classify)?);
            }
            return Ok(ring);
        }
        for tenant in self.only.iter().filter(|tenant| &tenant.0.as_bytes()[..] >= from).take(most) {
            let due = sqlx::query_scalar::<_, bool>(AssertSqlSafe(self.is_due.as_str())).bind(tenant.0);
            let due = within(OPERATION_LIMIT, due.fetch_optional(&mut *connection)).await?;
            ring.push((tenant.0, due.unwrap_or(false)));
        }
        Ok(ring)
    }

    /// Looks for some rows of each tenant.
    pub(super) async fn look(
        &self,
        connection: &mut MySqlConnection,
        ring: &mut Ring,
        request: &ClaimRequest,
    ) -> Result<Looked, StoreError> {
        let limit = request.limit.min(MOST);
        let tenants = self.ring(connection, &ring.from, limit).await?;
        let next = match tenants.iter().map(|(tenant, _)| tenant).max() {
            // The smallest id behind the last one.
            Some(last) if tenants.len() >= limit => last.as_bytes().iter().copied().chain([0]).collect(),
            _ => Vec::new(),
        };
        let whole = |tenant: &Uuid| {
            request.crowding.iter().any(|one| matches!(one, Crowding::Whole(id) if id.0 == *tenant))
        };
        let due = tenants.into_iter().filter(|(tenant, due)| *due && !whole(tenant));
        let eligible: Vec<Uuid> = due.map(|(tenant, _)| tenant).collect();
        if eligible.is_empty() {
            return Ok(ring.looked_in_vain(next));
        }
        let share = (request.limit / eligible.len()).max(1);
        let mut found: Vec<(Uuid, Candidate)> = Vec::new();
        for part in eligible.chunks(PART) {
            pick(connection, self, request, part, share, &mut found).await?;
        }
        Ok(ring.looked(next, found, share, request.limit))
    }
}

/// Whether a row is for this relay.
pub(super) fn condition(tenants: &Tenants) -> String {
    let ids: Vec<String> = tenants.only.iter().map(|id| format!("x'{}'", id.0.simple())).collect();
    if ids.is_empty() { "TRUE".to_owned() } else { format!("tenant_id IN ({})", ids.join(", ")) }
}

/// Adds some rows of each of these tenants.
async fn pick(
    connection: &mut MySqlConnection,
    statements: &ByTenant,
    request: &ClaimRequest,
    tenants: &[Uuid],
    share: usize,
    found: &mut Vec<(Uuid, Candidate)>,
) -> Result<(), StoreError> {
    let of = |tenant: &Uuid| {
        let mut condition = Condition::without(&request.exclude, &request.spent);
        for one in request.crowding.iter() {
            if let Crowding::Some { tenant: id, exclude, spent } = one
                && id.0 == *tenant
            {
                condition.leave_out(exclude);
                condition.remaining(spent);
            }
        }
        condition
    };
    let late = Condition::without(&request.exclude, &request.spent);
    let conditions: Vec<Condition> = tenants.iter().map(of).collect();
    let parts = conditions.iter().map(|condition| {
        format!("{} UNION ALL {}", condition.fill(&statements.pick), late.fill(&statements.late))
    });
    let sql = parts.collect::<Vec<_>>().join(" UNION ALL ");
    let share = i64::try_from(share).unwrap_or(i64::MAX);
    let front = share.saturating_mul(2).saturating_add(10);
    let query = tenants.iter().zip(&conditions).fold(
        sqlx::query(AssertSqlSafe(sql)),
        |query, (tenant, condition)| {
            let query = condition.bind(query.bind(*tenant)).bind(share);
            late.bind(query.bind(*tenant).bind(front).bind(span(request.lock_ttl)))
        },
    );
    // Many forms, each used rarely.
    let rows = query.persistent(tenants.len() == 1).fetch_all(connection);
    let read = |row: &MySqlRow| Ok((row.try_get::<Uuid, _>(5)?, candidate(row)?));
    for row in within(OPERATION_LIMIT, rows).await? {
        found.push(read(&row).map_err(classify)?);
    }
    Ok(())
}
