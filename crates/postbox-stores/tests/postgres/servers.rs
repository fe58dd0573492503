//! What happens to a server as a whole: another takes its place, its disk is full, an old transaction keeps it from cleaning up.

use std::time::Duration;

use postbox_core::cleaner::{Sweep as _, Tidied};
use postbox_core::{Cleaner, Outbox, Relay, Settings, TableName};
use postbox_stores::postgres::{PgAdmin, PgStore, connect_options, migrate};
use postbox_testkit::suite::relay::arrived;
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{PATIENCE, events, quick};
use postbox_testkit::{PgServer, Proxy, TestDb, eventually};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _};

async fn migrated(db: &TestDb) -> (PgConnectOptions, TableName) {
    let options = connect_options(&db.url).unwrap();
    let name: TableName = "public.org_outbox".parse().unwrap();
    migrate::up(&mut options.connect().await.unwrap(), &name, |_| {}).await.unwrap();
    (options, name)
}

fn pool(options: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new().max_connections(2).connect_lazy_with(options.clone())
}

/// A primary that is gone has left nothing behind that was committed: its standby has it all, and the relay goes on there.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_promoted_has_every_event_and_the_relay_goes_on_there() {
    let primary = PgServer::start();
    let db = primary.database();
    let (_, name) = migrated(&db).await;
    let standby = primary.standby();
    primary.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.psql("postgres", "SELECT pg_reload_conf()");
    let in_step = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    eventually("the standby to follow", PATIENCE, async || primary.psql("postgres", in_step) == "1").await;

    let proxy = Proxy::start(primary.addr());
    let through = connect_options(&db.url_through(proxy.addr())).unwrap();
    let (outbox, writers) = (Outbox::new(name.clone()), pool(&through));
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(2)));
    let settings =
        Settings { lock_ttl: Duration::from_secs(2), dispatch_timeout: Duration::from_secs(1), ..quick() };
    let relay = Relay::builder(PgStore::builder(through, name).build()).dispatcher(sink.clone());
    let relay = relay.settings(settings).build().unwrap().spawn();
    let mut committed = Vec::new();
    for round in 0..2 {
        let mut tx = eventually("a server", PATIENCE, async || writers.begin().await.ok()).await;
        let receipts = outbox.enqueue_all(&mut tx, events(400)).await.unwrap();
        tx.commit().await.unwrap();
        committed.extend(receipts.into_iter().map(|receipt| receipt.event_id));
        eventually("some to arrive", PATIENCE, async || sink.arrived().len() > round * 400 + 50).await;
        if round == 0 {
            // In the middle of the first ones.
            proxy.cut();
            primary.stop_immediate();
            standby.promote();
            standby.psql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
            standby.psql("postgres", "SELECT pg_reload_conf()");
            proxy.redirect(standby.addr());
            proxy.pass();
        }
    }
    arrived(&sink, &committed).await;
    let database = db.url.rsplit('/').next().unwrap();
    let left = "SELECT count(*) FROM org_outbox WHERE published_at IS NULL";
    eventually("all to be settled", PATIENCE, async || standby.psql(database, left) == "0").await;
    relay.shutdown().await.unwrap();
    let repeated = sink.arrived().len() - committed.len();
    assert!(repeated <= 400, "at most what was in flight: {repeated}");
    let spent = "SELECT count(*) FROM org_outbox WHERE attempts > 3 OR dead_at IS NOT NULL";
    assert_eq!(standby.psql(database, spent), "0");
}

/// With a full disk nothing can be written, not even what became of events. They wait, and go on by themselves when there is room again;
/// nobody is sent anything twice for it.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn hazard_36_a_full_disk_costs_no_attempt_and_delivery_goes_on_by_itself() {
    const EVENTS: usize = 24_000;
    let server = PgServer::with(&["autovacuum=off"]);
    let db = server.database();
    let (options, name) = migrated(&db).await;
    // Rows of more than a thousand bytes: none finds room between others.
    let insert = |number: usize| {
        format!(
            "INSERT INTO org_outbox (event_id, tenant_id, topic, payload)
             SELECT gen_random_uuid(), gen_random_uuid(), 'org.thing.happened.v1', to_jsonb(repeat(md5(n::text), 30))
             FROM generate_series(1, {number}) AS n"
        )
    };
    db.psql(&insert(EVENTS));
    let size: u64 = db.psql("SELECT pg_relation_size('org_outbox')").parse().unwrap();
    assert!(size > 18 << 20, "larger than a file of the WAL, which is not to be what is full: {size}");
    server.limit_files(Some(size + 4096));

    let sink = Scripted::ok();
    let relay = Relay::builder(PgStore::builder(options.clone(), name.clone()).build());
    let settings = Settings { batch_size: 500, ..quick() };
    let relay = relay.dispatcher(sink.clone()).settings(settings).build().unwrap().spawn();
    let refused = db.try_psql(&insert(100)).unwrap_err();
    assert!(refused.contains("could not extend file"), "{refused}");
    let published = || db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NOT NULL");
    // All that the relay may have in flight has arrived, and cannot be written down.
    let mut before = (published(), sink.arrived().len());
    eventually("it to stand still", PATIENCE, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = (published(), sink.arrived().len());
        std::mem::replace(&mut before, now.clone()) == now
    })
    .await;
    let settled: usize = before.0.parse().unwrap();
    assert!(settled < EVENTS && before.1 > settled && before.1 - settled <= 4 * 500, "{before:?}");

    server.limit_files(None);
    eventually("all to be settled", PATIENCE, async || published() == EVENTS.to_string()).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), EVENTS, "each once");
    assert_eq!(db.psql("SELECT count(*) FROM org_outbox WHERE attempts <> 1 OR dead_at IS NOT NULL"), "0");
}

/// A snapshot that somebody keeps for long holds the room of what is settled and deleted, and nothing else: events flow, the cleaner deletes. When
/// it is gone, the next look makes the room usable.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_holds_the_room_and_no_event() {
    let server = PgServer::with(&["autovacuum=off"]);
    let db = server.database();
    let (options, name) = migrated(&db).await;
    let (writers, outbox) = (pool(&options), Outbox::new(name.clone()));
    let mut old = options.connect().await.unwrap();
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM org_outbox").await.unwrap();

    let sink = Scripted::ok();
    let relay = Relay::builder(PgStore::builder(options.clone(), name.clone()).build());
    let settings = Settings { batch_size: 500, ..quick() };
    let relay = relay.dispatcher(sink.clone()).settings(settings).build().unwrap().spawn();
    let cleaner = Cleaner::new(PgAdmin::connect(options.clone(), name.clone())).retention(Duration::ZERO);
    let (mut all, mut deleted) = (Vec::new(), 0);
    for _ in 0..12 {
        let mut tx = writers.begin().await.unwrap();
        let receipts = outbox.enqueue_all(&mut tx, events(5_000)).await.unwrap();
        tx.commit().await.unwrap();
        all.extend(receipts.into_iter().map(|receipt| receipt.event_id));
        eventually("them to arrive", PATIENCE, async || sink.arrived().len() >= all.len()).await;
        deleted += cleaner.run_once().await.unwrap();
    }
    relay.shutdown().await.unwrap();
    deleted += cleaner.run_once().await.unwrap();
    assert_eq!(
        (sink.arrived().len(), deleted),
        (all.len(), all.len() as u64),
        "each once, and each cleaned away"
    );

    let admin = PgAdmin::connect(options, name);
    eventually("the room to be held", PATIENCE, async || admin.tidy().await.unwrap() == Tidied::Held).await;
    old.execute("COMMIT").await.unwrap();
    eventually("the room to be free", PATIENCE, async || admin.tidy().await.unwrap() == Tidied::Done).await;
}
