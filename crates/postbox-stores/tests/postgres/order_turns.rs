//! Claims in order by an owner while much waits: in the order in which it waits, as far as it may go at all.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use postbox_core::store::{Claim, Settlement, Store as _, Verdict};
use postbox_stores::postgres::{PgStore, Strategy};
use postbox_testkit::suite::{OpenTransaction as _, Subject as _, claim, enqueue, settle_all};
use tokio::time::timeout;

use crate::order::{BLOCK, of, release, settle};
use crate::subject::{Shape, Table};

const LIMIT: usize = 20;
const LONG: Duration = Duration::from_secs(10);

/// Events of so many aggregates, in turn.
fn fill(table: &Table, events: usize, aggregates: usize) {
    table.db.psql(&format!(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, aggregate_type, aggregate_id)
         SELECT '00000000-0000-0000-0000-000000000000', 'org.thing.happened.v1', '{{}}', gen_random_uuid(), 'thing', 'n' || n % {aggregates}
         FROM generate_series(0, {events} - 1) n"
    ));
}

/// What a relay that settles late has seen.
#[derive(Default)]
struct Drain {
    unsettled: VecDeque<(Vec<Settlement>, Vec<i64>)>,
    in_flight: HashSet<i64>,
    last: HashMap<i64, i64>,
    by_aggregate: HashMap<String, usize>,
    events: usize,
}

impl Drain {
    /// Claims once, settles the third last claim, and checks what was brought.
    async fn step(&mut self, store: &PgStore) -> Claim {
        let found = timeout(LONG, claim(store, LIMIT)).await.expect("a claim ends, whatever is blocked");
        for row in &found.rows {
            let (strand, meta) = (row.strand.expect("a strand"), &row.delivery.meta);
            assert!(!self.in_flight.contains(&strand), "of a strand that has something in flight");
            let before = self.last.insert(strand, meta.sequence);
            assert!(before < Some(meta.sequence), "{before:?}, then {}", meta.sequence);
            *self.by_aggregate.entry(meta.aggregate.as_ref().unwrap().id.clone()).or_default() += 1;
            self.events += 1;
        }
        let strands: Vec<i64> = found.rows.iter().filter_map(|row| row.strand).collect();
        self.in_flight.extend(&strands);
        self.unsettled.push_back((settle_all(&found, &Verdict::Delivered), strands));
        if self.unsettled.len() > 2 {
            self.settle_one(store).await;
        }
        found
    }

    async fn settle_one(&mut self, store: &PgStore) {
        let Some((settlements, strands)) = self.unsettled.pop_front() else { return };
        assert!(store.settle(&settlements).await.unwrap().lost.is_empty());
        self.in_flight.retain(|strand| !strands.contains(strand));
    }

    async fn until_nothing_is_left(&mut self, store: &PgStore) {
        for _ in 0..2000 {
            let found = self.step(store).await;
            if found.rows.is_empty() && !found.more {
                if self.unsettled.iter().all(|(settlements, _)| settlements.is_empty()) {
                    return;
                }
                self.settle_one(store).await;
            }
        }
        panic!("no end after {} events", self.events);
    }
}

/// Along their numbers, strands would come in an order that has nothing to do with time.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_longest_goes_first() {
    let table = Table::new(Shape::Ordered).await;
    let store = table.in_order(BLOCK, Strategy::Owner, true);
    fill(&table, 600, 600);
    let first: i64 = table.db.psql("SELECT min(sequence) FROM org_outbox").trim().parse().unwrap();
    let mut drain = Drain::default();
    drain.step(&store).await;
    let limit = i64::try_from(LIMIT).unwrap();
    for nth in 1..20 {
        let found = drain.step(&store).await;
        let last = found.rows.iter().map(|row| row.delivery.meta.sequence).max().unwrap() - first;
        // The trigger draws two numbers for each event, and a read may be of two batches.
        assert!(last <= 2 * (nth + 3) * limit, "claim {nth} has come to {last}");
    }
    drain.until_nothing_is_left(&store).await;
    assert_eq!(drain.events, 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_overtakes_what_is_held_and_nothing_that_commits_late_is_lost() {
    let table = Table::new(Shape::Ordered).await;
    let store = table.in_order(BLOCK, Strategy::Owner, true);
    let late = table.begin(vec![of("late", 0), of("late", 1)]).await;
    fill(&table, 600, 60);
    let nth = |aggregate: &str, nth: usize, set: &str| {
        table.db.psql(&format!(
            "UPDATE org_outbox SET {set} WHERE sequence =
             (SELECT sequence FROM org_outbox WHERE aggregate_id = '{aggregate}' ORDER BY sequence OFFSET {nth} LIMIT 1)"
        ))
    };
    nth("n1", 0, "dead_at = now()");
    nth("n2", 0, "available_at = now() + interval '1 hour'");
    nth("n3", 0, "locked_at = clock_timestamp(), locked_by = 'hot', attempts = 1");
    nth("n4", 3, "dead_at = now()");
    nth("n5", 3, "available_at = now() + interval '1 hour'");
    let mut drain = Drain::default();
    for _ in 0..5 {
        drain.step(&store).await;
    }
    late.commit().await;
    drain.until_nothing_is_left(&store).await;
    let of = |aggregate: &str| drain.by_aggregate.get(aggregate).copied().unwrap_or(0);
    assert_eq!(["n1", "n2", "n3", "n4", "n5", "n6", "late"].map(of), [0, 0, 0, 3, 3, 10, 2]);
    assert_eq!(drain.events, 600 - 3 * 10 - 2 * 7 + 2);
}

/// Also where so few are left behind one that is dead that no share of them is a whole row.
#[tokio::test(flavor = "multi_thread")]
async fn what_stays_blocked_at_the_end_does_not_keep_a_claim_busy() {
    for held in 1..6 {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(BLOCK, Strategy::Owner, true);
        enqueue(&table, (0..=held).map(|n| of("held", n)).collect()).await;
        fill(&table, 200, 200);
        table.db.psql(
            "UPDATE org_outbox SET dead_at = now() WHERE sequence = (SELECT min(sequence) FROM org_outbox)",
        );
        let mut drain = Drain::default();
        drain.until_nothing_is_left(&store).await;
        assert_eq!((drain.events, drain.by_aggregate.get("held")), (200, None), "{held} behind a dead one");
    }
}

/// A claim that is given back whole is the next one again, and not what is behind it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_comes_before_what_follows_it() {
    let table = Table::new(Shape::Ordered).await;
    let store = table.in_order(BLOCK, Strategy::Owner, true);
    fill(&table, 600, 60);
    let mut drain = Drain::default();
    for _ in 0..5 {
        drain.step(&store).await;
    }
    let found = claim(&store, LIMIT).await;
    assert!(!found.rows.is_empty());
    settle(&store, &found, &release()).await;
    // Whatever was read ahead of it is behind it, and none of its strands is in flight.
    drain.until_nothing_is_left(&store).await;
    assert_eq!(drain.events, 600);
}
