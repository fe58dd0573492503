//! What can be wrong between a relay and its table: the server, its settings, the structure, and whoever holds things up.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postbox_core::{Code, Diagnose, Examination, Finding, Flow, Level, StoreError, TableName};
use sqlx::{MySqlConnection, Row as _};

use super::admin::MySqlAdmin;
use super::clause::Clause;
use super::error::{classify, within};
use super::history;
use super::link::OPERATION_LIMIT;
use super::migrate::plan;
use super::schema::{TableShape, is_ordered, locate, names};
use super::transaction::DURABLE;
use super::version::Server;
use crate::clock_difference;
use crate::diagnose;

/// The limit of a statement that many events at once may come near.
const PACKET_SMALL: i64 = 8 << 20;

impl Diagnose for MySqlAdmin {
    async fn diagnose(&self, examination: Examination) -> Vec<Finding> {
        let table = self.table();
        let mut link = match self.0.link.take().await {
            Ok(link) => link,
            Err(error) => return vec![Finding::failed("server", &error)],
        };
        let connection = &mut link.connection;
        let mut findings = vec![match Server::expect(connection).await {
            Ok(server) => Finding::good("server", server.to_string()),
            Err(error) => return vec![Finding::failed("server", &error)],
        }];
        findings.extend(settings(connection).await);
        findings.extend(clock(connection).await);
        findings.extend(connections(connection, examination.connections).await);
        findings.push(transactions(connection, examination.long_transaction).await);
        match structure(connection, table).await {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(diagnose::failed(table, &error)),
        }
        // A connection that something could not be asked of is not used again.
        if findings.iter().all(|finding| finding.level == Level::Good) {
            link.keep();
        }
        findings
    }

    async fn flow(&self) -> Result<Flow, StoreError> {
        let looked = self.0.looked().await?;
        let sql = looked.template.fill(
            "SELECT f.sequence, COALESCE(TIMESTAMPDIFF(MICROSECOND, f.available_at, UTC_TIMESTAMP(6)), 0)
             FROM (SELECT 1 AS one) AS one LEFT JOIN (
                 SELECT p.sequence, p.available_at
                 FROM (SELECT sequence, available_at, tenant_id, aggregate_type, aggregate_id FROM {{table}} {{by_pending}}
                       WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= UTC_TIMESTAMP(6)
                       ORDER BY available_at, sequence LIMIT 200) AS p
                 WHERE p.aggregate_id IS NULL OR NOT EXISTS (
                     SELECT 1 FROM {{table}} AS d {{by_pending}} WHERE d.published_at IS NULL AND d.dead_at IS NOT NULL
                        AND d.aggregate_id = p.aggregate_id AND d.aggregate_type <=> p.aggregate_type
                        AND d.tenant_id = p.tenant_id AND d.sequence < p.sequence)
                 ORDER BY p.available_at, p.sequence LIMIT 1
             ) AS f ON true",
        );
        let row = self.0.row(&Clause::new(sql)).await?;
        let read = || -> Result<Flow, sqlx::Error> {
            let micros = u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default();
            let (first_due, due_for) = (row.try_get(0)?, Duration::from_micros(micros));
            Ok(Flow { first_due, due_for, ..Flow::default() })
        };
        read().map_err(classify)
    }
}

/// What the server was told that matters here.
async fn settings(connection: &mut MySqlConnection) -> Vec<Finding> {
    let sql =
        format!("SELECT {DURABLE}, CAST(@@GLOBAL.max_allowed_packet AS SIGNED), @@GLOBAL.read_only <> 0");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_one(connection);
    let row = match within(OPERATION_LIMIT, row).await {
        Ok(row) => row,
        Err(error) => return vec![Finding::failed("settings", &error)],
    };
    let read = || Ok((row.try_get::<bool, _>(0)?, row.try_get::<i64, _>(1)?, row.try_get::<bool, _>(2)?));
    let (durable, packet, read_only) = match read().map_err(classify) {
        Ok(settings) => settings,
        Err(error) => return vec![Finding::failed("settings", &error)],
    };
    let mut findings = Vec::new();
    findings.push(if durable {
        Finding::good("durability", "commits are on disk when they are answered")
    } else {
        Finding::doubtful(
            "durability",
            Code::CommitAsync,
            "innodb_flush_log_at_trx_commit is not 1: a crash may take back events that were delivered already",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )
    });
    if packet < PACKET_SMALL {
        findings.push(Finding::doubtful(
            "packet",
            Code::PacketSmall,
            format!("max_allowed_packet is {packet} bytes: many or large events at once do not fit"),
            "SET GLOBAL max_allowed_packet = 67108864",
        ));
    }
    if read_only {
        findings.push(Finding::wrong(
            "server",
            Code::DatabaseReadOnly,
            "the server is read only: a replica cannot be relayed",
            "connect to the primary",
        ));
    }
    findings
}

/// How far the clocks are apart.
async fn clock(connection: &mut MySqlConnection) -> Option<Finding> {
    let here = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    let started = Instant::now();
    let now = sqlx::query("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) AS DOUBLE)").fetch_one(connection);
    let server: f64 = within(OPERATION_LIMIT, now).await.ok()?.try_get(0).ok()?;
    Some(clock_difference::finding(here, here + started.elapsed().as_secs_f64(), server))
}

/// Whether there are connections for one more relay: a rolling update, or a standby, needs as many again.
async fn connections(connection: &mut MySqlConnection, needed: u32) -> Option<Finding> {
    if needed == 0 {
        return None;
    }
    let asked = sqlx::query(
        "SELECT CAST(@@GLOBAL.max_connections AS SIGNED), (SELECT COUNT(*) FROM information_schema.processlist)",
    );
    let row = within(OPERATION_LIMIT, asked.fetch_one(connection)).await.ok()?;
    let (most, used): (i64, i64) = (row.try_get(0).ok()?, row.try_get(1).ok()?);
    // The one that asks is free again when it is over.
    let left = (most - used + 1).max(0);
    Some(if left < i64::from(needed) {
        let what = format!(
            "{left} connections are left of max_connections = {most}, and a relay of this configuration has up to {needed}"
        );
        let fix = "raise max_connections, close what is not needed, or relay fewer tables in one process";
        Finding::wrong("connections", Code::ConnectionsShort, what, fix)
    } else {
        let what =
            format!("{left} connections are left of max_connections = {most}; a relay has up to {needed}");
        Finding::good("connections", what)
    })
}

/// Transactions that have been open for long: what they have locked is passed by, and what they have read is kept.
async fn transactions(connection: &mut MySqlConnection, long: Duration) -> Finding {
    let oldest = sqlx::query(
        "SELECT CAST(trx_mysql_thread_id AS SIGNED), TIMESTAMPDIFF(SECOND, trx_started, NOW())
         FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1",
    );
    match within(OPERATION_LIMIT, oldest.fetch_optional(connection)).await {
        // To see others takes a privilege that not everybody has.
        Err(_) => Finding::good("transactions", "not known: it needs the privilege PROCESS"),
        Ok(None) => Finding::good("transactions", "none is open"),
        Ok(Some(row)) => {
            let (id, seconds): (i64, i64) = (row.try_get(0).unwrap_or(0), row.try_get(1).unwrap_or(0));
            let age = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            if age >= long {
                Finding::doubtful(
                    "transactions",
                    Code::TransactionOpen,
                    format!(
                        "a transaction of connection {id} has been open for {age:?}: what it has locked waits"
                    ),
                    format!("find out what it waits for; KILL {id} ends it"),
                )
            } else {
                Finding::good("transactions", format!("none is open for longer than {long:?}"))
            }
        }
    }
}

async fn structure(connection: &mut MySqlConnection, table: &TableName) -> Result<Vec<Finding>, StoreError> {
    let (schema, table) = locate(connection, table).await?;
    let Some(shape) = TableShape::read(connection, &schema, &table).await.map_err(classify)? else {
        // Says so, and which other table may be meant.
        TableShape::expect(connection, &schema, &table).await?;
        return Ok(Vec::new());
    };
    shape.check()?;
    let migrate = format!("postbox migrate up --table {table}");
    let mut findings = vec![Finding::good("table", format!("{table} is there"))];
    let lacking = shape.lacking();
    findings.push(diagnose::layout(&lacking, &migrate));
    if !lacking.is_empty() {
        return Ok(findings);
    }
    let ordered = is_ordered(&names(connection, &schema, &table).await?);
    findings.push(Finding::good(
        "order",
        if ordered {
            "indexes by aggregate: in order as far as an aggregate's writers wait for each other"
        } else {
            "not ordered: migrate up --order-index adds what ordering = \"aggregate\" needs"
        },
    ));
    let history = history::read(connection, &schema, &table).await.map_err(classify)?;
    findings.extend(history.map(|found| diagnose::history(&table, &found)));
    findings.extend(diagnose::drift(plan(connection, &table).await, &migrate));
    Ok(findings)
}
