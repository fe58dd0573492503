//! [`KafkaSink`]: batches of events to Kafka.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postbox_core::{Delivery, DispatchError, Dispatcher, Receipts};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use time::OffsetDateTime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout_at};

use super::config::{Config, Timestamp};
use super::error::{Failure, classify, is_of_the_batch, is_of_the_topic, is_topic_name};
use super::producer::{Producer, Record, Report, Ticket};
use crate::missing::Missing;
use crate::options::Options;
use crate::url::SinkError;

/// The most of a batch; the client takes thousands.
const BATCH: usize = 1000;

/// How often a client that is full is asked again.
const FULL_PAUSE: Duration = Duration::from_millis(5);

/// The client reports each message at its timeout; this is for the case that it does not.
const GRACE: Duration = Duration::from_secs(2);

/// Delivers events to Kafka; see [the module](super).
///
/// ```
/// use postbox_sinks::{KafkaSink, Options};
///
/// let options = Options::new().set("compression", "lz4").set("destination", "shop.{aggregate_type}");
/// let sink = KafkaSink::new("kafka://one.example:9092,two.example:9092", options)?;
/// assert_eq!(sink.to_string(), "kafka://one.example:9092,two.example:9092");
/// # Ok::<(), postbox_sinks::SinkError>(())
/// ```
///
/// # Order
/// The events of a batch are handed over in their order, and those of a key go to one partition, where the idempotent producer
/// keeps them so. One that Kafka refuses does not hold up those behind it; with `ordering = "aggregate"` the relay has
/// one event of an aggregate under way at a time.
///
/// # Cancel safety
/// A dispatch that is dropped leaves its events with the client, which sends them until their timeout: they may arrive, and
/// come again. When the last clone of the sink is dropped, what is left is given up.
#[derive(Clone)]
pub struct KafkaSink(Arc<Shared>);

struct Shared {
    config: Config,
    /// Made at the first delivery, and again when it is broken.
    together: Mutex<Option<Arc<Producer>>>,
    /// The same, but each message is a batch of its own; made when a broker refused a batch.
    alone: Mutex<Option<Arc<Producer>>>,
    missing: Missing,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Together,
    Alone,
}

impl KafkaSink {
    /// A sink to `kafka://host:port,host:port/destination`, or `kafka+ssl://`. Nothing is connected yet.
    ///
    /// # Errors
    /// When URL or options cannot work.
    pub fn new(url: &str, options: Options) -> Result<Self, SinkError> {
        let config = Config::new(url, options)?;
        let (together, alone, missing) = (Mutex::default(), Mutex::default(), Missing::default());
        Ok(Self(Arc::new(Shared { config, together, alone, missing })))
    }

    #[cfg(test)]
    pub(super) fn producer(&self) -> Arc<Producer> {
        self.0.producer(Way::Together).expect("a producer")
    }
}

impl Shared {
    /// The producer, whole: a broken one is replaced.
    fn producer(&self, way: Way) -> Result<Arc<Producer>, DispatchError> {
        let place = match way {
            Way::Together => &self.together,
            Way::Alone => &self.alone,
        };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = place.as_ref().filter(|producer| producer.fatal().is_none()) {
            return Ok(Arc::clone(producer));
        }
        let mut client = self.config.client.clone();
        if way == Way::Alone {
            client.set("batch.num.messages", "1");
        }
        let made =
            Producer::new(&client).map_err(|error| DispatchError::unavailable(Failure::Client(error)))?;
        Ok(Arc::clone(place.insert(Arc::new(made))))
    }

    /// Sends these of a batch and waits for their reports. Answers those of which a broker has refused a whole batch.
    async fn send(
        &self,
        way: Way,
        batch: &[Delivery],
        which: &[usize],
        receipts: &mut Receipts,
    ) -> Vec<usize> {
        let producer = match self.producer(way) {
            Ok(producer) => producer,
            Err(error) => {
                for index in which {
                    receipts.record(*index, Err(error.clone()));
                }
                return Vec::new();
            }
        };
        let started = Instant::now();
        let (tickets, reports) = unbounded_channel();
        let mut sending = Sending { shared: self, producer: &producer, way, batch, receipts, reports };
        let mut sent = Sent::default();
        let full_until = started + (self.config.timeout / 4).min(Duration::from_secs(5));
        for index in which {
            sending.hand_over(*index, &tickets, full_until, &mut sent).await;
        }
        // The tickets under way hold the other ends: the last report ends the wait.
        drop(tickets);
        sending.wait(Instant::now() + self.config.timeout + GRACE, &mut sent).await;
        for index in sent.topics.keys() {
            let silence = Failure::Silence { within: self.config.timeout, trouble: producer.trouble() };
            receipts.record(*index, Err(DispatchError::unavailable(silence)));
        }
        sent.suspects
    }

    fn timestamp(&self, delivery: &Delivery) -> Option<i64> {
        if self.config.timestamp == Timestamp::Sent {
            return None;
        }
        // A clock that is ahead must not make brokers refuse the event: they take no more than an hour of future.
        let at = delivery.meta.occurred_at.min(OffsetDateTime::now_utc());
        i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok().filter(|millis| *millis > 0)
    }
}

/// What is under way.
#[derive(Default)]
struct Sent {
    /// The topic of each message that is not reported yet.
    topics: BTreeMap<usize, String>,
    suspects: Vec<usize>,
}

/// The sending of one batch.
struct Sending<'a> {
    shared: &'a Shared,
    producer: &'a Arc<Producer>,
    way: Way,
    batch: &'a [Delivery],
    receipts: &'a mut Receipts,
    reports: UnboundedReceiver<Report>,
}

impl Sending<'_> {
    /// Hands an event to the client, which may have no room for a while.
    async fn hand_over(
        &mut self,
        index: usize,
        tickets: &UnboundedSender<Report>,
        full_until: Instant,
        sent: &mut Sent,
    ) {
        let delivery = &self.batch[index];
        let config = &self.shared.config;
        let topic = match config.destination.of(delivery) {
            Ok(topic) if is_topic_name(&topic) => topic,
            Ok(topic) => {
                let error = DispatchError::reject(Failure::TopicName { topic: topic.into_owned() });
                return self.receipts.record(index, Err(error));
            }
            Err(error) => return self.receipts.record(index, Err(error)),
        };
        let message = config.encoding.message(delivery);
        let mut headers = OwnedHeaders::new_with_capacity(message.headers.len());
        for (key, value) in &message.headers {
            headers = headers.insert(Header { key, value: Some(value.as_bytes()) });
        }
        let mut record = Record {
            topic: &topic,
            partition: None,
            payload: Some(&*message.payload),
            key: Some(message.key.as_str()),
            timestamp: self.shared.timestamp(delivery),
            headers: Some(headers),
            delivery_opaque: Box::new(Ticket { index, reports: tickets.clone() }),
        };
        loop {
            match self.producer.send(record) {
                Ok(()) => break,
                Err((RDKafkaErrorCode::QueueFull, back)) if Instant::now() < full_until => record = back,
                Err((RDKafkaErrorCode::MessageSizeTooLarge, _)) => {
                    let failure = Failure::TooLarge { topic: topic.into_owned(), limit: config.max_message };
                    return self.receipts.record(index, Err(DispatchError::reject(failure)));
                }
                Err((code, _)) => return self.failed(index, &topic, code),
            }
            sleep(FULL_PAUSE).await;
            self.take_in(sent);
        }
        sent.topics.insert(index, topic.into_owned());
    }

    /// Takes in what is reported already.
    fn take_in(&mut self, sent: &mut Sent) {
        while let Ok(report) = self.reports.try_recv() {
            self.settle(report, sent);
        }
    }

    /// Takes in reports until there are no more to come.
    async fn wait(&mut self, until: Instant, sent: &mut Sent) {
        while let Ok(Some(report)) = timeout_at(until, self.reports.recv()).await {
            self.settle(report, sent);
        }
    }

    fn settle(&mut self, (index, outcome): Report, sent: &mut Sent) {
        let topic = sent.topics.remove(&index).unwrap_or_default();
        match outcome {
            Ok(()) => {
                self.shared.missing.found(&topic);
                self.receipts.record(index, Ok(()));
            }
            Err(code) if self.way == Way::Together && is_of_the_batch(code) => sent.suspects.push(index),
            Err(code) => self.failed(index, &topic, code),
        }
    }

    fn failed(&mut self, index: usize, topic: &str, code: RDKafkaErrorCode) {
        if is_of_the_topic(code) {
            self.producer.look_for(topic);
        }
        let error = match self.producer.fatal() {
            // A fatal error is the producer's, whatever its messages are told.
            Some(reason) if code != RDKafkaErrorCode::MessageTimedOut => {
                DispatchError::unavailable(Failure::Fatal(reason))
            }
            _ => {
                let trouble = self.producer.trouble();
                let lasts = |topic: &str| self.shared.missing.look(topic);
                classify(code, topic, &self.batch[index], lasts, self.shared.config.timeout, trouble)
            }
        };
        self.receipts.record(index, Err(error));
    }
}

impl Dispatcher for KafkaSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        Receipts::of_one(self, delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let all: Vec<usize> = (0..batch.len()).collect();
        let suspects = self.0.send(Way::Together, batch, &all, receipts).await;
        if !suspects.is_empty() {
            self.0.send(Way::Alone, batch, &suspects, receipts).await;
        }
    }

    fn batch_limit(&self) -> usize {
        BATCH
    }
}

impl fmt::Display for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.config.address.fmt(f)
    }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KafkaSink").field(&self.0.config).finish()
    }
}
