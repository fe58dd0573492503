//! The hot path against PostgreSQL: what it writes, and what becomes of events when something dies in between.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use postbox_core::{
    CommitError, Delivery, DispatchError, Dispatcher, HotPath, Outbox, Relay, RelayHandle, Settings,
};
use postbox_stores::postgres::migrate::{Grants, print_grants};
use postbox_stores::postgres::{PgStore, connect_options};
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{PATIENCE, TOPIC, event, events, published, quick, state};
use postbox_testkit::{Program, Proxy, eventually};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::subject::{Shape, Table, role};

async fn start(store: PgStore, sink: impl Dispatcher, settings: Settings) -> (HotPath, RelayHandle) {
    let path = HotPath::new();
    let relay = Relay::builder(store).hot(&path).dispatcher(sink).settings(settings).build().unwrap().spawn();
    eventually("the path to be open", PATIENCE, async || path.remaining() > 0).await;
    (path, relay)
}

fn short_leases() -> Settings {
    Settings { lock_ttl: Duration::from_millis(900), dispatch_timeout: Duration::from_millis(500), ..quick() }
}

/// Hazard 30: the row may exist or not, and only the table knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_was_lost_is_left_to_the_relay() {
    let table = Table::new(Shape::Migrated).await;
    let proxy = Proxy::start(table.db.addr());
    let pool = PgPool::connect(&table.db.url_through(proxy.addr())).await.unwrap();
    let sink = Scripted::ok();
    let (path, relay) =
        start(PgStore::new(&table.owner, table.name.clone()), sink.clone(), short_leases()).await;
    let outbox = Outbox::new(table.name.clone()).hot(&path);
    let mut tx = outbox.begin(&pool).await.unwrap();
    let id = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    let mut cut = proxy.cut_replies_after_requests_containing(b"COMMIT");
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
    cut.fired().await;
    assert_eq!(path.remaining(), 1000, "its place is free");
    published(&table, id).await;
    assert_eq!((sink.arrived(), state(&table, id).await.attempts), (vec![id], 2), "after its lease, alone");
    relay.shutdown().await.unwrap();
}

/// Hazard 4: its lease begins when it is written, not when its transaction began; else it might have run out by the commit, and another
/// relay would have it, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_began_long_ago_has_a_whole_lease() {
    let table = Table::new(Shape::Migrated).await;
    let sink = Scripted::ok();
    let (path, relay) =
        start(PgStore::new(&table.owner, table.name.clone()), sink.clone(), short_leases()).await;
    let outbox = Outbox::new(table.name.clone()).hot(&path);
    let mut tx = outbox.begin(&table.owner).await.unwrap();
    sqlx::query("SELECT pg_sleep(1.2)").execute(&mut **tx).await.unwrap();
    let id = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    let late = "SELECT locked_at >= now() + interval '1 second' FROM org_outbox";
    assert!(sqlx::query_scalar::<_, bool>(late).fetch_one(&mut **tx).await.unwrap());
    tx.commit().await.unwrap();
    published(&table, id).await;
    assert_eq!((sink.arrived(), state(&table, id).await.attempts), (vec![id], 1));
    relay.shutdown().await.unwrap();
}

/// An insert and a settle for each event, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_row_is_written_twice() {
    let table = Table::new(Shape::Migrated).await;
    let sink = Scripted::ok();
    let store = PgStore::new(&table.owner, table.name.clone());
    let (path, relay) = start(store, sink.clone(), Settings { poll_interval: PATIENCE, ..quick() }).await;
    let pool = PgPool::connect(&table.db.url).await.unwrap();
    let outbox = Outbox::new(table.name.clone()).hot(&path);
    for _ in 0..10 {
        let mut tx = outbox.begin(&pool).await.unwrap();
        outbox.enqueue_all(&mut tx, events(5)).await.unwrap();
        tx.commit().await.unwrap();
    }
    eventually("all to arrive", PATIENCE, async || sink.arrived().len() == 50).await;
    relay.shutdown().await.unwrap();
    pool.close().await;
    let writes = "SELECT n_tup_ins || ' ' || n_tup_upd || ' ' || n_tup_del FROM pg_stat_user_tables
                  WHERE relname = 'org_outbox'";
    eventually("the statistics", PATIENCE, async || table.db.psql(writes).starts_with("50 50")).await;
    assert_eq!(table.db.psql(writes), "50 50 0");
}

/// Two paths of one outbox in one transaction: each event goes to the relay whose token its row was born with.
#[tokio::test(flavor = "multi_thread")]
async fn two_paths_are_not_mixed_up() {
    let table = Table::new(Shape::Migrated).await;
    let (first, second) = (Scripted::ok(), Scripted::ok());
    let store = || PgStore::new(&table.owner, table.name.clone());
    let (path, one) = start(store(), first.clone(), quick()).await;
    let (other, two) = start(store(), second.clone(), quick()).await;
    let outbox = Outbox::new(table.name.clone());
    let (a, b) = (outbox.clone().hot(&path), outbox.hot(&other));
    let mut tx = a.begin(&table.owner).await.unwrap();
    let to_first = a.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    let to_second = b.enqueue(&mut tx, event(TOPIC, 2)).await.unwrap().event_id;
    tx.commit().await.unwrap();
    for id in [to_first, to_second] {
        published(&table, id).await;
        assert_eq!(state(&table, id).await.attempts, 1);
    }
    assert_eq!((first.arrived(), second.arrived()), (vec![to_first], vec![to_second]));
    one.shutdown().await.unwrap();
    two.shutdown().await.unwrap();
}

/// A relay that leads beside the one whose hot path is looked at: what is claimed does not come there.
async fn another_leads(table: &Table, sink: Scripted) -> RelayHandle {
    let store = PgStore::new(&table.owner, table.name.clone());
    let leader = Relay::builder(store).dispatcher(sink).settings(quick()).build().unwrap().spawn();
    let is_led = || table.db.psql("SELECT count(*) FROM postbox_relay WHERE expires_at > now()") == "1";
    eventually("a leader", PATIENCE, async || is_led()).await;
    leader
}

/// A relay that stands by claims nothing to probe with: the next hot event is the probe.
#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_that_a_hot_event_opened_on_a_standby_closes_again() {
    let table = Table::new(Shape::Migrated).await;
    let leader = another_leads(&table, Scripted::ok()).await;
    let sink = Scripted::new(|delivery| match delivery.meta.sequence {
        1 => Act::Unavailable,
        _ => Act::Ok,
    });
    let store = PgStore::new(&table.owner, table.name.clone());
    let (path, relay) = start(store, sink.clone(), quick()).await;
    let outbox = Outbox::new(table.name.clone()).hot(&path);
    let write = async || {
        let mut tx = outbox.begin(&table.owner).await.unwrap();
        outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap();
        tx.commit().await.unwrap();
    };
    write().await;
    eventually("the outage to be noticed", PATIENCE, async || sink.seen().len() == 1).await;
    let handled = async || {
        write().await;
        sink.arrived().len() > 3
    };
    eventually("events to be handled where they are written again", PATIENCE, handled).await;
    relay.shutdown().await.unwrap();
    leader.shutdown().await.unwrap();
}

/// Hazard 33: what a crash of the server may take back is not handled before it is safe.
#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_commit_goes_the_way_over_the_table() {
    let table = Table::new(Shape::Migrated).await;
    let claimed = Scripted::ok();
    let leader = another_leads(&table, claimed.clone()).await;
    for (path, hot) in [(HotPath::new(), false), (HotPath::new().allow_asynchronous_commit(), true)] {
        let (sink, before) = (Scripted::ok(), claimed.arrived().len());
        let store = PgStore::new(&table.owner, table.name.clone());
        let relay = Relay::builder(store).hot(&path).dispatcher(sink.clone()).settings(quick());
        let relay = relay.build().unwrap().spawn();
        eventually("the path to be open", PATIENCE, async || path.remaining() > 0).await;
        let outbox = Outbox::new(table.name.clone()).hot(&path);
        let mut tx = outbox.begin(&table.owner).await.unwrap();
        sqlx::query("SET LOCAL synchronous_commit = off").execute(&mut **tx).await.unwrap();
        let id = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
        tx.commit().await.unwrap();
        published(&table, id).await;
        assert_eq!((sink.arrived().len() == 1, claimed.arrived().len() - before == 1), (hot, !hot));
        relay.shutdown().await.unwrap();
    }
    leader.shutdown().await.unwrap();
}

/// The grants of a service that handles its own events are enough for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_do_all_it_needs() {
    let table = Table::new(Shape::Grants).await;
    let app = role(&table.db, "app");
    table.db.psql(&format!("CREATE ROLE \"{app}\" LOGIN"));
    let grants: Grants = format!("writer={app},relay={app},handler={app}").parse().unwrap();
    table.db.psql(&print_grants(&table.name, &grants));
    let options = connect_options(&table.db.url).unwrap().username(&app);
    let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
    let sink = Scripted::ok();
    let (path, relay) = start(PgStore::new(&pool, table.name.clone()), sink.clone(), quick()).await;
    let outbox = Outbox::new(table.name.clone()).hot(&path);
    let mut tx = outbox.begin(&pool).await.unwrap();
    let id = outbox.enqueue(&mut tx, event(TOPIC, 1)).await.unwrap().event_id;
    tx.commit().await.unwrap();
    published(&table, id).await;
    assert_eq!(sink.arrived(), [id]);
    relay.shutdown().await.unwrap();
}

/// For those that were started again: the database, and where to note what was handled.
const URL: &str = "POSTBOX_TEST_HOT_URL";
const NOTES: &str = "POSTBOX_TEST_HOT_NOTES";

/// One write for each event, which outlives the process.
struct Note(std::fs::File);

impl Dispatcher for Note {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let line = format!("{}\n", delivery.meta.event_id);
        (&self.0).write_all(line.as_bytes()).map_err(|error| DispatchError::retry(error.to_string()))?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(())
    }
}

/// A part, not a test: a service that writes and handles until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn part_service() {
    let (Ok(url), Ok(notes)) = (std::env::var(URL), std::env::var(NOTES)) else { return };
    let pool = PgPool::connect(&url).await.unwrap();
    let table: postbox_core::TableName = "public.org_outbox".parse().unwrap();
    let notes = std::fs::OpenOptions::new().create(true).append(true).open(notes).unwrap();
    let (path, _relay) = start(PgStore::new(&pool, table.clone()), Note(notes), short_leases()).await;
    let outbox = Outbox::new(table).hot(&path);
    println!("service up");
    for n in 0.. {
        let mut tx = outbox.begin(&pool).await.unwrap();
        outbox.enqueue_all(&mut tx, events(1 + n % 5)).await.unwrap();
        if n % 7 == 0 { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
    }
}

/// kill -9 between any two steps of commit, handling and settle: the relay takes over after the lease; nothing is lost,
/// nothing is handled that does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_again_and_again_loses_nothing() {
    let table = Table::new(Shape::Migrated).await;
    let dir = tempfile::tempdir().unwrap();
    let notes: PathBuf = dir.path().join("notes");
    let handled = || {
        let text = std::fs::read_to_string(&notes).unwrap_or_default();
        // The last line may be cut.
        text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<uuid::Uuid>>()
    };
    for kill in 0..12 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "hot::part_service", "--nocapture", "--test-threads=1"]);
        command.env(URL, &table.db.url).env(NOTES, &notes);
        let mut service = Program::from_command(command);
        service.wait_for_line("service up", PATIENCE);
        let before = handled().len();
        eventually("some events", PATIENCE, async || handled().len() > before + 20 + 7 * kill).await;
        service.kill9();
    }
    let last = Note(std::fs::OpenOptions::new().append(true).open(&notes).unwrap());
    let (_path, relay) = start(PgStore::new(&table.owner, table.name.clone()), last, short_leases()).await;
    let waiting = "SELECT count(*) FROM org_outbox WHERE published_at IS NULL";
    eventually("everything to be published", PATIENCE, async || table.db.psql(waiting) == "0").await;
    relay.shutdown().await.unwrap();
    let handled = handled();
    let exist = table.db.psql("SELECT event_id FROM org_outbox");
    let exist: HashSet<uuid::Uuid> = exist.lines().map(|id| id.parse().unwrap()).collect();
    let distinct: HashSet<uuid::Uuid> = handled.iter().copied().collect();
    assert_eq!(distinct, exist);
    let repeated = handled.len() - distinct.len();
    println!("{} events, {repeated} repeated by 12 kills", exist.len());
    // In flight are at most what the hot path holds, and that only ever is what two transactions have written.
    assert!(repeated <= 12 * 100, "{repeated}");
}

/// Counts, slowly, and keeps nothing.
struct Slow(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Dispatcher for Slow {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

/// The memory of this process in KiB: what it has now, or the most it ever had.
fn memory(which: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// A part, not a test: 5,000 events of 16 KiB, as fast as they can be written, for a path with 16 places.
#[tokio::test(flavor = "multi_thread")]
async fn part_burst() {
    let Ok(url) = std::env::var(URL) else { return };
    let pool = PgPool::connect(&url).await.unwrap();
    let table: postbox_core::TableName = "public.org_outbox".parse().unwrap();
    let handled = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
    let path = HotPath::bounded(16, 1 << 20);
    let relay = Relay::builder(PgStore::new(&pool, table.clone())).hot(&path);
    let relay =
        relay.dispatcher(Slow(std::sync::Arc::clone(&handled))).settings(quick()).build().unwrap().spawn();
    eventually("the path to be open", PATIENCE, async || path.remaining() > 0).await;
    let outbox = Outbox::new(table).hot(&path);
    let large = "x".repeat(16 * 1024);
    let mut before = 0;
    // The first ones show what the process needs at all.
    for n in 0..52 {
        let mut tx = outbox.begin(&pool).await.unwrap();
        let records = (0..100).map(|_| postbox_core::Record::builder(TOPIC).json(&large));
        outbox.enqueue_all(&mut tx, records).await.unwrap();
        tx.commit().await.unwrap();
        if n == 1 {
            let all = async || handled.load(std::sync::atomic::Ordering::SeqCst) == 200;
            eventually("the first", PATIENCE, all).await;
            before = memory("VmRSS");
        }
    }
    let all = async || handled.load(std::sync::atomic::Ordering::SeqCst) == 5_200;
    eventually("all of them, each once", Duration::from_mins(2), all).await;
    relay.shutdown().await.unwrap();
    assert_eq!(handled.load(std::sync::atomic::Ordering::SeqCst), 5_200);
    println!("burst grew {} KiB", memory("VmHWM").saturating_sub(before));
}

/// The table is the buffer, not the memory: of 80 MiB that are written at once, little is ever there.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_a_small_path_stays_small() {
    let table = Table::new(Shape::Migrated).await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "hot::part_burst", "--nocapture", "--test-threads=1"]);
    command.env(URL, &table.db.url);
    let mut burst = Program::from_command(command);
    let line = burst.wait_for_line("burst grew ", Duration::from_mins(3));
    assert!(burst.wait(PATIENCE).success());
    let grew = line.split("burst grew ").nth(1).unwrap().split(' ').next().unwrap();
    let grew: usize = grew.parse().unwrap();
    println!("5,000 events of 16 KiB: {grew} KiB more than before");
    assert!(grew < 48 * 1024, "{grew} KiB");
}
