//! Charges, zombies and fences; stops and sessions that end at the wrong moment.

use std::time::{Duration, Instant};

use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, ClaimRequest, Verdict};
use postbox_core::{DeadFilter, DeadLetters as _, Inspect as _, Relay, RelayHandle, Settings, Store as _};
use postbox_stores::postgres::{PgStore, connect_options};
use postbox_testkit::eventually;
use postbox_testkit::suite::relay::run;
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{Subject as _, claim, enqueue, events, quick, request, settle_all, state};

use crate::common::{SOON, insert, is_published};
use crate::subject::{Shape, Table};

/// A process that dies on the last attempt leaves a row with a lock that has run out: it is dead, and must be seen to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_bare_table_has_no_zombies() {
    let table = Table::new(Shape::Bare).await;
    table.db.psql(&insert("org.a.b.v1", ", attempts, locked_at", ", 25, now() - interval '1 day'"));
    let mut relay =
        Relay::builder(table.store(true)).dispatcher(Scripted::ok()).settings(quick()).build().unwrap();
    assert_eq!(relay.run_once().await.unwrap().claimed, 0);
    relay.close().await;
    let (dead, counts) =
        (table.admin().count(&DeadFilter::default()).await.unwrap(), table.admin().counts().await.unwrap());
    assert_eq!((dead, counts.dead), (1, 1), "dead and visible; counted as {counts:?}");
}

/// A release is repeated after its reply was lost. In between another relay claimed the row: on a bare table its claim
/// has the same number of attempts and a later lock, which is what the fence asks for.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_release_does_not_hit_the_next_claim_of_a_bare_table() {
    let table = Table::new(Shape::Bare).await;
    let id = enqueue(&table, events(1)).await[0];
    let (a, b) = (table.store(false), table.store(false));
    let first = claim(&a, 1).await;
    let release = || settle_all(&first, &Verdict::Release { after: None, reason: None });
    assert!(a.settle(&release()).await.unwrap().lost.is_empty());
    assert_eq!(claim(&b, 1).await.rows.len(), 1);
    let again = a.settle(&release()).await.unwrap();
    let row = state(&table, id).await;
    assert!(row.locked && row.attempts == 1, "the other relay's lease was taken away: {row:?}");
    assert_eq!(again.lost.len(), 1);
}

/// A settle that nobody waits for any more still runs when it is repeated: both take their locks in one order.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_18_a_settle_and_its_repetition_do_not_deadlock() {
    let table = Table::new(Shape::Migrated).await;
    // Before the relay's own limit, which would hide them.
    table.db.psql(&format!("ALTER DATABASE \"{}\" SET deadlock_timeout = '20ms'", table.db.name));
    let (first, again) = (table.store(false), table.store(false));
    for _ in 0..10 {
        enqueue(&table, events(300)).await;
        let claimed = claim(&first, 300).await;
        let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
        let settlements = settle_all(&claimed, &Verdict::Retry { after: Duration::from_hours(1), reason });
        let (one, two) = tokio::join!(first.settle(&settlements), again.settle(&settlements));
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    }
    let deadlocks = "SELECT pg_stat_clear_snapshot(); SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(table.db.psql(deadlocks).trim(), "0");
}

/// A settle that never reached the database leaves it unsure, too: the lease that was truly lost meanwhile is taken
/// for its own work, and counted as delivered (or dead, a second time).
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lost_during_an_outage_is_counted() {
    let table = Table::new(Shape::Migrated).await;
    let id = enqueue(&table, events(1)).await[0];
    let (proxy, store) = table.behind_proxy();
    let a = store.single_active(false).build();
    let first = claim(&a, 1).await;
    let settle = || settle_all(&first, &Verdict::Delivered);
    proxy.cut();
    a.settle(&settle()).await.unwrap_err();
    a.settle(&settle()).await.unwrap_err();
    let b = table.store(false);
    table.expire_lease(id).await;
    assert_eq!(b.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows.len(), 1);
    proxy.pass();
    let settled = eventually("the settle", SOON, async || a.settle(&settle()).await.ok()).await;
    assert!(!state(&table, id).await.published);
    assert_eq!(settled.lost.len(), 1, "the row is another's, and it was said to be ours");
}

/// All outcomes go into one statement: a row that somebody else has locked stops the settles of all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_locked_by_an_outsider_holds_up_nobody_else() {
    let table = Table::new(Shape::Migrated).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(300)));
    let relay =
        run(table.store(true), sink.clone(), Settings { lock_ttl: Duration::from_mins(1), ..quick() });
    let first = enqueue(&table, events(1)).await[0];
    eventually("the first to run", SOON, async || sink.tries(first) == 1).await;
    let mut tx = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = $1 FOR UPDATE").bind(first.0);
    lock.execute(&mut *tx).await.unwrap();
    let others = enqueue(&table, events(5)).await;
    for id in &others {
        is_published(&table, "the others to be settled", *id).await;
    }
    tx.rollback().await.unwrap();
    relay.shutdown().await.unwrap();
}

/// A claim that is under way when the relay stops brings rows that nobody takes in any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_a_claim_strands_no_rows() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, store) = table.behind_proxy();
    enqueue(&table, events(3_000)).await;
    for _ in 0..5 {
        let store = store.clone().single_active(false).build();
        let sink = Scripted::ok();
        // "0 releases it at once", says the reference.
        let relay = run(store, sink.clone(), Settings { drain_timeout: Duration::ZERO, ..quick() });
        eventually("some to arrive", SOON, async || sink.arrived().len() >= 20).await;
        proxy.delay(Duration::from_millis(20));
        // Claims follow each other, and take long from now on: when this one has come, the next is under way.
        let before = sink.arrived().len();
        eventually("a slow claim", SOON, async || sink.arrived().len() > before).await;
        relay.shutdown().await.unwrap();
        proxy.pass();
        // Nobody unlocks what the stop has left: either it goes back now, or it stays.
        eventually("what was claimed to be given back", SOON, async || {
            table.db.psql("SELECT count(*) FROM org_outbox WHERE locked_at IS NOT NULL") == "0"
        })
        .await;
        table.db.psql("UPDATE org_outbox SET locked_at = NULL, locked_by = NULL, attempts = 0 WHERE published_at IS NULL");
    }
}

/// Each time that a word of the payload is taken out, the word for it is put in; if that word is in the payload as well,
/// the text grows with every occurrence, and the thread is busy for as long as that takes.
#[test]
fn an_error_about_a_strange_payload_is_summed_up_in_no_time() {
    let payload = serde_json::json!(vec!["payload"; 20_000]);
    let payload = postbox_core::Payload::Json(postbox_core::Json::from_value(&payload).unwrap());
    let error = "the payload is bad; ".repeat(20);
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let started = Instant::now();
        let summary = postbox_core::redact::Summary::without_payload(&error, &payload, 2048);
        let _ = done.send((started.elapsed(), summary.as_str().len()));
    });
    let took = wait.recv_timeout(Duration::from_secs(20));
    assert!(
        took.as_ref().is_ok_and(|(took, _)| *took < Duration::from_secs(10)),
        "{took:?} for a payload of 200 kB"
    );
}

/// A number of 131 kB is stored in a few bytes: what counts against the limit is its stored size.
#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_in_flight_are_those_in_memory() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
         SELECT gen_random_uuid(), 'org.a.b.v1', to_jsonb(array_fill('1e131071'::numeric, ARRAY[8])), gen_random_uuid()
         FROM generate_series(1, 40)",
    );
    let found = table
        .store(false)
        .claim(ClaimRequest { max_bytes: 4 << 20, ..request(ClaimMode::Waiting, 100) })
        .await;
    let bytes: usize = found.unwrap().rows.iter().map(|row| row.delivery.payload.len()).sum();
    assert!(bytes <= 6 << 20, "{bytes} bytes were claimed, the limit is {}", 4 << 20);
}

/// An index of the right name and condition on other columns is taken for ours.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_on_other_columns_is_replaced() {
    use sqlx::ConnectOptions as _;
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "DROP INDEX org_outbox_pending_by_available, org_outbox_tenant_published;
         CREATE INDEX org_outbox_pending_by_available ON org_outbox (topic) WHERE published_at IS NULL AND dead_at IS NULL;
         CREATE INDEX org_outbox_tenant_published ON org_outbox (last_error)",
    );
    let mut connection = connect_options(&table.db.url).unwrap().connect().await.unwrap();
    postbox_stores::postgres::migrate::up(&mut connection, &table.name, |_| {}).await.unwrap();
    let definitions = table.db.psql("SELECT indexdef FROM pg_indexes WHERE tablename = 'org_outbox'");
    assert!(definitions.contains("(available_at, sequence)"), "{definitions}");
    assert!(definitions.contains("(tenant_id, published_at, sequence)"), "{definitions}");
}

/// A relay that has lost its database still says that it is the active one, beside the one that took over.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_lost_its_session_does_not_say_that_it_leads() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, store) = table.behind_proxy();
    let first = run(store.build(), Scripted::ok(), quick());
    let active = |relay: &RelayHandle| relay.health().now().standing == postbox_core::store::Standing::Active;
    eventually("the first to lead", SOON, async || active(&first)).await;
    let second = run(table.store(true), Scripted::ok(), quick());
    proxy.cut();
    eventually("the second to lead", SOON, async || active(&second)).await;
    eventually("the first to know that it does not", SOON, async || !active(&first)).await;
    assert!(active(&second));
    first.kill();
    second.shutdown().await.unwrap();
}

/// A relay whose database does not answer stops within its `drain_timeout`, more or less.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_a_silent_database_is_not_endless() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, store) = table.behind_proxy();
    enqueue(&table, events(200)).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(50)));
    let settings = Settings { drain_timeout: Duration::from_secs(1), ..quick() };
    let relay = run(store.build(), sink.clone(), settings);
    eventually("some to arrive", SOON, async || sink.arrived().len() >= 20).await;
    proxy.blackhole();
    let before = sink.arrived().len();
    eventually("one whose settle gets no answer", SOON, async || sink.arrived().len() > before).await;
    let started = Instant::now();
    relay.shutdown().await.unwrap();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(9), "it took {took:?}, drain_timeout is 1s");
}

/// The time limit of the leader and the relay's `poll_interval` are set in two places, and nothing compares them: with
/// a poll interval above the limit (15 s by default), the server ends the session of a healthy leader at every tick.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_interval_beyond_the_leaders_time_limit_works() {
    let table = Table::new(Shape::Migrated).await;
    let options = connect_options(&table.db.url).unwrap();
    let store = PgStore::builder(options, table.name.clone()).leader_ttl(Duration::from_millis(500)).build();
    let settings = Settings { poll_interval: Duration::from_secs(1), ..quick() };
    let relay = Relay::builder(store).dispatcher(Scripted::ok()).settings(settings).build().unwrap().spawn();
    // Every tick renews it.
    let mut renewed = std::collections::HashSet::new();
    eventually("six ticks", SOON * 3, async || {
        renewed.insert(table.db.psql("SELECT expires_at FROM postbox_relay WHERE expires_at IS NOT NULL"));
        renewed.len() > 6
    })
    .await;
    let epochs = table.db.psql("SELECT epoch FROM postbox_relay");
    relay.shutdown().await.unwrap();
    assert_eq!(epochs, "1", "the only relay became the leader {epochs} times");
}
