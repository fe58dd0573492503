//! [`NatsSink`]: events to NATS JetStream, confirmed by the stream that took them.
//!
//! The subject is the event's destination; a stream must take it. The payload is the event's own, the headers are the standard
//! ones ([`standard_headers`](crate::standard_headers)), `message_key`, and `Nats-Msg-Id` with the event id and the subject, by which
//! a stream knows an event again within its duplicate window. An event's own headers that begin with `Nats-` are left out:
//! they are orders to the server.
//!
//! # Order
//! Events of a batch are sent in their order over one connection, and a stream stores them so. When one of them fails while
//! later ones arrive, it comes later than these: who needs the order of an aggregate asks the relay for it
//! (`ordering = "aggregate"`), which then has one event of an aggregate under way at a time.
//!
//! # Cancel safety
//! A dispatch may be dropped at any time: its events may arrive, and come again under the same `Nats-Msg-Id`.
//!
//! Files: `config` – URL and options; `sink` – the client and batches; `error` – what becomes of failures.

mod config;
mod error;
mod sink;
#[cfg(test)]
mod tests;

#[cfg(test)]
use config::{Login, NatsConfig};
pub use sink::NatsSink;
