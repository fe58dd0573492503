//! [`assert_enqueued!`](crate::assert_enqueued): what a test expects in its outbox.

use std::fmt::Write as _;

use super::memory::MemoryOutbox;
use crate::event::Payload;
use crate::receive::Receive;

/// Asserts that an event that matches was committed to a [`MemoryOutbox`](crate::testing::MemoryOutbox).
///
/// ```
/// # use postbox_core::testing::{MemoryOutbox, assert_enqueued};
/// # use postbox_core::{Event, Topic};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { order_id: u64, total: String }
/// # impl Event for OrderPlaced { const TOPIC: Topic = Topic::from_static("shop.order.placed.v1"); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = MemoryOutbox::new();
/// let mut tx = memory.begin().await?;
/// memory.enqueue(&mut tx, OrderPlaced { order_id: 7, total: "9.90".into() }).await?;
/// tx.commit().await?;
///
/// assert_enqueued!(memory, OrderPlaced { order_id: 7, .. });
/// assert_enqueued!(memory, OrderPlaced { total, .. } if total.starts_with('9'));
/// assert_enqueued!(memory, OrderPlaced); // any of this type
/// # Ok(())
/// # }
/// ```
///
/// For an enum of events, name it: `assert_enqueued!(memory, OrderEvent => OrderEvent::Placed(_))`.
///
/// The type must be `Deserialize`. When nothing matches, the message shows everything that was enqueued, with its payload.
#[macro_export]
macro_rules! assert_enqueued {
    ($outbox:expr, $($event:ident)::+ $(,)?) => {
        $crate::assert_enqueued!(@ $outbox, $($event)::+, _, stringify!($($event)::+))
    };
    ($outbox:expr, $($event:ident)::+ { $($fields:tt)* } $(if $guard:expr)? $(,)?) => {
        $crate::assert_enqueued!(
            @ $outbox, $($event)::+, $($event)::+ { $($fields)* } $(if $guard)?,
            stringify!($($event)::+ { $($fields)* } $(if $guard)?)
        )
    };
    ($outbox:expr, $($event:ident)::+ ( $($fields:tt)* ) $(if $guard:expr)? $(,)?) => {
        $crate::assert_enqueued!(
            @ $outbox, $($event)::+, $($event)::+ ( $($fields)* ) $(if $guard)?,
            stringify!($($event)::+ ( $($fields)* ) $(if $guard)?)
        )
    };
    ($outbox:expr, $event:ty => $pattern:pat $(if $guard:expr)? $(,)?) => {
        $crate::assert_enqueued!(@ $outbox, $event, $pattern $(if $guard)?, stringify!($pattern $(if $guard)?))
    };
    (@ $outbox:expr, $event:ty, $pattern:pat $(if $guard:expr)?, $text:expr) => {
        $outbox.expect::<$event>($text, |event| {
            #[allow(unreachable_patterns, reason = "some patterns match everything")]
            match event {
                $pattern $(if $guard)? => true,
                _ => false,
            }
        })
    };
}

impl MemoryOutbox {
    /// What `assert_enqueued!` does.
    #[doc(hidden)]
    #[track_caller]
    pub fn expect<E: Receive>(&self, pattern: &str, matches: impl FnMut(&E) -> bool) {
        if self.events::<E>().iter().any(matches) {
            return;
        }
        let records = self.records();
        let mut message = format!("no event was enqueued that matches {pattern}\n");
        let topics: Vec<&str> = E::TOPICS.iter().map(crate::topic::Topic::as_str).collect();
        match records.len() {
            0 => message.push_str("nothing was enqueued\n"),
            number => {
                let _ = writeln!(message, "enqueued were {number}, looked for among those with a *:");
            }
        }
        for record in &records {
            let mark = if topics.contains(&record.topic.as_str()) { '*' } else { ' ' };
            let payload = match &record.payload {
                Payload::Json(json) => json.as_str().to_owned(),
                Payload::Bytes { bytes, content_type } => format!("{} bytes of {content_type}", bytes.len()),
            };
            let _ = writeln!(message, "{mark} {} {payload}", record.topic);
        }
        match self.uncommitted() {
            0 => {}
            number => {
                let _ = writeln!(
                    message,
                    "{number} more in transactions that are still open: was `commit` forgotten?"
                );
            }
        }
        panic!("{message}");
    }
}
