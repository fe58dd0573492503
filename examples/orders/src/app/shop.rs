//! The shop: what a service does with an outbox.

use postbox::{Event, EventBus, HandlerResult, HotPath, Meta, Outbox, Postbox, TableName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Pool, migrate};
use crate::Result;

/// Something that happened. A breaking change gets a new struct and a `v2`.
#[derive(Event, Serialize, Deserialize)]
#[event(topic = "shop.order.placed.v1", aggregate = "order", id = "order_id")]
struct OrderPlaced {
    order_id: String,
    item: String,
    quantity: i64,
}

/// What a customer wants.
#[derive(Deserialize)]
pub(super) struct NewOrder {
    item: String,
    quantity: i64,
}

/// An order, and what its customer was told.
#[derive(Serialize)]
pub(super) struct Order {
    pub(super) id: String,
    pub(super) item: String,
    pub(super) quantity: i64,
    pub(super) confirmation: Option<String>,
}

/// The shop's own tables; the outbox is made by Postbox.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT NOT NULL, quantity BIGINT NOT NULL);
    CREATE TABLE IF NOT EXISTS confirmations (order_id TEXT PRIMARY KEY, text TEXT NOT NULL);";

#[derive(Clone)]
pub(super) struct Shop {
    pool: Pool,
    outbox: Outbox,
}

/// Makes the tables, and starts what handles the events.
pub(super) async fn open(pool: Pool) -> Result<(Shop, Postbox)> {
    let table: TableName = "shop_outbox".parse()?;
    let mut connection = pool.acquire().await?;
    migrate::up(&mut connection, &table, |_| {}).await?;
    sqlx::raw_sql(TABLES).execute(&mut *connection).await?;
    drop(connection);

    let handlers = pool.clone();
    let bus = EventBus::new().on(move |_: Meta, placed: OrderPlaced| confirm(handlers.clone(), placed));
    let postbox =
        Postbox::builder(&pool, table).route("shop.order.**", bus).hot(HotPath::new()).start().await?;
    Ok((Shop { pool, outbox: postbox.outbox() }, postbox))
}

impl Shop {
    /// An order and its event: both are committed, or neither.
    pub(super) async fn place(&self, order: NewOrder) -> Result<String> {
        let (order_id, NewOrder { item, quantity }) = (Uuid::now_v7().to_string(), order);
        let mut tx = self.outbox.begin(&self.pool).await?;
        let insert = sqlx::query("INSERT INTO orders (id, item, quantity) VALUES ($1, $2, $3)");
        insert.bind(&order_id).bind(&item).bind(quantity).execute(&mut **tx).await?;
        self.outbox.enqueue(&mut tx, OrderPlaced { order_id: order_id.clone(), item, quantity }).await?;
        tx.commit().await?;
        Ok(order_id)
    }

    /// The latest orders.
    pub(super) async fn orders(&self) -> Result<Vec<Order>> {
        let latest = "SELECT id, item, quantity, text FROM orders LEFT JOIN confirmations ON order_id = id
                      ORDER BY id DESC LIMIT 1000";
        let rows: Vec<(String, String, i64, Option<String>)> =
            sqlx::query_as(latest).fetch_all(&self.pool).await?;
        let order = |(id, item, quantity, confirmation)| Order { id, item, quantity, confirmation };
        Ok(rows.into_iter().map(order).collect())
    }
}

impl NewOrder {
    /// What is wrong with it, if anything is.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match (self.item.trim().len(), self.quantity) {
            (0, _) => Some("item is empty"),
            (101.., _) => Some("item is longer than 100 bytes"),
            (_, 1..=1000) => None,
            _ => Some("quantity is not from 1 to 1000"),
        }
    }
}

/// Handles an event: the customer is told. Whatever fails is tried again, so it may come here twice; the second time must
/// change nothing.
async fn confirm(pool: Pool, placed: OrderPlaced) -> HandlerResult {
    let text = format!("{} × {} is on its way", placed.quantity, placed.item);
    sqlx::query(
        "INSERT INTO confirmations (order_id, text) VALUES ($1, $2) ON CONFLICT (order_id) DO NOTHING",
    )
    .bind(&placed.order_id)
    .bind(text)
    .execute(&pool)
    .await?;
    Ok(())
}
