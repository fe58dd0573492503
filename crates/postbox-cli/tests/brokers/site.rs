//! A broker as these tests need it: a place for events, and a reader of what is in it.

use std::collections::BTreeSet;
use std::time::Duration;

use postbox_testkit::server::Broker;
use postbox_testkit::{KafkaServer, NatsServer, Program, PulsarServer, RabbitServer, RedisServer};

use crate::common::{Place, TABLE};

#[allow(dead_code, reason = "the sink's own tests use all of it")]
#[path = "../../../postbox-sinks/tests/redis/cli.rs"]
mod cli;
#[allow(dead_code, reason = "the sink's own tests use all of it")]
#[path = "../../../postbox-sinks/tests/kafka/reader.rs"]
mod kcat;
#[allow(dead_code, reason = "the sink's own tests use all of it")]
#[path = "../../../postbox-sinks/tests/rabbitmq/reader.rs"]
mod pika;
#[allow(dead_code, reason = "the sink's own tests use all of it")]
#[path = "../../../postbox-sinks/tests/pulsar/reader.rs"]
mod pulsar;
#[allow(dead_code, reason = "the sink's own tests use all of it")]
#[path = "../../../postbox-sinks/tests/nats/wire.rs"]
mod wire;

use cli::Cli;
use kcat::Reader;
use postbox_testkit::sink_suite::Received;
use wire::Wire;

/// Longer than tens of thousands of events take on a machine that has other things to do as well.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

pub(crate) trait Site: std::ops::Deref<Target = Broker> + Sized {
    /// One of this test's own, which may be stopped.
    fn private() -> Result<Self, String>;

    /// Makes a destination, where events do not make it themselves.
    fn prepare(&self, destination: &str);

    /// The `event_id` of all that is there.
    fn ids(&self, destination: &str) -> Vec<String>;

    /// Where a relay finds it. What a broker that is down does not confirm is given up soon.
    fn sink(&self) -> String {
        format!("{}?timeout=8s", self.url())
    }
}

impl Site for NatsServer {
    fn private() -> Result<Self, String> {
        Self::try_start()
    }

    fn prepare(&self, destination: &str) {
        Wire::connect(self.addr(), None).make_stream(destination);
    }

    fn ids(&self, destination: &str) -> Vec<String> {
        ids_of(Wire::connect(self.addr(), None).read_stream(destination))
    }
}

impl Site for RedisServer {
    fn private() -> Result<Self, String> {
        Self::try_start()
    }

    fn prepare(&self, _: &str) {}

    fn ids(&self, destination: &str) -> Vec<String> {
        ids_of(Cli::new(self.addr(), None).read_stream(destination))
    }
}

impl Site for RabbitServer {
    fn private() -> Result<Self, String> {
        pika::python()?;
        Self::try_start()
    }

    fn prepare(&self, destination: &str) {
        pika::ask(self.url(), &["declare", destination]);
    }

    fn ids(&self, destination: &str) -> Vec<String> {
        pika::ids(self.url(), destination)
    }
}

impl Site for KafkaServer {
    fn private() -> Result<Self, String> {
        kcat::installed()?;
        Self::try_start()
    }

    fn prepare(&self, destination: &str) {
        Reader::new(self.bootstrap()).make(destination);
    }

    fn ids(&self, destination: &str) -> Vec<String> {
        let found = Reader::new(self.bootstrap()).read(destination);
        ids_of(found.into_iter().map(|message| message.received).collect())
    }
}

impl Site for PulsarServer {
    fn private() -> Result<Self, String> {
        Self::try_start()
    }

    fn prepare(&self, _: &str) {}

    fn ids(&self, destination: &str) -> Vec<String> {
        let found = pulsar::read(self, None, destination);
        ids_of(found.into_iter().map(|message| message.received).collect())
    }
}

fn ids_of(received: Vec<Received>) -> Vec<String> {
    received.into_iter().map(|mut message| message.headers.remove("event_id").unwrap()).collect()
}

/// How many of these are different.
pub(crate) fn distinct(ids: &[String]) -> usize {
    ids.iter().collect::<BTreeSet<_>>().len()
}

/// Starts a relay of the usual table with batches of this size.
pub(crate) fn relay(place: &Place, batch: usize, more: &[&str]) -> Program {
    let batch = batch.to_string();
    let args = ["relay", "--table", TABLE, "--poll-interval", "100ms", "--batch-size", &batch];
    let args: Vec<&str> = args.iter().chain(more).copied().collect();
    Program::from_command(place.command(&args))
}

/// Writes events of a topic by SQL alone.
pub(crate) fn insert(place: &Place, topic: &str, events: usize) {
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
         SELECT '00000000-0000-0000-0000-000000000000', '{topic}', jsonb_build_object('n', n), gen_random_uuid()
         FROM generate_series(1, {events}) n"
    ));
}
