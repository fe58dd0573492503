//! Claims in order, by lease and by ownership: from the heads of strands, without a gap.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, OnDead, Order, Settlement, Verdict};
use postbox_core::{Code, EventId, Record, Store as _, Topic};
use postbox_stores::postgres::migrate::{self, Extras, Ordered};
use postbox_stores::postgres::{PgStore, Strategy};
use postbox_testkit::eventually;
use postbox_testkit::suite::{
    Subject as _, TOPIC, claim, enqueue, event, events, request, settle_all, state,
};

use crate::common::SOON;
use crate::subject::{Shape, Table};

pub(crate) const BLOCK: Order = Order::Aggregate(OnDead::Block);
pub(crate) const SKIP: Order = Order::Aggregate(OnDead::Skip);

/// A relay among many, one that is alone, and one that owns the table.
pub(crate) const WAYS: [(Strategy, bool); 3] =
    [(Strategy::Lease, false), (Strategy::Lease, true), (Strategy::Owner, true)];

const OTHER: Topic = Topic::from_static("org.thing.changed.v1");

pub(crate) fn of(aggregate: &str, n: usize) -> Record {
    event(TOPIC, n).aggregate("thing", aggregate).build().unwrap()
}

pub(crate) fn all_of(aggregates: &str) -> Vec<Record> {
    let place = |(n, name): (usize, char)| of(&name.to_string(), n);
    aggregates.chars().enumerate().map(place).collect()
}

/// What a claim brought: aggregates and numbers, those of one strand in their order.
pub(crate) fn shown(claim: &Claim) -> String {
    let mut by_strand: HashMap<i64, Vec<String>> = HashMap::new();
    let mut last: HashMap<i64, i64> = HashMap::new();
    for row in &claim.rows {
        let (strand, meta) = (row.strand.expect("a strand"), &row.delivery.meta);
        let before = last.insert(strand, meta.sequence);
        assert!(before < Some(meta.sequence), "in order within a strand");
        let name = meta.aggregate.as_ref().map_or("-", |key| &key.id);
        by_strand.entry(strand).or_default().push(format!("{name}{}", meta.sequence));
    }
    let mut strands: Vec<String> = by_strand.into_values().map(|strand| strand.join(" ")).collect();
    strands.sort();
    strands.join(", ")
}

pub(crate) async fn suspect(store: &PgStore) -> Claim {
    store.claim(request(ClaimMode::Suspect, 1)).await.unwrap()
}

pub(crate) async fn settle(store: &PgStore, claim: &Claim, verdict: &Verdict) {
    let settled = store.settle(&settle_all(claim, verdict)).await.unwrap();
    assert!(settled.lost.is_empty() && settled.busy.is_empty(), "{settled:?}");
}

fn retry(after: Duration) -> Verdict {
    Verdict::Retry { after, reason: Summary::new("not now", 100) }
}

pub(crate) fn dead() -> Verdict {
    Verdict::Dead { reason: Summary::new("never", 100) }
}

pub(crate) fn release() -> Verdict {
    Verdict::Release { after: None, reason: None }
}

/// The first of each strand gets one verdict, those behind it another, in one settle.
fn first_and_rest(claim: &Claim, first: &Verdict, rest: &Verdict) -> Vec<Settlement> {
    let mut seen = HashSet::new();
    let verdict = |strand| if seen.insert(strand) { first.clone() } else { rest.clone() };
    let verdicts: Vec<Verdict> = claim.rows.iter().map(|row| row.strand).map(verdict).collect();
    let settle = settle_all(claim, &Verdict::Delivered).into_iter().zip(verdicts);
    settle.map(|(settlement, verdict)| Settlement { verdict, ..settlement }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_start_at_the_head_and_have_no_gap() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(BLOCK, strategy, single);
        enqueue(&table, all_of("abaab")).await;
        enqueue(&table, events(2)).await;
        let first = claim(&store, 100).await;
        let expected = "-11, -12, a1 a3 a4, b2 b5";
        // The trigger draws a second number for those with an aggregate.
        assert_eq!(shown(&first).split(", ").count(), expected.split(", ").count(), "{}", shown(&first));
        assert_eq!(first.rows.len(), 7);
        enqueue(&table, all_of("ac")).await;
        let second = claim(&store, 100).await;
        assert!(shown(&second).starts_with('c'), "a has events in flight: {}", shown(&second));
        assert_eq!(second.rows.len(), 1);
        settle(&store, &first, &Verdict::Delivered).await;
        let third = claim(&store, 100).await;
        assert!(third.rows.len() == 1 && shown(&third).starts_with('a'), "{}", shown(&third));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_cannot_go_holds_its_strand_and_no_other() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(BLOCK, strategy, single);
        let later = |n| event(TOPIC, n).aggregate("thing", "later").delay(Duration::from_hours(1));
        enqueue(&table, vec![later(0).build().unwrap(), of("later", 1)]).await;
        let other = |n| event(OTHER, n).aggregate("thing", "other").build().unwrap();
        enqueue(
            &table,
            vec![
                other(0),
                of("other", 1),
                of("mixed", 2),
                event(OTHER, 3).aggregate("thing", "mixed").build().unwrap(),
                of("mixed", 4),
            ],
        )
        .await;
        enqueue(&table, all_of("ll")).await;
        table.db.psql(
            "UPDATE org_outbox SET locked_at = clock_timestamp(), locked_by = 'hot', attempts = 1
            WHERE sequence = (SELECT min(sequence) FROM org_outbox WHERE aggregate_id = 'l')",
        );
        enqueue(&table, all_of("f")).await;
        let without = ClaimRequest { exclude: [OTHER].into(), ..request(ClaimMode::Waiting, 100) };
        let found = store.claim(without.clone()).await.unwrap();
        let names: Vec<_> =
            found.rows.iter().map(|row| row.delivery.meta.aggregate.clone().unwrap().id).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names.contains(&"mixed".into()) && names.contains(&"f".into()), "{names:?}");
        assert!(!found.suspects);
        settle(&store, &found, &Verdict::Delivered).await;
        let next = store.claim(without).await.unwrap();
        assert_eq!(shown(&next), "", "the next of mixed is of a topic that is left out");
        let probe = store.claim(request(ClaimMode::Probe([OTHER].into()), 1)).await.unwrap();
        assert_eq!(probe.rows.len(), 1);
        assert_eq!(probe.rows[0].delivery.meta.topic, OTHER);
        let all = claim(&store, 100).await;
        let names: Vec<_> =
            all.rows.iter().map(|row| row.delivery.meta.aggregate.clone().unwrap().id).collect();
        assert!(names.iter().all(|name| name == "mixed" || name == "other") && names.len() == 2, "{names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_holds_back_what_follows_uncharged() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(BLOCK, strategy, single);
        let ids = enqueue(&table, all_of("aaab")).await;
        let first = claim(&store, 100).await;
        let settlements = first_and_rest(&first, &retry(Duration::from_millis(300)), &release());
        assert!(store.settle(&settlements).await.unwrap().lost.is_empty());
        assert_eq!(shown(&claim(&store, 100).await), "", "all wait for their firsts");
        assert_eq!(state(&table, ids[0]).await.attempts, 1);
        assert_eq!((state(&table, ids[1]).await.attempts, state(&table, ids[2]).await.attempts), (0, 0));
        let again = eventually("the retry to be due", SOON, async || {
            let found = claim(&store, 100).await;
            (!found.rows.is_empty()).then_some(found)
        })
        .await;
        assert_eq!(again.rows[0].lease.attempts, 2);
        if again.rows.iter().any(|row| row.delivery.meta.aggregate.as_ref().unwrap().id == "a") {
            assert!(
                shown(&again).contains('a') && shown(&again).matches('a').count() == 3,
                "{}",
                shown(&again)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_are_claimed_alone_and_hold_their_strand() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(BLOCK, strategy, single);
        let ids = enqueue(&table, all_of("aaab")).await;
        // Their relay died with two of them.
        table.db.psql(&format!(
            "UPDATE org_outbox SET locked_at = to_timestamp(0), locked_by = 'gone', attempts = 1 WHERE event_id IN ('{}', '{}')",
            ids[0].0, ids[1].0
        ));
        let found = claim(&store, 100).await;
        assert!(
            found.rows.len() == 1 && shown(&found).starts_with('b') && found.suspects,
            "{}",
            shown(&found)
        );
        let probe = store.claim(request(ClaimMode::Probe([TOPIC].into()), 1)).await.unwrap();
        assert!(probe.rows.is_empty() && probe.suspects, "a probe tells of it, too: {probe:?}");
        let first = suspect(&store).await;
        assert_eq!(first.rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), ids[..1]);
        assert_eq!(first.rows[0].lease.attempts, 2);
        assert!(suspect(&store).await.rows.is_empty(), "the next one waits for it");
        assert!(claim(&store, 100).await.rows.is_empty());
        let probe = store.claim(request(ClaimMode::Probe([TOPIC].into()), 1)).await.unwrap();
        assert!(!probe.suspects, "not of one that waits behind another: {probe:?}");
        settle(&store, &first, &Verdict::Delivered).await;
        let second = suspect(&store).await;
        assert_eq!(second.rows.len(), 1, "{strategy:?} {single} {second:?}");
        assert_eq!(second.rows[0].delivery.meta.event_id, ids[1]);
        settle(&store, &second, &Verdict::Delivered).await;
        assert!(suspect(&store).await.rows.is_empty());
        assert_eq!(claim(&store, 100).await.rows[0].delivery.meta.event_id, ids[2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_or_no_event_cuts_its_strand() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(SKIP, strategy, single);
        let ids = enqueue(&table, all_of("aaabbb")).await;
        table.spoil(ids[1]).await;
        let found = claim(&store, 100).await;
        assert_eq!(found.undecodable.len(), 1);
        let brought: Vec<EventId> = found.rows.iter().map(|row| row.delivery.meta.event_id).collect();
        assert!(brought.contains(&ids[0]) && !brought.contains(&ids[2]), "{}", shown(&found));
        let back = found.returned.iter().cloned();
        let back: Vec<_> = back.map(|lease| Settlement::new(lease, release())).collect();
        store.settle(&back).await.unwrap();
        settle(&store, &found, &Verdict::Delivered).await;
        assert_eq!(state(&table, ids[2]).await.attempts, 0);

        // Ten large ones in two strands, room for three.
        let large = |name: &str| {
            let text = "x".repeat(1000);
            Record::builder(TOPIC)
                .json(&serde_json::json!({ "x": text }))
                .aggregate("thing", name)
                .build()
                .unwrap()
        };
        let ids = enqueue(&table, (0..10).map(|n| large(if n % 2 == 0 { "c" } else { "d" })).collect()).await;
        let narrow = ClaimRequest { max_bytes: 2500, ..request(ClaimMode::Waiting, 100) };
        let mut order: HashMap<String, Vec<EventId>> = HashMap::new();
        for _ in 0..30 {
            let found = store.claim(narrow.clone()).await.unwrap();
            assert!(found.rows.len() <= 3, "{}", found.rows.len());
            for row in &found.rows {
                let meta = &row.delivery.meta;
                order.entry(meta.aggregate.clone().unwrap().id).or_default().push(meta.event_id);
            }
            let back = found.returned.iter().cloned();
            let back: Vec<_> = back.map(|lease| Settlement::new(lease, release())).collect();
            store.settle(&back).await.unwrap();
            settle(&store, &found, &Verdict::Delivered).await;
        }
        let of = |odd: usize| ids.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>();
        assert_eq!((&order["c"], &order["d"]), (&of(0), &of(1)));
    }
}

/// A row that somebody else has locked is passed by, and with it all that follows it: nobody else waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_locked_by_an_outsider_ends_its_run() {
    let table = Table::new(Shape::Ordered).await;
    let store = table.in_order(BLOCK, Strategy::Lease, false);
    let ids = enqueue(&table, all_of("aaabb")).await;
    let mut tx = table.owner.begin().await.unwrap();
    let lock = sqlx::query("SELECT 1 FROM org_outbox WHERE event_id = ANY ($1) FOR UPDATE")
        .bind(vec![ids[1].0, ids[3].0]);
    lock.execute(&mut *tx).await.unwrap();
    let found = claim(&store, 100).await;
    assert_eq!(found.rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), ids[..1]);
    tx.rollback().await.unwrap();
    assert_eq!(shown(&claim(&store, 100).await).matches('b').count(), 2);
}

/// Thousands of strands that wait, and one that waits with thousands of events, cost a claim a bounded look.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_strands_in_front_do_not_hide_the_others() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        table.db.psql("INSERT INTO org_outbox (tenant_id, topic, payload, event_id, aggregate_id, available_at)
            SELECT gen_random_uuid(), 'org.thing.happened.v1', '{}', gen_random_uuid(), 'a' || n, now() + interval '1 hour'
            FROM generate_series(1, 5000) n");
        table.db.psql("INSERT INTO org_outbox (tenant_id, topic, payload, event_id, aggregate_id, dead_at)
            SELECT '00000000-0000-0000-0000-000000000000', 'org.thing.happened.v1', '{}', gen_random_uuid(), 'long',
                   CASE WHEN n = 1 THEN now() END FROM generate_series(1, 20000) n");
        let ids = enqueue(&table, all_of("xyz")).await;
        let store = table.in_order(BLOCK, strategy, single);
        let mut found = Vec::new();
        for _ in 0..6 {
            let claim = claim(&store, 100).await;
            found.extend(claim.rows.iter().map(|row| row.delivery.meta.event_id));
            if !claim.more {
                break;
            }
        }
        found.sort_by_key(|id| id.0);
        assert_eq!(found, ids, "{strategy:?}");
    }
}

/// A relay needs no more rights for it than for any other claim.
#[tokio::test(flavor = "multi_thread")]
async fn least_privilege_is_enough() {
    let table = Table::new(Shape::Grants).await;
    let mut connection = table.owner.acquire().await.unwrap();
    let options = Extras { ordered: Ordered::Writers, ..Extras::default() };
    migrate::up_with(&mut connection, &table.name, options, |_| {}).await.unwrap();
    for (strategy, single) in WAYS {
        let ids = enqueue(&table, all_of("aba")).await;
        let store = table.in_order(BLOCK, strategy, single);
        let found = claim(&store, 100).await;
        assert_eq!(found.rows.len(), 3);
        settle(&store, &found, &Verdict::Delivered).await;
        assert!(state(&table, ids[0]).await.published);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_the_index_is_refused() {
    for (shape, says) in
        [(Shape::Migrated, "no index by aggregate"), (Shape::Bare, "only the standard columns")]
    {
        let table = Table::new(shape).await;
        let error = table.in_order(BLOCK, Strategy::Lease, true).open().await.unwrap_err();
        assert_eq!(error.code(), Code::OrderUnsupported);
        assert!(
            error.message().contains(says) && error.message().contains("migrate up --ordered"),
            "{error}"
        );
    }
}
