//! Outage with real brokers: a NATS server that is stopped, and a Redis server that works. At the end the first one is back, and
//! has to get all that waited.

use postbox_testkit::{NatsServer, RedisServer};

use super::redis::durable;
use crate::drain::Bench;
use crate::outage::{DOWN, charged, compare, config};

/// The stream that takes what waits.
const STREAM: &str = "waited";

/// Like `bench outage`, and then the outage ends.
pub(crate) async fn run(events: usize, rounds: usize, waiting: usize) {
    let bench = Bench::new(events, 500).await;
    let brokers = Brokers::start();
    let config = config(&brokers.sinks());
    compare(&bench, &config, rounds, waiting).await;
    brokers.come_back().await;
    bench.drain(&config.each_ref().map(String::as_str), DOWN).await;
    println!(
        "the broker is back: of {waiting} that waited {} arrived, charged: {}",
        brokers.arrived().await,
        charged(&bench).await
    );
}

struct Brokers {
    down: NatsServer,
    well: RedisServer,
}

impl Brokers {
    /// Starts both, and stops the one that is to be down.
    fn start() -> Self {
        let (down, well) = (NatsServer::start(), durable());
        down.stop();
        Self { down, well }
    }

    /// Both as sinks. What Redis has is of no use to anybody, so it keeps little of it.
    fn sinks(&self) -> String {
        format!(
            "[sinks.down]\nurl = \"{}\"\ndestination = \"{STREAM}\"\n[sinks.well]\nurl = \"{}\"\nmaxlen = 1000\n",
            self.down.url(),
            self.well.url()
        )
    }

    /// Starts the one that was down, and has it take events.
    async fn come_back(&self) {
        self.down.start_again();
        super::nats::make_stream(&self.context().await, STREAM).await;
    }

    /// How many events the one that was down has.
    async fn arrived(&self) -> usize {
        super::nats::count(&self.context().await, STREAM).await
    }

    async fn context(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(self.down.url()).await.expect("a connection");
        async_nats::jetstream::new(client)
    }
}
