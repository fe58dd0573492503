//! Order under writers that know nothing of each other, relays that fail and die, and commits that come late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postbox_core::Store as _;
use postbox_core::store::{ClaimMode, Verdict};
use postbox_core::{
    Backoff, Delivery, DispatchError, Dispatcher, EventId, Outbox, Record, Relay, RelayHandle, Settings,
};
use postbox_stores::postgres::migrate::{self, Extras, Ordered};
use postbox_stores::postgres::{PgStore, Strategy};
use postbox_testkit::suite::{
    OpenTransaction as _, Subject as _, TOPIC, claim, enqueue, event, events, quick, request, settle_all,
    state,
};
use postbox_testkit::{Oracle, eventually};

use crate::common::{KILL_LEADER, SOON};
use crate::order::{BLOCK, WAYS, all_of, settle, shown, suspect};
use crate::subject::{Shape, Table};

const WRITERS: usize = 4;
const AGGREGATES: usize = 12;
const RELAYS: usize = 4;
const KILLS: usize = 10;
const BATCH: usize = 20;
/// What one relay has in flight at most.
const IN_FLIGHT: usize = 4 * BATCH;
const LONG: Duration = Duration::from_mins(3);

/// Transactions of each writer, of two events on average; `POSTBOX_CHAOS=3000` has 24,000 events written.
fn transactions() -> usize {
    std::env::var("POSTBOX_CHAOS").ok().and_then(|text| text.parse().ok()).unwrap_or(250)
}

fn of(aggregate: usize, n: usize) -> Record {
    event(TOPIC, n).aggregate("thing", aggregate).build().unwrap()
}

/// Delivers to the oracle; some fail before, and some after they have arrived, which are counted.
#[derive(Clone)]
struct Judged(Arc<Oracle>, Arc<AtomicUsize>);

impl Dispatcher for Judged {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let meta = &delivery.meta;
        // Numbers that differ from try to try, and from run to run.
        let chance = (meta.event_id.0.as_u128() >> 3) as usize + usize::try_from(meta.attempts).unwrap() * 7;
        if chance.is_multiple_of(20) {
            return Err(DispatchError::retry("it fails now and then"));
        }
        let aggregate = meta.aggregate.as_ref().map(|key| key.id.clone()).unwrap_or_default();
        self.0.delivered_in(meta.event_id.0, aggregate, meta.sequence);
        if chance.is_multiple_of(31) {
            self.1.fetch_add(1, Ordering::Relaxed);
            return Err(DispatchError::retry("it arrived, but nobody knows"));
        }
        Ok(())
    }
}

fn relay(store: PgStore, sink: &Judged) -> RelayHandle {
    let settings = Settings {
        batch_size: BATCH,
        lock_ttl: Duration::from_millis(900),
        dispatch_timeout: Duration::from_millis(600),
        backoff: Backoff::fixed(Duration::from_millis(20)),
        max_attempts: 1_000,
        ..quick()
    };
    Relay::builder(store).dispatcher(sink.clone()).settings(settings).build().unwrap().spawn()
}

/// Writes transactions of one to three events, and leaves some of them open for a while.
async fn write(table: &Table, oracle: &Oracle, number: usize) {
    let outbox: Outbox = table.outbox();
    for transaction in 0..transactions() {
        let mix = transaction * 31 + number * 17;
        let records = (0..=mix % 3).map(|n| of((mix * 7 + n * 5) % AGGREGATES, mix)).collect::<Vec<_>>();
        let mut tx = table.owner.begin().await.unwrap();
        let receipts = outbox.enqueue_all(&mut tx, records).await.unwrap();
        let slow = if mix.is_multiple_of(25) { 60 } else { 0 };
        tokio::time::sleep(Duration::from_millis(slow)).await;
        if mix.is_multiple_of(11) {
            tx.rollback().await.unwrap();
            for receipt in &receipts {
                oracle.rolled_back(receipt.event_id.0);
            }
        } else {
            // Said before, since a relay may be quicker than the answer.
            for receipt in &receipts {
                oracle.committed(receipt.event_id.0);
            }
            tx.commit().await.unwrap();
        }
    }
}

/// Four writers that lock nothing, four relays that die one after another, or stand still until what they hold is another's: in
/// order, each at least once, and nothing waits for ever.
async fn writers_and_relays(shape: Shape, strategy: Strategy, single: bool) {
    let table = Table::new(shape).await;
    let oracle = Arc::new(Oracle::new().ordered());
    let sink = Judged(Arc::clone(&oracle), Arc::default());
    let start = || relay(table.in_order(BLOCK, strategy, single), &sink);
    // Open from the beginning, and committed the last one first when much has been delivered: of aggregates of their own.
    let mut late = Vec::new();
    for n in 0..3 {
        let open = table.begin(vec![of(100 + n, n), of(100 + n, n)]).await;
        for receipt in open.receipts() {
            oracle.committed(receipt.event_id.0);
        }
        late.push(open);
    }
    let relays: Vec<RelayHandle> = (0..RELAYS).map(|_| start()).collect();
    let trouble = async {
        let mut relays = relays;
        for round in 1..=KILLS {
            let enough = WRITERS * transactions() * round / KILLS;
            eventually("deliveries", LONG, async || oracle.deliveries() >= enough).await;
            relays.remove(0).kill();
            relays.push(start());
            // To the others a relay that stands still looks like this.
            table.db.psql(
                "UPDATE org_outbox SET locked_at = now() - interval '1 hour' WHERE locked_at IS NOT NULL AND published_at IS NULL;
                 UPDATE postbox_relay SET expires_at = now() - interval '1 second'",
            );
            if round % 3 == 0 {
                late.pop().unwrap().commit().await;
            }
        }
        relays
    };
    let writers = async {
        tokio::join!(
            write(&table, &oracle, 0),
            write(&table, &oracle, 1),
            write(&table, &oracle, 2),
            write(&table, &oracle, 3)
        )
    };
    let (relays, _) = tokio::join!(trouble, writers);
    eventually("all to be published", LONG, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "0"
    })
    .await;
    for relay in relays {
        relay.shutdown().await.unwrap();
    }
    // What was in flight when it became another's, each time, and what arrived without an answer.
    let repeated = KILLS * RELAYS * IN_FLIGHT + sink.1.load(Ordering::Relaxed);
    let report = oracle.verdict(repeated).unwrap_or_else(|faults| panic!("{faults}"));
    println!("{strategy:?}, {shape:?}: {report:?}");
    let epoch: usize = table.db.psql("SELECT epoch FROM postbox_relay").parse().unwrap();
    assert!(!single || epoch > KILLS / 2, "{epoch} take-overs");
    assert_eq!(report.delivered, report.committed);
    assert!(report.committed > WRITERS * transactions(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_relays_that_lease_keep_the_order_of_commits() {
    Box::pin(writers_and_relays(Shape::Ordered, Strategy::Lease, false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_and_its_successors_keep_the_order_of_commits() {
    Box::pin(writers_and_relays(Shape::Ordered, Strategy::Owner, true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_relays_keep_the_order_of_commits_behind_a_pooler() {
    Box::pin(writers_and_relays(Shape::PooledOrdered, Strategy::Lease, false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn owners_keep_the_order_of_commits_behind_a_pooler() {
    Box::pin(writers_and_relays(Shape::PooledOrdered, Strategy::Owner, true)).await;
}

/// With the index alone, and writers that do not wait for each other, a later number can be delivered first: what the trigger is
/// for, and what the tests above would see without it.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_trigger_order_is_for_the_writers_to_keep() {
    let table = Table::new(Shape::Migrated).await;
    let options = Extras { ordered: Ordered::Index, ..Extras::default() };
    let mut connection = table.owner.acquire().await.unwrap();
    migrate::up_with(&mut connection, &table.name, options, |_| {}).await.unwrap();
    let first = table.begin(vec![of(1, 1)]).await;
    let second = enqueue(&table, vec![of(1, 2)]).await;
    let store = table.in_order(BLOCK, Strategy::Lease, true);
    let seen = claim(&store, 10).await;
    assert_eq!(seen.rows[0].delivery.meta.event_id, second[0]);
    store.settle(&settle_all(&seen, &Verdict::Delivered)).await.unwrap();
    let early = first.receipts()[0].event_id;
    first.commit().await;
    let then = claim(&store, 10).await;
    assert_eq!(then.rows[0].delivery.meta.event_id, early, "late, but not lost");
    assert!(then.rows[0].delivery.meta.sequence < seen.rows[0].delivery.meta.sequence);
}

/// The claim committed and its answer was lost (hazard 5): the rows go back, uncharged, and the strand goes on at its head.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_goes_back() {
    let table = Table::new(Shape::Ordered).await;
    let ids = enqueue(&table, all_of("aab")).await;
    let (proxy, store) = table.behind_proxy();
    let store = store.order(BLOCK).single_active(false).build();
    store.open().await.unwrap();
    assert!(store.claim(request(ClaimMode::Waiting, 0)).await.is_ok());
    let mut cut = proxy.cut_replies_after_requests_containing(b"OUTBOX_EXHAUSTED: no answer");
    store.claim(request(ClaimMode::Waiting, 100)).await.unwrap_err();
    cut.fired().await;
    eventually("the claim to have happened", SOON, async || state(&table, ids[0]).await.locked).await;
    let found =
        eventually("an answer", SOON, async || store.claim(request(ClaimMode::Waiting, 100)).await.ok())
            .await;
    assert_eq!(found.rows.len(), 3, "{}", shown(&found));
    assert!(found.rows.iter().all(|row| row.lease.attempts == 1));
}

/// Those that commit late are found, whatever their numbers.
#[tokio::test(flavor = "multi_thread")]
async fn late_commits_are_not_passed_by() {
    for (strategy, single) in WAYS {
        let table = Table::new(Shape::Ordered).await;
        let store = table.in_order(BLOCK, strategy, single);
        let (early, late) = (table.begin(all_of("ab")).await, table.begin(events(3)).await);
        enqueue(&table, all_of("cd")).await;
        let first = claim(&store, 100).await;
        assert_eq!(first.rows.len(), 2);
        settle(&store, &first, &Verdict::Delivered).await;
        late.commit().await;
        assert_eq!(claim(&store, 100).await.rows.len(), 3);
        early.commit().await;
        assert_eq!(claim(&store, 100).await.rows.len(), 2);
    }
}

/// What a predecessor had in flight may have killed it: its strands wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_take_over_strands_wait_for_what_was_in_flight() {
    let table = Table::new(Shape::Ordered).await;
    let ids = enqueue(&table, all_of("aaab")).await;
    let dying = table.in_order(BLOCK, Strategy::Owner, true);
    let held = dying.claim(request(ClaimMode::Waiting, 2)).await.unwrap();
    assert_eq!(held.rows.len(), 2);
    table.db.psql(KILL_LEADER);
    enqueue(&table, all_of("ab")).await;
    let next = table.in_order(BLOCK, Strategy::Owner, true);
    let found = eventually("the take-over", SOON, async || {
        let found = next.claim(request(ClaimMode::Waiting, 100)).await.ok()?;
        found.suspects.then_some(found)
    })
    .await;
    let was_held = |id: &EventId| held.rows.iter().any(|row| row.delivery.meta.event_id == *id);
    let names = |held: bool| {
        ids.iter().zip("aaab".chars()).filter(move |(id, _)| was_held(id) == held).map(|(_, name)| name)
    };
    let stuck: Vec<char> = names(true).collect();
    for row in &found.rows {
        let name = row.delivery.meta.aggregate.clone().unwrap().id;
        assert!(!stuck.contains(&name.chars().next().unwrap()), "{name} goes though {stuck:?} are suspects");
    }
    // The old one settles too late: nothing changes.
    let stale = dying.settle(&settle_all(&held, &Verdict::Delivered)).await;
    assert!(stale.is_err() || stale.unwrap().lost.len() == 2);
    let first = suspect(&next).await;
    assert!(was_held(&first.rows[0].delivery.meta.event_id) && first.rows.len() == 1);
}
