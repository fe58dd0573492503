//! What has no topic cannot be enqueued.

use postbox::{Outbox, OutboxTx};
use serde::Serialize;

#[derive(Serialize)]
struct Order {
    id: u64,
}

async fn place<D>(outbox: &Outbox, tx: impl OutboxTx<D>) {
    let _ = outbox.enqueue(tx, Order { id: 7 }).await;
}

fn main() {}
