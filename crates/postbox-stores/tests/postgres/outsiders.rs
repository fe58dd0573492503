//! Somebody else is in the way: a lock on a row, or the lock by which a relay leads.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox_core::store::{Settled, Settlement, Standing, Store as _, Verdict};
use postbox_core::{Delivery, DispatchError, Dispatcher, EventId, Relay, RelayHandle, Settings};
use postbox_stores::postgres::{PgStore, Strategy};
use postbox_testkit::eventually;
use postbox_testkit::suite::relay::run;
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{Subject as _, claim, claim_in_turn, enqueue, events, quick, state};
use sqlx::{Postgres, Transaction};
use tokio::sync::Semaphore;

use crate::common::{KILL_LEADER, SOON, all_published, is_published};
use crate::order::{BLOCK, all_of};
use crate::subject::{Shape, Table};

/// The locks by which relays of this database lead, and those who wait for one.
const LOCKS: &str = "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Locks a row as an open session of psql does.
async fn lock(table: &Table, id: EventId) -> Transaction<'static, Postgres> {
    let mut tx = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = $1 FOR UPDATE").bind(id.0);
    assert_eq!(lock.execute(&mut *tx).await.unwrap().rows_affected(), 1);
    tx
}

/// Has one event wait until it is told to go on.
#[derive(Clone)]
struct Gated {
    first: EventId,
    gate: Arc<Semaphore>,
    begun: Arc<Mutex<Vec<EventId>>>,
}

impl Dispatcher for Gated {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let id = delivery.meta.event_id;
        self.begun.lock().unwrap().push(id);
        if id == self.first {
            self.gate.acquire().await.unwrap().forget();
        }
        Ok(())
    }
}

/// For a while the relay does not get back the lock of the session that it has lost. When it does, its place is its own, and what ran
/// meanwhile is in flight as before: read again, it would be forgotten that others wait behind it.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_comes_back_to_its_place_knows_what_still_runs() {
    let table = Table::new(Shape::Ordered).await;
    let ids = enqueue(&table, all_of("aa")).await;
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::default());
    let sink = Gated { first: ids[0], gate: Arc::clone(&gate), begun: Arc::clone(&begun) };
    let begun = || begun.lock().unwrap().clone();
    let settings =
        Settings { dispatch_timeout: Duration::from_secs(30), lock_ttl: Duration::from_mins(1), ..quick() };
    let relay = run(table.in_order(BLOCK, Strategy::Owner, true), sink, settings);
    eventually("the first to run", SOON, async || begun() == ids[..1]).await;

    let key: i64 = table
        .db
        .psql(&format!("SELECT classid::bigint << 32 | objid::bigint {LOCKS} AND granted"))
        .parse()
        .unwrap();
    let mut outsider = table.owner.acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        sqlx::query("SELECT pg_advisory_lock($1)").bind(key).execute(&mut *outsider).await.unwrap();
        outsider
    });
    let waits = format!("SELECT count(*) {LOCKS} AND NOT granted");
    eventually("somebody to wait for the lock", SOON, async || table.db.psql(&waits) == "1").await;
    table.db.psql(KILL_LEADER);
    let mut outsider = waiting.await.unwrap();
    let standing = |relay: &RelayHandle| {
        let health = relay.health().now();
        (health.standing, health.error)
    };
    eventually("an answer", SOON, async || standing(&relay) == (Standing::Standby, None)).await;
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(key).execute(&mut *outsider).await.unwrap();
    eventually("its place", SOON, async || standing(&relay).0 == Standing::Active).await;
    assert_eq!(table.db.psql("SELECT epoch FROM postbox_relay"), "1", "the same as before");

    let others = enqueue(&table, all_of("ba")).await;
    eventually("another one", SOON, async || begun().contains(&others[0])).await;
    gate.add_permits(1);
    all_published(&table, "those behind it").await;
    let of_a: Vec<EventId> = begun().into_iter().filter(|id| *id != others[0]).collect();
    assert_eq!(of_a, [ids[0], ids[1], others[1]], "in order, and each once");
    relay.shutdown().await.unwrap();
}

/// What the last owner had in flight is charged, as far as nobody has locked it.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_prevents_no_take_over() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(2)).await;
    let dying = table.store(true);
    assert_eq!(claim(&dying, 10).await.rows.len(), 2);
    let tx = lock(&table, ids[0]).await;
    table.db.psql(KILL_LEADER);
    let next = claim_in_turn(&table.store(true), 10).await;
    let found: Vec<EventId> = next.rows.iter().map(|row| row.delivery.meta.event_id).collect();
    assert_eq!((found, next.suspects), (vec![ids[0]], true), "it waits like any other");
    let charged = "SELECT event_id FROM org_outbox WHERE locked_by = 'left behind' AND attempts = 1";
    assert_eq!(table.db.psql(charged), ids[1].to_string());
    tx.rollback().await.unwrap();
}

/// Each look for it takes the relay from all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_suspect_holds_up_nobody() {
    let table = Table::new(Shape::Migrated).await;
    let suspect = enqueue(&table, events(1)).await[0];
    assert_eq!(claim(&table.store(false), 1).await.rows.len(), 1);
    table.expire_lease(suspect).await;
    let tx = lock(&table, suspect).await;
    let relay = run(table.store(true), Scripted::ok(), quick());
    for id in enqueue(&table, events(5)).await {
        is_published(&table, "the others to be delivered", id).await;
    }
    tx.rollback().await.unwrap();
    is_published(&table, "and then the suspect", suspect).await;
    relay.shutdown().await.unwrap();
}

/// What is settled with it is written all the same: at first, while it is known that somebody has it, and where the row has moved, so that
/// it is looked for after the others were written. None of them is taken for another relay's.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_is_settled_when_it_is_free() {
    let stores: [fn(&Table) -> PgStore; 2] = [Table::leasing, |table| table.store(true)];
    for (moved, store) in [false, true].into_iter().flat_map(|moved| stores.map(|store| (moved, store))) {
        let table = Table::new(Shape::Migrated).await;
        let ids = enqueue(&table, events(4)).await;
        let store = store(&table);
        let rows = claim(&store, 10).await.rows;
        let arrived = |numbers: &[usize]| -> Vec<Settlement> {
            let leases = numbers.iter().map(|number| rows[*number].lease.clone());
            leases.map(|lease| Settlement::new(lease, Verdict::Delivered)).collect()
        };
        let published = || table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NOT NULL");
        if moved {
            table.db.psql(&format!("UPDATE org_outbox SET metadata = '1' WHERE event_id = '{}'", ids[0]));
        }
        let tx = lock(&table, ids[0]).await;
        let busy = || Settled { busy: vec![rows[0].lease.row], ..Settled::default() };
        for (settled, numbers) in [("2", &[0, 1, 2][..]), ("3", &[0, 3]), ("3", &[0])] {
            assert_eq!(store.settle(&arrived(numbers)).await.unwrap(), busy(), "{moved} {numbers:?}");
            assert_eq!(published(), settled);
        }
        tx.rollback().await.unwrap();
        assert_eq!(store.settle(&arrived(&[0])).await.unwrap(), Settled::default());
        assert_eq!(published(), "4");
        store.close().await;
    }
}

/// Leases are renewed by one statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_keeps_no_lease_from_being_renewed() {
    for shape in [Shape::Migrated, Shape::Bare] {
        let table = Table::new(shape).await;
        let ids = enqueue(&table, events(20)).await;
        // All of them take longer than a lease lasts that is not renewed.
        let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(450)));
        let settings = Settings {
            lock_ttl: Duration::from_secs(6),
            dispatch_timeout: Duration::from_secs(3),
            concurrency: 1,
            ..quick()
        };
        let relay = run(table.leasing(), sink.clone(), settings);
        let leased =
            "SELECT count(*) FROM org_outbox WHERE locked_at IS NOT NULL OR published_at IS NOT NULL";
        eventually("all to be leased", SOON, async || table.db.psql(leased) == "20").await;
        let tx = lock(&table, ids[19]).await;
        for id in &ids[..19] {
            is_published(&table, "the others to be settled", *id).await;
            assert_eq!((state(&table, *id).await.attempts, sink.tries(*id)), (1, 1), "{shape:?}");
        }
        tx.rollback().await.unwrap();
        is_published(&table, "and the last", ids[19]).await;
        relay.shutdown().await.unwrap();
    }
}

/// It has nothing more to claim, but something that runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stops_keeps_its_place_while_something_runs() {
    let table = Table::new(Shape::Migrated).await;
    // Much longer than a place lasts without a sign of life.
    let sink = Scripted::new(|_| Act::Slow(Duration::from_secs(8)));
    let settings = Settings {
        drain_timeout: Duration::from_secs(20),
        dispatch_timeout: Duration::from_secs(20),
        lock_ttl: Duration::from_mins(1),
        ..quick()
    };
    let store = || {
        let store = PgStore::builder(table.relay.clone(), table.name.clone());
        store.leader_ttl(Duration::from_secs(3)).build()
    };
    let first = run(store(), sink.clone(), settings.clone());
    let id = enqueue(&table, events(1)).await[0];
    eventually("it to run", SOON, async || sink.tries(id) == 1).await;
    let second = run(store(), sink.clone(), settings);
    first.shutdown().await.unwrap();
    is_published(&table, "it to be settled", id).await;
    assert_eq!((sink.tries(id), state(&table, id).await.attempts), (1, 1), "once, and by one relay");
    second.shutdown().await.unwrap();
}

/// A call by hand that is dropped in the middle of its claim: the next one has its rows.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_claim_that_nobody_waits_for_are_not_lost() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, store) = table.behind_proxy();
    let sink = Scripted::ok();
    let relay = Relay::builder(store.build()).dispatcher(sink.clone()).settings(quick());
    let mut relay = relay.build().unwrap();
    relay.run_once().await.unwrap();
    let ids = enqueue(&table, events(3)).await;
    // A read, and then the journal: it is dropped before, between and after.
    for wait in [10, 60, 110, 160] {
        proxy.delay(Duration::from_millis(50));
        let dropped = tokio::time::timeout(Duration::from_millis(wait), relay.run_once()).await;
        assert!(dropped.is_err() || sink.arrived().len() == 3, "{dropped:?}");
    }
    proxy.delay(Duration::ZERO);
    relay.run_once().await.unwrap();
    assert_eq!(sink.arrived().len(), ids.len(), "each once");
    all_published(&table, "all to be settled").await;
    relay.close().await;
}

/// Values that no program of ours writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_strange_row_stops_nobody() {
    let stores: [fn(&Table) -> PgStore; 2] = [Table::leasing, |table| table.store(true)];
    for strange in ["sinks_done = '{NULL}'", "sinks_done = '{{a,b},{c,d}}'", "attempts = 2147483647"] {
        for store in stores {
            let table = Table::new(Shape::Migrated).await;
            let bad = enqueue(&table, events(1)).await[0];
            table.db.psql(&format!("UPDATE org_outbox SET {strange}"));
            let relay = run(store(&table), Scripted::ok(), quick());
            let good = enqueue(&table, events(1)).await[0];
            is_published(&table, "its neighbour to be delivered", good).await;
            eventually("it to be dead", SOON, async || state(&table, bad).await.dead).await;
            relay.shutdown().await.unwrap();
        }
    }
}
