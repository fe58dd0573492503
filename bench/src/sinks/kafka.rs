//! Kafka by librdkafka: all messages are handed over as fast as the client takes them; its thread counts the reports.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postbox_testkit::KafkaServer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};

use super::{Broker, Message};

const PATIENCE: Duration = Duration::from_secs(30);
/// How often a client that is full is asked again.
const FULL: Duration = Duration::from_millis(1);

pub(super) struct Kafka {
    server: KafkaServer,
    producer: std::sync::Arc<ThreadedProducer<Reports>>,
}

#[derive(Default)]
struct Reports {
    confirmed: AtomicUsize,
}

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        assert!(result.is_ok(), "a message was refused");
        self.confirmed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Broker for Kafka {
    async fn start() -> Self {
        let server = KafkaServer::start();
        let mut config = ClientConfig::new();
        // What the sink has, so that both ask the same of the broker; the rest as the client has it.
        config
            .set("bootstrap.servers", server.bootstrap())
            .set("acks", "all")
            .set("enable.idempotence", "true");
        config.set("linger.ms", "1").set("partitioner", "murmur2_random");
        let producer = config.create_with_context(Reports::default()).expect("a producer");
        Self { server, producer: std::sync::Arc::new(producer) }
    }

    fn url(&self) -> String {
        self.server.url().to_owned()
    }

    async fn make(&self, destination: &str) {
        // The broker makes a topic that is asked for, and is ready for it a little later.
        loop {
            let seen = self.producer.client().fetch_metadata(Some(destination), PATIENCE).expect("metadata");
            if seen
                .topics()
                .iter()
                .any(|topic| topic.partitions().iter().any(|partition| partition.leader() > 0))
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn publish(
        &self,
        destination: &str,
        messages: impl Iterator<Item = Message> + Send + 'static,
    ) -> Duration {
        let (producer, destination) = (std::sync::Arc::clone(&self.producer), destination.to_owned());
        let work = move || {
            let (started, before) = (Instant::now(), producer.context().confirmed.load(Ordering::Relaxed));
            let mut sent = 0;
            for message in messages {
                let headers = message.headers();
                let headers = headers
                    .iter()
                    .fold(OwnedHeaders::new_with_capacity(headers.len()), |all, (key, value)| {
                        all.insert(Header { key, value: Some(*value) })
                    });
                let mut record = BaseRecord::to(&destination)
                    .key(&message.event_id)
                    .payload(&message.payload)
                    .headers(headers);
                while let Err((error, back)) = producer.send(record) {
                    assert!(
                        matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)),
                        "{error}"
                    );
                    record = back;
                    std::thread::sleep(FULL);
                }
                sent += 1;
            }
            producer.flush(PATIENCE).expect("all confirmed");
            while producer.context().confirmed.load(Ordering::Relaxed) < before + sent {
                std::thread::sleep(FULL);
            }
            started.elapsed()
        };
        tokio::task::spawn_blocking(work).await.expect("its end")
    }

    async fn count(&self, destination: &str) -> usize {
        let (first, next) =
            self.producer.client().fetch_watermarks(destination, 0, PATIENCE).expect("watermarks");
        usize::try_from(next - first).expect("a number")
    }

    async fn remove(&self, _: &str) {
        // A log of another run costs nobody anything.
    }
}
