//! [`KafkaSink`]: Apache Kafka and what speaks its protocol, by librdkafka.
//!
//! An event is delivered when all in-sync replicas have it (`acks=all`). The producer is idempotent: whatever the client
//! sends again by itself is in the log once and in order. A message has the event's key, its headers and its time; the
//! partition follows from the key as it does with Java's clients.
//!
//! Files: `config` – URL and options as settings of the client; `producer` – the client and its reports; `sink` – batches;
//! `error` – what each error of Kafka's means.

mod config;
mod error;
mod producer;
mod sink;
#[cfg(test)]
mod tests;

pub use sink::KafkaSink;
