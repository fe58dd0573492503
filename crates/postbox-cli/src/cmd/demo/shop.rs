//! The two sides of the demo: customers who order, and the warehouse that hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::{Delivery, DispatchError, Dispatcher, Outbox, Payload, Record, TableName, Topic};
use postbox_stores::sqlite;
use sqlx::SqlitePool;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::books::Books;

const PLACED: Topic = Topic::from_static("shop.order.placed.v1");

/// What an event says; the warehouse reads it again.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: i64,
    item: String,
    cents: i64,
}

/// Orders that come in at a steady rate.
pub(super) struct Customers {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Customers {
    pub(super) fn start(pool: SqlitePool, table: TableName, books: Arc<Books>, rate: u32) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let outbox = Outbox::new(table);
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1) / rate.max(1));
            let mut order = 0;
            loop {
                tokio::select! {
                    _ = tick.tick() => {}
                    _ = stopped.wait_for(|stop| *stop) => return,
                }
                order += 1;
                if let Err(error) = place(&pool, &outbox, &books, order).await {
                    tracing::warn!(%error, order, "an order could not be placed");
                    books.failed();
                }
            }
        });
        Self { stop, task }
    }

    pub(super) async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

/// One order and its event, in one transaction. This is all that a service does.
async fn place(
    pool: &SqlitePool,
    outbox: &Outbox,
    books: &Books,
    order: i64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let placed = OrderPlaced {
        order,
        item: ["tea", "rice", "soap"][usize::try_from(order % 3)?].to_owned(),
        cents: 100 + order % 900,
    };
    let mut tx = sqlite::begin(pool).await?;
    sqlx::query("INSERT INTO orders (id, item, cents) VALUES ($1, $2, $3)")
        .bind(order)
        .bind(&placed.item)
        .bind(placed.cents)
        .execute(&mut *tx)
        .await?;
    let receipt =
        outbox.enqueue(&mut tx, Record::builder(PLACED).json(&placed).aggregate("order", order)).await?;
    if order % 10 == 0 {
        tx.rollback().await?;
        books.rolled_back(receipt.event_id.0);
    } else {
        tx.commit().await?;
        books.committed(receipt.event_id.0);
    }
    Ok(())
}

/// Where the events go: a handler with the usual weaknesses.
#[derive(Clone)]
pub(super) struct Warehouse {
    books: Arc<Books>,
    closed: Arc<AtomicBool>,
}

impl Warehouse {
    pub(super) fn new(books: Arc<Books>) -> Self {
        Self { books, closed: Arc::default() }
    }

    pub(super) fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::Relaxed);
    }
}

/// Chance by the event's own id: the same event is refused whenever it comes.
fn chance(event: Uuid, one_in: u128) -> bool {
    event.as_u128().is_multiple_of(one_in)
}

impl Dispatcher for Warehouse {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(DispatchError::unavailable("the warehouse is closed"));
        }
        let event = delivery.meta.event_id.0;
        if chance(event, 200) {
            return Err(DispatchError::reject("the warehouse does not have this item"));
        }
        if delivery.meta.attempts == 1 && chance(event, 19) {
            self.books.retried();
            return Err(DispatchError::retry("the warehouse dropped the parcel"));
        }
        let Payload::Json(json) = &delivery.payload else {
            return Err(DispatchError::reject("not an order"));
        };
        json.decode::<OrderPlaced>().map_err(|_| DispatchError::reject("not an order"))?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let lag = time::OffsetDateTime::now_utc() - delivery.meta.created_at;
        self.books.delivered(event, lag.unsigned_abs());
        Ok(())
    }
}
