//! Rows are settled where they were read, unless they have moved since.

use postbox_core::store::{ClaimMode, ClaimRequest, Verdict};
use postbox_core::{EventId, Payload, Record, Store as _};
use postbox_testkit::suite::{
    Subject as _, TOPIC, claim, enqueue, event, events, request, settle_all, state,
};
use serde_json::{Value, json};

use crate::subject::{Shape, Table};

const SHAPES: [Shape; 3] = [Shape::Migrated, Shape::Moving, Shape::Pooled];

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_has_moved_is_settled_by_its_id() {
    for shape in SHAPES {
        let table = Table::new(shape).await;
        let ids = enqueue(&table, events(3)).await;
        let store = table.store(true);
        let claimed = claim(&store, 10).await;
        let touched = format!("UPDATE org_outbox SET metadata = '{{}}' WHERE event_id = '{}'", ids[1].0);
        table.db.psql(&touched);
        let settled = store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
        assert!(settled.lost.is_empty() && settled.busy.is_empty(), "{settled:?}");
        for id in ids {
            assert!(state(&table, id).await.published);
        }
        assert!(claim(&store, 10).await.rows.is_empty());
    }
}

/// Somebody deletes a row that is in flight, and another event comes to lie in its place.
#[tokio::test(flavor = "multi_thread")]
async fn another_row_in_its_place_is_not_settled_for_it() {
    for shape in SHAPES {
        let table = Table::new(shape).await;
        let ids = enqueue(&table, events(2)).await;
        let store = table.store(true);
        let claimed = claim(&store, 10).await;
        let place =
            |id: EventId| table.db.psql(&format!("SELECT ctid FROM org_outbox WHERE event_id = '{}'", id.0));
        let first = place(ids[0]);
        table.db.psql(&format!("DELETE FROM org_outbox WHERE event_id = '{}'", ids[0].0));
        table.db.psql("VACUUM org_outbox");
        let other = enqueue(&table, vec![event(TOPIC, 9).build().unwrap()]).await[0];
        assert_eq!(place(other), first, "it lies there");
        let settled = store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
        let gone = &claimed.rows.iter().find(|row| row.delivery.meta.event_id == ids[0]).unwrap().lease.row;
        assert!(settled.lost.iter().all(|row| row == gone), "{settled:?}");
        assert!(state(&table, ids[1]).await.published);
        assert!(!state(&table, other).await.published, "nobody has sent it");
        assert_eq!(claim(&store, 10).await.rows.len(), 1);
    }
}

/// What is larger than its share of the room comes by a read of its own, and whole.
#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_come_whole() {
    let table = Table::new(Shape::Migrated).await;
    let text = |n: usize| "x".repeat(if n.is_multiple_of(2) { 50_000 } else { 10 });
    let record = |n: usize| Record::builder(TOPIC).json(&json!({ "n": n, "text": text(n) })).build().unwrap();
    let ids = enqueue(&table, (0..6).map(record).collect()).await;
    let store = table.store(true);
    let wanted = ClaimRequest { max_bytes: 200_000, ..request(ClaimMode::Waiting, 6) };
    let rows = store.claim(wanted).await.unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), ids);
    for (n, row) in rows.iter().enumerate() {
        let Payload::Json(payload) = &row.delivery.payload else { panic!("it is text") };
        assert_eq!(
            serde_json::from_str::<Value>(payload.as_str()).unwrap(),
            json!({ "n": n, "text": text(n) })
        );
    }
}
