//! Hang: how fast a backlog is delivered while there is always one event that hangs for its whole timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postbox_core::{Delivery, DispatchError, Dispatcher, Relay, Settings};
use postbox_stores::postgres::{PgStore, Strategy};

use crate::drain::{Bench, TOPIC, median};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Delivers to nowhere, except that one event after another hangs.
#[derive(Clone)]
struct Hanging {
    hangs: bool,
    busy: Arc<AtomicBool>,
    hung: Arc<AtomicUsize>,
    arrived: Arc<AtomicUsize>,
}

impl Dispatcher for Hanging {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        if self.hangs && !self.busy.swap(true, Ordering::SeqCst) {
            self.hung.fetch_add(1, Ordering::SeqCst);
            let _free = Free(Arc::clone(&self.busy));
            std::future::pending::<()>().await;
        }
        self.arrived.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The next may hang when this one is over.
struct Free(Arc<AtomicBool>);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Alternates runs without and with events that hang, prints each, then the medians and their ratio.
pub(crate) async fn run(events: usize, rounds: usize, batch: usize) {
    let bench = Bench::new(events, batch).await;
    println!(
        "drain of {events} events, owned, batch {batch}, {rounds} rounds; then with one that hangs at any time, {TIMEOUT:?} each"
    );
    let (mut well, mut beside) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        for hangs in [false, true] {
            bench.make_table().await;
            bench.add(TOPIC, events).await;
            bench.settle_down().await;
            let (rate, hung) = drain(&bench, hangs).await;
            println!("round {round}: {rate:>8.0}/s, {hung} events hung");
            if hangs { &mut beside } else { &mut well }.push(rate);
        }
    }
    let (well, beside) = (median(&mut well), median(&mut beside));
    println!("median: none hangs {well:.0}/s, one hangs {beside:.0}/s, ratio {:.2}", beside / well);
}

/// Until all but those that hung have arrived.
async fn drain(bench: &Bench, hangs: bool) -> (f64, usize) {
    let sink = Hanging { hangs, busy: Arc::default(), hung: Arc::default(), arrived: Arc::default() };
    let store = PgStore::builder(
        (*bench.pool.connect_options()).clone(),
        "public.bench_outbox".parse().expect("a name"),
    );
    let settings = Settings { batch_size: bench.batch, dispatch_timeout: TIMEOUT, ..Settings::default() };
    let relay =
        Relay::builder(store.strategy(Strategy::Owner).build()).dispatcher(sink.clone()).settings(settings);
    let relay = relay.build().expect("a relay").spawn();
    while sink.arrived.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let started = Instant::now();
    // A few that hung are tried again, and one of them may hang again.
    let enough = bench.events - bench.events / 100;
    while sink.arrived.load(Ordering::Relaxed) < enough {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let rate = enough as f64 / started.elapsed().as_secs_f64();
    relay.kill();
    (rate, sink.hung.load(Ordering::SeqCst))
}
