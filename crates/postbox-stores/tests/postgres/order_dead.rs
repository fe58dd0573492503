//! Claims in order when an event dies.

use postbox_core::EventId;
use postbox_core::store::{Settlement, Store as _, Verdict};
use postbox_testkit::suite::{Subject as _, claim, enqueue, settle_all, state};

use crate::order::{BLOCK, SKIP, WAYS, all_of, dead, release, settle, shown};
use crate::subject::{Shape, Table};

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_event_blocks_its_strand_or_is_skipped() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let (blocking, skipping) =
            (table.in_order(BLOCK, strategy, single), table.in_order(SKIP, strategy, single));
        let ids = enqueue(&table, all_of("aaaab")).await;
        let first = claim(&blocking, 100).await;
        assert_eq!(first.rows.len(), 5);
        // The second of a dies: the first is delivered.
        let verdict = |id: EventId| match ids.iter().position(|other| *other == id) {
            Some(1) => dead(),
            Some(0 | 4) => Verdict::Delivered,
            _ => release(),
        };
        let verdicts: Vec<Verdict> =
            first.rows.iter().map(|row| verdict(row.delivery.meta.event_id)).collect();
        let settlements = settle_all(&first, &release()).into_iter().zip(verdicts);
        let settlements: Vec<_> =
            settlements.map(|(settlement, verdict)| Settlement { verdict, ..settlement }).collect();
        assert!(blocking.settle(&settlements).await.unwrap().lost.is_empty());
        enqueue(&table, all_of("ac")).await;
        let found = claim(&blocking, 100).await;
        assert!(shown(&found).starts_with('c') && found.rows.len() == 1, "{}", shown(&found));
        blocking.close().await;
        let found = claim(&skipping, 100).await;
        assert!(shown(&found).starts_with('a') || shown(&found).contains(", a"), "{}", shown(&found));
        assert_eq!(shown(&found).matches('a').count(), 3);
        settle(&skipping, &found, &release()).await;
        skipping.close().await;
        // Replayed, it is the first again.
        table.db.psql("UPDATE org_outbox SET dead_at = NULL, attempts = 0, available_at = now() WHERE dead_at IS NOT NULL");
        let last = table.in_order(BLOCK, strategy, single);
        let found = claim(&last, 100).await;
        assert_eq!(shown(&found).matches('a').count(), 4, "{}", shown(&found));
        assert!(found.rows.iter().any(|row| row.delivery.meta.event_id == ids[1]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_event_in_the_middle_ends_the_run() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(BLOCK, strategy, single);
        let ids = enqueue(&table, all_of("aaaa")).await;
        table.db.psql(&format!("UPDATE org_outbox SET dead_at = now() WHERE event_id = '{}'", ids[2].0));
        let found = claim(&store, 100).await;
        let brought: Vec<EventId> = found.rows.iter().map(|row| row.delivery.meta.event_id).collect();
        assert_eq!(brought, ids[..2]);
        settle(&store, &found, &Verdict::Delivered).await;
        assert_eq!(shown(&claim(&store, 100).await), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_head_dies_alone() {
    for (strategy, single) in WAYS {
        for order in [BLOCK, SKIP] {
            let table = Table::new(Shape::Ordered).await;
            let store = table.in_order(order, strategy, single);
            let ids = enqueue(&table, all_of("aaa")).await;
            table.set_attempts(ids[0], 25).await;
            let found = claim(&store, 100).await;
            assert_eq!((found.rows.len(), found.buried.len()), (0, 1), "{found:?}");
            assert!(state(&table, ids[0]).await.dead);
            table.set_attempts(ids[2], 25).await;
            let found = claim(&store, 100).await;
            let expected: &[EventId] = if order == BLOCK { &[] } else { &ids[1..2] };
            let brought: Vec<EventId> = found.rows.iter().map(|row| row.delivery.meta.event_id).collect();
            assert_eq!((brought.as_slice(), found.buried.len()), (expected, 0));
        }
    }
}
