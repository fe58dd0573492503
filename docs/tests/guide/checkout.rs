use postbox::{DispatchError, Driver, Event, EventBus, Meta, Outbox, OutboxPool};
use serde::{Deserialize, Serialize};

#[derive(Debug, Event, Serialize, Deserialize)]
#[event(topic = "shop.order.placed.v1", aggregate = "order", id = "order_id")]
pub struct OrderPlaced {
    pub order_id: u64,
    pub cents: u64,
}

#[derive(Debug, Event, Serialize, Deserialize)]
#[event(topic = "shop.review.requested.v1", aggregate = "order", id = "order_id")]
pub struct ReviewRequested {
    pub order_id: u64,
}

/// Writes what a checkout writes. Any pool of sqlx will do, and a `&MemoryOutbox` is one.
pub async fn place<D: Driver>(
    outbox: &Outbox,
    pool: impl OutboxPool<D>,
    order_id: u64,
    cents: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut tx = outbox.begin(pool).await?;
    outbox.enqueue(&mut tx, OrderPlaced { order_id, cents }).await?;
    if cents > 100_000 {
        outbox.enqueue(&mut tx, ReviewRequested { order_id }).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// What the handlers need of the world.
pub trait Warehouse: Clone + Send + Sync + 'static {
    fn ship(&self, order_id: u64) -> Result<(), String>;
}

pub fn handlers(warehouse: impl Warehouse) -> EventBus {
    EventBus::new().on(move |_: Meta, placed: OrderPlaced| {
        let warehouse = warehouse.clone();
        async move {
            if placed.cents == 0 {
                return Err(DispatchError::reject("an order of nothing").into());
            }
            Ok(warehouse.ship(placed.order_id).map_err(DispatchError::retry)?)
        }
    })
}
