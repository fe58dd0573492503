//! [`RedisSink`]: events to Redis Streams, confirmed by the reply to `XADD`.
//!
//! The key of the stream is the event's destination. An entry's fields: `key` (the message key), the standard headers
//! ([`standard_headers`](crate::standard_headers)) and the event's own, each a field of its own, and last `payload`. Flat,
//! because every client of Redis reads fields as a map, and `XREVRANGE` shows them as they are. A header that is named `key` or
//! `payload` is left out. Redis knows no event again: a reader does so by `event_id`.
//!
//! # Order
//! Events of a batch are added in their order over one connection. When one of them fails while later ones arrive, it comes
//! later than these: who needs the order of an aggregate asks the relay for it (`ordering = "aggregate"`), which then has
//! one event of an aggregate under way at a time.
//!
//! # Cancel safety
//! A dispatch may be dropped at any time: its events may arrive, and come again.
//!
//! Files: `config` – URL and options; `sink` – the client and batches; `error` – what becomes of failures.

mod config;
mod error;
mod sink;
#[cfg(test)]
mod tests;

#[cfg(test)]
use config::RedisConfig;
pub use sink::RedisSink;
