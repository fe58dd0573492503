//! [`PulsarSink`]: topics of Apache Pulsar.
//!
//! An event is delivered when the broker has sent its receipt, after the bookies have it. A message has the event's key,
//! its headers as properties and its time; the partition of a partitioned topic follows from the key as it does with Java's
//! clients. There is one producer for each topic, made when it is first needed.
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
