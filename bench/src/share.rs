//! Share: how fast relays that share a table by leases deliver to a sink that takes its time, and how evenly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postbox_core::{Delivery, DispatchError, Dispatcher, Relay, Settings};
use postbox_stores::postgres::PgStore;

use crate::drain::{Bench, TOPIC, median};

const TAKES: Duration = Duration::from_millis(5);

#[derive(Clone, Default)]
struct Slow(Arc<AtomicUsize>);

impl Dispatcher for Slow {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        tokio::time::sleep(TAKES).await;
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// One, two and four relays in turn; prints medians, and the largest and smallest share of a relay.
pub(crate) async fn run(events: usize, rounds: usize, batch: usize) {
    let bench = Bench::new(events, batch).await;
    println!(
        "drain of {events} events by relays that share the table, a sink that takes {TAKES:?}, batch {batch}, {rounds} rounds"
    );
    let relays = [1, 2, 4];
    let (mut rates, mut shares) = ([const { Vec::new() }; 3], [(f64::MAX, 0.0_f64); 3]);
    for _ in 0..rounds {
        for (place, relays) in relays.into_iter().enumerate() {
            bench.make_table().await;
            bench.add(TOPIC, events).await;
            bench.settle_down().await;
            let (rate, delivered) = drain(&bench, relays).await;
            rates[place].push(rate);
            for one in delivered {
                #[allow(clippy::cast_precision_loss, reason = "a share")]
                let share = one as f64 * relays as f64 / events as f64;
                shares[place] = (shares[place].0.min(share), shares[place].1.max(share));
            }
        }
    }
    let alone = median(&mut rates[0]);
    for (place, relays) in relays.into_iter().enumerate() {
        let (rate, (least, most)) = (median(&mut rates[place]), shares[place]);
        println!(
            "{relays} relays: {rate:>8.0}/s, {:.2} times one; of an even share {least:.2} to {most:.2}",
            rate / alone
        );
    }
}

async fn drain(bench: &Bench, relays: usize) -> (f64, Vec<usize>) {
    let sinks: Vec<Slow> = (0..relays).map(|_| Slow::default()).collect();
    let name = "public.bench_outbox".parse().expect("a name");
    let store = PgStore::builder((*bench.pool.connect_options()).clone(), name).single_active(false);
    let settings = Settings { batch_size: bench.batch, ..Settings::default() };
    let start = |sink: &Slow| {
        let relay = Relay::builder(store.clone().build()).dispatcher(sink.clone()).settings(settings.clone());
        relay.build().expect("a relay").spawn()
    };
    let started = Instant::now();
    let handles: Vec<_> = sinks.iter().map(start).collect();
    let delivered = || sinks.iter().map(|sink| sink.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    while delivered().iter().sum::<usize>() < bench.events {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let rate = bench.events as f64 / started.elapsed().as_secs_f64();
    for handle in handles {
        handle.shutdown().await.expect("a stop");
    }
    (rate, delivered())
}
