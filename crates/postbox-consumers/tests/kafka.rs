//! Messages of Kafka, from a real broker.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Bench, Dead, Letter, consumer_suite};
use postbox_consumers::KafkaSource;
use postbox_core::Delivery;
use postbox_sinks::{KafkaSink, Options};
use postbox_testkit::KafkaServer;
use postbox_testkit::sink_suite::{deliver, fresh};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const PARTITIONS: i32 = 3;
const WAIT: Duration = Duration::from_secs(20);

/// Topics of its own at a broker that is shared.
struct Kafka {
    url: String,
    topic: String,
}

impl Kafka {
    async fn new() -> Result<Self, String> {
        let server = KafkaServer::try_shared()?;
        let this = Self { url: server.url().to_owned(), topic: fresh("consumer") };
        let admin: AdminClient<DefaultClientContext> = this.client().create().unwrap();
        let dead = this.dead_topic();
        let topics = [(this.topic.as_str(), PARTITIONS), (dead.as_str(), 1)];
        let topics =
            topics.map(|(name, partitions)| NewTopic::new(name, partitions, TopicReplication::Fixed(1)));
        for made in admin.create_topics(&topics, &AdminOptions::new()).await.unwrap() {
            made.unwrap();
        }
        Ok(this)
    }

    fn dead_topic(&self) -> String {
        format!("{}.dead", self.topic)
    }

    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.url.trim_start_matches("kafka://"));
        config
    }

    fn group(&self) -> ClientConfig {
        let mut config = self.client();
        config.set("group.id", format!("{}.stock", self.topic)).set("auto.offset.reset", "earliest");
        config
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "200")
            .set("topic.metadata.refresh.interval.ms", "500");
        config
    }
}

impl Bench for Kafka {
    type Source = KafkaSource;

    async fn send(&self, events: &[Delivery], _: usize, options: &[(&str, &str)]) {
        let options = options.iter().fold(Options::new(), |all, (name, value)| all.set(*name, *value));
        let options = options.set("destination", self.topic.as_str());
        deliver(&KafkaSink::new(&self.url, options).unwrap(), events, common::PATIENCE).await;
    }

    async fn source(&self, dead: Dead) -> KafkaSource {
        let mut producer = match dead {
            Dead::Here => self.client(),
            Dead::Nowhere => ClientConfig::new(),
        };
        if dead == Dead::Nowhere {
            producer.set("bootstrap.servers", "127.0.0.1:1").set("message.timeout.ms", "300");
        }
        let producer = producer.create().unwrap();
        let source = KafkaSource::subscribe(&self.group(), &[&self.topic]).unwrap();
        source.dead_letters(producer, self.dead_topic())
    }

    async fn dead(&self) -> Vec<Letter> {
        let (config, topic) = (self.group().set("group.id", "reader").clone(), self.dead_topic());
        let read = move || {
            let reader: BaseConsumer = config.create().unwrap();
            let (low, high) = reader.fetch_watermarks(&topic, 0, WAIT).unwrap();
            let mut places = TopicPartitionList::new();
            places.add_partition_offset(&topic, 0, Offset::Offset(low)).unwrap();
            reader.assign(&places).unwrap();
            let (mut letters, deadline) = (Vec::new(), Instant::now() + WAIT);
            while i64::try_from(letters.len()).unwrap() < high - low {
                assert!(Instant::now() < deadline, "no dead letters");
                let Some(Ok(message)) = reader.poll(Duration::from_millis(100)) else { continue };
                let headers = message.headers().unwrap();
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let headers =
                    headers.iter().map(|header| (header.key.to_owned(), text(header.value.unwrap())));
                let payload = message.payload().unwrap().to_vec();
                letters.push(Letter { headers: headers.collect(), payload });
            }
            letters
        };
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    async fn left(&self) -> u64 {
        let (config, topic) = (self.group(), self.topic.clone());
        let ask = move || {
            let reader: BaseConsumer = config.create().unwrap();
            let mut places = TopicPartitionList::new();
            for partition in 0..PARTITIONS {
                places.add_partition(&topic, partition);
            }
            let committed = reader.committed_offsets(places, WAIT).unwrap();
            let left = committed.elements().into_iter().map(|place| {
                let (low, high) = reader.fetch_watermarks(&topic, place.partition(), WAIT).unwrap();
                let at = match place.offset() {
                    Offset::Offset(offset) => offset,
                    _ => low,
                };
                u64::try_from(high - at).unwrap()
            });
            left.sum()
        };
        tokio::task::spawn_blocking(ask).await.unwrap()
    }
}

consumer_suite!(Kafka::new());

/// A second member comes while the first is in the middle of its messages, and takes partitions from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rebalance_repeats_no_effect() {
    let kafka = postbox_testkit::broker_or_skip!(Kafka::new().await);
    let (shop, effects) = (common::Shop::open().await, common::Effects::default());
    let batch = |from: usize| -> Vec<Delivery> {
        (from..from + 20).map(|n| common::order(n, r#","slow":20"#)).collect()
    };
    let mut orders = batch(0);
    kafka.send(&orders, 0, &[]).await;
    let first = common::consumer(&shop, &effects).spawn(kafka.source(Dead::Here).await);
    postbox_testkit::eventually("some effects", common::PATIENCE, async || shop.effects().await.len() > 5)
        .await;
    let of_second = common::Effects::default();
    let second = common::consumer(&shop, &of_second).spawn(kafka.source(Dead::Here).await);
    // There is always something to do until the second has taken some of it over.
    let until = Instant::now() + common::PATIENCE;
    while !orders.iter().any(|order| of_second.runs(order) > 0) {
        assert!(Instant::now() < until, "the second gets nothing");
        let more = batch(orders.len());
        kafka.send(&more, 0, &[]).await;
        orders.extend(more);
        let busy = orders.len() - 15;
        postbox_testkit::eventually("most effects", common::PATIENCE, async || {
            shop.effects().await.len() > busy
        })
        .await;
    }
    postbox_testkit::eventually("all effects", common::PATIENCE, async || {
        shop.effects().await.len() >= orders.len()
    })
    .await;
    let (first, second) = (first.shutdown().await.unwrap(), second.shutdown().await.unwrap());
    assert_eq!(first.first + second.first, u64::try_from(orders.len()).unwrap(), "{first:?} {second:?}");
    shop.assert_once(&orders).await;
}
