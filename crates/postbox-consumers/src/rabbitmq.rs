//! RabbitMQ: a queue, over a channel of yours, as a [`Source`].

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions,
    BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Confirmation};
use tokio::sync::Mutex;

use crate::message::Envelope;
use crate::source::{DeadLetter, Incoming, Source, SourceError};

/// The mark of messages that survive a restart of the broker, in durable queues.
const PERSISTENT: u8 = 2;

/// The messages of a queue of RabbitMQ.
///
/// ```no_run
/// # use postbox_consumers::{Consumer, RabbitSource};
/// # async fn example(consumer: Consumer<postbox_stores::sqlite::SqlxSqlite>) -> Result<(), Box<dyn std::error::Error>> {
/// use lapin::{Connection, ConnectionProperties};
///
/// let connection = Connection::connect("amqp://localhost:5672", ConnectionProperties::default()).await?;
/// let source = RabbitSource::new(connection.create_channel().await?, "stock")
///     .dead_letters(connection.create_channel().await?, "", "stock.dead"); // the queue stock.dead
/// let running = consumer.spawn(source);
/// # running.shutdown().await?;
/// # Ok(())
/// # }
/// ```
///
/// It sets the channel's prefetch to what is worked on at once. When the connection is lost, [`run`](crate::Consumer::run) ends with an error, and what was
/// not acknowledged is in the queue again: connect and run again. It ends likewise when the channel of the dead letters is closed, as RabbitMQ does when
/// their exchange is not there. RabbitMQ ends a channel on which a message is not acknowledged within
/// `consumer_timeout`, half an hour unless told otherwise.
#[derive(Debug)]
pub struct RabbitSource {
    channel: Channel,
    queue: String,
    dead: Option<Arc<DeadLetters>>,
    consumer: Option<lapin::Consumer>,
}

#[derive(Debug)]
struct DeadLetters {
    channel: Channel,
    /// One at a time: the client hands a message that came back to whichever confirmation it handles next.
    turn: Mutex<()>,
    exchange: ShortString,
    routing_key: ShortString,
    /// What went wrong first: a channel that is closed does not say why.
    trouble: OnceLock<lapin::Error>,
}

impl DeadLetters {
    /// Whether nothing can be put there any more.
    fn is_closed(&self) -> bool {
        let status = self.channel.status();
        // A client that was told to mends it by itself.
        !status.connected() && !status.reconnecting()
    }

    fn refused(&self, error: lapin::Error) -> SourceError {
        let _ = self.trouble.set(error.clone());
        if self.is_closed() {
            SourceError::lost(self.to_string(), error)
        } else {
            SourceError::new(self.to_string(), error)
        }
    }

    /// Why the run has to end, if it has.
    fn end(&self) -> Option<SourceError> {
        let closed = || format!("{self}: their channel is closed");
        self.is_closed().then(|| match self.trouble.get() {
            Some(error) => SourceError::new(closed(), error.clone()),
            None => SourceError::of(closed()),
        })
    }
}

impl fmt::Display for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exchange, routing_key, .. } = self;
        write!(f, "the dead letters at exchange {:?}, key {:?}", exchange.as_str(), routing_key.as_str())
    }
}

impl RabbitSource {
    /// The messages of this queue, over a channel that nothing else is done on.
    pub fn new(channel: Channel, queue: impl Into<String>) -> Self {
        Self { channel, queue: queue.into(), dead: None, consumer: None }
    }

    /// Dead letters go to this exchange with this routing key, over another channel; the exchange `""` takes the name of a queue. They are mandatory
    /// and confirmed: where no queue takes them, they are not acknowledged here either.
    #[must_use]
    pub fn dead_letters(mut self, channel: Channel, exchange: &str, routing_key: &str) -> Self {
        self.dead = Some(Arc::new(DeadLetters {
            channel,
            turn: Mutex::default(),
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            trouble: OnceLock::new(),
        }));
        self
    }
}

impl Source for RabbitSource {
    type Incoming = RabbitIncoming;

    async fn open(&mut self, at_once: usize) -> Result<(), SourceError> {
        let cannot = |error| SourceError::new(format!("cannot consume the queue {}", self.queue), error);
        let prefetch = u16::try_from(at_once).unwrap_or(u16::MAX);
        self.channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(cannot)?;
        if let Some(dead) = &self.dead {
            dead.channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(cannot)?;
        }
        let consumer = self.channel.basic_consume(
            self.queue.as_str().into(),
            // The broker chooses one.
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        self.consumer = Some(consumer.await.map_err(cannot)?);
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<RabbitIncoming>, SourceError> {
        let ended =
            || SourceError::of(format!("RabbitMQ has ended the consumer of the queue {}", self.queue));
        // Before another one is taken: whoever could not be buried was given back, and would come again and again.
        if let Some(end) = self.dead.as_ref().and_then(|dead| dead.end()) {
            return Err(end);
        }
        let Some(consumer) = &mut self.consumer else { return Err(ended()) };
        match consumer.next().await {
            Some(Ok(delivery)) => Ok(Some(RabbitIncoming::new(delivery, &self.queue, self.dead.clone()))),
            Some(Err(error)) => Err(SourceError::new(format!("the queue {} is lost", self.queue), error)),
            // Somebody has deleted the queue, or the connection is closed.
            None => Err(ended()),
        }
    }

    async fn halt(&mut self) {
        let Some(mut consumer) = self.consumer.take() else { return };
        let cancelled = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await;
        if let Err(error) = cancelled {
            tracing::warn!(%error, "the consumer of a queue could not be cancelled");
        }
        while let Some(Some(Ok(delivery))) = consumer.next().now_or_never() {
            let options = BasicNackOptions { multiple: false, requeue: true };
            if let Err(error) = delivery.acker.nack(options).await {
                tracing::warn!(%error, "a message could not be given back");
            }
        }
    }
}

/// A message of RabbitMQ.
#[derive(Debug)]
pub struct RabbitIncoming {
    delivery: Delivery,
    queue: String,
    dead: Option<Arc<DeadLetters>>,
}

impl RabbitIncoming {
    fn new(delivery: Delivery, queue: &str, dead: Option<Arc<DeadLetters>>) -> Self {
        Self { delivery, queue: queue.to_owned(), dead }
    }
}

impl Incoming for RabbitIncoming {
    fn envelope(&mut self) -> Envelope {
        let properties = &self.delivery.properties;
        let table = properties.headers().as_ref().map(FieldTable::inner);
        let headers = table.into_iter().flatten();
        let headers: Vec<(String, String)> =
            headers.filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect();
        let key = headers.iter().find(|(name, _)| name == "message_key").map(|(_, key)| key.clone());
        Envelope {
            source: self.queue.clone(),
            position: None,
            key,
            headers,
            content_type: properties.content_type().as_ref().map(ToString::to_string),
            payload: std::mem::take(&mut self.delivery.data),
        }
    }

    async fn acknowledge(&mut self) -> Result<(), SourceError> {
        let told = self.delivery.acker.ack(BasicAckOptions::default()).await;
        told.map_err(|error| SourceError::new("RabbitMQ was not told of an acknowledgement", error)).map(drop)
    }

    async fn give_back(&mut self) -> Result<(), SourceError> {
        let told = self.delivery.acker.nack(BasicNackOptions { multiple: false, requeue: true }).await;
        told.map_err(|error| SourceError::new("RabbitMQ was not told to deliver again", error)).map(drop)
    }

    fn has_dead_letters(&self) -> bool {
        self.dead.is_some()
    }

    async fn bury(&self, letter: &DeadLetter<'_>) -> Result<(), SourceError> {
        let Some(dead) = &self.dead else {
            return Err(SourceError::of("no queue for dead letters"));
        };
        let mut table = self.delivery.properties.headers().clone().unwrap_or_default();
        for (name, value) in &letter.headers {
            table.insert((*name).into(), AMQPValue::LongString(value.as_bytes().into()));
        }
        let properties = self.delivery.properties.clone().with_headers(table).with_delivery_mode(PERSISTENT);
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let (exchange, key) = (dead.exchange.clone(), dead.routing_key.clone());
        let _turn = dead.turn.lock().await;
        let sent =
            dead.channel.basic_publish(exchange, key, options, &letter.envelope.payload, properties).await;
        match sent.map_err(|error| dead.refused(error))?.await.map_err(|error| dead.refused(error))? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => Err(SourceError::of(format!("{dead}: no queue takes them"))),
            Confirmation::Nack(_) | Confirmation::NotRequested => {
                Err(SourceError::of(format!("{dead}: not confirmed")))
            }
        }
    }
}

/// A header as text, if it is something that has one.
fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        AMQPValue::Boolean(value) => Some(value.to_string()),
        AMQPValue::ShortShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortShortUInt(value) => Some(value.to_string()),
        AMQPValue::ShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortUInt(value) => Some(value.to_string()),
        AMQPValue::LongInt(value) => Some(value.to_string()),
        AMQPValue::LongUInt(value) => Some(value.to_string()),
        AMQPValue::LongLongInt(value) => Some(value.to_string()),
        _ => None,
    }
}
