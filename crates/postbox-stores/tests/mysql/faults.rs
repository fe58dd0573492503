//! Deadlocks, locks that others keep, sessions that are lost, and clocks that are wrong.

use std::time::Duration;

use postbox_core::store::{ClaimMode, Settlement, Standing, Verdict};
use postbox_core::{Code, DeadFilter, DeadLetters as _, Enqueued, Store as _};
use postbox_stores::mysql::{MySqlStore, Strategy, connect_options};
use postbox_testkit::suite::claim::dear_looks_in_vain_hide_nothing;
use postbox_testkit::suite::owner::OwnerSubject as _;
use postbox_testkit::suite::relay::run;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{
    OpenTransaction as _, PATIENCE, Subject as _, TOPIC, claim, enqueue, event, events, quick, request,
    settle_all, state,
};
use postbox_testkit::{Proxy, eventually};

use crate::subject::{Shape, Table};

/// Writers, relays, a cleaner and operators at once: every deadlock is tried again (hazards 17, 18, 41).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_hears_of_a_deadlock() {
    let table = Table::new(Shape::Migrated).await;
    let sink = Scripted::ok();
    let relays: Vec<_> = (0..4).map(|_| run(table.store(false), sink.clone(), quick())).collect();
    let write = async || {
        for _ in 0..15 {
            enqueue(&table, events(20)).await;
        }
    };
    let sweep = async || {
        let cleaner = postbox_core::Cleaner::new(table.admin()).retention(Duration::ZERO);
        for _ in 0..20 {
            cleaner.run_once().await.unwrap();
            table.admin().replay_all(&DeadFilter::default(), 10, "tester").await.unwrap();
        }
    };
    tokio::join!(write(), write(), write(), write(), sweep());
    eventually("all to be delivered", PATIENCE, async || sink.arrived().len() >= 1_200).await;
    for relay in relays {
        relay.shutdown().await.unwrap();
    }
    let mut arrived = sink.arrived();
    arrived.sort_unstable_by_key(|id| id.0);
    arrived.dedup();
    assert_eq!(arrived.len(), 1_200);
}

/// A settle that the server gives up for the sake of a larger transaction is done once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_deadlock_is_tried_again() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(100)).await;
    let store = table.store(false);
    let rows = claim(&store, 100).await.rows;
    let deadlocks = || -> u64 {
        let status = table.db.sql("show global status like 'Innodb_deadlocks'");
        status.split('\t').nth(1).unwrap().parse().unwrap()
    };
    let before = deadlocks();
    let mut tx = table.pool.begin().await.unwrap();
    // All but the first, by the key: whatever a statement looks at here is locked.
    let first = rows[0].delivery.meta.sequence;
    let others = sqlx::query("UPDATE org_outbox SET metadata = '1' WHERE sequence > ?").bind(first);
    others.execute(&mut *tx).await.unwrap();
    let settlements: Vec<_> =
        rows[..2].iter().map(|row| Settlement::new(row.lease.clone(), Verdict::Delivered)).collect();
    // Of two rows, so long only if it waits. (What the server tells of transactions is older the more often one asks.)
    let waits = "SELECT COUNT(*) FROM information_schema.processlist
        WHERE db = DATABASE() AND command = 'Execute' AND info LIKE '%SET published_at = UTC_TIMESTAMP%' AND time_ms > 50
          AND id <> CONNECTION_ID()";
    let (settled, ()) = tokio::join!(store.settle(&settlements), async {
        eventually("the settle to wait for the second row", PATIENCE, async || table.number(waits).await > 0)
            .await;
        let crossing = sqlx::query("UPDATE org_outbox SET metadata = '1' WHERE sequence = ?").bind(first);
        crossing.execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    });
    assert!(settled.unwrap().lost.is_empty());
    assert!(deadlocks() > before, "there was one");
    assert!(state(&table, ids[0]).await.published && state(&table, ids[1]).await.published);
}

/// A row that somebody has locked is passed by; a settle waits for it, and then happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_of_somebody_else_costs_time_only() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(3)).await;
    let hold = async |event: postbox_core::EventId| {
        let mut tx = table.pool.begin().await.unwrap();
        let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = ? FOR UPDATE").bind(event.0);
        lock.fetch_one(&mut *tx).await.unwrap();
        tx
    };
    let lock = hold(ids[1]).await;
    let store = table.store(false);
    let claimed = claim(&store, 10).await;
    assert_eq!(claimed.rows.len(), 2, "all but the one that is locked");
    lock.rollback().await.unwrap();
    let lock = hold(ids[0]).await;
    let settlements = settle_all(&claimed, &Verdict::Delivered);
    let (settled, ()) = tokio::join!(store.settle(&settlements), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        lock.rollback().await.unwrap();
    });
    let settled = settled.unwrap();
    assert!(settled.lost.is_empty() && settled.busy.is_empty());
    assert!(state(&table, ids[0]).await.published && state(&table, ids[2]).await.published);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_sink_that_is_down_hides_nothing() {
    for strategy in [Strategy::Owner, Strategy::Lease] {
        let table = Table::new(Shape::Migrated).await;
        let proxy = Proxy::start(table.db.addr());
        let options = connect_options(&table.db.url_through(proxy.addr())).unwrap();
        let store = MySqlStore::builder(options, table.name.clone()).strategy(strategy).build();
        dear_looks_in_vain_hide_nothing(&table, &store, &proxy).await;
    }
}

/// The answer to a claim is lost: its rows go back uncharged at the next claim (hazard 5).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_claim_whose_answer_was_lost_is_given_back() {
    let table = Table::new(Shape::Migrated).await;
    let proxy = Proxy::start(table.db.addr());
    let options = connect_options(&table.db.url_through(proxy.addr())).unwrap();
    let store = MySqlStore::builder(options, table.name.clone()).single_active(false).build();
    assert!(claim(&store, 10).await.rows.is_empty());
    let ids = enqueue(&table, events(2)).await;
    let mut cut = proxy.cut_replies_after_requests_containing("COMMIT");
    store.claim(request(ClaimMode::Waiting, 10)).await.unwrap_err();
    cut.fired().await;
    assert!(state(&table, ids[0]).await.locked, "it was leased, though nobody heard of it");
    let rows = claim(&store, 10).await.rows;
    assert_eq!(
        rows.iter().map(|row| row.lease.attempts).collect::<Vec<_>>(),
        [1, 1],
        "at once, and uncharged"
    );
}

/// The lock of the active relay goes with its session, and whoever stands by takes over at its next look; a relay that has lost
/// its session and nothing else goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_place_of_the_active_relay_goes_with_its_session() {
    let table = Table::new(Shape::Migrated).await;
    let (first, second) = (table.store(true), table.store(true));
    assert_eq!(claim(&first, 1).await.standing, Standing::Active);
    assert_eq!(claim(&second, 1).await.standing, Standing::Standby);
    table.end_sessions().await;
    // A claim on a session that was killed is an error once. Whoever is still active without its lock hears of its successor
    // at its next claim.
    let standing = async |store: &MySqlStore| {
        eventually("an answer", PATIENCE, async || {
            store.claim(request(ClaimMode::Waiting, 1)).await.ok().map(|claim| claim.standing)
        })
        .await
    };
    eventually("the one that stood by to be active, alone", PATIENCE, async || {
        let second = standing(&second).await;
        (second, standing(&first).await) == (Standing::Active, Standing::Standby)
    })
    .await;
}

/// Events are bulky: statements are cut before the server refuses them.
#[tokio::test]
async fn many_large_events_fit() {
    let table = Table::new(Shape::Migrated).await;
    let large = "x".repeat(300_000);
    let records: Vec<_> = (0..100).map(|_| event(TOPIC, 0).json(&large).build().unwrap()).collect();
    let open = table.begin(records.clone()).await;
    assert!(open.receipts().iter().all(|receipt| matches!(receipt.enqueued, Enqueued::Written(_))));
    open.commit().await;
    let again = table.begin(records).await;
    assert!(again.receipts().iter().all(|receipt| matches!(receipt.enqueued, Enqueued::Duplicate(_))));
    again.roll_back().await;
    assert_eq!(table.number("SELECT COUNT(*) FROM org_outbox").await, 100);
}

/// A server without the table, and a database that is not there.
#[tokio::test]
async fn what_is_missing_is_said() {
    let table = Table::new(Shape::Migrated).await;
    let store = MySqlStore::builder(table.options.clone(), "ogr_outbox".parse().unwrap()).build();
    let error = store.open().await.unwrap_err();
    assert_eq!(error.code(), Code::TableMissing);
    assert!(error.message().contains("Did you mean org_outbox?"), "{error}");
    let nowhere = connect_options(&table.db.url.replace(&table.db.name, "nowhere")).unwrap();
    let error = MySqlStore::builder(nowhere, table.name.clone()).build().open().await.unwrap_err();
    assert_eq!(error.code(), Code::DatabaseAuth);
    table.db.sql("alter table org_outbox drop column sinks_done");
    table.db.sql("drop table postbox_window");
    let error = table.store(true).open().await.unwrap_err();
    assert!(error.message().contains("lacks sinks_done, postbox_window: run"), "{error}");
}
