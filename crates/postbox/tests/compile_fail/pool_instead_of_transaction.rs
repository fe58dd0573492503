//! An event that is written outside of the caller's transaction can exist without the data, or the data without it.

use postbox::{Outbox, Record, Topic};

async fn enqueue(pool: sqlx::PgPool, outbox: Outbox) {
    let record = Record::builder(Topic::from_static("shop.order.placed.v1")).json(&1);
    outbox.enqueue(&pool, record).await.unwrap();
}

fn main() {}
