//! [`PulsarSink`]: batches of events to Pulsar.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use postbox_core::{Delivery, DispatchError, DispatchErrorKind, Dispatcher, Receipts};
use pulsar::Error;
use pulsar::producer::{Message, SendFuture};
use tokio::time::{Instant, timeout_at};

use super::client::{Client, TopicProducer};
use super::config::Config;
use super::error::{Failure, Verdict, classify, has_reason};
use crate::missing::Missing;
use crate::options::Options;
use crate::url::SinkError;

/// The most of a batch: so many are under way at a time.
const BATCH: usize = 1000;

/// Brokers take 10 KiB beside the payload; some of it is the protocol's own.
const MOST_AROUND: usize = 8 * 1024;

/// The client ends each message at its timeout; this is for the case that it does not.
const GRACE: Duration = Duration::from_secs(2);

/// A broker hangs up over a message that is too large for it, and says nothing. Smaller ones are above suspicion.
const SUSPICIOUS: usize = 64 * 1024;

/// How long a broker may take to show that it is there after all.
const PROBE: Duration = Duration::from_secs(2);

/// Delivers events to Pulsar; see [the module](super).
///
/// ```
/// use postbox_sinks::{Options, PulsarSink};
///
/// let options = Options::new().set("compression", "lz4").set("destination", "shop/events/{topic}");
/// let sink = PulsarSink::new("pulsar://broker.example:6650", options)?;
/// assert_eq!(sink.to_string(), "pulsar://broker.example:6650");
/// # Ok::<(), postbox_sinks::SinkError>(())
/// ```
///
/// # Order
/// The events of a batch are handed over in their order, and a topic's producer keeps it, also when it connects again. One that
/// fails does not hold up those behind it; with `ordering = "aggregate"` the relay has one event of an aggregate under way
/// at a time.
///
/// # Cancel safety
/// A dispatch that is dropped leaves its events with the client, which sends them until their timeout: they may arrive, and
/// come again.
#[derive(Clone)]
pub struct PulsarSink {
    config: Arc<Config>,
    client: Arc<Client>,
    missing: Arc<Missing>,
}

/// An event's place, its topic and producer, and its outcome.
type Settled = (usize, String, TopicProducer, Result<(), Error>);

/// An event under way.
type UnderWay = BoxFuture<'static, Settled>;

impl PulsarSink {
    /// A sink to `pulsar://host:port/destination`, or `pulsar+ssl://`. Nothing is connected yet.
    ///
    /// # Errors
    /// When URL or options cannot work.
    pub fn new(url: &str, options: Options) -> Result<Self, SinkError> {
        let config = Arc::new(Config::new(url, options)?);
        let client = Arc::new(Client::new(Arc::clone(&config)));
        Ok(Self { config, client, missing: Arc::default() })
    }

    fn silence(&self) -> Verdict {
        let error = DispatchError::unavailable(Failure::Silence(self.config.timeout));
        Verdict { error, connection: true }
    }

    fn message(&self, delivery: &Delivery, topic: &str) -> Result<Message, DispatchError> {
        let message = self.config.encoding.message(delivery);
        let (size, limit) = (message.payload.len(), self.config.max_message);
        if size > limit {
            let topic = topic.to_owned();
            return Err(DispatchError::reject(Failure::TooLarge { topic, size, limit }));
        }
        let around: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let size = around + message.key.len();
        if size > MOST_AROUND {
            return Err(DispatchError::reject(Failure::TooMuchAround { topic: topic.to_owned(), size }));
        }
        let millis = delivery.meta.occurred_at.unix_timestamp_nanos() / 1_000_000;
        Ok(Message {
            payload: message.payload.into_owned(),
            properties: message
                .headers
                .into_iter()
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
            partition_key: Some(message.key),
            event_time: u64::try_from(millis).ok().filter(|millis| *millis > 0),
            ..Message::default()
        })
    }
}

/// The sending of one batch.
struct Sending<'a> {
    sink: &'a PulsarSink,
    batch: &'a [Delivery],
    receipts: &'a mut Receipts,
    under_way: FuturesUnordered<UnderWay>,
    /// Large ones that were not confirmed, with their topics and errors.
    suspects: Vec<(usize, String, DispatchError)>,
}

impl Sending<'_> {
    /// Hands an event to its topic's producer, which may have to be made, and may have no room for a while.
    async fn hand_over(&mut self, index: usize, topic: &str, deadline: Instant) -> Result<(), Verdict> {
        let delivery = &self.batch[index];
        let message =
            self.sink.message(delivery, topic).map_err(|error| Verdict { error, connection: false })?;
        let sink = self.sink;
        let failed = |error: Error| classify(&error, topic, delivery, |topic| sink.missing.look(topic));
        let late = |_| sink.silence();
        let client = &sink.client;
        let producer = timeout_at(deadline, client.producer(topic)).await.map_err(late)?.map_err(failed)?;
        let sent = {
            let mut producer = timeout_at(deadline, producer.lock()).await.map_err(late)?;
            timeout_at(deadline, Box::pin(producer.send_non_blocking(message))).await
        };
        match sent {
            Ok(Ok(receipt)) => {
                self.under_way.push(under_way(index, topic.to_owned(), producer, receipt));
                Ok(())
            }
            Ok(Err(error)) => {
                client.forget(topic, &producer);
                Err(failed(error))
            }
            Err(_) => {
                client.forget(topic, &producer);
                Err(sink.silence())
            }
        }
    }

    /// Takes in the receipts that are there already.
    fn take_in(&mut self) {
        while let Some(Some(outcome)) = self.under_way.next().now_or_never() {
            self.settle(outcome);
        }
    }

    /// Takes in all receipts that come until then.
    async fn wait(&mut self, until: Instant) {
        while let Ok(Some(outcome)) = timeout_at(until, self.under_way.next()).await {
            self.settle(outcome);
        }
        if !self.under_way.is_empty() {
            // The first record of an event counts, so this is for those of which nothing is known.
            self.receipts.rest_failed(self.sink.silence().error);
        }
    }

    fn settle(&mut self, (index, topic, producer, outcome): Settled) {
        let Err(error) = outcome else {
            self.sink.missing.found(&topic);
            return self.receipts.record(index, Ok(()));
        };
        let delivery = &self.batch[index];
        let silent = !has_reason(&error);
        let lasts = |topic: &str| self.sink.missing.look(topic);
        let Verdict { error, .. } = classify(&error, &topic, delivery, lasts);
        if error.kind() == DispatchErrorKind::Unavailable {
            self.sink.client.forget(&topic, &producer);
            if silent && delivery.payload.len() > SUSPICIOUS {
                return self.suspects.push((index, topic, error));
            }
        }
        self.receipts.record(index, Err(error));
    }

    /// If the broker can be reached, it was not an outage that kept a large message from it: else it would be sent for ever,
    /// and everything else would wait for it.
    async fn question(&mut self) {
        let until = Instant::now() + PROBE;
        let mut reached: BTreeMap<String, bool> = BTreeMap::new();
        for (index, topic, error) in std::mem::take(&mut self.suspects) {
            let is_reached = match reached.get(&topic) {
                Some(known) => *known,
                None => matches!(timeout_at(until, self.sink.client.producer(&topic)).await, Ok(Ok(_))),
            };
            reached.insert(topic.clone(), is_reached);
            let size = self.batch[index].payload.len();
            let error =
                if is_reached { DispatchError::retry(Failure::HangsUp { topic, size }) } else { error };
            self.receipts.record(index, Err(error));
        }
    }
}

fn under_way(index: usize, topic: String, producer: TopicProducer, receipt: SendFuture) -> UnderWay {
    Box::pin(async move {
        let outcome = receipt.await.map(drop);
        (index, topic, producer, outcome)
    })
}

impl Dispatcher for PulsarSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        Receipts::of_one(self, delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let deadline = Instant::now() + self.config.connect_timeout + self.config.timeout + GRACE;
        let under_way = FuturesUnordered::new();
        let mut sending = Sending { sink: self, batch, receipts, under_way, suspects: Vec::new() };
        // A topic that cannot be reached is not tried again for each of its events.
        let mut down: BTreeMap<String, DispatchError> = BTreeMap::new();
        let mut all_down: Option<DispatchError> = None;
        for (index, delivery) in batch.iter().enumerate() {
            let topic = match self.config.destination.of(delivery) {
                Ok(topic) => topic.into_owned(),
                Err(error) => {
                    sending.receipts.record(index, Err(error));
                    continue;
                }
            };
            if let Some(error) = all_down.as_ref().or_else(|| down.get(&topic)) {
                sending.receipts.record(index, Err(error.clone()));
                continue;
            }
            if let Err(Verdict { error, connection }) = sending.hand_over(index, &topic, deadline).await {
                if connection {
                    self.client.disconnect();
                    all_down = Some(error.clone());
                } else if error.kind() == DispatchErrorKind::Unavailable {
                    down.insert(topic, error.clone());
                }
                sending.receipts.record(index, Err(error));
            }
            sending.take_in();
        }
        sending.wait(deadline).await;
        sending.question().await;
    }

    fn batch_limit(&self) -> usize {
        BATCH
    }
}

impl fmt::Display for PulsarSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl fmt::Debug for PulsarSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PulsarSink").field("config", &self.config).finish_non_exhaustive()
    }
}
