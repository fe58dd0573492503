//! What can be wrong between a relay and its table: the server, a pooler, the structure, its upkeep, and whoever holds things up.

mod holders;
mod room;
mod upkeep;

use std::time::Duration;

use postbox_core::{Code, Diagnose, Examination, Finding, Flow, Layout, StoreError, TableName};
use sqlx::postgres::PgPool;
use sqlx::{PgConnection, Row as _};

use super::admin::PgAdmin;
use super::ask::{self, ask};
use super::error::classify;
use super::history;
use super::migrate::{StepLock, plan};
use super::order::TableOrder;
use super::schema::{EXTENSION, TableShape};
use crate::diagnose;

/// The oldest server that is supported.
const OLDEST: i32 = 140_000;

/// Among so many events that are due, one is looked for that nothing holds back.
const AMONG: u32 = 200;

/// To look at a table takes milliseconds, unless somebody has it for himself.
const LONGEST_LOOK: Duration = Duration::from_secs(3);

impl Diagnose for PgAdmin {
    async fn diagnose(&self, examination: Examination) -> Vec<Finding> {
        let mut findings = Vec::new();
        match server(&self.pool).await {
            Ok(found) => findings.extend(found),
            Err(error) => return vec![Finding::failed("connection", &error)],
        }
        let pooled = pooled(&self.pool).await;
        let direct = matches!(pooled, Ok(false));
        findings.push(match pooled {
            Ok(false) => Finding::good("pooler", "no transaction pooler in between"),
            Ok(true) => Finding::doubtful(
                "pooler",
                Code::Pooled,
                "a transaction pooler is in between: no session lock and no LISTEN, so a dead relay is replaced only when its time \
                 limit is over, and events are found by polling",
                "set OUTBOX_DIRECT_URL to the address of the database itself",
            ),
            Err(error) => Finding::failed("pooler", &error),
        });
        match tokio::time::timeout(LONGEST_LOOK, structure(&self.pool, self.table())).await {
            Ok(Ok(found)) => findings.extend(found),
            Ok(Err(error)) => {
                findings.push(diagnose::failed(self.table(), &error));
            }
            Err(_) => findings.push(held(&self.pool, self.table()).await),
        }
        let (pool, table) = (&self.pool, self.table());
        for (check, found) in [
            ("vacuum", upkeep::vacuum(pool, table).await),
            ("indexes", upkeep::unused_indexes(pool, table).await),
            ("transactions", holders::transactions(pool, examination.long_transaction).await),
            ("replication", holders::replication(pool).await),
            ("owner", holders::owner(self).await),
            ("listen", room::listeners(pool, table, direct).await),
            // Behind a pooler the server's connections are the pooler's affair.
            ("connections", room::connections(pool, examination.connections, direct).await),
        ] {
            match found {
                Ok(found) => findings.extend(found),
                Err(error) => findings.push(Finding::failed(check, &error)),
            }
        }
        findings
    }

    async fn flow(&self) -> Result<Flow, StoreError> {
        let looked = self.looked().await?;
        let free = if looked.order.indexed {
            "NOT EXISTS (SELECT 1 FROM {{table}} d WHERE d.dead_at IS NOT NULL AND d.published_at IS NULL
                AND {{d_strand}} = {{p_strand}} AND d.sequence < p.sequence)"
        } else {
            "true"
        };
        // Without its index, or beside a history, the last one would have to be searched for.
        let published = if looked.layout == Layout::Full && looked.history.is_none() {
            "(SELECT greatest(extract(epoch FROM clock_timestamp() - published_at), 0)::float8 FROM {{table}}
              WHERE published_at IS NOT NULL ORDER BY published_at DESC LIMIT 1)"
        } else {
            "NULL::float8"
        };
        let sql = format!(
            "SELECT f.sequence, coalesce(f.seconds, 0)::float8, {published}
             FROM (SELECT 1) AS one
             LEFT JOIN LATERAL (
                 SELECT p.sequence, extract(epoch FROM now() - p.available_at) AS seconds
                 FROM (SELECT * FROM {{{{table}}}} WHERE published_at IS NULL AND {{{{alive}}}} AND available_at <= now()
                       ORDER BY available_at, sequence LIMIT {AMONG}) AS p
                 WHERE {free} ORDER BY p.available_at, p.sequence LIMIT 1
             ) AS f ON true"
        );
        let row = ask::one(&self.pool, ask(looked.template.fill(&sql))).await?;
        let written = self.written().await?;
        let read = || -> Result<Flow, sqlx::Error> {
            Ok(Flow {
                first_due: row.try_get(0)?,
                due_for: seconds_of(row.try_get(1)?).unwrap_or_default(),
                written,
                published: seconds_of(row.try_get(2)?),
            })
        };
        read().map_err(classify)
    }
}

fn seconds_of(seconds: Option<f64>) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds?).ok()
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
            Code::TableLocked,
            format!("{table} is locked: everybody waits for pid {pids}"),
            format!("end it: SELECT pg_terminate_backend(pid) FROM unnest(ARRAY[{pids}]) pid"),
        ),
        Ok(None) => Finding::wrong(
            "table",
            Code::CheckFailed,
            format!("{table} could not be looked at for {LONGEST_LOOK:?}"),
            "see what the server is busy with: SELECT * FROM pg_stat_activity",
        ),
        Err(error) => Finding::failed("table", &error),
    }
}

async fn server(pool: &PgPool) -> Result<Vec<Finding>, StoreError> {
    let server = ask(
        "SELECT current_setting('server_version'), current_setting('server_version_num')::int,
                current_database()::text, current_user::text, current_setting('synchronous_commit'), pg_is_in_recovery(),
                extract(epoch FROM clock_timestamp())::float8",
    );
    // The first question may have to connect: its time says nothing about the clock.
    ask::one(pool, ask("SELECT 1")).await?;
    let asked = room::Asked::now();
    let row = ask::one(pool, server).await?;
    let here = asked.answered();
    let read = || -> Result<Vec<Finding>, sqlx::Error> {
        let (version, number): (String, i32) = (row.try_get(0)?, row.try_get(1)?);
        let (database, user): (String, String) = (row.try_get(2)?, row.try_get(3)?);
        let mut findings = vec![if number < OLDEST {
            let what = format!("PostgreSQL {version} is too old");
            Finding::wrong("server", Code::DatabaseVersion, what, "use PostgreSQL 14 or later")
        } else {
            Finding::good("server", format!("PostgreSQL {version}, database {database} as {user}"))
        }];
        if row.try_get::<String, _>(4)? == "off" {
            findings.push(Finding::doubtful(
                "synchronous_commit",
                Code::CommitAsync,
                "synchronous_commit is off: a crash of the server may lose what was committed just before, events and data alike",
                format!("ALTER DATABASE {database} SET synchronous_commit = on"),
            ));
        }
        if row.try_get(5)? {
            findings.push(Finding::wrong(
                "standby",
                Code::DatabaseReadOnly,
                "the server is a read-only standby",
                "name the primary in DATABASE_URL",
            ));
        }
        findings.push(here.against(row.try_get(6)?));
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
    if shape.hides_rows {
        findings.push(Finding::doubtful(
            "table",
            Code::DatabasePermission,
            format!(
                "row-level security of {} may hide rows from this user, and what it hides is never delivered",
                shape.name
            ),
            "ALTER ROLE <relay> BYPASSRLS, or give it a policy that shows all rows: USING (true)",
        ));
    }
    if shape.layout() == Layout::Bare {
        // Somebody migrated it once: what is missing was lost.
        let missing = shape.missing();
        if missing.len() < EXTENSION.len() && !missing.is_empty() {
            let what = format!(
                "{} was migrated, and lacks {}: relayed as a bare table",
                shape.name,
                missing.join(", ")
            );
            findings.push(Finding::wrong("layout", Code::ColumnMissing, what, migrate));
            return Ok(findings);
        }
        let mut off = vec!["pause", "dead_at", "leader by row", "attempts_log", "fan-out", "audit"];
        if shape.missing().is_empty() {
            off = vec!["pause", "leader by row", "audit"];
        }
        let what = format!("bare table: no {}", off.join(", no "));
        findings.push(Finding::doubtful("layout", Code::TableBare, what, migrate));
        return Ok(findings);
    }
    findings.push(Finding::good("layout", "all columns are there"));
    let order = TableOrder::read(&mut connection, &shape).await?;
    findings.push(Finding::good("order", order.in_words()));
    let history = history::read(&mut connection, table).await.map_err(classify)?;
    findings.extend(history.map(|found| diagnose::history(table, &found)));
    findings.extend(drift(&mut connection, table, &migrate).await);
    ask::commit(connection).await?;
    Ok(findings)
}

/// What `migrate up` would do. An index that is missing or unfinished makes every claim, count or clean read the whole
/// table; the rest only lacks.
async fn drift(connection: &mut PgConnection, table: &TableName, migrate: &str) -> Vec<Finding> {
    let steps = match plan(connection, table).await {
        Ok(plan) => plan.steps,
        Err(error) => return vec![Finding::failed("schema", &error)],
    };
    if steps.is_empty() {
        return vec![Finding::good("schema", "the schema is as this version wants it")];
    }
    let finding = |step: &super::migrate::Step| {
        let what = format!("schema differs: {}", step.what);
        let index = step.lock == StepLock::Concurrent && step.what.contains("index");
        if index && step.what.starts_with("- invalid") {
            Finding::wrong("schema", Code::IndexInvalid, what, migrate)
        } else if index && step.what.contains("tenant_published") {
            // Nothing of the relay goes by it, and some drop it on purpose.
            Finding::doubtful("schema", Code::IndexMissing, what, migrate)
        } else if index {
            Finding::wrong("schema", Code::IndexMissing, what, migrate)
        } else {
            Finding::doubtful("schema", Code::SchemaDrift, what, migrate)
        }
    };
    steps.iter().map(finding).collect()
}
