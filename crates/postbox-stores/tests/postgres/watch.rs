//! Renewals that come late, health that tells the truth, and everything at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postbox_core::cleaner::Cleaner;
use postbox_core::store::{Claim, ClaimRequest, Lease, Renewed, Settled, Settlement};
use postbox_core::{Backoff, DeadFilter, DeadLetters as _, RelayHandle, Settings, Store, StoreError};
use postbox_stores::postgres::PgStore;
use postbox_testkit::eventually;
use postbox_testkit::suite::relay::run;
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{Subject as _, enqueue, events, quick};

use crate::common::SOON;
use crate::subject::{Shape, Table};

/// A store that counts the questions it is asked.
#[derive(Clone)]
struct Counting(PgStore, Arc<AtomicUsize>);

impl Store for Counting {
    fn table(&self) -> &str {
        self.0.table()
    }
    async fn open(&self) -> Result<(), StoreError> {
        self.0.open().await
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        self.0.claim(request).await
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.0.settle(settlements).await
    }
    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.extend(leases).await
    }
    async fn wait(&self, at_most: Duration) {
        self.0.wait(at_most).await;
    }
    async fn close(&self) {
        self.0.close().await;
    }
}

/// Starts a relay that takes 200 ms for each event, one at a time: those behind wait for longer than their leases last.
async fn one_at_a_time(store: impl Store, dispatch_timeout: Duration) -> RelayHandle {
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(200)));
    let lock_ttl = Duration::from_secs(6);
    let relay = run(store, sink.clone(), Settings { concurrency: 1, lock_ttl, dispatch_timeout, ..quick() });
    eventually("some to arrive", SOON, async || sink.arrived().len() >= 2).await;
    relay
}

/// A lease that is too short for a dispatch asks for its renewal "now", which is later than the "now" that renewals are
/// compared with: as long as a dispatch waits for it, no renewal is ever sent, and the lane stands still for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_goes_on_after_an_outage_that_ate_its_leases() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(40)).await;
    let (proxy, store) = table.behind_proxy();
    // As the defaults are: a lease of twice the timeout.
    let relay = one_at_a_time(store.single_active(false).build(), Duration::from_secs(3)).await;
    proxy.cut();
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.pass();
    all_published(&table).await;
    relay.kill();
}

/// The relays of these tests stood still for ever: any end will do.
async fn all_published(table: &Table) {
    eventually("every event to be published", Duration::from_mins(1), async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "0"
    })
    .await;
}

/// The same without an outage: a renewal that is late once (here its statement waits for a lock) wedges the relay.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_came_late_is_made_up_for() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(40)).await;
    let relay = one_at_a_time(table.store(false), Duration::from_secs(4)).await;
    let mut tx = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = $1 FOR UPDATE").bind(ids[39].0);
    lock.execute(&mut *tx).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    tx.rollback().await.unwrap();
    all_published(&table).await;
    relay.kill();
}

/// Events wait, none is delivered, and the relay says that all is well.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_delivers_nothing_says_so() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(20)).await;
    let sink = Scripted::new(|_| Act::Retry);
    let settings =
        Settings { backoff: Backoff::fixed(Duration::from_millis(500)), max_attempts: 1000, ..quick() };
    let relay = run(table.store(true), sink.clone(), settings);
    eventually("it to be said", Duration::from_mins(1), async || relay.health().problem().is_some()).await;
    relay.shutdown().await.unwrap();
}

/// A sink that was down with no event waiting for it keeps the relay red, although nothing waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_nothing_to_deliver_is_well() {
    let table = Table::new(Shape::Migrated).await;
    let sink = Scripted::new(|_| Act::Unavailable);
    let relay = run(table.store(false), sink.clone(), quick());
    let id = enqueue(&table, events(1)).await[0];
    eventually("the outage to be noticed", SOON, async || sink.tries(id) >= 1).await;
    table.db.psql("UPDATE org_outbox SET published_at = now()");
    tokio::time::sleep(Duration::from_secs(17)).await;
    let problem = relay.health().problem();
    relay.shutdown().await.unwrap();
    assert_eq!(problem, None, "nothing waits");
}

/// Relays, a cleaner, replays and writers all at once: no deadlock, nothing lost, nothing stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stress_of_everything_at_once() {
    let seconds = std::env::var("POSTBOX_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let table = Arc::new(Table::new(Shape::Migrated).await);
    let sink = Scripted::new(|d| match (d.meta.sequence * 7 + i64::from(d.meta.attempts)) % 11 {
        0 => Act::Retry,
        1 if d.meta.attempts < 3 => Act::Reject,
        2 => Act::Slow(Duration::from_millis(20)),
        3 if d.meta.attempts < 2 => Act::Panic,
        _ => Act::Ok,
    });
    let settings = || Settings {
        max_attempts: 4,
        batch_size: 50,
        lock_ttl: Duration::from_secs(2),
        dispatch_timeout: Duration::from_secs(1),
        ..quick()
    };
    let relays: Vec<_> = (0..4).map(|_| run(table.store(false), sink.clone(), settings())).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let (table, stop) = (Arc::clone(&table), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                ids.extend(enqueue(&*table, events(40)).await);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            ids
        }));
    }
    let (cleaning, replaying) = {
        let (t, s) = (Arc::clone(&table), Arc::clone(&stop));
        let cleaning = tokio::spawn(async move {
            let cleaner = Cleaner::new(t.admin()).retention(Duration::ZERO);
            let mut rows = 0;
            while !s.load(Ordering::Relaxed) {
                rows += cleaner.run_once().await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            rows
        });
        let (t, s) = (Arc::clone(&table), Arc::clone(&stop));
        let replaying = tokio::spawn(async move {
            let admin = t.admin();
            let mut replayed = 0;
            while !s.load(Ordering::Relaxed) {
                replayed += admin.replay_all(&DeadFilter::default(), 30, "stress").await.unwrap();
            }
            replayed
        });
        (cleaning, replaying)
    };
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    stop.store(true, Ordering::Relaxed);
    let mut written = HashSet::new();
    for task in tasks {
        written.extend(task.await.unwrap());
    }
    let (cleaned, replayed) = (cleaning.await.unwrap(), replaying.await.unwrap());
    eventually("nothing to wait", Duration::from_mins(1), async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL AND dead_at IS NULL") == "0"
    })
    .await;
    for relay in relays {
        relay.shutdown().await.unwrap();
    }
    let arrived: HashSet<_> = sink.arrived().into_iter().collect();
    let dead: HashSet<String> = table
        .db
        .psql("SELECT event_id FROM org_outbox WHERE dead_at IS NOT NULL")
        .lines()
        .map(str::to_owned)
        .collect();
    let lost = written.iter().filter(|id| !arrived.contains(id) && !dead.contains(&id.0.to_string())).count();
    let deadlocks =
        table.db.psql("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()");
    println!(
        "written {} arrived {} deliveries {} dead {} cleaned {cleaned} replayed {replayed} deadlocks {deadlocks}",
        written.len(),
        arrived.len(),
        sink.arrived().len(),
        dead.len()
    );
    assert_eq!((lost, deadlocks.as_str()), (0, "0"));
}

/// Dispatches that wait for a renewal must not ask for it without a pause while the database is away.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_fail_are_not_repeated_without_a_pause() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(60)).await;
    let (proxy, store) = table.behind_proxy();
    let store = Counting(store.single_active(false).build(), Arc::default());
    let relay = one_at_a_time(store.clone(), Duration::from_secs(4)).await;
    proxy.cut();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let tries = store.1.load(Ordering::SeqCst);
    relay.kill();
    assert!(tries < 50, "{tries} renewals were tried in 5 s");
}
