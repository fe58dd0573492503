//! No event gets stuck, whatever its neighbours, its times or its payload are.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postbox_core::{Delivery, DispatchError, Dispatcher, EventId, Settings};
use postbox_testkit::eventually;
use postbox_testkit::suite::relay::run;
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{Subject as _, claim, enqueue, events, quick, state};

use crate::common::{Batches, SOON, all_published, insert, is_published};
use crate::subject::{Shape, Table};

/// The events of a batch that panicked while another batch found the sink down go into the queue of a lane whose
/// circuit is open. They are no probes, so they are not sent; they are held, so no probe is claimed.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_panics_while_the_circuit_opens_is_not_stuck() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(8)).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let sink = Batches(4, move |_| {
        let call = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            match call {
                0 => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Err(DispatchError::unavailable("down"))
                }
                1 => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    resume_unwind(Box::new("a bug in the batch"))
                }
                _ => Ok(()),
            }
        }
    });
    let relay = run(table.store(true), sink, Settings { concurrency: 2, ..quick() });
    all_published(&table, "all events to be delivered once the sink is back").await;
    relay.shutdown().await.unwrap();
}

/// A turn of suspects that had to wait for more than a second until nothing else was in flight ends before the first
/// suspect was claimed. Under steady load it never comes to one.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_is_tried_under_steady_load() {
    let table = Table::new(Shape::Migrated).await;
    let suspect = enqueue(&table, events(1)).await[0];
    assert_eq!(claim(&table.store(false), 1).await.rows.len(), 1);
    table.expire_lease(suspect).await;
    enqueue(&table, events(400)).await;
    // 10 held rows at least, two at a time, 400 ms each: to drain takes two seconds.
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(400)));
    let settings =
        Settings { concurrency: 2, batch_size: 10, dispatch_timeout: Duration::from_secs(2), ..quick() };
    let relay = run(table.store(true), sink.clone(), settings);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) && sink.tries(suspect) == 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (tried, delivered) = (sink.tries(suspect), sink.arrived().len());
    relay.shutdown().await.unwrap();
    assert!(tried > 0, "the suspect was not tried in 20 s, while {delivered} others were delivered");
}

/// An operator's repair script, or a relay with a shorter lease, makes a row available that this relay still
/// dispatches; it claims the row again. The books of what it holds do not expect that, and the lane stands still.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_claimed_again_while_it_runs_does_not_stop_the_lane() {
    let table = Table::new(Shape::Migrated).await;
    let sink =
        Scripted::new(|d| if d.meta.sequence <= 2 { Act::Slow(Duration::from_millis(900)) } else { Act::Ok });
    let relay = run(table.leasing(), sink.clone(), Settings { concurrency: 1, ..quick() });
    let first = enqueue(&table, events(1)).await[0];
    eventually("the first to run", SOON, async || sink.tries(first) == 1).await;
    let second = enqueue(&table, events(1)).await[0];
    eventually("the second to wait", SOON, async || state(&table, second).await.locked).await;
    table.db.psql(&format!(
        "UPDATE org_outbox SET locked_at = NULL, locked_by = NULL WHERE event_id = '{first}'"
    ));
    eventually("it to be claimed again", SOON, async || state(&table, first).await.locked).await;
    enqueue(&table, events(5)).await;
    all_published(&table, "the lane to go on").await;
    relay.shutdown().await.unwrap();
}

/// As above, but the second dispatch gets through: then a count is left over, and a circuit that opens is never probed.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_claimed_again_while_it_runs_leaves_no_count_behind() {
    let table = Table::new(Shape::Migrated).await;
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let sink = Scripted::new(move |d| match d.meta.sequence {
        1 => Act::Slow(Duration::from_millis(500)),
        _ if is_down.load(Ordering::SeqCst) => Act::Unavailable,
        _ => Act::Ok,
    });
    let relay = run(table.leasing(), sink.clone(), quick());
    let first = enqueue(&table, events(1)).await[0];
    eventually("the first to run", SOON, async || sink.tries(first) == 1).await;
    table.db.psql("UPDATE org_outbox SET locked_at = NULL, locked_by = NULL");
    eventually("it to run again", SOON, async || sink.tries(first) == 2).await;
    all_published(&table, "the first to be published").await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    down.store(true, Ordering::SeqCst);
    let second = enqueue(&table, events(1)).await[0];
    eventually("the outage to be noticed", SOON, async || sink.tries(second) >= 1).await;
    down.store(false, Ordering::SeqCst);
    all_published(&table, "the circuit to be probed").await;
    relay.shutdown().await.unwrap();
}

#[derive(Debug)]
struct Rude;

impl fmt::Display for Rude {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("an error that cannot be shown")
    }
}

impl std::error::Error for Rude {}

/// The error is shown outside the task whose panics are caught: the unit's report is lost, and with it its slot.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_whose_text_panics_costs_no_slot() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(3)).await;
    let bad = ids[0];
    let sink = Batches(1, move |batch: Vec<Delivery>| async move {
        if batch[0].meta.event_id == bad { Err(DispatchError::retry(Rude)) } else { Ok(()) }
    });
    struct One<D>(D);
    impl<D: Dispatcher> Dispatcher for One<D> {
        fn dispatch(&self, delivery: &Delivery) -> impl Future<Output = Result<(), DispatchError>> + Send {
            self.0.dispatch(delivery)
        }
    }
    let settings = Settings { concurrency: 1, max_attempts: 2, ..quick() };
    let relay = run(table.store(true), One(sink), settings);
    for id in &ids[1..] {
        is_published(&table, "the others to be delivered", *id).await;
    }
    eventually("the event to be dead", SOON, async || state(&table, bad).await.dead).await;
    relay.shutdown().await.unwrap();
}

/// One wait that the database cannot add to its time makes the settle of all others fail, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_beyond_all_times_does_not_stop_all_settles() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(20)).await;
    let bad = ids[0];
    struct Later(EventId);
    impl Dispatcher for Later {
        async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
            if delivery.meta.event_id == self.0 {
                return Err(DispatchError::retry_after("come back at the end of time", Duration::MAX));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(())
        }
    }
    let relay = run(table.store(true), Later(bad), quick());
    for id in &ids[1..] {
        is_published(&table, "the others to be settled", *id).await;
    }
    relay.shutdown().await.unwrap();
}

/// `-infinity` is a common way to say "at once"; it lies before the key at which claims begin to read.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_available_since_ever_is_delivered() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(&insert("org.a.b.v1", ", available_at", ", '-infinity'"));
    let sink = Scripted::ok();
    let relay = run(table.store(true), sink, quick());
    all_published(&table, "the event to be delivered").await;
    relay.shutdown().await.unwrap();
}

async fn a_strange_time_hurts_nobody(column: &str, value: &str) {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(&insert("org.a.b.v1", &format!(", {column}"), &format!(", '{value}'")));
    let good = enqueue(&table, events(3)).await;
    let sink = Scripted::ok();
    let relay = run(table.store(true), sink, quick());
    for id in &good {
        is_published(&table, &format!("the others, beside {column} = {value}"), *id).await;
    }
    eventually(&format!("{column} = {value} to be delivered or dead"), SOON, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL AND dead_at IS NULL") == "0"
    })
    .await;
    relay.shutdown().await.expect("the relay lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_infinite_occurred_at_hurts_nobody() {
    a_strange_time_hurts_nobody("occurred_at", "infinity").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_infinite_created_at_hurts_nobody() {
    a_strange_time_hurts_nobody("created_at", "infinity").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_occurred_at_beyond_the_year_9999_hurts_nobody() {
    a_strange_time_hurts_nobody("occurred_at", "10000-01-01").await;
}

/// A number is stored in a few bytes and shown in 131 kB: ten thousand of them are more than a text may hold, and the
/// claim that meets them fails, with all that it would have taken along. As a payload, and beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_cannot_be_shown_hurts_nobody() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "INSERT INTO org_outbox (tenant_id, topic, payload, metadata, event_id)
         SELECT gen_random_uuid(), 'org.a.b.v1', coalesce(payload, '{}'), metadata, gen_random_uuid()
         FROM (SELECT to_jsonb(array_fill('1e131071'::numeric, ARRAY[10000])) AS large) AS one,
              LATERAL (VALUES (large, NULL), (NULL, large)) AS event (payload, metadata)",
    );
    let good = enqueue(&table, events(3)).await;
    let relay = run(table.store(true), Scripted::ok(), quick());
    // The server itself needs seconds to find out that it cannot.
    for id in &good {
        eventually("the others", Duration::from_mins(2), async || state(&table, *id).await.published).await;
    }
    relay.shutdown().await.unwrap();
    let why =
        "SELECT count(*) FROM org_outbox WHERE dead_at IS NOT NULL AND last_error LIKE 'OUTBOX_UNDECODABLE%'";
    assert_eq!(table.db.psql(why), "2");
}
