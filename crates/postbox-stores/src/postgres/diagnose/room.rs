//! What else the server has to give: its time, connections, and a way to be woken.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use postbox_core::{Code, Finding, StoreError, TableName};
use sqlx::Row as _;
use sqlx::postgres::PgPool;

use crate::clock_difference;
use crate::postgres::ask::{self, ask};
use crate::postgres::error::classify;
use crate::postgres::wake;

/// How full the server's queue of notifications may be.
const QUEUE_FILLS: f64 = 0.1;
const QUEUE_FULL: f64 = 0.5;

/// A question about the time, on its way.
pub(super) struct Asked(Instant, f64);

/// Its answer came: the time here was between these two.
pub(super) struct Here(f64, f64);

impl Asked {
    pub(super) fn now() -> Self {
        let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Instant::now(), here.as_secs_f64())
    }

    pub(super) fn answered(self) -> Here {
        Here(self.1, self.1 + self.0.elapsed().as_secs_f64())
    }
}

impl Here {
    /// What the server's time says.
    pub(super) fn against(&self, server: f64) -> Finding {
        clock_difference::finding(self.0, self.1, server)
    }
}

/// Whether there are connections for one more relay: a rolling update, or a standby, needs as many again.
pub(super) async fn connections(
    pool: &PgPool,
    needed: u32,
    direct: bool,
) -> Result<Vec<Finding>, StoreError> {
    if needed == 0 || !direct {
        return Ok(Vec::new());
    }
    let asked = ask(
        "SELECT current_setting('max_connections')::bigint,
                CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::bigint END,
                (SELECT sum(numbackends) FROM pg_stat_database)::bigint,
                CASE WHEN NOT r.rolsuper AND r.rolconnlimit >= 0
                     THEN r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid) END,
                CASE WHEN NOT r.rolsuper AND d.datconnlimit >= 0
                     THEN d.datconnlimit - (SELECT numbackends FROM pg_stat_database s WHERE s.datid = d.oid)::bigint END
         FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()",
    );
    let row = ask::one(pool, asked).await?;
    let read = || -> Result<Finding, sqlx::Error> {
        let (most, reserved, used): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (role, database): (Option<i64>, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
        let limits = [
            (Some(most - reserved - used), format!("of max_connections = {most}")),
            (role, "of the role's CONNECTION LIMIT".to_owned()),
            (database, "of the database's CONNECTION LIMIT".to_owned()),
        ];
        let least =
            limits.into_iter().filter_map(|(left, of)| Some((left?, of))).min_by_key(|(left, _)| *left);
        let (left, of) = least.unwrap_or_default();
        // Those of this look are free again when it is over.
        let left = left.max(0).saturating_add(i64::from(pool.size()));
        Ok(if left < i64::from(needed) {
            let what = format!(
                "{left} connections are left {of}, and a relay of this configuration has up to {needed}"
            );
            let fix = "raise the limit, close what is not needed, or relay fewer tables in one process";
            Finding::wrong("connections", Code::ConnectionsShort, what, fix)
        } else {
            Finding::good(
                "connections",
                format!("{left} connections are left {of}; a relay has up to {needed}"),
            )
        })
    };
    Ok(vec![read().map_err(classify)?])
}

/// Whether a relay can be woken by writers, and whether the queue for that has room (hazard 38).
pub(super) async fn listeners(
    pool: &PgPool,
    table: &TableName,
    direct: bool,
) -> Result<Vec<Finding>, StoreError> {
    let asked = ask(format!(
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
                          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                          AND classid::bigint = {} AND objid = to_regclass($1)::oid),
                pg_notification_queue_usage()::float8",
        wake::SLEEPER
    ));
    let row = ask::one(pool, asked.bind(table.quoted('"'))).await?;
    let (listens, usage): (bool, f64) =
        (row.try_get(0).map_err(classify)?, row.try_get(1).map_err(classify)?);
    let mut findings = Vec::new();
    if usage >= QUEUE_FILLS {
        let what = format!("the server's queue of notifications is {:.0} % full", usage * 100.0);
        let fix = "end the session that listens and stays in a transaction; see pg_stat_activity";
        findings.push(if usage >= QUEUE_FULL {
            Finding::wrong("listen", Code::NotifyQueue, what, fix)
        } else {
            Finding::doubtful("listen", Code::NotifyQueue, what, fix)
        });
    } else if direct {
        findings.push(Finding::good(
            "listen",
            if listens {
                "a relay listens: writers wake it"
            } else {
                "nobody listens: events are found by polling"
            },
        ));
    }
    Ok(findings)
}

/// Bytes for people.
pub(super) fn size(bytes: i64) -> String {
    const MIB: i64 = 1 << 20;
    if bytes >= 1024 * MIB {
        format!("{}.{} GiB", bytes / (1024 * MIB), bytes % (1024 * MIB) * 10 / (1024 * MIB))
    } else {
        format!("{} MiB", bytes / MIB)
    }
}
