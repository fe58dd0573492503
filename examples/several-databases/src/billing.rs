//! The second database: an invoice for each order, and an event of its own for each invoice.

use postbox::sqlite::migrate::{self, Extras};
use postbox::{ConsumerName, DispatchError, Event, EventBus, HandlerResult, Meta, Outbox, Seen};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

use crate::Result;
use crate::orders::OrderPlaced;

/// Its outbox.
pub(crate) const TABLE: &str = "billing_outbox";

/// Who it is that remembers what it has seen.
static BILLING: ConsumerName = ConsumerName::from_static("billing");

/// An invoice was written.
#[derive(Event, Serialize, Deserialize)]
#[event(topic = "billing.invoice.written.v1", aggregate = "order", id = "order_id")]
struct InvoiceWritten {
    order_id: i64,
}

/// Makes the database: an outbox, an inbox beside it, and a table of its own.
pub(crate) async fn make(options: SqliteConnectOptions) -> Result<()> {
    let pool = SqlitePool::connect_with(options.create_if_missing(true)).await?;
    let mut connection = pool.acquire().await?;
    let table = "CREATE TABLE IF NOT EXISTS invoices (order_id INTEGER PRIMARY KEY)";
    sqlx::raw_sql(table).execute(&mut *connection).await?;
    // The outbox last: whoever finds it finds the rest as well.
    let extras = Extras { inbox: true, ..Extras::default() };
    migrate::up_with(&mut connection, &TABLE.parse()?, extras, |_| {}).await?;
    drop(connection);
    pool.close().await;
    Ok(())
}

/// Where the events of the orders go. As long as billing is away they wait, and spend no attempt.
pub(crate) fn receive(pool: &SqlitePool) -> EventBus {
    let pool = pool.clone();
    EventBus::new().on(move |meta: Meta, order: OrderPlaced| invoice(pool.clone(), meta, order))
}

/// Writes the invoice, once: an event may come again.
async fn invoice(pool: SqlitePool, meta: Meta, order: OrderPlaced) -> HandlerResult {
    let outbox = Outbox::new(TABLE.parse()?).database("billing");
    // That its database is away is not the event's fault.
    let mut tx = outbox.begin(&pool).await.map_err(DispatchError::unavailable)?;
    if outbox.inbox().record(&mut tx, &BILLING, meta.event_id).await? == Seen::Before {
        return Ok(());
    }
    sqlx::query("INSERT INTO invoices (order_id) VALUES (?)").bind(order.order_id).execute(&mut **tx).await?;
    outbox.enqueue(&mut tx, InvoiceWritten { order_id: order.order_id }).await?;
    tx.commit().await?; // the invoice, the memory of the order, and the next event: all of them, or none
    Ok(())
}

/// Where its own events go.
pub(crate) fn tell() -> EventBus {
    EventBus::new().on(|_: Meta, invoice: InvoiceWritten| async move {
        println!("invoice for order {}", invoice.order_id);
        Ok(())
    })
}

/// How many invoices there are.
pub(crate) async fn invoices(pool: &SqlitePool) -> Result<i64> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM invoices").fetch_one(pool).await?)
}

/// How many of them were told of.
pub(crate) async fn told(pool: &SqlitePool) -> Result<i64> {
    let told = "SELECT count(*) FROM billing_outbox WHERE published_at IS NOT NULL";
    Ok(sqlx::query_scalar(told).fetch_one(pool).await?)
}
