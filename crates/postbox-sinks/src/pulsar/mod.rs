//! [`PulsarSink`]: topics of Apache Pulsar.
//!
//! An event is delivered when the broker has sent its receipt, after the bookies have it. A message has the event's key,
//! its headers as properties and its time; the partition of a partitioned topic follows from the key as it does with Java's
//! clients. There is one producer for each topic, made when it is first needed.
//!
//! ```
//! use postbox_sinks::{AnySink, Options};
//!
//! let options = Options::new().set("compression", "lz4").set("destination", "shop/events/{topic}");
//! let sink = AnySink::new("pulsar://broker.example:6650", options)?;
//! assert_eq!(sink.to_string(), "pulsar://broker.example:6650");
//! # Ok::<(), postbox_sinks::SinkError>(())
//! ```
//!
//! Files: `config` – URL and options; `client` – the connection and the producers; `sink` – batches; `error` – what each
//! error of Pulsar's means.

mod client;
mod config;
mod error;
mod sink;
#[cfg(test)]
mod tests;

pub use sink::PulsarSink;
