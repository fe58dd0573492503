//! NATS JetStream: a pull consumer of yours as a [`Source`].

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::{MessagesErrorKind, Stream};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::AckKind;
use async_nats::jetstream::{self, Context};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use futures_util::{FutureExt as _, StreamExt as _};
use postbox_core::redact::chain;
use tokio::time::sleep;

use crate::message::Envelope;
use crate::source::{DeadLetter, Incoming, Source, SourceError};

/// What every order to the server begins with; it is not for dead letters to repeat them.
const ORDERS: &str = "nats-";
/// Between two tries to have messages again.
const PAUSE: Duration = Duration::from_millis(500);

/// The messages of a pull consumer of JetStream.
///
/// ```no_run
/// # use postbox_consumers::{Consumer, NatsSource};
/// # async fn example(consumer: Consumer<postbox_stores::sqlite::SqlxSqlite>) -> Result<(), Box<dyn std::error::Error>> {
/// use async_nats::jetstream::{self, consumer::pull};
///
/// let jetstream = jetstream::new(async_nats::connect("nats://localhost:4222").await?);
/// let config = pull::Config { durable_name: Some("stock".into()), ..Default::default() };
/// let pull = jetstream.get_stream("orders").await?.get_or_create_consumer("stock", config).await?;
/// let source = NatsSource::new(jetstream, pull).dead_letters("dead.stock"); // a subject that a stream takes
/// let running = consumer.spawn(source);
/// # running.shutdown().await?;
/// # Ok(())
/// # }
/// ```
///
/// Its `ack_policy` must be explicit, which is the default: another one is refused. While a message is worked on, the server is told so at every third
/// of `ack_wait`. The client finds its server again by itself. Set no `max_deliver`, unless what was delivered so often may be lost: JetStream drops it.
pub struct NatsSource {
    context: Context,
    consumer: PullConsumer,
    dead: Option<String>,
    messages: Option<Stream>,
    at_once: usize,
}

impl NatsSource {
    /// The messages of this consumer, with the context that it was made by.
    pub fn new(context: Context, consumer: PullConsumer) -> Self {
        Self { context, consumer, dead: None, messages: None, at_once: 1 }
    }

    /// Dead letters are published here, and confirmed by the stream that takes the subject.
    #[must_use]
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Self {
        self.dead = Some(subject.into());
        self
    }

    async fn messages(&mut self) -> Result<&mut Stream, SourceError> {
        let opened = if let Some(open) = self.messages.take() {
            open
        } else {
            let pull = self.consumer.stream().max_messages_per_batch(self.at_once);
            pull.messages().await.map_err(|error| SourceError::new(self.without("no messages"), error))?
        };
        Ok(self.messages.insert(opened))
    }

    fn without(&self, what: &str) -> String {
        format!("{what} for the consumer {:?} of JetStream", self.consumer.cached_info().name)
    }

    fn incoming(&self, message: jetstream::Message) -> NatsIncoming {
        let renew = self.consumer.cached_info().config.ack_wait / 3;
        let dead = self.dead.as_ref().map(|subject| (self.context.clone(), subject.clone()));
        NatsIncoming { message, renew, dead }
    }
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.consumer.cached_info().name;
        f.debug_struct("NatsSource").field("consumer", name).field("dead", &self.dead).finish_non_exhaustive()
    }
}

impl Source for NatsSource {
    type Incoming = NatsIncoming;

    async fn open(&mut self, at_once: usize) -> Result<(), SourceError> {
        let info = self.consumer.cached_info();
        if info.config.ack_policy != AckPolicy::Explicit {
            // A message would count as done with a later one, or before anybody has it.
            return Err(SourceError::of(format!(
                "the consumer {:?} of JetStream does not acknowledge each message for itself: make it with AckPolicy::Explicit",
                info.name
            )));
        }
        self.at_once = at_once;
        self.messages().await.map(drop)
    }

    async fn next(&mut self) -> Result<Option<NatsIncoming>, SourceError> {
        loop {
            let next = match self.messages().await {
                Ok(messages) => messages.next().await,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "no messages of JetStream for now");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            match next {
                Some(Ok(message)) => return Ok(Some(self.incoming(message))),
                Some(Err(error)) => match error.kind() {
                    MessagesErrorKind::ConsumerDeleted
                    | MessagesErrorKind::PushBasedConsumer
                    | MessagesErrorKind::RequestLimitExceeded => {
                        return Err(SourceError::new(self.without("no more messages"), error));
                    }
                    // It asks again by itself.
                    MessagesErrorKind::MissingHeartbeat
                    | MessagesErrorKind::Pull
                    | MessagesErrorKind::NoResponders
                    | MessagesErrorKind::Other => {
                        tracing::warn!(%error, "no messages of JetStream for now");
                        sleep(PAUSE).await;
                    }
                },
                None => {
                    self.messages = None;
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn halt(&mut self) {
        let Some(mut messages) = self.messages.take() else { return };
        // What the server has sent already would wait for `ack_wait`. It goes back after the subscription has ended: while that is open, the
        // server would deliver it here once more.
        let mut sent = Vec::new();
        while let Some(Some(Ok(message))) = messages.next().now_or_never() {
            sent.push(message);
        }
        drop(messages);
        for message in sent {
            if let Err(error) = message.ack_with(AckKind::Nak(None)).await {
                tracing::warn!(%error, "a message could not be given back");
            }
        }
    }
}

/// A message of JetStream.
#[derive(Debug)]
pub struct NatsIncoming {
    message: jetstream::Message,
    renew: Duration,
    dead: Option<(Context, String)>,
}

impl NatsIncoming {
    /// `stream/number`.
    fn position(&self) -> Option<String> {
        let info = self.message.info().ok()?;
        Some(format!("{}/{}", info.stream, info.stream_sequence))
    }
}

impl Incoming for NatsIncoming {
    fn envelope(&mut self) -> Envelope {
        let headers = self.message.headers.iter().flat_map(HeaderMap::iter);
        let headers: Vec<(String, String)> = headers
            .flat_map(|(name, values)| values.iter().map(move |value| (name.to_string(), value.to_string())))
            .collect();
        let key = headers.iter().find(|(name, _)| name == "message_key").map(|(_, key)| key.clone());
        Envelope {
            source: self.message.subject.to_string(),
            position: self.position(),
            key,
            headers,
            content_type: None,
            payload: self.message.payload.to_vec(),
        }
    }

    async fn acknowledge(&mut self) -> Result<(), SourceError> {
        let confirmed = self.message.double_ack().await;
        confirmed.map_err(|error| SourceError::new("JetStream did not confirm an acknowledgement", error))
    }

    async fn give_back(&mut self) -> Result<(), SourceError> {
        let told = self.message.ack_with(AckKind::Nak(None)).await;
        told.map_err(|error| SourceError::new("JetStream was not told to deliver again", error))
    }

    fn renew_every(&self) -> Option<Duration> {
        Some(self.renew)
    }

    async fn renew(&self) -> Result<(), SourceError> {
        let told = self.message.ack_with(AckKind::Progress).await;
        told.map_err(|error| SourceError::new("JetStream was not told to wait", error))
    }

    fn has_dead_letters(&self) -> bool {
        self.dead.is_some()
    }

    async fn bury(&self, letter: &DeadLetter<'_>) -> Result<(), SourceError> {
        let Some((context, subject)) = &self.dead else {
            return Err(SourceError::of("no subject for dead letters"));
        };
        let refused = |error: PublishError| SourceError::new(format!("the dead letters at {subject}"), error);
        let mut headers = HeaderMap::new();
        for (name, values) in self.message.headers.iter().flat_map(HeaderMap::iter) {
            let order = name.to_string().to_ascii_lowercase().starts_with(ORDERS);
            if !order && !letter.replaces(name.as_ref()) {
                for value in values {
                    headers.append(name.clone(), value.clone());
                }
            }
        }
        for (name, value) in &letter.headers {
            // Summaries hold no line ends, which alone are refused.
            if let Ok(value) = value.parse::<HeaderValue>() {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        // One that is buried again after a crash is known, for as long as the stream looks back.
        let id = self.position().map(|position| format!("{position}@{subject}"));
        if let Some(id) = id.and_then(|id| id.parse::<HeaderValue>().ok()) {
            headers.insert(async_nats::header::NATS_MESSAGE_ID, id);
        }
        let payload = self.message.payload.clone();
        let sent = context.publish_with_headers(subject.clone(), headers, payload).await;
        sent.map_err(refused)?.await.map_err(refused).map(drop)
    }
}
