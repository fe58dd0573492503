//! Servers stop, networks break, and nothing is lost.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::{Delivery, DispatchErrorKind, Dispatcher, Receipts};
use tokio::time::Instant;

use super::{Broker, WRONG_PASSWORD, assert_complete, deliver, event, events, fresh, refused, send};
use crate::{Proxy, skip};

/// The relay gives a dispatch 30 s unless told otherwise; a sink has to have said something by then.
const WELL_WITHIN: Duration = Duration::from_secs(20);

/// So many are sent at a time while something breaks.
const BATCH: usize = 200;

/// Sends until it is enough, each batch until it is confirmed; what was sent.
async fn keep_sending(
    sink: &impl Dispatcher,
    topic: &str,
    enough: &AtomicBool,
    patience: Duration,
) -> Vec<Delivery> {
    let mut all = Vec::new();
    while !enough.load(Ordering::Relaxed) || all.len() < 5 * BATCH {
        let batch = events(topic, BATCH);
        deliver(sink, &batch, patience).await;
        all.extend(batch);
        // Some brokers take so many that reading them again would be the longest part.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    all
}

/// An address at which nobody listens.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address")
}

/// No attempt is spent on a server that is not there; and a sink can be made before its server is.
pub async fn nobody_who_listens_is_an_outage<B: Broker>(broker: &B) {
    if !broker.abilities().proxy {
        skip!("the broker cannot be looked for at another address");
    }
    let sink = broker.sink_at(nobody(), &[]);
    for _ in 0..2 {
        let error = refused(&sink, &event("some.topic", 1), WELL_WITHIN).await;
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    }
    for outcome in send(&sink, &events("some.topic", 20)).await {
        let error = outcome.expect("an outcome").expect_err("nobody is there");
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    }
}

/// Somebody has to mend that; the events wait for it. No error shows the password.
pub async fn wrong_credentials_are_an_outage<B: Broker>(broker: &B) {
    if !broker.abilities().credentials {
        skip!("the broker knows no credentials");
    }
    let topic = fresh("credentials");
    broker.prepare(&topic).await;
    let sink = broker.sink_with_wrong_credentials();
    let error = refused(&sink, &event(&topic, 1), WELL_WITHIN).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(WRONG_PASSWORD), "{shown}");
}

/// A server that goes away in the middle of the stream and comes back has all of it.
pub async fn a_broker_that_restarts_loses_nothing<B: Broker>(broker: &B) {
    if !broker.abilities().restarts {
        skip!("the broker cannot be restarted");
    }
    let topic = fresh("restart");
    broker.prepare(&topic).await;
    let sink = broker.sink(&[]);
    let enough = Arc::new(AtomicBool::new(false));
    // In a task of its own: servers are stopped and started by calls that block.
    let sending = {
        let (sink, topic, enough) = (sink.clone(), topic.clone(), Arc::clone(&enough));
        let patience = broker.abilities().patience;
        tokio::spawn(async move { keep_sending(&sink, &topic, &enough, patience).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    broker.stop().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    broker.start_again().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    enough.store(true, Ordering::Relaxed);
    let all = sending.await.expect("the sender");
    let twice = assert_complete(&all, &broker.read(&topic).await);
    assert!(twice <= 2 * BATCH, "{twice} are there twice: more than were in flight");
}

/// Slow is not down: what takes its time arrives.
pub async fn a_slow_broker_is_waited_for<B: Broker>(broker: &B) {
    if !broker.abilities().proxy {
        skip!("the broker cannot be reached by a proxy");
    }
    let topic = fresh("slow");
    broker.prepare(&topic).await;
    let proxy = Proxy::start(broker.addr());
    let sink = broker.sink_at(proxy.addr(), &[]);
    deliver(&sink, &events(&topic, 1), broker.abilities().patience).await;
    proxy.delay(Duration::from_millis(100));
    let slow = events(&topic, 300);
    let started = Instant::now();
    deliver(&sink, &slow, broker.abilities().patience).await;
    let took = started.elapsed();
    // One round trip at a time would take a minute.
    assert!(took < Duration::from_secs(20), "{took:?} for 300: they are not pipelined");
    let slow_ids: Vec<String> = slow.iter().map(|event| event.meta.event_id.to_string()).collect();
    let mut received = broker.read(&topic).await;
    received.retain(|message| slow_ids.iter().any(|id| id == message.event_id()));
    assert_complete(&slow, &received);
}

/// Nobody waits for a confirmation before the next event is sent: a broker that takes everything and confirms nothing has a
/// hundred, or as many as the sink sends at a time, while no answer has come and none was given up yet.
pub async fn hundreds_are_in_flight_before_one_is_confirmed<B: Broker>(broker: &B) {
    if !broker.abilities().proxy {
        skip!("the broker cannot be reached by a proxy");
    }
    let topic = fresh("in-flight");
    broker.prepare(&topic).await;
    let proxy = Proxy::start(broker.addr());
    // Nothing is given up as long as this looks, so what arrives is what is in flight at once, be it quickly or slowly.
    let options = [broker.abilities().gathering, &[("timeout", "40s")]].concat();
    let sink = broker.sink_at(proxy.addr(), &options);
    let all = events(&topic, sink.batch_limit().min(300) + 1);
    deliver(&sink, &all[..1], broker.abilities().patience).await;
    proxy.swallow_replies();
    let sending = {
        let (sink, batch) = (sink.clone(), all[1..].to_vec());
        tokio::spawn(async move { send(&sink, &batch).await })
    };
    let expected = (all.len() - 1).min(100);
    let (deadline, mut there) = (Instant::now() + Duration::from_secs(30), 0);
    while there < expected && Instant::now() < deadline {
        // Also the one before them.
        there = broker.read(&topic).await.len() - 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(there >= expected, "{there} in flight");
    // Some clients have limits of their own, and a reader may take its time.
    let given_up = sending.is_finished();
    proxy.pass();
    let outcomes = sending.await.expect("outcomes");
    assert!(!given_up || outcomes.iter().flatten().all(Result::is_err), "an answer came through");
    deliver(&sink, &all[1..], broker.abilities().patience).await;
    assert_complete(&all, &broker.read(&topic).await);
}

/// A server that takes everything and answers nothing does not hold a dispatch for ever, and is used again when it is back.
pub async fn a_broker_that_says_nothing_is_given_up<B: Broker>(broker: &B) {
    if !broker.abilities().proxy {
        skip!("the broker cannot be reached by a proxy");
    }
    let topic = fresh("silent");
    broker.prepare(&topic).await;
    let proxy = Proxy::start(broker.addr());
    let sink = broker.sink_at(proxy.addr(), &[]);
    let all = events(&topic, 3);
    deliver(&sink, &all[..1], broker.abilities().patience).await;
    proxy.blackhole();
    let error = refused(&sink, &all[1], WELL_WITHIN).await;
    assert_ne!(error.kind(), DispatchErrorKind::Reject, "{error}");
    proxy.pass();
    deliver(&sink, &all[1..], broker.abilities().patience).await;
    assert_complete(&all, &broker.read(&topic).await);
}

/// Connections that break again and again cost time, and no event.
pub async fn a_connection_that_is_cut_loses_nothing<B: Broker>(broker: &B) {
    if !broker.abilities().proxy {
        skip!("the broker cannot be reached by a proxy");
    }
    let topic = fresh("cut");
    broker.prepare(&topic).await;
    let proxy = Proxy::start(broker.addr());
    let sink = broker.sink_at(proxy.addr(), &[]);
    let enough = AtomicBool::new(false);
    let sending = keep_sending(&sink, &topic, &enough, broker.abilities().patience);
    let cutting = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            proxy.cut();
            tokio::time::sleep(Duration::from_millis(50)).await;
            proxy.pass();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        enough.store(true, Ordering::Relaxed);
    };
    let (all, ()) = tokio::join!(sending, cutting);
    assert_complete(&all, &broker.read(&topic).await);
}

/// A relay that stops, or runs out of time, drops what it sends: the sink goes on, and what was confirmed is there.
pub async fn a_batch_that_is_dropped_harms_nothing<B: Broker>(broker: &B) {
    let topic = fresh("dropped");
    broker.prepare(&topic).await;
    let sink = broker.sink(&[]);
    let all = events(&topic, 500);
    deliver(&sink, &all[..1], broker.abilities().patience).await;
    let mut confirmed = vec![all[0].clone()];
    for (round, micros) in [0, 100, 1_000, 5_000, 20_000].into_iter().enumerate() {
        let batch = &all[1 + round * 60..][..60];
        let mut receipts = Receipts::new(batch.len());
        let dispatch = sink.dispatch_batch(batch, &mut receipts);
        let _ = tokio::time::timeout(Duration::from_micros(micros), dispatch).await;
        let known = receipts.take();
        confirmed.extend(known.into_iter().filter(|(_, it)| it.is_ok()).map(|(n, _)| batch[n].clone()));
    }
    let mut received = broker.read(&topic).await;
    let ids: Vec<String> = confirmed.iter().map(|event| event.meta.event_id.to_string()).collect();
    received.retain(|message| ids.iter().any(|id| id == message.event_id()));
    assert_complete(&confirmed, &received);
    deliver(&sink, &all, broker.abilities().patience).await;
    assert_complete(&all, &broker.read(&topic).await);
}
