//! The hazards of PostgreSQL: lost replies, dead sessions, restarts, hostile defaults.

use std::time::Duration;

use postbox_core::store::{ClaimMode, Standing, Verdict};
use postbox_core::{Browse as _, Settings, Store as _, StoreErrorKind};
use postbox_stores::postgres::{PgStore, Strategy, connect_options, migrate};
use postbox_testkit::suite::relay::{arrived, run};
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{
    PATIENCE, Subject as _, claim, enqueue, events, quick, request, settle_all, state,
};
use postbox_testkit::{PgServer, Proxy, eventually};
use sqlx::ConnectOptions as _;

use crate::common::KILL_LEADER;
use crate::subject::{Shape, Table};

/// A store whose connections go through a proxy.
fn behind(table: &Table, name: &str) -> (Proxy, PgStore) {
    let (proxy, store) = table.behind_proxy();
    (proxy, store.single_active(false).name(name).build())
}

/// A store that has claimed five events and knows nothing of it.
async fn after_a_lost_claim(table: &Table) -> (Proxy, PgStore) {
    let (proxy, store) = behind(table, "claimer");
    store.open().await.unwrap();
    // The text for exhausted rows travels with claims alone.
    let mut cut = proxy.cut_replies_after_requests_containing(b"OUTBOX_EXHAUSTED: no answer");
    let error = store.claim(request(ClaimMode::Waiting, 10)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Connection);
    cut.fired().await;
    eventually("the claim to have happened", PATIENCE, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE locked_by LIKE 'claimer/%' AND attempts = 1")
            == "5"
    })
    .await;
    (proxy, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_5_a_claim_whose_reply_was_lost_is_given_back_uncharged() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(5)).await;
    let (_proxy, store) = after_a_lost_claim(&table).await;
    let again = claim(&store, 10).await;
    assert_eq!(again.rows.len(), 5);
    assert!(again.rows.iter().all(|row| row.delivery.meta.attempts == 1), "the lost claim was not charged");
}

/// What somebody has locked of it waits for its lease, and holds up nobody.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_5_of_a_claim_whose_reply_was_lost_the_free_rows_are_given_back() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(5)).await;
    let (_proxy, store) = after_a_lost_claim(&table).await;
    let mut outsider = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = $1 FOR UPDATE").bind(ids[0].0);
    lock.execute(&mut *outsider).await.unwrap();
    assert_eq!(claim(&store, 10).await.rows.len(), 4);
    outsider.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_25_a_settle_whose_reply_was_lost_is_repeated_without_harm() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(5)).await;
    let (proxy, store) = behind(&table, "settler");
    let claim = claim(&store, 10).await;
    let mut cut = proxy.cut_replies_after_requests_containing(b"settler/");
    let error = store.settle(&settle_all(&claim, &Verdict::Delivered)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Connection);
    cut.fired().await;
    eventually("the settle to have happened", PATIENCE, async || state(&table, ids[0]).await.published).await;
    let settled = store.settle(&settle_all(&claim, &Verdict::Delivered)).await.unwrap();
    assert!(settled.lost.is_empty(), "its own work is not a lost lease");
    assert_eq!(
        store.settle(&settle_all(&claim, &Verdict::Delivered)).await.unwrap().lost.len(),
        5,
        "but later there is no such doubt"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_8_a_silent_network_is_noticed_and_survived() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, store) = behind(&table, "silent");
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(5)));
    let ids = enqueue(&table, events(400)).await;
    let settings = Settings { lock_ttl: Duration::from_mins(1), ..quick() };
    let relay = run(store, sink.clone(), settings);
    eventually("some to arrive", PATIENCE, async || sink.arrived().len() > 50).await;
    proxy.blackhole();
    eventually("the silence to be noticed", PATIENCE, async || relay.health().problem().is_some()).await;
    proxy.pass();
    arrived(&sink, &ids).await;
    eventually("all to be settled", PATIENCE, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "0"
    })
    .await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), 400, "what was delivered is settled late, not delivered twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_9_a_stuck_leader_loses_its_place() {
    let table = Table::new(Shape::Migrated).await;
    let options = connect_options(&table.db.url).unwrap();
    let store = || {
        PgStore::builder(options.clone(), table.name.clone()).leader_ttl(Duration::from_millis(1500)).build()
    };
    let (stuck, next) = (store(), store());
    let beat = || request(ClaimMode::Waiting, 0);
    assert_eq!(stuck.claim(beat()).await.unwrap().standing, Standing::Active);
    assert_eq!(next.claim(beat()).await.unwrap().standing, Standing::Standby);
    // The stuck one says nothing more; the server ends its session, and with it the lock.
    eventually("the take-over", PATIENCE, async || {
        next.claim(beat()).await.unwrap().standing == Standing::Active
    })
    .await;
    let after =
        eventually("the stuck one to come back", PATIENCE, async || stuck.claim(beat()).await.ok()).await;
    assert_eq!(after.standing, Standing::Standby);
    next.close().await;
    eventually("an orderly hand-over", PATIENCE, async || {
        stuck.claim(beat()).await.unwrap().standing == Standing::Active
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_10_a_killed_leader_session_changes_nothing_but_the_leader() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(2_000)).await;
    let (a, b) = (Scripted::ok(), Scripted::ok());
    // By lease; `owner.rs` has what owners promise.
    let start = |sink: &Scripted| run(table.leasing(), sink.clone(), quick());
    let (first, second) = (start(&a), start(&b));
    for _ in 0..5 {
        eventually("a leader to kill", PATIENCE, async || table.db.psql(KILL_LEADER) == "1").await;
    }
    let all = eventually("everything to arrive", PATIENCE, async || {
        let all = [a.arrived(), b.arrived()].concat();
        let distinct: std::collections::HashSet<_> = all.iter().copied().collect();
        (distinct.len() == ids.len()).then_some(all)
    })
    .await;
    first.shutdown().await.unwrap();
    second.shutdown().await.unwrap();
    assert_eq!(all.len(), ids.len(), "claims and settles are on their own connections: nothing is repeated");
    assert_eq!(table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_lock_has_the_key_of_the_contract() {
    let table = Table::new(Shape::Migrated).await;
    let store = table.store(true);
    assert_eq!(claim(&store, 1).await.standing, Standing::Active);
    // FNV-1a of 64 bits over `outbox:public.org_outbox`, computed by PostgreSQL itself.
    let key = table.db.psql(
        "WITH RECURSIVE f (i, h) AS (
            SELECT 0, 14695981039346656037::numeric
            UNION ALL
            SELECT i + 1, mod(((h - mod(h, 256)) + (mod(h, 256)::int # ascii(substr('outbox:public.org_outbox', i + 1, 1)))) * 1099511628211, 18446744073709551616)
            FROM f WHERE i < length('outbox:public.org_outbox'))
         SELECT CASE WHEN h >= 9223372036854775808 THEN h - 18446744073709551616 ELSE h END FROM f ORDER BY i DESC LIMIT 1",
    );
    let other = table.db.psql(&format!("SELECT pg_try_advisory_lock({key})"));
    assert_eq!(other, "f", "somebody else cannot take it");
    store.close().await;
    assert_eq!(table.db.psql(&format!("SELECT pg_try_advisory_lock({key})")), "t");
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_17_hostile_defaults_do_not_matter() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(&format!(
        "ALTER DATABASE \"{0}\" SET default_transaction_isolation = 'repeatable read';
         ALTER DATABASE \"{0}\" SET synchronous_commit = off; ALTER DATABASE \"{0}\" SET enable_indexscan = off;
         ALTER DATABASE \"{0}\" SET timezone = 'Asia/Tokyo'; ALTER DATABASE \"{0}\" SET datestyle = 'SQL, DMY'",
        table.db.name
    ));
    let ids = enqueue(&table, events(500)).await;
    let sink = Scripted::ok();
    let relays: Vec<_> = (0..3)
        .map(|_| run(table.store(false), sink.clone(), Settings { batch_size: 10, ..quick() }))
        .collect();
    arrived(&sink, &ids).await;
    for relay in relays {
        relay.shutdown().await.unwrap();
    }
    assert_eq!(sink.arrived().len(), 500);
}

/// What operators do uses the pool that it was given, whatever its sessions are.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_17_a_replay_waits_for_another_and_goes_on() {
    let table = Table::new(Shape::Migrated).await;
    let id = enqueue(&table, events(1)).await[0];
    table.db.psql(&format!(
        "ALTER DATABASE \"{}\" SET default_transaction_isolation = serializable;
         UPDATE org_outbox SET dead_at = now(), last_error = 'x'",
        table.db.name
    ));
    let mut other = table.owner.begin().await.unwrap();
    sqlx::query("UPDATE org_outbox SET last_error = 'y'").execute(&mut *other).await.unwrap();
    let admin = table.admin();
    let replay = tokio::spawn(async move { admin.replay_dead(&[id], "tester").await });
    table.somebody_waits().await;
    other.commit().await.unwrap();
    assert_eq!(replay.await.unwrap().unwrap(), [id]);
}

/// With these settings a planner looks for the rows of a claim anew for each row of the table, if it is left a way to.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_11_a_claim_takes_no_more_than_its_limit() {
    let table = Table::new(Shape::Migrated).await;
    for setting in ["enable_hashagg", "enable_sort", "enable_material", "enable_memoize"] {
        table.db.psql(&format!("ALTER DATABASE \"{}\" SET {setting} = off", table.db.name));
    }
    enqueue(&table, events(1_000)).await;
    let store = table.store(false);
    for round in 1..=3 {
        assert_eq!(claim(&store, 10).await.rows.len(), 10);
        let leased = table.db.psql("SELECT count(*) FROM org_outbox WHERE locked_at IS NOT NULL");
        assert_eq!(leased, (round * 10).to_string());
    }
}

/// Serialization failures and deadlocks, now and then, at every statement that writes: tried again, and nobody is charged or sent to twice.
#[tokio::test(flavor = "multi_thread")]
async fn conflicts_cost_time_only() {
    for strategy in [Strategy::Lease, Strategy::Owner] {
        let table = Table::new(Shape::Migrated).await;
        table.db.psql(
            "CREATE SEQUENCE writes;
             CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
             DECLARE n bigint := nextval('writes');
             BEGIN
                 IF n % 5 = 0 THEN RAISE EXCEPTION 'injected' USING ERRCODE = '40001'; END IF;
                 IF n % 7 = 0 THEN RAISE EXCEPTION 'injected' USING ERRCODE = '40P01'; END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER conflict BEFORE UPDATE ON org_outbox EXECUTE FUNCTION conflict();
             CREATE TRIGGER conflict BEFORE UPDATE ON postbox_relay EXECUTE FUNCTION conflict()",
        );
        let ids = enqueue(&table, events(120)).await;
        let sink = Scripted::ok();
        let store = PgStore::builder(table.relay.clone(), table.name.clone()).strategy(strategy).build();
        let relay = run(store, sink.clone(), Settings { batch_size: 10, ..quick() });
        arrived(&sink, &ids).await;
        let left = "SELECT count(*) FROM org_outbox WHERE published_at IS NULL";
        eventually("all to be settled", PATIENCE, async || table.db.psql(left) == "0").await;
        relay.shutdown().await.unwrap();
        assert_eq!(sink.arrived().len(), ids.len(), "{strategy:?}: each once");
        assert_eq!(table.db.psql("SELECT max(attempts) FROM org_outbox"), "1", "{strategy:?}");
        let writes: usize = table.db.psql("SELECT last_value FROM writes").parse().unwrap();
        assert!(writes > 12, "{strategy:?}: only {writes} statements wrote");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_crashes_loses_nothing_that_was_committed() {
    let server = PgServer::with(&["fsync=on"]);
    let db = server.database();
    let options = connect_options(&db.url).unwrap();
    let name: postbox_core::TableName = "public.org_outbox".parse().unwrap();
    migrate::up(&mut options.connect().await.unwrap(), &name, |_| {}).await.unwrap();
    let outbox = postbox_core::Outbox::new(name.clone());
    let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy_with(options.clone());
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(2)));
    let settings =
        Settings { lock_ttl: Duration::from_secs(2), dispatch_timeout: Duration::from_secs(1), ..quick() };
    let relay = run(PgStore::builder(options, name).build(), sink.clone(), settings);
    let mut committed = Vec::new();
    for round in 0..3 {
        let mut tx = eventually("the server", PATIENCE, async || pool.begin().await.ok()).await;
        let receipts = outbox.enqueue_all(&mut tx, events(300)).await.unwrap();
        tx.commit().await.unwrap();
        committed.extend(receipts.into_iter().map(|receipt| receipt.event_id));
        eventually("some to arrive", PATIENCE, async || sink.arrived().len() > round * 300 + 50).await;
        server.stop_immediate();
        server.start_again();
    }
    arrived(&sink, &committed).await;
    eventually("all to be settled", PATIENCE, async || {
        db.try_psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == Ok("0".to_owned())
    })
    .await;
    relay.shutdown().await.unwrap();
    let duplicates = sink.arrived().len() - committed.len();
    assert!(duplicates <= 3 * 300, "at most what was in flight: {duplicates}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_1_a_relay_that_is_gone_is_replaced_after_its_lease() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(40)).await;
    let stuck = Scripted::new(|_| Act::Hang);
    let settings = Settings {
        lock_ttl: Duration::from_secs(4),
        dispatch_timeout: Duration::from_millis(2600),
        ..quick()
    };
    let first = run(table.store(true), stuck.clone(), settings.clone());
    eventually("it to work", PATIENCE, async || stuck.seen().len() >= 16).await;
    first.kill();
    let sink = Scripted::ok();
    let second = run(table.store(true), sink.clone(), settings);
    arrived(&sink, &ids).await;
    second.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), 40);
    assert_eq!(
        table.db.psql("SELECT max(attempts), count(*) FROM org_outbox WHERE published_at IS NOT NULL"),
        "2|40"
    );
}
