//! Locked, full, read-only: whoever asks is told so by a code, from every side.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use postbox_core::cleaner::{Sweep as _, SweepRequest};
use postbox_core::store::{ClaimMode, Settlement, Verdict};
use postbox_core::{
    Browse as _, Code, DeadLetters as _, EnqueueError, Inspect as _, ListRequest, Outbox, Store as _,
    StoreError, StoreErrorKind,
};
use postbox_stores::sqlite::{SqliteAdmin, SqliteStore, begin, classify, migrate};
use postbox_testkit::suite::{Subject as _, TOPIC, claim, enqueue, event, events, request};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection as _, SqliteConnection};

use crate::subject::{Table, options};

/// Enqueues as an application does.
async fn write(options: &SqliteConnectOptions, big: usize) -> Result<(), StoreError> {
    let pool =
        SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await.map_err(classify)?;
    let mut tx = begin(&pool).await.map_err(classify)?;
    let record = event(TOPIC, 1).json(&"x".repeat(big));
    let written = Outbox::new("org_outbox".parse().unwrap()).enqueue(&mut tx, record).await;
    match written {
        Ok(_) => tx.commit().await.map_err(classify),
        Err(EnqueueError::Database(error)) => Err(classify(error)),
        Err(error) => panic!("{error}"),
    }
}

async fn migrate_another(options: &SqliteConnectOptions) -> Result<(), StoreError> {
    let mut connection = SqliteConnection::connect_with(options).await.map_err(classify)?;
    let made = migrate::up(&mut connection, &"crm_outbox".parse().unwrap(), |_| {}).await;
    made.map(|_| ())
}

/// Why it was refused.
async fn refused<T: std::fmt::Debug>(
    asked: impl Future<Output = Result<T, StoreError>>,
) -> (Code, StoreErrorKind) {
    let error = asked.await.unwrap_err();
    (error.code(), error.kind())
}

/// Somebody begins to write and never ends. Each of these waits for its 10 s, all at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_never_given_back() {
    let table = Table::new().await;
    enqueue(&table, events(2)).await;
    let (relay, other, leader) = (table.store(false), table.store(false), table.store(true));
    let rows = claim(&relay, 1).await.rows;
    let settlements = [Settlement::new(rows[0].lease.clone(), Verdict::Delivered)];
    let leases = vec![rows[0].lease.clone()];
    let sweep = SweepRequest {
        retention: Duration::ZERO,
        dead_retention: None,
        batch: 1,
        max_attempts: 1,
        dead_letters: false,
    };
    let [first, second, third, fourth] = std::array::from_fn(|_| table.admin());
    let counted = table.admin();
    counted.counts().await.unwrap();
    let impatient = table.options.clone().busy_timeout(Duration::ZERO);
    let ids = enqueue(&table, events(1)).await;

    let held = table.begin(events(1)).await;
    let mut down = SqliteConnection::connect_with(&impatient).await.unwrap();
    let answers: [(Code, StoreErrorKind); 11] = tokio::join!(
        refused(write(&impatient, 1)),
        refused(write(&table.options, 1)),
        refused(migrate_another(&impatient)),
        refused(migrate::down(&mut down, &table.name, true)),
        refused(relay.settle(&settlements)),
        refused(other.claim(request(ClaimMode::Waiting, 1))),
        refused(leader.claim(request(ClaimMode::Waiting, 1))),
        refused(first.pause("tester", "")),
        refused(second.sweep(&sweep)),
        refused(third.replay(ids[0], "tester")),
        refused(fourth.discard_dead(&ids, "tester")),
    )
    .into();
    assert_eq!(answers, [(Code::DatabaseLocked, StoreErrorKind::Connection); 11]);
    // Who only reads waits for nobody.
    assert_eq!(counted.counts().await.unwrap().locked, 1);
    assert_eq!(counted.list(&ListRequest::default()).await.unwrap().events.len(), 3);
    // Given back after all, it is had by those who still wait, however impatient their connection is.
    let give_back = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        postbox_testkit::suite::OpenTransaction::roll_back(held).await;
    };
    let (made, written, ()) = tokio::join!(migrate_another(&impatient), write(&impatient, 1), give_back);
    made.and(written).unwrap();
    assert!(relay.extend(leases).await.unwrap().lost.is_empty(), "and nothing was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_full() {
    let table = Table::new().await;
    enqueue(&table, events(2)).await;
    let relay = table.store(false);
    let pages = table.number("PRAGMA page_count").await;
    let full = table.options.clone().pragma("max_page_count", pages.to_string());
    let full_disk = (Code::DiskFull, StoreErrorKind::Connection);
    assert_eq!(refused(write(&full, 100_000)).await, full_disk);
    assert_eq!(refused(migrate_another(&full)).await, full_disk);
    let admin = SqliteAdmin::connect(full, table.name.clone());
    assert_eq!(refused(admin.pause("tester", &"why ".repeat(10_000))).await, full_disk);
    assert!(admin.relay().await.unwrap().paused_at.is_none(), "all of it, or nothing");
    assert_eq!(table.rows().await, 2);
    assert_eq!(claim(&relay, 10).await.rows.len(), 2, "others are not hurt");
}

/// Not by permission, which root does not need: the connection itself may only read.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_opened_to_be_read() {
    let table = Table::new().await;
    let ids = enqueue(&table, events(2)).await;
    let reading = table.options.clone().create_if_missing(false).read_only(true);
    let read_only = (Code::DatabaseReadOnly, StoreErrorKind::Refused);
    assert_eq!(refused(write(&reading, 1)).await, read_only);
    assert_eq!(refused(migrate_another(&reading)).await, read_only);
    let admin = SqliteAdmin::connect(reading.clone(), table.name.clone());
    assert_eq!(refused(admin.pause("tester", "")).await, read_only);
    assert_eq!(refused(admin.replay(ids[0], "tester")).await, read_only);
    assert_eq!(refused(admin.discard_dead(&ids, "tester")).await, read_only);
    let relay = SqliteStore::builder(reading, table.name.clone()).build();
    assert_eq!(refused(relay.open()).await, read_only);
    assert_eq!(admin.counts().await.unwrap().pending, 2);
    assert_eq!(admin.list(&ListRequest::default()).await.unwrap().events.len(), 2);
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs as somebody who has no rights but those that everybody has. Rights belong to threads here, and threads inherit
/// them: those that SQLite works in too.
#[cfg(target_os = "linux")]
fn as_anybody<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_uid(nobody).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work)
    });
    thread.join().unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_or_a_directory_that_may_not_be_written() {
    use postbox_core::{Diagnose as _, Examination, Level};

    for (folder_mode, file_mode, says_why) in [
        (0o755, 0o444, "test.db: the file cannot be written: "),
        (0o555, 0o666, "test.db: its directory cannot be written: "),
        (0o555, 0o444, "test.db: its directory cannot be written: "),
        (0o755, 0o000, "test.db: Permission denied"),
        (0o000, 0o666, "test.db: Permission denied"),
    ] {
        let table = Table::new().await;
        enqueue(&table, events(1)).await;
        // The last connection that goes takes the log with it.
        table.pool.close().await;
        let (folder, file, name) = (table.folder.path().to_owned(), table.file(), table.name.clone());
        allow(&file, file_mode);
        // Where the file shall be the problem, its directory must not be one.
        allow(&folder, if folder_mode == 0o755 { 0o777 } else { folder_mode });
        let (opened, found, written) = as_anybody(async move {
            let options = options(&file);
            let opened =
                SqliteStore::builder(options.clone(), name.clone()).build().open().await.unwrap_err();
            let examination = Examination { long_transaction: Duration::from_millis(100), connections: 0 };
            let found = SqliteAdmin::connect(options.clone(), name).diagnose(examination).await;
            (opened, found, write(&options, 1).await.unwrap_err())
        });
        allow(&folder, 0o755);
        let code = if says_why.contains("denied") { Code::DatabaseFile } else { Code::DatabaseReadOnly };
        assert_eq!((opened.code(), written.code()), (code, code), "{opened}, {written}");
        assert!(opened.message().contains(says_why), "{opened}");
        let wrong: Vec<_> = found.iter().filter(|finding| finding.level == Level::Wrong).collect();
        assert_eq!((wrong.len(), wrong[0].check), (1, "file"), "{found:#?}");
        assert!(wrong[0].what.contains(says_why), "{found:#?}");
    }
}
