//! Order where writers overlap: what commits behind the reader is not overtaken.

use postbox_core::{Code, OnDead, Order, Store as _};
use postbox_testkit::eventually;
use postbox_testkit::suite::{OpenTransaction as _, PATIENCE, Subject as _, TOPIC, claim, enqueue, event};

use crate::subject::{Shape, Table};

fn of(aggregate: &str, n: usize) -> postbox_core::Record {
    event(TOPIC, n).aggregate("thing", aggregate).build().unwrap()
}

/// The first of an aggregate draws its number before others, commits after the reader has passed it by, and then the second
/// commits: the second must not go before the first. (Writers of the aggregate waited for each other.)
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_late_commit_is_not_overtaken_by_its_own_aggregate() {
    let table = Table::new(Shape::Ordered).await;
    for single_active in [true, false] {
        let store = table.ordered_store(Order::Aggregate(OnDead::Block), single_active);
        let late = table.begin(vec![of("a", 1)]).await;
        let first = late.receipts()[0].event_id;
        let other = enqueue(&table, vec![of("b", 1)]).await;
        let rows = claim(&store, 10).await.rows;
        assert_eq!(rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), other);
        late.commit().await;
        let second = enqueue(&table, vec![of("a", 2)]).await[0];
        // Behind the reader it is found when everything is read again, which has its time on a slow machine.
        let found = eventually("the late one", PATIENCE, async || claim(&store, 1).await.rows.pop()).await;
        assert_eq!(found.delivery.meta.event_id, first, "the second is {second:?}");
        for _ in 0..20 {
            assert_eq!(claim(&store, 1).await.rows.len(), 0, "the first is still in flight");
        }
        store.close().await;
        table.db.sql("delete from org_outbox");
    }
}

/// Aggregates whose ids differ in a space at the end are two.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn aggregates_are_compared_byte_by_byte() {
    let table = Table::new(Shape::Ordered).await;
    enqueue(&table, vec![of("a", 1), of("a ", 2), of("A", 3)]).await;
    let store = table.ordered_store(Order::Aggregate(OnDead::Block), true);
    assert_eq!(claim(&store, 10).await.rows.len(), 3);
}

/// Without its indexes a table cannot keep order, and says how it could.
#[tokio::test]
async fn a_table_without_indexes_refuses_order() {
    let table = Table::new(Shape::Migrated).await;
    let store = table.ordered_store(Order::Aggregate(OnDead::Block), true);
    let error = store.open().await.unwrap_err();
    assert_eq!(error.code(), Code::OrderUnsupported);
    assert!(error.message().contains("--order-index"), "{error}");
}
