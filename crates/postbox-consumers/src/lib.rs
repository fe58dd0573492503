//! Messages of brokers and webhooks through an inbox: each has its effect once, and is acknowledged after that is committed.
//!
//! The broker's own client does the consuming. What is here stands between it and your handler: it finds out by what a message is known,
//! begins a transaction, records the message in an [`Inbox`](postbox_core::Inbox), calls the handler with the transaction, commits, and
//! acknowledges then. What comes again is acknowledged without calling the handler.
//!
//! - A [`Consumer`] is a handler with its inbox; a [`Handler`] gets `&mut tx` and the [`Message`].
//! - Sources: `NatsSource` (JetStream), `KafkaSource`, `RabbitSource`, `RedisSource`, each behind the feature of its name; `Webhook` for
//!   HTTP (feature `http`). A broker of your own: implement [`Source`].
//! - [`Identify`] says by what messages are known: the `event_id` of Postbox, else source and id of CloudEvents, unless you choose otherwise.
//!
//! # When something fails
//!
//! | what | then |
//! | --- | --- |
//! | the handler fails or panics | rolled back and tried again in place, with backoff; after [`tries`](Consumer::tries) the message goes to the dead letters, with the error in its headers, and is acknowledged after that is confirmed |
//! | the handler says `reject`, the payload is not what it expects, there is no id | a dead letter at once |
//! | the handler says `unavailable`, or the database does not answer | tried again in place, for as long as it takes, not counted |
//! | the dead letters cannot be reached | not acknowledged; tried again until they can |
//! | there is no place for dead letters | tried for ever |
//! | the process dies before the commit | nothing happened; delivered again |
//! | the process dies between commit and acknowledgement | delivered again, known by the inbox, acknowledged |
//! | the message is delivered again while the handler still runs | the second waits in the database for the first one's end: then it is known, or new if the first was rolled back |
//!
//! # What it does not do
//!
//! Effects outside of the database of the inbox happen as often as the handler runs. A message that kills the process is delivered again
//! for ever, since tries are counted in the process. A broker can limit that, and then drops it, or puts it to dead letters of its own
//! (`max_deliver` of NATS, `x-delivery-limit` of quorum queues).

#![warn(clippy::missing_errors_doc)]

mod attempt;
mod consumer;
mod handler;
mod identify;
#[cfg(feature = "kafka")]
mod kafka;
mod message;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
mod run;
mod source;
#[cfg(feature = "http")]
mod webhook;
mod work;

pub use consumer::Consumer;
pub use handler::{Handler, HandlerFn};
pub use identify::Identify;
#[cfg(feature = "kafka")]
pub use kafka::{KafkaIncoming, KafkaSource};
pub use message::{Envelope, Message};
#[cfg(feature = "nats")]
pub use nats::{NatsIncoming, NatsSource};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitIncoming, RabbitSource};
#[cfg(feature = "redis")]
pub use redis::{RedisIncoming, RedisSource};
pub use run::{ConsumerHandle, ConsumerReport};
pub use source::{DeadLetter, Incoming, Source, SourceError};
#[cfg(feature = "http")]
pub use webhook::{Webhook, WebhookError};
