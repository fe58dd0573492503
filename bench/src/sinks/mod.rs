//! Sinks: how fast a backlog goes to a broker, by `postbox relay` and by the broker's own client with nothing else to do.
//!
//! Three in turn for each broker: the relay to nowhere, which is all it does but the sink; the client with the same messages
//! written by hand, which is all the sink does but the rest; and the relay to the broker, which is both.

mod kafka;
mod message;
mod nats;
pub(crate) mod outage;
mod rabbitmq;
mod redis;

use std::fmt::Write as _;
use std::time::Duration;

use crate::drain::{Bench, TOPIC, config_file, median};
use message::Message;

/// The names by which `--only` chooses.
const NAMES: [&str; 4] = ["nats", "redis", "rabbitmq", "kafka"];

/// A private broker with its client.
trait Broker: Sized {
    async fn start() -> Self;

    /// Where the relay finds it.
    fn url(&self) -> String;

    /// Makes a place for messages.
    async fn make(&self, destination: &str);

    /// Sends messages, many under way, and waits until all are confirmed. The connection is not part of the time.
    async fn publish(
        &self,
        destination: &str,
        messages: impl Iterator<Item = Message> + Send + 'static,
    ) -> Duration;

    /// How many messages are there.
    async fn count(&self, destination: &str) -> usize;

    /// Has the broker forget them, so that no run pays for the one before.
    async fn remove(&self, destination: &str);
}

/// The rates of one broker.
#[derive(Default)]
struct Rates {
    nowhere: Vec<f64>,
    client: Vec<f64>,
    relay: Vec<f64>,
}

/// Compares the brokers that were asked for; prints each round, then a table.
pub(crate) async fn run(events: usize, rounds: usize, batch: usize, only: Option<Vec<String>>) {
    let only = only.unwrap_or_else(|| NAMES.map(str::to_owned).to_vec());
    let unknown = only.iter().find(|name| !NAMES.contains(&name.as_str()));
    assert!(unknown.is_none(), "--only takes some of {}", NAMES.join(","));
    let bench = Bench::new(events, batch).await;
    println!("{events} events of 300 bytes, batch {batch}, {rounds} rounds");
    let mut table = String::from(
        "| | relay to `null:` | the client alone | relay to the broker | ratio |\n| --- | ---: | ---: | ---: | ---: |\n",
    );
    for name in only {
        let mut rates = match name.as_str() {
            "nats" => compare::<nats::Nats>(&bench, &name, rounds).await,
            "redis" => compare::<redis::Redis>(&bench, &name, rounds).await,
            "rabbitmq" => compare::<rabbitmq::Rabbit>(&bench, &name, rounds).await,
            _ => compare::<kafka::Kafka>(&bench, &name, rounds).await,
        };
        let (nowhere, client, relay) =
            (median(&mut rates.nowhere), median(&mut rates.client), median(&mut rates.relay));
        let ratio = relay / nowhere.min(client);
        let _ = writeln!(table, "| {name} | {nowhere:.0}/s | {client:.0}/s | {relay:.0}/s | {ratio:.2} |");
    }
    println!("medians, and the last as a part of the lesser of the first two:\n\n{table}");
}

async fn compare<B: Broker>(bench: &Bench, name: &str, rounds: usize) -> Rates {
    let broker = B::start().await;
    let mut rates = Rates::default();
    for round in 1..=rounds {
        bench.fill().await;
        bench.drain(&["--sink", "null:"], TOPIC).await;
        rates.nowhere.push(bench.rate(TOPIC).await);

        let destination = format!("client-{round}");
        broker.make(&destination).await;
        let messages = (1..=bench.events).map(Message::new);
        let took = broker.publish(&destination, messages).await;
        check(&broker, &destination, bench.events).await;
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        rates.client.push(bench.events as f64 / took.as_secs_f64());

        let destination = format!("relay-{round}");
        broker.make(&destination).await;
        bench.fill().await;
        let config = config_file(&format!(
            "sink = \"broker\"\n[sinks.broker]\nurl = \"{}\"\ndestination = \"{destination}\"\n",
            broker.url()
        ));
        bench.drain(&["--config", &config], TOPIC).await;
        rates.relay.push(bench.rate(TOPIC).await);
        check(&broker, &destination, bench.events).await;

        let last = |rates: &[f64]| rates[round - 1];
        println!(
            "{name}, round {round}: null: {:>8.0}/s   client {:>8.0}/s   relay {:>8.0}/s",
            last(&rates.nowhere),
            last(&rates.client),
            last(&rates.relay)
        );
    }
    rates
}

async fn check(broker: &impl Broker, destination: &str, events: usize) {
    assert_eq!(broker.count(destination).await, events, "messages of {destination}");
    broker.remove(destination).await;
}
