//! Wake-ups: the relays here look by themselves so seldom that only a wake-up explains a delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postbox_core::{DispatchError, Dispatcher, RelayHandle, Settings};
use postbox_stores::postgres::migrate::{self, Extras};
use postbox_testkit::eventually;
use postbox_testkit::suite::relay::run;
use postbox_testkit::suite::{OpenTransaction as _, Subject as _, events};
use sqlx::postgres::PgListener;

use crate::common::{Batches, SOON, all_published, insert};
use crate::subject::{Shape, Table};

/// The first keys of the two locks.
const LOCK: u32 = 0x706f_7374;
const SLEEPER: u32 = 0x706f_7375;

const TOPIC: &str = "org.thing.happened.v1";

/// How many bursts a relay falls asleep between; more where a variable asks for it.
fn bursts() -> usize {
    std::env::var("POSTBOX_WAKES").ok().and_then(|number| number.parse().ok()).unwrap_or(400)
}

fn seldom() -> Settings {
    Settings { poll_interval: Duration::from_mins(10), ..Settings::default() }
}

fn nowhere() -> impl Dispatcher {
    Batches(100, |_| async { Ok::<(), DispatchError>(()) })
}

fn relay(table: &Table) -> RelayHandle {
    run(table.store(true), nowhere(), seldom())
}

/// How many sessions hold one of the two locks: that of a sleeper, and that of the one who may sleep.
fn holders(table: &Table, class: u32) -> String {
    sessions(table, "ExclusiveLock", class)
}

fn sessions(table: &Table, mode: &str, class: u32) -> String {
    table.db.psql(&format!("SELECT count(*) FROM pg_locks WHERE mode = '{mode}' AND {}", of_table(class)))
}

fn of_table(class: u32) -> String {
    format!(
        "locktype = 'advisory' AND classid = {class} AND objid = 'org_outbox'::regclass
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
}

fn asleep(table: &Table) -> bool {
    holders(table, LOCK) == "1"
}

async fn falls_asleep(table: &Table) {
    eventually("the relay to sleep", SOON, async || asleep(table)).await;
}

/// Somebody else who hears what the relay hears, and a last word that the relay does not hear.
async fn listener(table: &Table) -> PgListener {
    let channel = format!("postbox_{}", table.db.psql("SELECT 'org_outbox'::regclass::oid"));
    let mut listener = PgListener::connect_with(&table.owner).await.unwrap();
    listener.listen_all([channel.as_str(), LAST_WORD]).await.unwrap();
    listener
}

const LAST_WORD: &str = "last_word";

/// What has been heard until now: they come in the order of commits.
async fn heard(table: &Table, listener: &mut PgListener) -> usize {
    table.db.psql(&format!("NOTIFY {LAST_WORD}"));
    let mut heard = 0;
    while listener.recv().await.unwrap().channel() != LAST_WORD {
        heard += 1;
    }
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_writes_an_event_wakes_the_relay() {
    let table = Table::new(Shape::Migrated).await;
    let extras = Extras { wake_trigger: true, ..Extras::default() };
    let mut connection = table.owner.acquire().await.unwrap();
    let plan = migrate::up_with(&mut connection, &table.name, extras, |_| {}).await.unwrap();
    assert_eq!(plan.steps.len(), 2, "{plan:?}");
    assert!(migrate::plan(&mut connection, &table.name).await.unwrap().steps.is_empty(), "it is kept");
    let relay = relay(&table);
    for _ in 0..3 {
        falls_asleep(&table).await;
        let mut tx = table.outbox().begin(&table.owner).await.unwrap();
        table.outbox().enqueue_all(&mut tx, events(3)).await.unwrap();
        tx.commit().await.unwrap();
        all_published(&table, "what was enqueued").await;
        falls_asleep(&table).await;
        table.db.psql(&format!("SELECT postbox_enqueue('org_outbox', '{TOPIC}', '{{}}')"));
        all_published(&table, "what the function wrote").await;
        falls_asleep(&table).await;
        table.db.psql(&insert(TOPIC, "", ""));
        all_published(&table, "a plain row").await;
    }
    relay.shutdown().await.unwrap();
    assert_eq!(holders(&table, SLEEPER), "0", "a relay that has stopped leaves no session behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_function_is_replaced() {
    let table = Table::new(Shape::Migrated).await;
    let definition = table.db.psql("SELECT pg_get_functiondef('postbox_enqueue'::regproc)");
    table.db.psql(&definition.replace("PERFORM pg_notify", "PERFORM concat"));
    let mut connection = table.owner.acquire().await.unwrap();
    let plan = migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
    assert_eq!(
        plan.steps.iter().map(|step| step.what.as_str()).collect::<Vec<_>>(),
        ["+ function postbox_enqueue"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_notifies_while_no_relay_sleeps() {
    let table = Table::new(Shape::Migrated).await;
    let mut listener = listener(&table).await;
    // More than a relay of one at a time has room for, so that it does not even look for more.
    table.begin(events(10)).await.commit().await;
    assert_eq!(heard(&table, &mut listener).await, 0, "no relay");
    let (gate, entered) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, seen) = (Arc::clone(&gate), Arc::clone(&entered));
    let sink = Batches(1, move |_| {
        let (held, seen) = (Arc::clone(&held), Arc::clone(&seen));
        async move {
            seen.fetch_add(1, Ordering::SeqCst);
            held.acquire().await.unwrap().forget();
            Ok::<(), DispatchError>(())
        }
    });
    let settings = Settings { batch_size: 1, concurrency: 1, ..seldom() };
    let relay = run(table.store(true), sink, settings);
    eventually("a dispatch", SOON, async || entered.load(Ordering::SeqCst) > 0).await;
    table.begin(events(8)).await.commit().await;
    assert_eq!(heard(&table, &mut listener).await, 0, "a relay that has enough to do");
    gate.add_permits(100);
    all_published(&table, "everything").await;
    falls_asleep(&table).await;
    heard(&table, &mut listener).await;
    table.begin(events(5)).await.commit().await;
    all_published(&table, "the rest").await;
    assert_eq!(heard(&table, &mut listener).await, 1, "one for a transaction");
    falls_asleep(&table).await;
    let quiet = table.outbox().quiet();
    let mut tx = quiet.begin(&table.owner).await.unwrap();
    quiet.enqueue_all(&mut tx, events(1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(heard(&table, &mut listener).await, 0, "who asked for silence");
    relay.shutdown().await.unwrap();
}

/// The race that a flag in a table would lose: commits at every moment of falling asleep, some of them long after their INSERT.
#[tokio::test(flavor = "multi_thread")]
async fn no_wake_up_is_lost() {
    let table = Table::new(Shape::Migrated).await;
    let relay = relay(&table);
    let (outbox, pool) = (table.outbox(), table.owner.clone());
    for burst in 0..bursts() {
        let mut random = fastrand::Rng::with_seed(burst as u64);
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..random.usize(1..=4) {
            let (outbox, pool) = (outbox.clone(), pool.clone());
            let (before, open) = (random.u64(0..3000), random.u64(0..6000));
            let rolled_back = random.u8(..) < 25;
            writers.spawn(async move {
                tokio::time::sleep(Duration::from_micros(before)).await;
                let mut tx = outbox.begin(&pool).await.unwrap();
                outbox.enqueue_all(&mut tx, events(1)).await.unwrap();
                tokio::time::sleep(Duration::from_micros(open)).await;
                if rolled_back { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
            });
        }
        writers.join_all().await;
        eventually(&format!("burst {burst}"), SOON, async || {
            let waits = "SELECT EXISTS (SELECT 1 FROM org_outbox WHERE published_at IS NULL)";
            !sqlx::query_scalar::<_, bool>(waits).fetch_one(&table.owner).await.unwrap()
        })
        .await;
    }
    relay.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_stays_open_holds_up_nobody() {
    let table = Table::new(Shape::Migrated).await;
    let relay = relay(&table);
    // Written while the relay was awake: the lock is the writer's, and stays so.
    let long = loop {
        table.begin(events(1)).await.commit().await;
        let open = table.begin(events(1)).await;
        if sessions(&table, "ShareLock", LOCK) == "1" {
            break open;
        }
        open.roll_back().await;
    };
    for _ in 0..5 {
        table.begin(events(1)).await.commit().await;
        eventually("what others commit", SOON, async || {
            table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "0"
        })
        .await;
    }
    long.commit().await;
    all_published(&table, "what was open").await;
    falls_asleep(&table).await;
    relay.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_whose_session_ends_looks_and_listens_again() {
    let table = Table::new(Shape::Migrated).await;
    let relay = relay(&table);
    for _ in 0..3 {
        falls_asleep(&table).await;
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {}", of_table(LOCK));
        table.db.psql(&end);
        table.begin(events(1)).await.commit().await;
        all_published(&table, "what nobody was told of").await;
    }
    relay.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_relays_one_sleeps_and_a_successor_takes_its_place() {
    let table = Table::new(Shape::Migrated).await;
    let often = || Settings { poll_interval: Duration::from_millis(200), ..Settings::default() };
    let relays = [(); 3].map(|()| run(table.store(false), nowhere(), often()));
    let [first, second, third] = relays;
    falls_asleep(&table).await;
    for relay in [first, second] {
        assert_eq!(holders(&table, SLEEPER), "1");
        table.begin(events(20)).await.commit().await;
        all_published(&table, "what any of them takes").await;
        relay.shutdown().await.unwrap();
        falls_asleep(&table).await;
    }
    third.shutdown().await.unwrap();
    assert_eq!(holders(&table, SLEEPER), "0");
}

/// What nobody told it of it finds at its next look, and is awake from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_finds_something_ends_the_sleep() {
    let table = Table::new(Shape::Migrated).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let held = Arc::clone(&gate);
    let sink = Batches(1, move |_| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.unwrap().forget();
            Ok::<(), DispatchError>(())
        }
    });
    let settings =
        Settings { batch_size: 1, concurrency: 1, poll_interval: Duration::from_millis(200), ..seldom() };
    let relay = run(table.store(true), sink, settings);
    falls_asleep(&table).await;
    // More than it has room for, so that it has no reason to fall asleep again.
    table.db.psql(&(0..10).map(|_| insert(TOPIC, "", "")).collect::<Vec<_>>().join(";"));
    eventually("the lock to be free", SOON, async || !asleep(&table)).await;
    gate.add_permits(100);
    all_published(&table, "everything").await;
    falls_asleep(&table).await;
    relay.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_loses_its_place_does_not_sleep_on() {
    let table = Table::new(Shape::Migrated).await;
    let settings = Settings { poll_interval: Duration::from_millis(200), ..Settings::default() };
    let relay = run(table.store(true), nowhere(), settings);
    falls_asleep(&table).await;
    // Another waits for its place, and gets it when the session of its claims ends.
    let place = "locktype = 'advisory' AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let key = format!("SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE {place}");
    let key: i64 = table.db.psql(&key).parse().unwrap();
    let mut other = table.owner.acquire().await.unwrap();
    let other = tokio::spawn(async move {
        sqlx::query("SELECT pg_advisory_lock($1)").bind(key).execute(&mut *other).await.unwrap();
        other
    });
    eventually("the other to wait", SOON, async || {
        table.db.psql(&format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND {place}")) == "1"
    })
    .await;
    table.db.psql(&format!("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE granted AND {place}"));
    let other = other.await.unwrap();
    eventually("both locks to be free", SOON, async || {
        holders(&table, LOCK) == "0" && holders(&table, SLEEPER) == "0"
    })
    .await;
    other.close().await.unwrap();
    falls_asleep(&table).await;
    table.begin(events(3)).await.commit().await;
    all_published(&table, "what it takes again").await;
    relay.shutdown().await.unwrap();
}

/// Where no session can listen, the process itself tells of its commits. (Those of other tests tell as well; alone, it is its own.)
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_a_commit_of_the_same_process_wakes_the_relay() {
    let table = Table::new(Shape::Pooled).await;
    let relay = relay(&table);
    let outbox = table.outbox();
    for _ in 0..3 {
        let mut tx = table.open(&outbox).await;
        let event = events(1).remove(0);
        let receipt = outbox.enqueue(&mut tx, event).await.unwrap();
        tx.commit().await.unwrap();
        eventually("the event to be published", SOON, async || {
            table.row(receipt.event_id).await.is_some_and(|row| row.published)
        })
        .await;
    }
    relay.shutdown().await.unwrap();
}
