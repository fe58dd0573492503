//! What a doctor finds at a database that is a file; the suite has what all databases share.

use std::path::Path;
use std::time::{Duration, Instant};

use postbox_core::{Diagnose as _, Examination, Finding, Level};
use postbox_stores::sqlite::{SqliteAdmin, connect_options, migrate};
use postbox_testkit::suite::{OpenTransaction as _, Subject as _, events};

use crate::subject::Table;

async fn examine(admin: &SqliteAdmin) -> Vec<Finding> {
    admin.diagnose(Examination { long_transaction: Duration::from_millis(200), connections: 0 }).await
}

async fn at(table: &Table, file: &str) -> Vec<Finding> {
    let options = connect_options(&format!("sqlite:{}/{file}", table.folder.path().display())).unwrap();
    examine(&SqliteAdmin::connect(options, table.name.clone())).await
}

/// What is not as it should be: check, level, what and fix.
fn ill(findings: &[Finding]) -> Vec<(&str, Level, &str, &str)> {
    let ill = findings.iter().filter(|finding| finding.level != Level::Good);
    ill.map(|f| (f.check, f.level, f.what.as_str(), f.fix.as_deref().unwrap_or_default())).collect()
}

#[track_caller]
fn finds(findings: &[Finding], wanted: &[(&str, Level, &str, &str)]) {
    let found = ill(findings);
    let same = found.len() == wanted.len()
        && found.iter().zip(wanted).all(|(found, wanted)| {
            found.0 == wanted.0
                && found.1 == wanted.1
                && found.2.contains(wanted.2)
                && found.3.contains(wanted.3)
        });
    assert!(same, "wanted {wanted:#?}\nfound {findings:#?}");
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_a_finding() {
    let table = Table::new().await;
    std::fs::write(table.folder.path().join("text.db"), "this is not a database, but long enough".repeat(40))
        .unwrap();
    let migrate = "postbox migrate up --table org_outbox";
    finds(
        &at(&table, "none.db?mode=rwc").await,
        &[("file", Level::Wrong, "none.db does not exist", migrate)],
    );
    assert!(!table.folder.path().join("none.db").exists(), "to look makes nothing");
    finds(&at(&table, "text.db").await, &[("file", Level::Wrong, "not a database", "path in DATABASE_URL")]);
    let read_only = [("file", Level::Wrong, "opened to be read only", "without mode=ro")];
    finds(&at(&table, "test.db?mode=ro").await, &read_only);
    let memory = SqliteAdmin::connect(sqlx::sqlite::SqliteConnectOptions::new(), table.name.clone());
    finds(&examine(&memory).await, &[("file", Level::Wrong, "in memory", "sqlite:path")]);
    std::fs::write(table.folder.path().join("empty.db"), "").unwrap();
    finds(&at(&table, "empty.db").await, &[("table", Level::Wrong, "org_outbox does not exist", migrate)]);
    finds(&at(&table, "test.db").await, &[]);
}

#[tokio::test]
async fn a_schema_that_differs_is_named_with_what_mends_it() {
    let table = Table::new().await;
    let admin = || table.admin();
    let migrate = "postbox migrate up --table org_outbox";
    let mend = async || {
        migrate::up(&mut table.pool.acquire().await.unwrap(), &table.name, |_| {}).await.unwrap();
        finds(&examine(&admin()).await, &[]);
    };
    let change = async |sql: &str| {
        table.sql(sql).await.unwrap();
        examine(&admin()).await
    };
    let found = change(
        "DROP INDEX org_outbox_published_by_time; DROP VIEW org_outbox_status; DELETE FROM postbox_relay;
         DROP INDEX org_outbox_pending_by_available;
         CREATE INDEX org_outbox_pending_by_available ON org_outbox (available_at)",
    )
    .await;
    let wanted = [
        ("schema", Level::Wrong, "- index org_outbox_pending_by_available (another one)", migrate),
        ("schema", Level::Wrong, "+ index org_outbox_pending_by_available", migrate),
        ("schema", Level::Wrong, "+ index org_outbox_published_by_time", migrate),
        ("schema", Level::Doubtful, "+ status view", migrate),
        ("schema", Level::Wrong, "+ row in postbox_relay", migrate),
    ];
    finds(&found, &wanted);
    mend().await;
    let found = change("DROP VIEW org_outbox_status; ALTER TABLE org_outbox DROP COLUMN sinks_done").await;
    finds(&found, &[("layout", Level::Wrong, "no relay works on it: no sinks_done", migrate)]);
    mend().await;
    finds(
        &change("DROP TABLE postbox_audit").await,
        &[("schema", Level::Wrong, "+ table postbox_audit", migrate)],
    );
    mend().await;
    finds(
        &change("ALTER TABLE org_outbox RENAME COLUMN topic TO subject").await,
        &[("table", Level::Wrong, "topic is missing", "Correct the columns")],
    );
    let elsewhere = table.admin_of("public.org_outbox".parse().unwrap());
    finds(
        &examine(&elsewhere).await,
        &[("table", Level::Wrong, "SQLite has no schema \"public\"", "--table org_outbox")],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_is_a_finding_and_not_waited_for() {
    let table = Table::new().await;
    let held = table.begin(events(1)).await;
    let asked = Instant::now();
    let found = examine(&table.admin()).await;
    finds(&found, &[("transactions", Level::Doubtful, "held the write lock for all of 200ms", "fuser ")]);
    assert!(asked.elapsed() < Duration::from_secs(5));
    held.commit().await;
    finds(&examine(&table.admin()).await, &[]);
}

/// The file is made longer than it is needed: only its size counts.
fn grow(file: &Path, bytes: u64) {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    std::fs::OpenOptions::new().write(true).open(log).unwrap().set_len(bytes).unwrap();
}

#[tokio::test]
async fn a_log_that_a_long_reader_makes_grow_is_a_finding() {
    let table = Table::new().await;
    let mut reader = table.pool.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM org_outbox").fetch_one(&mut *reader).await.unwrap();
    // More than a checkpoint waits for.
    table.sql("CREATE TABLE filler (x BLOB); INSERT INTO filler VALUES (zeroblob(8000000))").await.unwrap();
    finds(&examine(&table.admin()).await, &[]);
    grow(&table.file(), 70 << 20);
    let reads = "a transaction that reads for long";
    let found = examine(&table.admin()).await;
    finds(&found, &[("wal", Level::Doubtful, "has grown to 70 MiB", "end the reader (fuser ")]);
    assert!(ill(&found)[0].2.contains(reads), "{found:?}");
    grow(&table.file(), 3 << 29);
    finds(&examine(&table.admin()).await, &[("wal", Level::Wrong, "has grown to 1.5 GiB", "fuser ")]);
    reader.rollback().await.unwrap();
    // The first commit after the reader has gone empties it, the second one of ours cuts it.
    table.pause(true).await;
    table.pause(false).await;
    finds(&examine(&table.admin()).await, &[]);
}
