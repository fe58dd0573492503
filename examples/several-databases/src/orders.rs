//! The first database: orders, each written with its event in one transaction.

use postbox::sqlite::migrate;
use postbox::{Event, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

use crate::Result;

/// Its outbox.
pub(crate) const TABLE: &str = "shop_outbox";

/// Something that happened here, and that others hear of.
#[derive(Event, Serialize, Deserialize)]
#[event(topic = "shop.order.placed.v1", aggregate = "order", id = "order_id")]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: i64,
}

/// Opens the database, and makes what is missing.
pub(crate) async fn open(options: SqliteConnectOptions) -> Result<SqlitePool> {
    let pool = SqlitePool::connect_with(options.create_if_missing(true)).await?;
    let mut connection = pool.acquire().await?;
    migrate::up(&mut connection, &TABLE.parse()?, |_| {}).await?;
    let table = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY AUTOINCREMENT)";
    sqlx::raw_sql(table).execute(&mut *connection).await?;
    drop(connection);
    Ok(pool)
}

/// Places an order. Whether billing is there does not matter here.
pub(crate) async fn place(pool: &SqlitePool, outbox: &Outbox) -> Result<()> {
    let mut tx = outbox.begin(pool).await?;
    let order_id: i64 =
        sqlx::query_scalar("INSERT INTO orders DEFAULT VALUES RETURNING id").fetch_one(&mut **tx).await?;
    outbox.enqueue(&mut tx, OrderPlaced { order_id }).await?;
    tx.commit().await?;
    Ok(())
}

/// How many there are.
pub(crate) async fn count(pool: &SqlitePool) -> Result<i64> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(pool).await?)
}
