//! What an owner has read and not yet handed over, and what may happen before it does.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Claimed, OnDead, Order, Standing, Verdict};
use postbox_core::{EventId, Store as _};
use postbox_stores::postgres::PgStore;
use postbox_testkit::eventually;
use postbox_testkit::suite::{
    PATIENCE, Subject as _, TOPIC, claim, enqueue, event, events, request, settle_all,
};

use crate::common::KILL_LEADER;
use crate::subject::{Shape, Table};

fn ids(claim: &Claim) -> Vec<EventId> {
    claim.rows.iter().map(|row| row.delivery.meta.event_id).collect()
}

/// Claims until so many have been handed over; answers them in that order.
async fn rest(store: &PgStore, wanted: usize) -> Vec<EventId> {
    let mut found = Vec::new();
    eventually("the rest", PATIENCE, async || {
        found.extend(ids(&claim(store, 2).await));
        found.len() >= wanted
    })
    .await;
    found
}

/// Claims two and settles them at once; answers which.
async fn deliver(store: &PgStore) -> Vec<EventId> {
    let claimed = claim(store, 2).await;
    store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
    ids(&claimed)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_probe_took_is_not_handed_over_again() {
    let table = Table::new(Shape::Migrated).await;
    let all = enqueue(&table, events(6)).await;
    let store = table.store(true);
    assert_eq!(ids(&claim(&store, 2).await), all[..2]);
    let probe = request(ClaimMode::Probe(Arc::from([TOPIC])), 1);
    assert_eq!(ids(&store.claim(probe).await.unwrap()), all[2..3], "the first that is not in flight");
    let mut found = rest(&store, 3).await;
    found.sort_unstable();
    assert_eq!(found, all[3..]);
}

/// The reader is several batches ahead: what is handed over follows on what was handed over before it, to the last row.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_far_ahead_comes_in_order_and_once() {
    let table = Table::new(Shape::Migrated).await;
    let all = enqueue(&table, events(101)).await;
    let store = table.store(true);
    let mut found = Vec::new();
    for round in 0..51 {
        let claimed = claim(&store, 2).await;
        assert!(claimed.more || round == 50, "{round}");
        found.extend(ids(&claimed));
        if round % 3 == 0 {
            store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
        }
    }
    assert_eq!(found, all);
    assert_eq!(ids(&claim(&store, 2).await), []);
}

/// Among small payloads some are larger than the share of one that is read far ahead, or than that of any: all come, with what they
/// carry, and in order.
#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_among_small_ones_come_in_their_turn() {
    let table = Table::new(Shape::Migrated).await;
    let text = |n: usize| {
        "x".repeat(if n % 23 == 22 {
            40_000
        } else if n % 11 == 10 {
            5_000
        } else {
            10
        })
    };
    let records = (0..120).map(|n| event(TOPIC, n).json(&text(n)).build().unwrap()).collect();
    let all = enqueue(&table, records).await;
    let store = table.store(true);
    let tight = ClaimRequest { max_bytes: 64 << 10, ..request(ClaimMode::Waiting, 2) };
    let mut found = Vec::new();
    eventually("all of them", PATIENCE, async || {
        let claimed = store.claim(tight.clone()).await.unwrap();
        for row in &claimed.rows {
            assert_eq!(row.delivery.payload.len(), text(found.len()).len() + 2, "{}", found.len());
            found.push(row.delivery.meta.event_id);
        }
        store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
        found.len() >= all.len()
    })
    .await;
    assert_eq!(found, all);
}

/// Other claims than the reader expects: what it has read is read again, and nothing comes twice or is passed by.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_ahead_and_not_wanted_comes_later() {
    let table = Table::new(Shape::Migrated).await;
    let all = enqueue(&table, events(60)).await;
    let store = table.store(true);
    let mut found = Vec::new();
    let without = ClaimRequest { exclude: Arc::from([TOPIC]), ..request(ClaimMode::Waiting, 2) };
    let tight = ClaimRequest { max_bytes: 1, ..request(ClaimMode::Waiting, 2) };
    for _ in 0..8 {
        // A look at the gate alone stops the reader, whether it reads or waits; so does what it has not read for.
        found.extend(ids(&claim(&store, 2).await));
        assert_eq!(ids(&claim(&store, 0).await), []);
        found.extend(ids(&claim(&store, 2).await));
        assert_eq!(ids(&store.claim(without.clone()).await.unwrap()), []);
        let one = store.claim(tight.clone()).await.unwrap();
        assert_eq!(one.rows.len(), 1, "one always fits");
        found.extend(ids(&one));
    }
    found.extend(rest(&store, all.len() - found.len()).await);
    assert_eq!(found, all, "and it comes first, not when the cursor goes back");
}

/// Somebody changes when waiting events are due, so that they lie behind the reader once more: by the time it comes to them again, the
/// first of them have been delivered.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_moved_behind_the_reader_does_not_come_twice() {
    let table = Table::new(Shape::Migrated).await;
    let all = enqueue(&table, events(60)).await;
    let store = table.store(true);
    let mut found = Vec::new();
    for _ in 0..3 {
        found.extend(deliver(&store).await);
    }
    table.db.psql(&format!("UPDATE {} SET available_at = now() WHERE published_at IS NULL", table.name));
    eventually("all of them", PATIENCE, async || {
        found.extend(deliver(&store).await);
        found.len() >= all.len()
    })
    .await;
    found.sort_unstable();
    assert_eq!(found, all);
    assert_eq!(ids(&claim(&store, 2).await), []);
}

/// Connections end at any moment, also while the reader waits for an answer or holds some: what it has is read again, and what was handed
/// over is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_loses_its_connection_loses_nothing() {
    let table = Table::new(Shape::Migrated).await;
    let (proxy, store) = table.behind_proxy();
    let all = enqueue(&table, events(120)).await;
    let store = store.build();
    let (mut found, mut claims) = (Vec::new(), 0);
    eventually("all of them", PATIENCE, async || {
        claims += 1;
        if claims % 7 == 0 {
            proxy.cut();
            proxy.pass();
        }
        if let Ok(claimed) = store.claim(request(ClaimMode::Waiting, 2)).await {
            found.extend(ids(&claimed));
        }
        found.len() >= all.len()
    })
    .await;
    assert!(proxy.accepted() > 10, "it connected {} times", proxy.accepted());
    found.sort_unstable();
    assert_eq!(found, all);
}

/// A relay that is simply dropped leaves nobody behind who waits for its batches to be taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_ends_with_its_store() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(100)).await;
    let store = table.store(true);
    claim(&store, 2).await;
    claim(&store, 2).await;
    let reads = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%Reads waiting rows%' \
                 AND pid <> pg_backend_pid()";
    assert_eq!(table.db.psql(reads).trim(), "1");
    drop(store);
    eventually("its connection to end", PATIENCE, async || table.db.psql(reads).trim() == "0").await;
}

/// Between the two another relay led, and delivered what was ahead here.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_ahead_does_not_outlive_a_reign() {
    let table = Table::new(Shape::Migrated).await;
    let all = enqueue(&table, events(6)).await;
    let old = table.store(true);
    let first = claim(&old, 2).await;
    assert_eq!(ids(&first), all[..2]);
    table.db.psql(KILL_LEADER);
    let new = table.store(true);
    let mut claimed = Claim::default();
    eventually("the take-over", PATIENCE, async || {
        claimed = claim(&new, 10).await;
        !claimed.rows.is_empty()
    })
    .await;
    assert_eq!(ids(&claimed), all[2..], "what the old one had in flight is suspect");
    new.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
    new.close().await;
    // Its dispatches end: until then these rows are in flight here, whoever leads.
    let settled = old.settle(&settle_all(&first, &Verdict::Delivered)).await.unwrap();
    assert_eq!(settled.lost.len(), 2, "they are another's by now");
    let mut again = Vec::new();
    eventually("the old one to lead", PATIENCE, async || {
        let claimed = old.claim(request(ClaimMode::Waiting, 2)).await.unwrap_or_default();
        again.extend(ids(&claimed));
        claimed.standing == Standing::Active && claimed.suspects
    })
    .await;
    assert_eq!(again, [], "it was delivered by another");
}

/// In order the reader is several batches ahead, too. Of an aggregate nothing comes while something of it is in flight, long ones have their
/// own reads in between, and at the end each event has come once and in its turn. Two rules see to it, either of which is enough: what waits is not
/// read again, and what interferes is not handed over.
#[tokio::test(flavor = "multi_thread")]
async fn in_order_what_is_read_far_ahead_is_of_aggregates_with_nothing_in_flight() {
    let table = Table::new(Shape::Ordered).await;
    // Forty with three each, and one in front that has far more than a claim takes.
    let aggregate = |n: usize| if n < 40 { 0 } else { 1 + n % 40 };
    let record = |n: usize| event(TOPIC, n).aggregate("thing", aggregate(n).to_string()).build().unwrap();
    let all = enqueue(&table, (0..160).map(record).collect()).await;
    let store = table.ordered_store(Order::Aggregate(OnDead::Block), true);
    let (mut found, mut in_flight): (HashMap<String, Vec<i64>>, VecDeque<Claim>) = Default::default();
    let of = |row: &Claimed| row.delivery.meta.aggregate.as_ref().unwrap().id.clone();
    eventually("all of them", PATIENCE, async || {
        let claimed = claim(&store, 4).await;
        let busy: HashSet<String> = in_flight.iter().flat_map(|claim| claim.rows.iter().map(of)).collect();
        for row in &claimed.rows {
            assert!(!busy.contains(&of(row)), "{} is in flight", of(row));
            found.entry(of(row)).or_default().push(row.delivery.meta.sequence);
        }
        in_flight.push_back(claimed);
        if in_flight.len() > 3 {
            let oldest = in_flight.pop_front().unwrap();
            store.settle(&settle_all(&oldest, &Verdict::Delivered)).await.unwrap();
        }
        found.values().map(Vec::len).sum::<usize>() >= all.len()
    })
    .await;
    assert_eq!((found.len(), found["0"].len()), (41, 40));
    for (aggregate, sequences) in found {
        assert!(sequences.is_sorted_by(|a, b| a < b), "{aggregate}: {sequences:?}");
    }
}
