//! Kafka: the topics of a consumer group as a [`Source`].

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer as _, ConsumerContext, DefaultConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;
use tokio::time::sleep;

use crate::message::Envelope;
use crate::source::{DeadLetter, Incoming, Source, SourceError};

/// So many messages are in hand beside those that are worked on: they come in runs of one partition, and others should be at work, too.
const READ_AHEAD: usize = 500;
const PAUSE: Duration = Duration::from_millis(500);

/// The topics of a consumer group of Kafka.
///
/// ```no_run
/// # use postbox_consumers::{Consumer, KafkaSource};
/// # async fn example(consumer: Consumer<postbox_stores::sqlite::SqlxSqlite>) -> Result<(), Box<dyn std::error::Error>> {
/// use rdkafka::ClientConfig;
/// use rdkafka::producer::FutureProducer;
///
/// let mut config = ClientConfig::new();
/// config.set("bootstrap.servers", "localhost:9092").set("group.id", "stock").set("auto.offset.reset", "earliest");
/// let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", "localhost:9092").create()?;
/// let source = KafkaSource::subscribe(&config, &["orders"])?.dead_letters(producer, "stock.dead");
/// let running = consumer.spawn(source);
/// # running.shutdown().await?;
/// # Ok(())
/// # }
/// ```
///
/// The messages of a partition are worked on one after the other, partitions side by side. A message that fails is tried again in place, and its partition
/// waits. The offset behind a message is stored once it is settled, and the client commits what is stored every `auto.commit.interval.ms`, before it
/// gives a partition up, and when the run ends: so `enable.auto.offset.store` is always off here, and `enable.auto.commit` on.
///
/// When a partition goes to another member in the middle of a message, both work on it, and the inbox lets one of them through.
pub struct KafkaSource<C: ConsumerContext + 'static = DefaultConsumerContext> {
    /// Until it has left the group.
    consumer: Option<Arc<StreamConsumer<C>>>,
    dead: Option<(FutureProducer, Arc<str>)>,
}

impl KafkaSource {
    /// Joins the group that the configuration names, for these topics.
    ///
    /// # Errors
    /// As the client: a setting that it does not know, or no `group.id`.
    pub fn subscribe(config: &ClientConfig, topics: &[&str]) -> KafkaResult<Self> {
        Self::subscribe_with(config, DefaultConsumerContext, topics)
    }
}

impl<C: ConsumerContext + 'static> KafkaSource<C> {
    /// The same with a context of yours, which hears of rebalances, errors and statistics.
    ///
    /// # Errors
    /// As [`subscribe`](KafkaSource::subscribe).
    pub fn subscribe_with(config: &ClientConfig, context: C, topics: &[&str]) -> KafkaResult<Self> {
        let mut config = config.clone();
        config.set("enable.auto.offset.store", "false").set("enable.auto.commit", "true");
        let consumer: StreamConsumer<C> = config.create_with_context(context)?;
        consumer.subscribe(topics)?;
        Ok(Self { consumer: Some(Arc::new(consumer)), dead: None })
    }

    /// Dead letters go to this topic, with the keys that they had. The producer must confirm with `acks=all`, its default.
    #[must_use]
    pub fn dead_letters(mut self, producer: FutureProducer, topic: impl Into<Arc<str>>) -> Self {
        self.dead = Some((producer, topic.into()));
        self
    }
}

impl<C: ConsumerContext + 'static> Source for KafkaSource<C> {
    type Incoming = KafkaIncoming<C>;

    async fn open(&mut self, _: usize) -> Result<(), SourceError> {
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<KafkaIncoming<C>>, SourceError> {
        let Some(consumer) = &self.consumer else { return Ok(None) };
        loop {
            match consumer.recv().await {
                Ok(message) => {
                    let (consumer, dead) = (Arc::clone(consumer), self.dead.clone());
                    return Ok(Some(KafkaIncoming { message: message.detach(), consumer, dead }));
                }
                Err(error) if is_fatal(&error) => {
                    return Err(SourceError::new("no more messages of Kafka", error));
                }
                // The client finds its brokers again by itself.
                Err(error) => {
                    tracing::warn!(%error, "no messages of Kafka for now");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn halt(&mut self) {}

    async fn finish(&mut self) {
        let Some(consumer) = self.consumer.take() else { return };
        // To commit waits for the broker's answer, and to drop the last handle of the client until it has left the group.
        let leave = move || {
            let committed = consumer.commit_consumer_state(CommitMode::Sync);
            drop(consumer);
            committed
        };
        match tokio::task::spawn_blocking(leave).await {
            // There was nothing new.
            Ok(Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset))) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "offsets were not committed: what is behind them comes again");
            }
            Err(error) => {
                tracing::warn!(%error, "offsets were not committed: what is behind them comes again");
            }
        }
    }

    fn read_ahead(&self) -> usize {
        READ_AHEAD
    }
}

fn is_fatal(error: &KafkaError) -> bool {
    match error {
        KafkaError::MessageConsumptionFatal(_) => true,
        KafkaError::MessageConsumption(code) => matches!(
            code,
            RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::GroupAuthorizationFailed
        ),
        _ => false,
    }
}

impl<C: ConsumerContext + 'static> std::fmt::Debug for KafkaSource<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSource").finish_non_exhaustive()
    }
}

/// A message of Kafka.
pub struct KafkaIncoming<C: ConsumerContext + 'static = DefaultConsumerContext> {
    message: OwnedMessage,
    consumer: Arc<StreamConsumer<C>>,
    dead: Option<(FutureProducer, Arc<str>)>,
}

impl<C: ConsumerContext + 'static> std::fmt::Debug for KafkaIncoming<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (topic, partition, offset) =
            (self.message.topic(), self.message.partition(), self.message.offset());
        write!(f, "KafkaIncoming({topic}/{partition}/{offset})")
    }
}

impl<C: ConsumerContext + 'static> Incoming for KafkaIncoming<C> {
    fn envelope(&mut self) -> Envelope {
        let (topic, partition, offset) =
            (self.message.topic(), self.message.partition(), self.message.offset());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let headers = self.message.headers().into_iter().flat_map(|headers| headers.iter());
        let headers = headers.filter_map(|header| Some((header.key.to_owned(), text(header.value?)?)));
        Envelope {
            source: topic.to_owned(),
            position: Some(format!("{topic}/{partition}/{offset}")),
            key: self.message.key().and_then(text),
            headers: headers.collect(),
            content_type: None,
            payload: self.message.payload().unwrap_or_default().to_vec(),
        }
    }

    fn lane(&self) -> Option<String> {
        Some(format!("{}/{}", self.message.topic(), self.message.partition()))
    }

    async fn acknowledge(&mut self) -> Result<(), SourceError> {
        let (topic, partition, offset) =
            (self.message.topic(), self.message.partition(), self.message.offset());
        match self.consumer.store_offset(topic, partition, offset) {
            // The partition may be another member's now, which gets the message again.
            Ok(()) | Err(KafkaError::StoreOffset(RDKafkaErrorCode::State)) => Ok(()),
            Err(error) => Err(SourceError::new(format!("the offset of {topic}/{partition}/{offset}"), error)),
        }
    }

    async fn give_back(&mut self) -> Result<(), SourceError> {
        // What is not stored is not committed.
        Ok(())
    }

    fn has_dead_letters(&self) -> bool {
        self.dead.is_some()
    }

    async fn bury(&self, letter: &DeadLetter<'_>) -> Result<(), SourceError> {
        let Some((producer, topic)) = &self.dead else {
            return Err(SourceError::of("no topic for dead letters"));
        };
        let mut headers = OwnedHeaders::new();
        let old = self.message.headers().into_iter().flat_map(|headers| headers.iter());
        for header in old.filter(|header| !letter.replaces(header.key)) {
            headers = headers.insert(header);
        }
        for (key, value) in &letter.headers {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let record = FutureRecord::<[u8], [u8]> {
            topic,
            partition: None,
            payload: self.message.payload(),
            key: self.message.key(),
            timestamp: None,
            headers: Some(headers),
        };
        // Not waiting for room: the next try does.
        let sent = producer.send(record, Duration::ZERO).await;
        sent.map_err(|(error, _)| SourceError::new(format!("the dead letters at {topic}"), error)).map(drop)
    }
}
