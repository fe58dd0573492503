//! Who holds an old snapshot, so that vacuum cannot clean up behind the relay (hazards 14, 15, 39).

use std::time::Duration;

use postbox_core::{Code, Finding, Layout, StoreError};
use sqlx::Row as _;
use sqlx::postgres::PgPool;

use super::room::size;
use crate::postgres::admin::PgAdmin;
use crate::postgres::ask::{self, ask};
use crate::postgres::error::classify;

/// A transaction that is open this many times longer than is doubtful is wrong.
const FAR_TOO_LONG: u32 = 15;

/// A snapshot that so many transactions have begun after is old. There is no time to go by: a standby tells none.
const OLD_SNAPSHOT: i64 = 100_000;

/// As much of the server's log that a slot keeps for nobody is much, and far too much.
const MUCH_LOG: i64 = 64 << 20;
const FAR_TOO_MUCH_LOG: i64 = 1 << 30;

/// Whoever holds an old snapshot in this database keeps dead row versions alive, and every claim has to read past them
/// (hazard 15).
pub(super) async fn transactions(pool: &PgPool, limit: Duration) -> Result<Vec<Finding>, StoreError> {
    let open = ask(
        "SELECT 'pid ' || pid, extract(epoch FROM clock_timestamp() - xact_start)::float8,
                concat_ws(', ', usename, nullif(application_name, ''), state), format('SELECT pg_terminate_backend(%s)', pid)
         FROM pg_stat_activity
         WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
           AND datname = current_database()
           AND backend_type = 'client backend' AND xact_start < clock_timestamp() - make_interval(secs => $1)
         UNION ALL
         SELECT 'prepared transaction ' || gid, extract(epoch FROM clock_timestamp() - prepared)::float8, owner::text,
                format('ROLLBACK PREPARED %L', gid)
         FROM pg_prepared_xacts WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => $1)
         ORDER BY 2 DESC LIMIT 5",
    )
    .bind(limit.as_secs_f64());
    let rows = ask::all(pool, open).await?;
    let read = |row: &sqlx::postgres::PgRow| -> Result<Finding, sqlx::Error> {
        let (holder, seconds): (String, f64) = (row.try_get(0)?, row.try_get(1)?);
        let (who, fix): (String, String) = (row.try_get(2)?, row.try_get(3)?);
        let age = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let what = format!(
            "{holder} ({who}) has a transaction open for {}s: vacuum cannot clean up behind the relay, claims get slow",
            age.as_secs()
        );
        let fix = format!("end it: {fix}");
        Ok(if age > limit * FAR_TOO_LONG {
            Finding::wrong("transactions", Code::TransactionOpen, what, fix)
        } else {
            Finding::doubtful("transactions", Code::TransactionOpen, what, fix)
        })
    };
    let mut findings = rows.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(classify)?;
    let sees_all = ask::one(pool, ask("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")).await?;
    if !sees_all.try_get::<bool, _>(0).map_err(classify)? {
        findings.push(Finding::doubtful(
            "transactions",
            Code::StatsHidden,
            "the transactions of other users are not visible to this one",
            "GRANT pg_read_all_stats TO this user, or look as another",
        ));
    } else if findings.is_empty() {
        findings.push(Finding::good("transactions", "no transaction is open for long"));
    }
    Ok(findings)
}

/// What replication holds: snapshots of standbys and slots, and the log of slots that nobody reads.
pub(super) async fn replication(pool: &PgPool) -> Result<Vec<Finding>, StoreError> {
    let slots = ask(
        "SELECT slot_name::text, active, coalesce(wal_status, ''),
                coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                                         restart_lsn), 0)::bigint,
                coalesce(age(xmin), 0)::bigint
         FROM pg_replication_slots ORDER BY 4 DESC LIMIT 20",
    );
    let slots = ask::all(pool, slots).await?;
    let mut findings = Vec::new();
    for row in &slots {
        let read =
            || Ok((row.try_get::<String, _>(0)?, row.try_get::<bool, _>(1)?, row.try_get::<String, _>(2)?));
        let (name, active, status) = read().map_err(classify)?;
        let (log, age): (i64, i64) = (row.try_get(3).map_err(classify)?, row.try_get(4).map_err(classify)?);
        let drop =
            format!("start its reader, or SELECT pg_drop_replication_slot('{}')", name.replace('\'', "''"));
        if status == "lost" {
            let what = format!("replication slot {name} has lost what it was to keep");
            findings.push(Finding::doubtful("replication", Code::SlotIdle, what, drop));
        } else if !active && log >= MUCH_LOG {
            let what = format!(
                "nobody reads replication slot {name}, which keeps {} of the server's log",
                size(log)
            );
            findings.push(if log >= FAR_TOO_MUCH_LOG {
                Finding::wrong("replication", Code::SlotIdle, what, drop)
            } else {
                Finding::doubtful("replication", Code::SlotIdle, what, drop)
            });
        } else if age >= OLD_SNAPSHOT {
            let what = format!("replication slot {name} holds a snapshot that is {age} transactions old");
            findings.push(Finding::doubtful("replication", Code::SnapshotHeld, what, drop));
        }
    }
    let standbys = ask(
        "SELECT coalesce(nullif(application_name, ''), client_addr::text, 'pid ' || pid), age(backend_xmin)::bigint
         FROM pg_stat_replication WHERE age(backend_xmin) >= $1 ORDER BY 2 DESC LIMIT 5",
    );
    for row in ask::all(pool, standbys.bind(OLD_SNAPSHOT)).await? {
        let (name, age): (String, i64) =
            (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
        findings.push(Finding::doubtful(
            "replication",
            Code::SnapshotHeld,
            format!("standby {name} holds a snapshot that is {age} transactions old (hot_standby_feedback)"),
            "end the long query there, or switch its hot_standby_feedback off",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::good(
            "replication",
            match slots.len() {
                0 => "no replication slot holds anything".to_owned(),
                1 => "the replication slot holds little".to_owned(),
                some => format!("{some} replication slots hold little"),
            },
        ));
    }
    Ok(findings)
}

/// Who has the lock of the active relay, and for how long. One who is in nobody's row keeps every relay out (hazard 9).
pub(super) async fn owner(admin: &PgAdmin) -> Result<Vec<Finding>, StoreError> {
    // A table that cannot be looked at was told of before.
    let Ok(looked) = admin.looked().await else { return Ok(Vec::new()) };
    if looked.layout == Layout::Bare {
        return Ok(Vec::new());
    }
    let sql = looked.template.fill(
        "SELECT l.pid, concat_ws(', ', a.usename, nullif(a.application_name, ''), host(a.client_addr), a.state),
                coalesce(extract(epoch FROM clock_timestamp() - a.backend_start), 0)::bigint,
                r.holder, coalesce(r.expires_at > clock_timestamp() AND r.session, false)
         FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN {{relay}} r ON r.tbl = $1
         WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND (l.classid::bigint << 32 | l.objid::bigint) = $2",
    );
    let lock = crate::postgres::store::fnv1a(&format!("outbox:{}", looked.key));
    let row = ask::optional(&admin.pool, ask(sql).bind(&looked.key).bind(lock)).await?;
    let Some(row) = row else { return Ok(Vec::new()) };
    let read = || -> Result<Finding, sqlx::Error> {
        let (pid, who, seconds): (i32, String, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let holder: Option<String> = row.try_get(3)?;
        if row.try_get(4)? {
            let what = format!("the owner's session is pid {pid} ({who}), open for {seconds}s");
            return Ok(Finding::good("owner", what));
        }
        let silent = match holder {
            Some(name) => format!(
                "{} has not renewed its place",
                name.rsplit_once('/').map_or(name.as_str(), |(name, _)| name)
            ),
            None => "it is no relay that leads".to_owned(),
        };
        let what = format!(
            "pid {pid} ({who}), open for {seconds}s, has the lock of the active relay, and {silent}: no other relay can take over"
        );
        let fix = format!("end it: SELECT pg_terminate_backend({pid})");
        Ok(Finding::wrong("owner", Code::OwnerStuck, what, fix))
    };
    Ok(vec![read().map_err(classify)?])
}
