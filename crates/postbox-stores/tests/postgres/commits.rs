//! Commits whose answer is lost, and transactions that die before their commit.

use postbox_core::{CommitError, Enqueued, Outbox, UnitOfWorkError};
use postbox_stores::postgres::connect_options;
use postbox_testkit::suite::hooks::{Noting, Thing, hooked};
use postbox_testkit::suite::{PATIENCE, Subject as _, events};
use postbox_testkit::{Proxy, eventually};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::subject::{Shape, Table};

/// A writer whose connections go through a proxy.
fn behind(table: &Table) -> (Proxy, PgPool, Noting, Outbox) {
    let proxy = Proxy::start(table.db.addr());
    let options = connect_options(&table.db.url_through(proxy.addr())).unwrap();
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let (noting, outbox) = hooked(table);
    (proxy, pool, noting, outbox)
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_30_of_a_commit_whose_answer_was_lost_nothing_is_told() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, pool, noting, outbox) = behind(&table);
    let mut tx = outbox.begin(&pool).await.unwrap();
    outbox.enqueue_all(&mut tx, events(2)).await.unwrap();
    noting.told();
    let mut cut = proxy.cut_replies_after_requests_containing(b"COMMIT");
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
    cut.fired().await;
    eventually("the commit to have happened", PATIENCE, async || table.rows().await == 2).await;
    assert!(noting.told().is_empty(), "it was committed, but nobody here can know");
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_30_a_unit_of_work_whose_answer_was_lost_can_be_tried_again() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, pool, _, outbox) = behind(&table);
    let mut thing = Thing::with(3);
    let mut uow = outbox.unit_of_work(&pool).await.unwrap();
    uow.track(&mut thing);
    let mut cut = proxy.cut_replies_after_requests_containing(b"COMMIT");
    let error = uow.commit().await.unwrap_err();
    assert!(matches!(error, UnitOfWorkError::Commit(CommitError::Unknown(_))), "{error:?}");
    cut.fired().await;
    eventually("the commit to have happened", PATIENCE, async || table.rows().await == 3).await;

    let mut uow = outbox.unit_of_work(&pool).await.unwrap();
    uow.track(&mut thing);
    let receipts = uow.commit().await.unwrap();
    assert!(
        receipts.iter().all(|receipt| matches!(receipt.enqueued, Enqueued::Duplicate(_))),
        "{receipts:?}"
    );
    assert_eq!(table.rows().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_died_before_the_commit_is_certain_to_be_rolled_back() {
    let table = Table::new(Shape::Migrated).await;
    let (_proxy, pool, noting, outbox) = behind(&table);
    let mut tx = outbox.begin(&pool).await.unwrap();
    let receipts = outbox.enqueue_all(&mut tx, events(2)).await.unwrap();
    let ids: Vec<_> = receipts.iter().map(|receipt| receipt.event_id).collect();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut **tx).await.unwrap();
    noting.told();
    table.db.psql(&format!("SELECT pg_terminate_backend({pid})"));
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::RolledBack(_)), "no COMMIT was sent: {error:?}");
    assert_eq!(noting.told(), [("after_rollback", ids)]);
    assert_eq!(table.rows().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_hooks_there_is_no_statement_before_the_commit() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, pool, _, hooked) = behind(&table);
    let plain = table.outbox();
    for (outbox, guarded) in [(&plain, false), (&hooked, true)] {
        let mut tx = outbox.begin(&pool).await.unwrap();
        outbox.enqueue(&mut tx, events(1).remove(0)).await.unwrap();
        let mut cut = proxy.cut_replies_after_requests_containing(b"FROM unnest($1::uuid[], $2::bigint[])");
        assert_eq!(tx.commit().await.is_err(), guarded);
        if guarded {
            // The client sees its connection close a moment before the proxy says so.
            cut.fired().await;
        } else {
            assert!(!cut.has_fired());
        }
    }
    assert_eq!(table.rows().await, 1);
}

/// Services enqueue in tasks that move between threads.
#[tokio::test(flavor = "multi_thread")]
async fn everything_can_be_awaited_in_a_task() {
    let table = Table::new(Shape::Migrated).await;
    let (_proxy, pool, _, outbox) = behind(&table);
    let task = tokio::spawn(async move {
        let mut tx = outbox.begin(&pool).await.unwrap();
        outbox.enqueue(&mut tx, events(1).remove(0)).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = outbox.begin(&pool).await.unwrap();
        outbox.enqueue_all(&mut tx, events(2)).await.unwrap();
        tx.rollback().await.unwrap();
        let mut thing = Thing::with(2);
        let mut uow = outbox.unit_of_work(&pool).await.unwrap();
        outbox.enqueue(&mut uow, events(1).remove(0)).await.unwrap();
        uow.track(&mut thing);
        uow.commit().await.unwrap();
    });
    task.await.unwrap();
    assert_eq!(table.rows().await, 4);
}
