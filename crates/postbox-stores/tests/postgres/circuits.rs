//! Sinks that are down, suspects and turns: nobody waits for ever, and nobody for another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postbox_core::{Backoff, Delivery, Relay, Settings, Topic};
use postbox_stores::postgres::Strategy;
use postbox_testkit::eventually;
use postbox_testkit::suite::claim::dear_looks_in_vain_hide_nothing;
use postbox_testkit::suite::relay::run;
use postbox_testkit::suite::script::{Act, Scripted};
use postbox_testkit::suite::{Subject as _, enqueue, event, events, quick, state};

use crate::common::{Batches, SOON, all_published, insert, is_published};
use crate::subject::{Shape, Table};

/// A lane remembers 4096 topics and probes with those. When the events that wait have others, there is never a probe.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_of_very_many_topics_is_probed() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
         SELECT gen_random_uuid(), 'org.thing.t' || n || '.v1', '{}', gen_random_uuid() FROM generate_series(1, 4200) n",
    );
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let sink =
        Scripted::new(move |_| if is_down.load(Ordering::SeqCst) { Act::Unavailable } else { Act::Ok });
    let relay = run(table.store(true), sink.clone(), quick());
    all_published(&table, "the topics to be learnt").await;
    down.store(true, Ordering::SeqCst);
    let late =
        enqueue(&table, vec![event(Topic::from_static("org.late.topic.v1"), 1).build().unwrap()]).await[0];
    eventually("the outage to be noticed", SOON, async || sink.tries(late) >= 1).await;
    down.store(false, Ordering::SeqCst);
    is_published(&table, "the event once the sink is back", late).await;
    relay.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_sink_that_is_down_hides_nothing() {
    for (shape, strategy) in [
        (Shape::Migrated, Strategy::Owner),
        (Shape::Migrated, Strategy::Lease),
        (Shape::Bare, Strategy::Auto),
    ] {
        let table = Table::new(shape).await;
        let (proxy, store) = table.behind_proxy();
        let store = store.strategy(strategy).build();
        dear_looks_in_vain_hide_nothing(&table, &store, &proxy).await;
    }
}

/// While a circuit is open, probes take only rows without a lock, and suspects of its topics are left out: if all that
/// wait are suspects, nothing ever finds out that the sink is back.
#[tokio::test(flavor = "multi_thread")]
async fn suspects_alone_close_a_circuit() {
    let table = Table::new(Shape::Migrated).await;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let sink =
        Scripted::new(move |_| if is_down.load(Ordering::SeqCst) { Act::Unavailable } else { Act::Ok });
    let relay = run(table.store(false), sink.clone(), quick());
    let first = enqueue(&table, events(1)).await[0];
    eventually("the outage to be noticed", SOON, async || sink.tries(first) >= 1).await;
    // Another relay delivers it, and dies with the next one in its hands.
    table.db.psql("UPDATE org_outbox SET published_at = now(), locked_at = NULL, locked_by = NULL");
    let id = table.db.psql(&insert(
        "org.thing.happened.v1",
        ", attempts, locked_by, locked_at",
        ", 1, 'another/1', now() - interval '1 hour'",
    ));
    let id = id.lines().next().unwrap().to_owned();
    down.store(false, Ordering::SeqCst);
    eventually("the suspect to be delivered", SOON, async || {
        table.db.psql(&format!("SELECT published_at IS NOT NULL FROM org_outbox WHERE event_id = '{id}'"))
            == "t"
    })
    .await;
    relay.shutdown().await.unwrap();
}

/// A probe that finds no event of its sink puts off the probes of all other sinks that are due. With equal waits they
/// stay in step, and the second sink is never probed.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_in_vain_counts_for_its_own_sink_alone() {
    let table = Table::new(Shape::Migrated).await;
    let down = Arc::new(AtomicBool::new(true));
    let scripted = || {
        let down = Arc::clone(&down);
        Scripted::new(move |_| if down.load(Ordering::SeqCst) { Act::Unavailable } else { Act::Ok })
    };
    let (first, second) = (scripted(), scripted());
    let settings = Settings { circuit: Backoff::fixed(Duration::from_millis(300)), ..quick() };
    let relay =
        Relay::builder(table.store(false)).route("org.**", first.clone()).route("crm.**", second.clone());
    let relay = relay.settings(settings).build().unwrap().spawn();
    let other = Topic::from_static("crm.contact.added.v1");
    let ids = enqueue(&table, vec![events(1).remove(0), event(other, 1).build().unwrap()]).await;
    eventually("both outages to be noticed", SOON, async || {
        first.tries(ids[0]) >= 1 && second.tries(ids[1]) >= 1
    })
    .await;
    // Another relay has delivered the first sink's event.
    table.db.psql("UPDATE org_outbox SET published_at = now() WHERE topic LIKE 'org.%'");
    down.store(false, Ordering::SeqCst);
    is_published(&table, "the second sink's event", ids[1]).await;
    relay.shutdown().await.unwrap();
}

/// The events of a sink that is down are put off until after the probe: with one event, every other probe finds none,
/// and counts as one that failed.
#[tokio::test(flavor = "multi_thread")]
async fn probes_find_the_event_that_was_put_off_for_them() {
    let table = Table::new(Shape::Migrated).await;
    let sink = Scripted::new(|_| Act::Unavailable);
    let settings = Settings { circuit: Backoff::fixed(Duration::from_millis(500)), ..quick() };
    let relay = run(table.store(true), sink.clone(), settings);
    let id = enqueue(&table, events(1)).await[0];
    eventually("the first try", SOON, async || sink.tries(id) == 1).await;
    // Seven seconds, or fourteen if every other one finds nothing.
    eventually("a probe every 500 ms", SOON, async || sink.tries(id) > 14).await;
    relay.shutdown().await.unwrap();
}

/// A suspect waits until nothing else is in flight, and nothing new is claimed meanwhile: the queue of a slow sink holds
/// up all others for as long as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_and_a_slow_sink_do_not_hold_up_another_sink() {
    let table = Table::new(Shape::Migrated).await;
    let slow = Scripted::new(|_| Act::Slow(Duration::from_millis(900)));
    let other = Topic::from_static("crm.contact.added.v1");
    let fast = Scripted::ok();
    let settings = Settings { concurrency: 1, ..quick() };
    let relay = Relay::builder(table.store(true)).route("org.**", slow.clone()).route("crm.**", fast.clone());
    let relay = relay.settings(settings).build().unwrap().spawn();
    let ids = enqueue(&table, events(20)).await;
    eventually("the slow sink to be at work", SOON, async || slow.tries(ids[0]) == 1).await;
    table.db.psql(&insert(
        "crm.contact.added.v1",
        ", attempts, locked_by, locked_at",
        ", 1, 'another/1', now() - interval '1 hour'",
    ));
    // For the suspect the relay gives back what only waits.
    let held = "SELECT count(*) FROM org_outbox WHERE topic LIKE 'org.%' AND locked_at IS NOT NULL";
    eventually("the relay to make way for the suspect", SOON, async || {
        table.db.psql(held).parse::<u32>().unwrap() <= 1
    })
    .await;
    let started = Instant::now();
    let late = enqueue(&table, vec![event(other, 1).build().unwrap()]).await[0];
    eventually("the other sink's event", Duration::from_secs(40), async || fast.tries(late) == 1).await;
    let took = started.elapsed();
    relay.shutdown().await.unwrap();
    assert!(took < Duration::from_secs(8), "it waited {took:?}; dispatch_timeout is 1s");
}

/// A beat puts off the next claim by a whole `poll_interval`, also when there is room and more to claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_interval_does_not_starve_a_relay_with_a_backlog() {
    let table = Table::new(Shape::Migrated).await;
    enqueue(&table, events(60)).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(600)));
    let settings =
        Settings { poll_interval: Duration::from_secs(5), batch_size: 10, concurrency: 3, ..quick() };
    let relay = run(table.store(false), sink.clone(), settings);
    let started = Instant::now();
    eventually("all", Duration::from_mins(1), async || sink.arrived().len() >= 60).await;
    let took = started.elapsed();
    relay.shutdown().await.unwrap();
    // 60 events, 3 at a time, 0.6 s each: 12 s of work.
    assert!(took < Duration::from_secs(22), "took {took:?} instead of 12 s");
}

/// A sink that sends its batches as a whole, and one event that hangs it. The batch counts as an outage, so nobody is
/// charged; the probe gets one event through; then the next batch holds the same event again. At the default timeout
/// that is one event every half minute, and the one that hangs never dies.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_hangs_whole_batches_does_not_hold_up_the_others() {
    let table = Table::new(Shape::Migrated).await;
    let ids = enqueue(&table, events(60)).await;
    let bad = ids[30];
    let sink = Batches(100, move |batch: Vec<Delivery>| async move {
        if batch.iter().any(|delivery| delivery.meta.event_id == bad) {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    let settings = Settings { max_attempts: 2, dispatch_timeout: Duration::from_millis(300), ..quick() };
    let relay = run(table.store(true), sink, settings);
    // Many times the timeout: the others must not wait for the one that hangs, one by one.
    eventually("all but the one that hangs", SOON, async || {
        table.db.psql("SELECT count(*) FROM org_outbox WHERE published_at IS NULL") == "1"
    })
    .await;
    eventually("the one that hangs to be dead", SOON, async || state(&table, bad).await.dead).await;
    relay.shutdown().await.unwrap();
}
