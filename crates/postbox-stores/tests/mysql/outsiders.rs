//! Somebody else has locked a row, as an open session of an operator does: that holds up nothing but this row.

use std::time::Duration;

use postbox_core::letter::{LetterRequest, LetterVerdict, Redrive};
use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, Lease, Renewed, Settled, Settlement, Verdict};
use postbox_core::{EventId, Store as _};
use postbox_testkit::suite::owner::OwnerSubject as _;
use postbox_testkit::suite::{
    Subject as _, TOPIC, claim, claim_in_turn, enqueue, events, published, request, settle_all, state,
};
use sqlx::{MySql, Transaction};

use crate::subject::{Shape, Table};

/// What the server waits for a lock, in sessions of a relay.
const LOCK_WAIT: Duration = Duration::from_secs(3);
const RENEWED: &str = "locked_at > UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE";

async fn lock(table: &Table, id: EventId) -> Transaction<'static, MySql> {
    let mut tx = table.pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = ? FOR UPDATE").bind(id.0);
    lock.fetch_one(&mut *tx).await.unwrap();
    tx
}

/// What is known to be locked is not waited for once more, since settles of others wait behind whoever does: many calls take less than as
/// many waits.
async fn at_once<T, F: Future<Output = T>>(call: impl Fn() -> F) -> T {
    let calls = async {
        for _ in 1..5 {
            call().await;
        }
        call().await
    };
    tokio::time::timeout(5 * LOCK_WAIT, calls).await.expect("it waited for the lock")
}

/// What the last owner had in flight is charged, as far as nobody has locked it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_row_prevents_no_take_over() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(2)).await;
    let dying = table.store(true);
    assert_eq!(claim(&dying, 10).await.rows.len(), 2);
    let tx = lock(&table, ids[0]).await;
    table.end_reign().await;
    let next = claim_in_turn(&table.store(true), 10).await;
    let found: Vec<EventId> = next.rows.iter().map(|row| row.delivery.meta.event_id).collect();
    assert_eq!((found, next.suspects), (vec![ids[0]], true), "it waits like any other");
    assert_eq!(table.count("locked_by = 'left behind' AND attempts = 1").await, 1);
    tx.rollback().await.unwrap();
}

/// A settle waits for it as long as the server lets it, then settles the others, and says which it is.
async fn others_are_settled(shape: Shape, single_active: bool) {
    let table = Table::new(shape).await;
    let later = Verdict::Retry { after: Duration::from_hours(1), reason: Summary::new("no", 64) };
    for last in [Verdict::Delivered, later] {
        let store = table.store(single_active);
        let ids = enqueue(&table, events(3)).await;
        let claimed = claim_in_turn(&store, 10).await;
        let mut settlements = settle_all(&claimed, &Verdict::Delivered);
        assert_eq!(settlements.len(), 3);
        settlements[2].verdict = last;
        let tx = lock(&table, ids[0]).await;
        let settled = store.settle(&settlements).await.unwrap();
        assert_eq!((settled.lost, settled.busy), (vec![], vec![settlements[0].lease.row]), "{shape:?}");
        assert!(state(&table, ids[1]).await.published && !state(&table, ids[0]).await.published);
        tx.rollback().await.unwrap();
        let settled = store.settle(&settlements[..1]).await.unwrap();
        assert!(settled.lost.is_empty() && settled.busy.is_empty(), "{shape:?}: {settled:?}");
        published(&table, ids[0]).await;
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_row_keeps_no_other_of_an_owner_from_being_settled() {
    tokio::join!(others_are_settled(Shape::Migrated, true), others_are_settled(Shape::Moving, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_row_keeps_no_other_that_is_leased_from_being_settled() {
    tokio::join!(others_are_settled(Shape::Migrated, false), others_are_settled(Shape::Moving, false));
}

/// One suspect is claimed at a time, and one event as a probe.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_row_hides_no_suspect_and_no_probe() {
    let table = Table::new(Shape::Leasing).await;
    let store = table.store(false);
    let ids = enqueue(&table, events(2)).await;
    for mode in [ClaimMode::Probe([TOPIC].into()), ClaimMode::Suspect] {
        let tx = lock(&table, ids[0]).await;
        let rows = store.claim(request(mode, 1)).await.unwrap().rows;
        tx.rollback().await.unwrap();
        assert_eq!(rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), ids[1..]);
        // The other one, if it only waits.
        claim(&store, 1).await;
        for id in &ids {
            table.expire_lease(*id).await;
        }
    }
}

/// A letter whose lease ran out is leased alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_letter_hides_no_other() {
    let table = Table::new(Shape::Leasing).await;
    let ids = enqueue(&table, events(2)).await;
    table.db.sql("UPDATE org_outbox SET dead_at = created_at");
    let store = table.store(false);
    let ask = || LetterRequest { limit: 2, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    assert_eq!(store.letters(ask()).await.unwrap().len(), 2);
    for id in &ids {
        table.expire_lease(*id).await;
    }
    let tx = lock(&table, ids[0]).await;
    let letters = store.letters(ask()).await.unwrap();
    tx.rollback().await.unwrap();
    let found = letters.iter().map(|letter| letter.delivery.as_ref().map(|delivery| delivery.meta.event_id));
    assert_eq!(found.collect::<Vec<_>>(), [Some(ids[1])]);
}

/// Nor any others when it is to be known what became of it: somebody looks at dead rows, and keeps one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_letter_is_settled_when_it_is_free() {
    let table = Table::new(Shape::Leasing).await;
    let ids = enqueue(&table, events(3)).await;
    table.db.sql("UPDATE org_outbox SET dead_at = created_at");
    let store = table.store(false);
    let ask = LetterRequest { limit: 10, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    let letters = store.letters(ask).await.unwrap();
    let sent =
        || letters.iter().map(|letter| (letter.lease.clone(), LetterVerdict::Sent)).collect::<Vec<_>>();
    let tx = lock(&table, ids[1]).await;
    let busy = vec![letters[1].lease.row];
    assert_eq!(store.settle_letters(sent()).await.unwrap(), Settled { busy, ..Settled::default() });
    assert_eq!(table.count("dlq_at IS NOT NULL").await, 2);
    let kept = sent().split_off(1)[..1].to_vec();
    let again = at_once(|| store.settle_letters(kept.clone())).await.unwrap();
    assert_eq!(again.busy.len(), 1);
    tx.rollback().await.unwrap();
    assert_eq!(store.settle_letters(kept).await.unwrap(), Settled::default());
    assert_eq!(table.count("dlq_at IS NOT NULL").await, 3);
}

/// One that was locked when a letter was to be probed with is passed by, though one is all that was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_next_letter_is_the_probe_where_the_first_is_locked() {
    let table = Table::new(Shape::Leasing).await;
    let ids = enqueue(&table, events(3)).await;
    table.db.sql("UPDATE org_outbox SET dead_at = created_at");
    let store = table.store(false);
    let tx = lock(&table, ids[0]).await;
    let ask = LetterRequest { limit: 1, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    let letters = store.letters(ask).await.unwrap();
    tx.rollback().await.unwrap();
    let found = letters.iter().map(|letter| letter.delivery.as_ref().map(|delivery| delivery.meta.event_id));
    assert_eq!(found.collect::<Vec<_>>(), [Some(ids[1])]);
}

/// Dead events that are tried again by themselves, but for one that somebody has locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_dead_row_keeps_no_others_from_being_tried_again() {
    let table = Table::new(Shape::Leasing).await;
    let ids = enqueue(&table, events(3)).await;
    table.db.sql("UPDATE org_outbox SET dead_at = created_at");
    let store = table.store(false);
    let again =
        || Redrive { after: Duration::ZERO, most: 3, lock_ttl: Duration::from_mins(1), who: "tester".into() };
    let tx = lock(&table, ids[1]).await;
    assert_eq!(store.redrive(again()).await.unwrap(), 2);
    tx.rollback().await.unwrap();
    assert_eq!(store.redrive(again()).await.unwrap(), 1);
}

/// What is settled with it is written all the same, also while it is known that somebody has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_row_is_settled_when_it_is_free() {
    let table = Table::new(Shape::Leasing).await;
    let ids = enqueue(&table, events(3)).await;
    let store = table.store(false);
    let rows = claim(&store, 10).await.rows;
    let settlements: Vec<Settlement> =
        rows.iter().map(|row| Settlement::new(row.lease.clone(), Verdict::Delivered)).collect();
    let tx = lock(&table, ids[0]).await;
    let busy = || Settled { busy: vec![rows[0].lease.row], ..Settled::default() };
    assert_eq!(store.settle(&settlements[..2]).await.unwrap(), busy(), "after a wait");
    let again = [settlements[0].clone(), settlements[2].clone()];
    assert_eq!(store.settle(&again).await.unwrap(), busy());
    assert_eq!(table.count("published_at IS NOT NULL").await, 2);
    assert_eq!(at_once(|| store.settle(&settlements[..1])).await.unwrap(), busy(), "also by itself");
    tx.rollback().await.unwrap();
    assert_eq!(store.settle(&settlements[..1]).await.unwrap(), Settled::default());
    assert_eq!(table.count("published_at IS NOT NULL").await, 3);
}

/// Leases are renewed by one statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_row_keeps_no_lease_from_being_renewed() {
    let table = Table::new(Shape::Leasing).await;
    let ids = enqueue(&table, events(3)).await;
    let store = table.store(false);
    let rows = claim(&store, 10).await.rows;
    for id in &ids {
        table.expire_lease(*id).await;
    }
    let leases: Vec<Lease> = rows.into_iter().map(|row| row.lease).collect();
    let tx = lock(&table, ids[0]).await;
    let renewed = Renewed { busy: vec![leases[0].clone()], ..Renewed::default() };
    assert_eq!(store.extend(leases.clone()).await.unwrap(), renewed, "none is lost");
    assert_eq!(table.count(RENEWED).await, 2, "the others");
    assert_eq!(at_once(|| store.extend(leases.clone())).await.unwrap(), renewed);
    tx.rollback().await.unwrap();
    assert_eq!(store.extend(leases).await.unwrap(), Renewed::default());
    assert_eq!(table.count(RENEWED).await, 3);
}
