//! Order on SQLite: what the table needs for it, what a claim costs, and what is behind the back of the reader.

use std::time::{Duration, Instant};

use postbox_core::store::{Claimed, Settlement, Verdict};
use postbox_core::{
    Cleaner, Code, DeadFilter, DeadLetters as _, Dispatcher, EventId, Inspect as _, OnDead, Order, Record,
    Relay, Settings, Store as _,
};
use postbox_stores::sqlite::{SqliteStore, migrate};
use postbox_testkit::eventually;
use postbox_testkit::suite::{PATIENCE, Subject as _, TOPIC, claim, enqueue, event};

use crate::Table;

const BLOCK: Order = Order::Aggregate(OnDead::Block);

fn of(aggregate: impl std::fmt::Display, n: usize) -> Record {
    event(TOPIC, n).aggregate("thing", aggregate).build().unwrap()
}

fn ids(rows: &[Claimed]) -> Vec<EventId> {
    rows.iter().map(|row| row.delivery.meta.event_id).collect()
}

async fn settle(store: &SqliteStore, rows: &[Claimed], verdict: Verdict) {
    let settlement = |row: &Claimed| Settlement::new(row.lease.clone(), verdict.clone());
    assert!(store.settle(&rows.iter().map(settlement).collect::<Vec<_>>()).await.unwrap().lost.is_empty());
}

fn dead() -> Verdict {
    Verdict::Dead { reason: postbox_core::redact::Summary::new("never", 64) }
}

/// Claims until something comes, and says how many claims that took.
async fn claims(store: &SqliteStore, limit: usize) -> (Vec<Claimed>, usize) {
    for tries in 1..10_000 {
        let claim = claim(store, limit).await;
        if !claim.rows.is_empty() {
            return (claim.rows, tries);
        }
        assert!(claim.more, "more was not looked at");
    }
    panic!("no end of claims");
}

#[tokio::test]
async fn a_table_without_the_indexes_is_refused_with_the_next_step() {
    let table = Table::new().await;
    table.sql("DROP INDEX org_outbox_unpublished_by_sequence").await.unwrap();
    table.store(true).open().await.unwrap();
    let error = table.ordered_store(BLOCK, true).open().await.unwrap_err();
    assert_eq!(error.code(), Code::TableMismatch);
    assert!(error.message().contains("postbox migrate up --table org_outbox"), "{error}");
    migrate::up(&mut table.pool.acquire().await.unwrap(), &table.name, |_| {}).await.unwrap();
    table.ordered_store(BLOCK, true).open().await.unwrap();
}

/// Whatever other indexes somebody has done without.
#[tokio::test]
async fn what_blocks_an_aggregate_is_seen_and_never_cleaned() {
    let table = Table::new().await;
    table.sql("DROP INDEX org_outbox_tenant_published; DROP INDEX org_outbox_letters_waiting").await.unwrap();
    enqueue(&table, vec![of("a", 1), of("a", 2)]).await;
    let store = table.ordered_store(BLOCK, true);
    settle(&store, &claim(&store, 1).await.rows, dead()).await;
    assert_eq!(table.admin().counts().await.unwrap().blocked, 1);
    table.sql("UPDATE org_outbox SET dead_at = 1 WHERE dead_at IS NOT NULL").await.unwrap();
    let cleaner = Cleaner::new(table.admin()).dead_retention(Duration::from_secs(1));
    assert_eq!(cleaner.run_once().await.unwrap(), 0);
    assert_eq!(table.number("SELECT count(*) FROM org_outbox").await, 2);
}

/// A claim reads so much and no more; the next one reads on.
#[tokio::test]
async fn blocked_aggregates_in_front_make_no_claim_slow() {
    let table = Table::new().await;
    // One with very many behind its dead event, and very many that are blocked.
    enqueue(&table, (0..9_000).map(|n| of("long", n)).collect()).await;
    for _ in 0..2 {
        enqueue(&table, (0..4_000).map(|n| of(n, n)).collect()).await;
    }
    table
        .sql("UPDATE org_outbox SET dead_at = 1 WHERE sequence = 1 OR sequence BETWEEN 9001 AND 13000")
        .await
        .unwrap();
    let last = enqueue(&table, vec![of("well", 1)]).await;
    let store = table.ordered_store(BLOCK, false);
    let (rows, tries) = claims(&store, 100).await;
    assert_eq!(ids(&rows), last);
    assert!((2..=12).contains(&tries), "{tries} claims: each reads a part");
    // What comes now is seen at once, whatever is in front.
    let next = enqueue(&table, vec![of("well too", 1)]).await;
    assert_eq!(ids(&claim(&store, 100).await.rows), next);
}

/// A dead event is replayed while the reader is between it and what it blocks.
#[tokio::test]
async fn a_replay_behind_the_reader_is_not_overtaken() {
    let table = Table::new().await;
    let first = enqueue(&table, vec![of("a", 0)]).await;
    let store = table.ordered_store(BLOCK, false);
    let rows = claim(&store, 10).await.rows;
    settle(&store, &rows, dead()).await;
    // More than one read takes in, then the second.
    let between = enqueue(&table, (0..600).map(|n| of(n, n)).collect()).await;
    let second = enqueue(&table, vec![of("a", 1)]).await;
    let reader = table.ordered_store(BLOCK, false);
    assert_eq!(ids(&claim(&reader, 1).await.rows), between[..1]);
    assert_eq!(table.admin().replay_all(&DeadFilter::default(), 10, "tester").await.unwrap(), 1);
    let mut seen = Vec::new();
    eventually("both to be claimed", PATIENCE, async || {
        let rows = claim(&reader, 100).await.rows;
        settle(&reader, &rows, Verdict::Delivered).await;
        seen.extend(ids(&rows).into_iter().filter(|event| first.contains(event) || second.contains(event)));
        seen.len() == 2
    })
    .await;
    assert_eq!(seen, [first, second].concat());
}

/// Of two relays that know the same, the second gets nothing of what the first has taken and given back in part.
#[tokio::test]
async fn a_run_ends_at_the_first_row_that_cannot_be_had() {
    let table = Table::new().await;
    let mine = enqueue(&table, (0..4).map(|n| of("a", n)).collect()).await;
    let (one, two) = (table.ordered_store(BLOCK, false), table.ordered_store(BLOCK, false));
    let rows = claim(&one, 10).await.rows;
    settle(&one, &rows, Verdict::Release { after: None, reason: None }).await;
    // `one` remembers all four as free. The other fails with the first.
    let rows = claim(&two, 10).await.rows;
    assert_eq!(ids(&rows), mine);
    let wait = Duration::from_hours(1);
    let reason = postbox_core::redact::Summary::new("no", 64);
    settle(&two, &rows[..1], Verdict::Retry { after: wait, reason }).await;
    settle(&two, &rows[1..], Verdict::Release { after: None, reason: None }).await;
    let claim = claim(&one, 10).await;
    assert!(claim.rows.is_empty(), "nobody overtakes the first: {:?}", ids(&claim.rows));
    assert_eq!(claim.returned.len(), 3, "what was leased goes back");
}

/// The aggregate of an event, by its number and how many there are.
type Shape = fn(usize, usize) -> String;

/// How an ordered drain compares with one that is not, by hand: `cargo test -p postbox-stores --test sqlite -- --ignored
/// --nocapture measure`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures, and asserts nothing"]
async fn measure_ordered_drains() {
    #[derive(Clone)]
    struct Null;
    impl Dispatcher for Null {
        async fn dispatch(&self, _: &postbox_core::Delivery) -> Result<(), postbox_core::DispatchError> {
            Ok(())
        }
        fn batch_limit(&self) -> usize {
            100
        }
    }
    let number: usize = std::env::var("EVENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(40_000);
    let shapes: [(&str, Shape); 5] = [
        ("10,000 aggregates", |n, _| format!("{}", n * 7919 % 10_000)),
        ("100 aggregates", |n, _| format!("{}", n % 100)),
        ("all distinct", |n, _| format!("{n}")),
        ("a quarter of one in front", |n, all| if n < all / 4 { "x".into() } else { format!("{n}") }),
        ("one", |_, _| "x".into()),
    ];
    for (name, aggregate) in shapes {
        let mut rates = Vec::new();
        for order in [Order::None, BLOCK, Order::None, BLOCK] {
            let table = Table::new().await;
            for from in (0..number).step_by(2_000) {
                let to = (from + 2_000).min(number);
                enqueue(&table, (from..to).map(|n| of(aggregate(n, number), n)).collect()).await;
            }
            let store = table.ordered_store(order, true);
            let started = Instant::now();
            let relay =
                Relay::builder(store).dispatcher(Null).settings(Settings::default()).build().unwrap().spawn();
            eventually("all to be published", Duration::from_mins(5), async || {
                table.number("SELECT count(*) FROM (SELECT 1 FROM org_outbox WHERE published_at IS NULL AND dead_at IS NULL LIMIT 1)").await == 0
            })
            .await;
            rates.push(number as u128 * 1_000_000 / started.elapsed().as_micros());
            relay.shutdown().await.unwrap();
        }
        println!("{name}: unordered {} {}, ordered {} {} per second", rates[0], rates[2], rates[1], rates[3]);
    }
}
