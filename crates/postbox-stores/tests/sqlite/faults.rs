//! The hazards of a database that is a file.

use std::time::{Duration, Instant};

use postbox_core::store::{ClaimMode, Standing};
use postbox_core::{Code, Inspect as _, Relay, Settings, Store as _, StoreErrorKind};
use postbox_stores::sqlite::{SqliteStore, begin, connect_options};
use postbox_testkit::eventually;
use postbox_testkit::suite::relay::arrived;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{PATIENCE, Subject as _, claim, enqueue, events, quick, request, state};

use crate::subject::Table;

#[tokio::test(flavor = "multi_thread")]
async fn hazard_9_a_stuck_leader_loses_its_place_although_it_keeps_the_lock_file() {
    let table = Table::new().await;
    let store = || {
        SqliteStore::builder(table.options.clone(), table.name.clone())
            .leader_ttl(Duration::from_millis(500))
            .build()
    };
    let (stuck, next) = (store(), store());
    let beat = || request(ClaimMode::Waiting, 0);
    assert_eq!(stuck.claim(beat()).await.unwrap().standing, Standing::Active);
    assert_eq!(next.claim(beat()).await.unwrap().standing, Standing::Standby);
    eventually("the take-over", PATIENCE, async || {
        next.claim(beat()).await.unwrap().standing == Standing::Active
    })
    .await;
    assert_eq!(table.number("SELECT session FROM postbox_relay").await, 0, "by the row alone");
    assert_eq!(stuck.claim(beat()).await.unwrap().standing, Standing::Standby);
    eventually("the lock file to change hands", PATIENCE, async || {
        assert_eq!(next.claim(beat()).await.unwrap().standing, Standing::Active);
        table.number("SELECT session FROM postbox_relay").await == 1
    })
    .await;
    next.close().await;
    assert_eq!(stuck.claim(beat()).await.unwrap().standing, Standing::Active, "an orderly hand-over");
    assert_eq!(table.admin().relay().await.unwrap().epoch, 3);
}

/// Signs of life come once per `poll_interval`.
#[tokio::test]
async fn a_leader_that_polls_seldom_keeps_its_place() {
    let table = Table::new().await;
    // What stands there cannot be opened as a file: the row alone decides.
    std::fs::create_dir(table.folder.path().join("test.db.postbox-org_outbox.lock")).unwrap();
    let store = || {
        SqliteStore::builder(table.options.clone(), table.name.clone())
            .leader_ttl(Duration::from_millis(50))
            .build()
    };
    let beat = |seconds| {
        let mut beat = request(ClaimMode::Waiting, 0);
        beat.poll_interval = Duration::from_secs(seconds);
        beat
    };
    let (first, second) = (store(), store());
    assert_eq!(first.claim(beat(20)).await.unwrap().standing, Standing::Active);
    let expires = "SELECT expires_at / 1000000 - CAST(strftime('%s', 'now') AS INTEGER) FROM postbox_relay";
    let expires = table.number(expires).await;
    assert!((98..=100).contains(&expires), "in {expires} s");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(second.claim(beat(20)).await.unwrap().standing, Standing::Standby);
    assert_eq!(first.claim(beat(20)).await.unwrap().standing, Standing::Active);
}

#[tokio::test]
async fn without_a_lock_file_the_row_decides() {
    let table = Table::new().await;
    // What stands there cannot be opened as a file: as good as a directory that may not be written.
    std::fs::create_dir(table.folder.path().join("test.db.postbox-org_outbox.lock")).unwrap();
    let store = || {
        SqliteStore::builder(table.options.clone(), table.name.clone())
            .leader_ttl(Duration::from_millis(500))
            .build()
    };
    let (first, second) = (store(), store());
    let beat = || request(ClaimMode::Waiting, 0);
    assert_eq!(first.claim(beat()).await.unwrap().standing, Standing::Active);
    assert_eq!(second.claim(beat()).await.unwrap().standing, Standing::Standby);
    drop(first);
    eventually("the row to expire", PATIENCE, async || {
        second.claim(beat()).await.unwrap().standing == Standing::Active
    })
    .await;
}

#[tokio::test]
async fn a_file_that_cannot_be_used_says_why() {
    let table = Table::new().await;
    let folder = table.folder.path();
    std::fs::write(
        folder.join("text.db"),
        "this is not a database, but long enough to be read as one".repeat(20),
    )
    .unwrap();
    std::fs::create_dir(folder.join("folder.db")).unwrap();
    for (file, code, why) in [
        ("missing.db", Code::DatabaseFile, "it does not exist"),
        ("nowhere/missing.db?mode=rwc", Code::DatabaseFile, "its directory does not exist"),
        ("folder.db", Code::DatabaseFile, "it is a directory"),
        ("text.db", Code::DatabaseFile, "not a database"),
        ("test.db?mode=ro", Code::DatabaseReadOnly, "opened to be read only"),
    ] {
        let options = connect_options(&format!("sqlite:{}/{file}", folder.display())).unwrap();
        let store = SqliteStore::builder(options, table.name.clone()).build();
        let error = store.open().await.unwrap_err();
        assert_eq!((error.code(), error.kind()), (code, StoreErrorKind::Refused), "{file}: {error}");
        assert!(error.message().contains(why), "{file}: {error}");
    }
    assert!(!folder.join("missing.db").exists(), "nothing is made unless asked for");
    let memory = sqlx::sqlite::SqliteConnectOptions::new();
    let error = SqliteStore::builder(memory, table.name.clone()).build().open().await.unwrap_err();
    assert_eq!(error.code(), Code::DatabaseUrl);
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_36_a_full_disk_costs_no_attempt_and_delivery_goes_on_by_itself() {
    let table = Table::new().await;
    let ids = enqueue(&table, events(3_000)).await;
    table.sql("CREATE TABLE filler (x BLOB); INSERT INTO filler VALUES (zeroblob(4000000))").await.unwrap();
    let pages = table.number("PRAGMA page_count").await;
    // As large as it is, and not a page larger.
    let options = table.options.clone().pragma("max_page_count", pages.to_string());
    let store = SqliteStore::builder(options, table.name.clone()).build();
    let sink = Scripted::ok().in_batches(100);
    let settings = Settings { batch_size: 3_000, lock_ttl: Duration::from_mins(1), ..quick() };
    let relay = Relay::builder(store).dispatcher(sink.clone()).settings(settings).build().unwrap().spawn();
    eventually("the relay to say so", PATIENCE, async || {
        relay.health().problem().is_some_and(|problem| problem.contains("OUTBOX_DISK_FULL"))
    })
    .await;
    table.sql("DROP TABLE filler").await.unwrap();
    arrived(&sink, &ids).await;
    eventually("all to be settled", PATIENCE, async || {
        table.number("SELECT count(*) FROM org_outbox WHERE published_at IS NULL").await == 0
    })
    .await;
    relay.shutdown().await.unwrap();
    assert_eq!(table.number("SELECT max(attempts) FROM org_outbox").await, 1);
}

/// Somebody begins to write and does not end.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_is_waited_for_and_costs_nothing() {
    let table = Table::new().await;
    let ids = enqueue(&table, events(50)).await;
    let sink = Scripted::ok();
    let relay = Relay::builder(table.store(true)).dispatcher(sink.clone()).settings(quick());
    let relay = relay.build().unwrap().spawn();
    arrived(&sink, &ids).await;
    let more = enqueue(&table, events(50)).await;
    let held = table.begin(events(1)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(relay.health().problem().is_none(), "it only waits");
    postbox_testkit::suite::OpenTransaction::roll_back(held).await;
    arrived(&sink, &more).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), 100);
    assert_eq!(state(&table, more[49]).await.attempts, 1);
}

/// The relay hears of commits long before its `poll_interval`.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_anybody_wakes_the_relay() {
    let table = Table::new().await;
    let sink = Scripted::ok();
    let settings = Settings { poll_interval: Duration::from_secs(20), ..quick() };
    let relay = Relay::builder(table.store(true)).dispatcher(sink.clone()).settings(settings);
    let relay = relay.build().unwrap().spawn();
    for _ in 0..5 {
        let ids = enqueue(&table, events(1)).await;
        let committed = Instant::now();
        arrived(&sink, &ids).await;
        assert!(committed.elapsed() < Duration::from_secs(5), "after {:?}", committed.elapsed());
    }
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_dropped_wait_loses_nothing() {
    let table = Table::new().await;
    let store = table.store(false);
    assert!(claim(&store, 10).await.rows.is_empty());
    for micros in (0..40).map(|n| 9_000 + n * 100) {
        let _ = tokio::time::timeout(Duration::from_micros(micros), store.wait(Duration::from_secs(1))).await;
    }
    enqueue(&table, events(1)).await;
    tokio::time::timeout(Duration::from_secs(5), store.wait(Duration::from_secs(30)))
        .await
        .expect("a wake-up");
    assert_eq!(claim(&store, 10).await.rows.len(), 1);
}

/// A backup that is put back, or a file that somebody makes anew: the old one, which has no name any more, could be
/// read and written for ever, and nobody would hear of the events in the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_replaced_is_opened_anew() {
    let table = Table::new().await;
    let sink = Scripted::ok();
    let relay = Relay::builder(table.store(true)).dispatcher(sink.clone()).settings(quick());
    let relay = relay.build().unwrap().spawn();
    let admin = table.admin();
    let first = enqueue(&table, events(1)).await;
    arrived(&sink, &first).await;
    eventually("the settlement", PATIENCE, async || admin.counts().await.unwrap().pending == 0).await;
    table.pool.close().await;
    for end in ["", "-wal", "-shm"] {
        let mut file = table.file().into_os_string();
        file.push(end);
        std::fs::remove_file(file).ok();
    }
    let error = eventually("the loss to be seen", PATIENCE, async || admin.counts().await.err()).await;
    assert_eq!(error.code(), Code::DatabaseFile, "{error}");
    assert!(!table.file().exists(), "who looks at a file does not make it");
    let again = Table::at(table.folder).await;
    let second = enqueue(&again, events(1)).await;
    arrived(&sink, &second).await;
    eventually("the settlement", PATIENCE, async || admin.counts().await.unwrap().pending == 0).await;
    relay.shutdown().await.unwrap();
}

/// Between its look at a row and its lease another relay has had the row, and a sink has confirmed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_shares_its_table_knows_what_was_confirmed_before_its_lease() {
    let table = Table::new().await;
    enqueue(&table, events(1)).await;
    let store = table.store(false);
    assert!(claim(&store, 0).await.rows.is_empty());
    let mut other = begin(&table.pool).await.unwrap();
    let claiming = tokio::spawn(async move { claim(&store, 1).await });
    // It has looked by then, and waits for the lock. If not, it finds what it is to find without looking twice.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let confirmed = sqlx::query("UPDATE org_outbox SET sinks_done = '[\"a\"]'").execute(&mut *other);
    assert_eq!(confirmed.await.unwrap().rows_affected(), 1);
    other.commit().await.unwrap();
    assert_eq!(claiming.await.unwrap().rows[0].sinks_done, ["a"]);
}
