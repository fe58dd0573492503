//! What can be wrong between a relay and its table: the file, its log, the structure, and whoever holds things up.

use std::path::Path;
use std::time::Duration;

use postbox_core::{Code, Diagnose, Examination, Finding, Flow, Level, StoreError, TableName};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::admin::SqliteAdmin;
use super::clock::now;
use super::error::{classify, is_busy, within};
use super::history;
use super::link::Link;
use super::link::{OPERATION_LIMIT, Patience};
use super::migrate::plan;
use super::schema::{TableShape, in_main};
use crate::diagnose;

const MIB: u64 = 1 << 20;

/// The log is cut to this when it can be emptied: a larger one could not be for a while.
const LOG_LARGE: u64 = 64 * MIB;
const LOG_FAR_TOO_LARGE: u64 = 1024 * MIB;

/// Room on the disk that is little, and that is as good as none.
const ROOM_LITTLE: u64 = 1024 * MIB;
const ROOM_NONE: u64 = 64 * MIB;

/// Among so many events that are due, one is looked for that nothing holds back.
const AMONG: i64 = 200;

/// The write lock is asked for no longer than this: a doctor's patients do not wait.
const LONGEST_LOOK: Duration = Duration::from_secs(3);

impl Diagnose for SqliteAdmin {
    async fn diagnose(&self, examination: Examination) -> Vec<Finding> {
        let (ours, table) = (&self.0.link, self.table());
        // To connect might make it.
        if ours.path().try_exists().is_ok_and(|there| !there) && ours.path() != Path::new(":memory:") {
            let what = format!("{} does not exist", ours.path().display());
            let fix = format!("correct the path, or make it: postbox migrate up --table {table}");
            return vec![Finding::wrong("file", Code::DatabaseFile, what, fix)];
        }
        let opened = async {
            let mut link = self.0.reader().await?;
            let file = link.file().await?;
            let version = sqlx::query_scalar::<_, String>("SELECT sqlite_version()");
            let version = within(OPERATION_LIMIT, version.fetch_one(&mut link.connection)).await?;
            Ok::<_, StoreError>((link, file, version))
        };
        let (mut link, file, version) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return vec![Finding::failed("file", &error)],
        };
        let (connection, file) = (&mut link.connection, Path::new(&file));
        let mut findings =
            vec![Finding::good("server", format!("SQLite {version}, file {}", file.display()))];
        findings.extend(writable(ours, connection, examination.long_transaction).await);
        findings.extend(room(file));
        findings.push(journal(connection).await);
        findings.push(log(file));
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
            "SELECT f.sequence, coalesce(?1 - f.available_at, 0),
                    (SELECT coalesce(max(sequence), 0) FROM {{table}})
             FROM (SELECT 1) AS one LEFT JOIN (
                 SELECT p.sequence, p.available_at
                 FROM (SELECT * FROM {{table}} {{by_pending}}
                       WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= ?1
                       ORDER BY available_at, sequence LIMIT ?2) AS p
                 WHERE p.aggregate_id IS NULL OR NOT EXISTS (
                     SELECT 1 FROM {{table}} AS d {{by_dead}} WHERE d.dead_at IS NOT NULL AND d.published_at IS NULL
                        AND d.aggregate_id = p.aggregate_id AND d.aggregate_type IS p.aggregate_type
                        AND d.tenant_id = p.tenant_id AND d.sequence < p.sequence)
                 ORDER BY p.available_at, p.sequence LIMIT 1
             ) AS f ON true",
        );
        let mut link = self.0.reader().await?;
        let query = sqlx::query(AssertSqlSafe(sql)).bind(now()).bind(AMONG);
        let row = within(OPERATION_LIMIT, query.fetch_one(&mut link.connection)).await?;
        link.keep();
        let read = || -> Result<Flow, sqlx::Error> {
            let micros = u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default();
            Ok(Flow {
                first_due: row.try_get(0)?,
                due_for: Duration::from_micros(micros),
                written: row.try_get(2)?,
                published: None,
            })
        };
        read().map_err(classify)
    }
}

/// Whether anything can be written, tried on a number that stays what it is; and whether somebody else is in the way.
async fn writable(ours: &Link, connection: &mut SqliteConnection, long: Duration) -> Vec<Finding> {
    let limit = long.min(LONGEST_LOOK);
    let mut patience = Patience::of(limit);
    let begun = loop {
        match sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await {
            Ok(_) => break Ok(()),
            Err(error) => {
                if let Err(error) = patience.pause(error).await {
                    break Err(error);
                }
            }
        }
    };
    if let Err(error) = begun {
        return vec![if is_busy(&error) {
            Finding::doubtful(
                "transactions",
                Code::DatabaseLocked,
                format!("somebody held the write lock for all of {limit:?}: nobody else can write meanwhile"),
                format!(
                    "end that transaction; fuser {} shows which processes have the file open",
                    ours.path().display()
                ),
            )
        } else {
            Finding::failed("file", &ours.explain(classify(error)))
        }];
    }
    let probe = async {
        let number = sqlx::query_scalar::<_, i64>("PRAGMA user_version").fetch_one(&mut *connection).await?;
        sqlx::query(AssertSqlSafe(format!("PRAGMA user_version = {number}"))).execute(&mut *connection).await
    };
    let probed = probe.await.map_err(classify);
    let ended = sqlx::query("ROLLBACK").execute(&mut *connection).await.map_err(classify);
    vec![
        match probed.and(ended) {
            Ok(_) => Finding::good("file", "the file can be written"),
            Err(error) => Finding::failed("file", &ours.explain(error)),
        },
        Finding::good("transactions", "nobody holds the write lock for long"),
    ]
}

/// Room for what is written next.
fn room(file: &Path) -> Option<Finding> {
    let free = super::disk::free(file.parent()?)?;
    let what = format!("{} free on the disk of {}", size(free), file.display());
    let fix = "make room: without any, neither events nor their delivery can be written";
    Some(match free {
        _ if free < ROOM_NONE => Finding::wrong("disk", Code::DiskFull, what, fix),
        _ if free < ROOM_LITTLE => Finding::doubtful("disk", Code::DiskFull, what, fix),
        _ => Finding::good("disk", what),
    })
}

/// Every connection of ours asks for the write-ahead log; where there is none, the file or its disk does not allow it.
async fn journal(connection: &mut SqliteConnection) -> Finding {
    let mode = sqlx::query_scalar::<_, String>("PRAGMA journal_mode").fetch_one(connection);
    match within(OPERATION_LIMIT, mode).await {
        Ok(mode) if mode.eq_ignore_ascii_case("wal") => Finding::good(
            "journal",
            "the write-ahead log is on: readers and writers do not wait for each other",
        ),
        Ok(mode) => Finding::wrong(
            "journal",
            Code::JournalMode,
            format!("the journal mode is {mode}: readers and writers shut each other out"),
            "PRAGMA journal_mode = WAL, on a local disk, as a user who may write the file and its directory",
        ),
        Err(error) => Finding::failed("journal", &error),
    }
}

/// Whoever reads in one transaction for long keeps the log from being emptied: it grows with every commit, and reading
/// gets slower with it.
fn log(file: &Path) -> Finding {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    let bytes = std::fs::metadata(name).map_or(0, |log| log.len());
    let grown = format!(
        "the write-ahead log has grown to {}: a transaction that reads for long keeps it from being emptied",
        size(bytes)
    );
    let fix = format!(
        "end the reader (fuser {} shows which processes have the file open); the next commits empty the log",
        file.display()
    );
    match bytes {
        _ if bytes > LOG_FAR_TOO_LARGE => Finding::wrong("wal", Code::WalLarge, grown, fix),
        _ if bytes > LOG_LARGE => Finding::doubtful("wal", Code::WalLarge, grown, fix),
        _ => Finding::good("wal", format!("the write-ahead log has {}", size(bytes))),
    }
}

async fn structure(connection: &mut SqliteConnection, table: &TableName) -> Result<Vec<Finding>, StoreError> {
    let table = in_main(table)?;
    let Some(shape) = TableShape::read(connection, &table).await.map_err(classify)? else {
        // Says so, and which other table may be meant.
        TableShape::expect(connection, &table).await?;
        return Ok(Vec::new());
    };
    shape.check()?;
    let migrate = format!("postbox migrate up --table {table}");
    let mut findings = vec![Finding::good("table", format!("{table} is there"))];
    let lacking = shape.missing();
    findings.push(diagnose::layout(&lacking, &migrate));
    if !lacking.is_empty() {
        return Ok(findings);
    }
    let history = history::read(connection, &table).await.map_err(classify)?;
    findings.extend(history.map(|found| diagnose::history(&table, &found)));
    findings.extend(diagnose::drift(plan(connection, &table).await, &migrate));
    Ok(findings)
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1024 * MIB => {
            format!("{}.{} GiB", bytes / (1024 * MIB), bytes % (1024 * MIB) * 10 / (1024 * MIB))
        }
        _ if bytes >= MIB => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes.div_ceil(1024)),
    }
}

#[cfg(test)]
mod tests {
    use super::{MIB, size};

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 KiB"),
            (1, "1 KiB"),
            (70 * MIB, "70 MiB"),
            (1023 * MIB, "1023 MiB"),
            (1024 * MIB, "1.0 GiB"),
            (1500 * MIB, "1.4 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
