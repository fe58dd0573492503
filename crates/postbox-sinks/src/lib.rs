//! Where Postbox delivers events outside of the process: brokers, webhooks, files, standard output, nowhere.
//!
//! A sink is a [`Dispatcher`](postbox_core::Dispatcher). The program chooses one by its URL and options
//! ([`AnySink::new`]); a service takes one by its type. Each sink that needs a client library is a cargo feature.
//!
//! - [`mod@file`] – JSON lines in a file: durable, safe with several writers, repairs what a crash left behind.
//! - `http` – webhooks: a signed request for each event (feature `http`).
//! - [`stdout`] – JSON lines to a pipe, and [`NullSink`], which discards.
//! - `kafka` – Kafka; `nats` – NATS JetStream; `pulsar` – Pulsar; `rabbitmq` – RabbitMQ; `redis` – Redis Streams.
//! - [`encode`] – the form of a line, and of a message: headers, CloudEvents.
//! - [`options`] and [`address`] – what a sink is told, checked; [`destination`] – where at a broker an event goes.
//! - [`url`] – which sink a URL means.

#![warn(clippy::missing_errors_doc)]

use postbox_core::{DispatchError, Receipts};

pub mod address;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
#[cfg_attr(
    not(any(feature = "nats", feature = "redis")),
    allow(dead_code, reason = "RabbitMQ has its own way to share")
)]
mod connection;
pub mod destination;
pub mod encode;
pub mod file;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(feature = "kafka", feature = "pulsar"))]
mod missing;
#[cfg(feature = "nats")]
pub mod nats;
pub mod options;
#[cfg(feature = "pulsar")]
pub mod pulsar;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
mod shown;
pub mod stdout;
#[cfg(any(feature = "http", feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod tls;
pub mod url;

pub use destination::Destination;
pub use encode::{CloudEvents, Encoding, Message, encode_line, standard_headers};
pub use file::FileSink;
#[cfg(feature = "http")]
pub use http::HttpSink;
#[cfg(feature = "kafka")]
pub use kafka::KafkaSink;
#[cfg(feature = "nats")]
pub use nats::NatsSink;
pub use options::Options;
#[cfg(feature = "pulsar")]
pub use pulsar::PulsarSink;
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::RabbitSink;
#[cfg(feature = "redis")]
pub use redis::RedisSink;
// For the program, which shows sinks where none was made of them yet.
#[doc(hidden)]
pub use shown::mask_sink;
pub use stdout::{NullSink, StdoutSink};
pub use url::{AnySink, SinkError};

/// Gives all events of a batch the one outcome that their common write had.
fn record_all(outcome: Result<(), DispatchError>, receipts: &mut Receipts) {
    match outcome {
        Ok(()) => receipts.all_delivered(),
        Err(error) => receipts.rest_failed(error),
    }
}
