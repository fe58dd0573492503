//! What can be wrong between a relay and its table: the server, a pooler, the structure, and whoever holds things up.

use std::time::Duration;

use postbox_core::{Diagnose, Examination, Finding, Layout, StoreError, TableName};
use sqlx::postgres::PgPool;
use sqlx::{PgConnection, Row as _};

use super::admin::PgAdmin;
use super::ask::{self, ask};
use super::error::classify;
use super::history::{HistoryShape, name_of};
use super::migrate::{StepLock, plan};
use super::order::TableOrder;
use super::schema::TableShape;

/// The oldest server that is supported.
const OLDEST: i32 = 140_000;

/// To look at a table takes milliseconds, unless somebody has it for himself.
const LONGEST_LOOK: Duration = Duration::from_secs(3);

/// A transaction that is open this many times longer than is doubtful is wrong.
const FAR_TOO_LONG: u32 = 15;

impl Diagnose for PgAdmin {
    async fn diagnose(&self, examination: Examination) -> Vec<Finding> {
        let mut findings = Vec::new();
        match server(&self.pool).await {
            Ok(found) => findings.extend(found),
            Err(error) => return vec![failed("connection", &error)],
        }
        findings.push(match pooled(&self.pool).await {
            Ok(false) => Finding::good("pooler", "no transaction pooler in between"),
            Ok(true) => Finding::good(
                "pooler",
                "a transaction pooler is in between: no session lock, so that a relay which dies is missed when its time limit is \
                 over; OUTBOX_DIRECT_URL gives it back",
            ),
            Err(error) => failed("pooler", &error),
        });
        match tokio::time::timeout(LONGEST_LOOK, structure(&self.pool, self.table())).await {
            Ok(Ok(found)) => findings.extend(found),
            Ok(Err(error)) => findings.push(failed("table", &error).with_migrate(self.table(), &error)),
            Err(_) => findings.push(held(&self.pool, self.table()).await),
        }
        match long_transactions(&self.pool, examination.long_transaction).await {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(failed("transactions", &error)),
        }
        findings
    }
}

/// Whom everybody waits for who wants the table: one who has it for himself, or a reader in whose way somebody is who
/// wants that. Said as what is wrong with the table: nothing else can be asked of it.
async fn held(pool: &PgPool, table: &TableName) -> Finding {
    let pids = ask(
        "WITH waiting AS (SELECT DISTINCT pid FROM pg_locks WHERE relation = to_regclass($1) AND NOT granted)
         SELECT string_agg(DISTINCT blocker::text, ', ') FROM waiting, unnest(pg_blocking_pids(pid)) AS blocker
         WHERE blocker NOT IN (SELECT pid FROM waiting)",
    );
    let pids = ask::one(pool, pids.bind(table.quoted('"'))).await;
    match pids.and_then(|row| row.try_get::<Option<String>, _>(0).map_err(classify)) {
        Ok(Some(pids)) => Finding::wrong(
            "table",
            format!("{table} is locked: everybody waits for pid {pids}"),
            format!("end it: SELECT pg_terminate_backend(pid) FROM unnest(ARRAY[{pids}]) pid"),
        ),
        Ok(None) => Finding::wrong(
            "table",
            format!("{table} could not be looked at for {LONGEST_LOOK:?}"),
            "see what the server is busy with: SELECT * FROM pg_stat_activity",
        ),
        Err(error) => failed("table", &error),
    }
}

/// A check that could not be made.
fn failed(check: &'static str, error: &StoreError) -> Finding {
    Finding::wrong(check, error.message(), error.code().next_step())
}

trait WithMigrate {
    fn with_migrate(self, table: &TableName, error: &StoreError) -> Self;
}

impl WithMigrate for Finding {
    fn with_migrate(mut self, table: &TableName, error: &StoreError) -> Self {
        if error.code() == postbox_core::Code::TableMissing {
            self.fix = Some(format!("postbox migrate up --table {table}, or correct the name"));
        }
        self
    }
}

async fn server(pool: &PgPool) -> Result<Vec<Finding>, StoreError> {
    let server = ask(
        "SELECT current_setting('server_version'), current_setting('server_version_num')::int,
                current_database()::text, current_user::text, current_setting('synchronous_commit'), pg_is_in_recovery()",
    );
    let row = ask::one(pool, server).await?;
    let read = || -> Result<Vec<Finding>, sqlx::Error> {
        let (version, number): (String, i32) = (row.try_get(0)?, row.try_get(1)?);
        let (database, user): (String, String) = (row.try_get(2)?, row.try_get(3)?);
        let mut findings = vec![if number < OLDEST {
            Finding::wrong("server", format!("PostgreSQL {version} is too old"), "use PostgreSQL 14 or later")
        } else {
            Finding::good("server", format!("PostgreSQL {version}, database {database} as {user}"))
        }];
        if row.try_get::<String, _>(4)? == "off" {
            findings.push(Finding::doubtful(
                "synchronous_commit",
                "synchronous_commit is off: a crash of the server may lose what was committed just before, events and data alike",
                format!("ALTER DATABASE {database} SET synchronous_commit = on"),
            ));
        }
        if row.try_get(5)? {
            findings.push(Finding::wrong(
                "standby",
                "the server is a read-only standby",
                "name the primary in DATABASE_URL",
            ));
        }
        Ok(findings)
    };
    read().map_err(classify)
}

/// Two clients share one server process, or one client has several: a transaction pooler stands between (hazard 6).
async fn pooled(pool: &PgPool) -> Result<bool, StoreError> {
    let (mut one, mut other) =
        (pool.acquire().await.map_err(classify)?, pool.acquire().await.map_err(classify)?);
    ask::is_pooled([&mut one, &mut other]).await.map_err(classify)
}

async fn structure(pool: &PgPool, table: &TableName) -> Result<Vec<Finding>, StoreError> {
    let mut connection = ask::begin(pool).await?;
    let shape = TableShape::expect(&mut connection, table).await?;
    let migrate = format!("postbox migrate up --table {table}");
    let mut findings = vec![Finding::good("table", format!("{} is there", shape.name))];
    if shape.layout() == Layout::Bare {
        let mut off = vec!["pause", "dead_at", "leader by row", "attempts_log", "fan-out", "audit"];
        if shape.missing().is_empty() {
            off = vec!["pause", "leader by row", "audit"];
        }
        findings.push(Finding::doubtful("layout", format!("bare table: no {}", off.join(", no ")), migrate));
        return Ok(findings);
    }
    findings.push(Finding::good("layout", "all columns are there"));
    let order = TableOrder::read(&mut connection, &shape).await?;
    findings.push(Finding::good("order", order.in_words()));
    findings.extend(history(&mut connection, table).await?);
    findings.extend(drift(&mut connection, table, &migrate).await);
    ask::commit(connection).await?;
    Ok(findings)
}

/// What stands where the history would be.
async fn history(connection: &mut PgConnection, table: &TableName) -> Result<Option<Finding>, StoreError> {
    let Some(found) = HistoryShape::read(connection, table).await.map_err(classify)? else { return Ok(None) };
    Ok(Some(match found.check() {
        Ok(()) => Finding::good("history", format!("{} is there", name_of(table))),
        Err(error) => Finding::doubtful("history", error.message(), "rename it, if events are to be moved"),
    }))
}

/// What `migrate up` would do. An index that is missing or unfinished makes every claim, count or clean read the whole
/// table; the rest only lacks.
async fn drift(connection: &mut PgConnection, table: &TableName, migrate: &str) -> Vec<Finding> {
    let steps = match plan(connection, table).await {
        Ok(plan) => plan.steps,
        Err(error) => return vec![failed("schema", &error)],
    };
    if steps.is_empty() {
        return vec![Finding::good("schema", "the schema is as this version wants it")];
    }
    let finding = |step: &super::migrate::Step| {
        let what = format!("schema differs: {}", step.what);
        if step.lock == StepLock::Concurrent && step.what.contains("index") {
            Finding::wrong("schema", what, migrate)
        } else {
            Finding::doubtful("schema", what, migrate)
        }
    };
    steps.iter().map(finding).collect()
}

/// Whoever holds an old snapshot in this database keeps dead row versions alive, and every claim has to read past them
/// (hazard 15).
async fn long_transactions(pool: &PgPool, limit: Duration) -> Result<Vec<Finding>, StoreError> {
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
            Finding::wrong("transactions", what, fix)
        } else {
            Finding::doubtful("transactions", what, fix)
        })
    };
    let mut findings = rows.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(classify)?;
    let sees_all = ask::one(pool, ask("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")).await?;
    if !sees_all.try_get::<bool, _>(0).map_err(classify)? {
        findings.push(Finding::doubtful(
            "transactions",
            "the transactions of other users are not visible to this one",
            "GRANT pg_read_all_stats TO this user, or look as another",
        ));
    } else if findings.is_empty() {
        findings.push(Finding::good("transactions", "no transaction is open for long"));
    }
    Ok(findings)
}
