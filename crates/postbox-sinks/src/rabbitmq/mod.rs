//! [`RabbitSink`]: events to RabbitMQ, confirmed by the broker.
//!
//! The routing key is the event's destination; with the default exchange that is the name of a queue. The payload is the
//! event's own, persistent; the headers are the standard ones ([`standard_headers`](crate::standard_headers)) and
//! `message_key`; `message_id` is the event id. An event's own headers `CC` and `BCC` are left out: they are orders to the
//! broker. A message that no queue takes comes back, since it is published as mandatory, and is rejected.
//!
//! # Neighbours
//! RabbitMQ answers a message that it cannot take by closing the channel, without saying which message it was, and with it
//! all others on their way are lost sight of. So each batch has a connection to itself while it is sent, and what was not
//! confirmed is sent again in ever smaller parts, until the one that is to blame is alone: only that one is rejected, and the
//! rest arrives, some of it twice. How large a message may be the sink learns by the first refusal: from then on those that
//! are larger are sent alone, at nobody's cost.
//!
//! # Order
//! Events of a batch are published in their order on one channel, and a queue stores them so. What has to be sent again after
//! such a closing goes in its order too; some of it may then be there twice. When one event fails while later ones arrive,
//! it comes later than these: who needs the order of an aggregate asks the relay for it (`ordering = "aggregate"`),
//! which then has one event of an aggregate under way at a time.
//!
//! # Cancel safety
//! A dispatch may be dropped at any time: its events may arrive, and come again under the same `message_id`. Its connection is
//! cut, so that nothing of it is sent later.
//!
//! Files: `config` – URL and options; `line` – a connection; `message` – an event as AMQP has it; `publish` and `confirm` – a part of a
//! batch on its way; `sink` – batches; `error` – what becomes of failures.

mod config;
mod confirm;
mod error;
mod line;
mod message;
mod publish;
mod sink;
#[cfg(test)]
mod tests;

pub use sink::RabbitSink;
