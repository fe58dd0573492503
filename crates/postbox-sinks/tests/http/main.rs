//! The webhook sink against real receivers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod arrival;
mod order;
mod python;
mod receiver;
mod statuses;
mod suite;
mod tls;
mod trouble;

use postbox_core::testing::delivery;
use postbox_core::{Delivery, DispatchError, Dispatcher as _, Receipts};
use postbox_sinks::AnySink;
use postbox_sinks::options::{Options, Value};
use serde_json::json;

/// The key of the reference libraries' example.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn options(value: Value) -> Options {
    let Value::Object(map) = value else { panic!("an object") };
    map.into_iter().collect()
}

/// A sink to this machine with these options.
fn sink(url: &str, mut given: Value) -> AnySink {
    given["allow_private"] = json!(true);
    AnySink::new(url, options(given)).unwrap()
}

/// An event with a message key.
fn keyed(key: &str, json: &str) -> Delivery {
    let mut event = delivery("shop.order.placed.v1", json);
    event.meta.routing_key = Some(key.to_owned());
    event
}

/// Dispatches a batch; the outcomes in the order of the batch.
async fn dispatch(sink: &AnySink, batch: &[Delivery]) -> Vec<Result<(), DispatchError>> {
    let mut receipts = Receipts::new(batch.len());
    sink.dispatch_batch(batch, &mut receipts).await;
    let mut outcomes = receipts.take();
    outcomes.sort_by_key(|(index, _)| *index);
    assert_eq!(outcomes.len(), batch.len(), "every event has an outcome");
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
