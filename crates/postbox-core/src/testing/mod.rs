//! For tests of your own code: an outbox in memory, time that you move, dispatchers that fail.
//!
//! ```
//! use std::time::Duration;
//!
//! use postbox_core::testing::{FailingDispatcher, MemoryOutbox, assert_enqueued};
//! use postbox_core::{EnqueueError, Event, Outbox, OutboxTx, Topic};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct OrderPlaced {
//!     order_id: u64,
//! }
//!
//! impl Event for OrderPlaced {
//!     const TOPIC: Topic = Topic::from_static("shop.order.placed.v1");
//! }
//!
//! // The code under test takes any transaction.
//! async fn place<D, T: OutboxTx<D>>(outbox: &Outbox, tx: T) -> Result<(), EnqueueError<T::Error>> {
//!     outbox.enqueue(tx, OrderPlaced { order_id: 7 }).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = MemoryOutbox::new();
//! let mut tx = memory.begin().await?;
//! place(&memory, &mut tx).await?;
//! tx.commit().await?;
//! assert_enqueued!(memory, OrderPlaced { order_id: 7, .. });
//!
//! // What the handlers make of it, by the engine itself. The first attempt fails, the second is due a second later.
//! let sink = FailingDispatcher::times(1);
//! assert_eq!(memory.drain(sink.clone()).await.retried(), 1);
//! memory.clock().advance(Duration::from_secs(1));
//! assert_eq!(memory.drain(sink).await.delivered(), 1);
//! # Ok(())
//! # }
//! ```

mod assert;
mod clock;
mod drain;
mod failing;
mod inbox;
mod memory;
mod order;
mod store;

use std::sync::Arc;

use time::OffsetDateTime;

use crate::dispatcher::{Delivery, Meta};
use crate::event::{EventId, Headers, Payload, TenantId};
use crate::json::Json;
use crate::topic::Topic;

pub use crate::assert_enqueued;
pub use clock::FakeClock;
pub use drain::{Drained, Tried};
pub use failing::FailingDispatcher;
pub use memory::{Memory, MemoryError, MemoryOutbox, MemoryTransaction};
pub use store::MemoryStore;

/// A delivery of this topic and JSON payload, as a relay would hand it over at the first attempt.
///
/// # Panics
/// When the topic or the JSON is malformed.
#[allow(clippy::expect_used, reason = "a test helper fails by panicking")]
pub fn delivery(topic: &str, json: &str) -> Delivery {
    let now = OffsetDateTime::now_utc();
    let meta = Meta {
        table: Arc::from("test_outbox"),
        event_id: EventId::new(),
        tenant_id: TenantId::NIL,
        topic: Topic::lenient(topic).expect("a topic"),
        sequence: 1,
        attempts: 1,
        aggregate: None,
        headers: Headers::new(),
        occurred_at: now,
        created_at: now,
        schema_id: None,
        schema_version: 1,
        routing_key: None,
        metadata: None,
        traceparent: None,
        tracestate: None,
    };
    let payload = Payload::Json(Json::from_text(json).expect("JSON"));
    Delivery { meta, payload, destination: None }
}

#[cfg(test)]
mod tests;
