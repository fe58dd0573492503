//! hexeract: eight workers in the process, batches of 100; each event is acknowledged in a transaction of its own.

use std::time::{Duration, Instant};

use hexeract::core::HandlerContext;
use hexeract::outbox::{Event, Handler, OutboxError, OutboxPublisher as _};
use hexeract::outbox_sql::postgres::ensure_schema;
use hexeract::outbox_sql::{PgOutboxPublisher, PgOutboxWorkerBuilder};
use postbox_bench_peers::{BULK, Payload, handle, main as peer, url};
use serde::{Deserialize, Serialize};
use sqlx08::postgres::{PgPool, PgPoolOptions};
use tokio_util::sync::CancellationToken;

const TABLE: &str = "bench_outbox";
const WORKERS: u32 = 8;

#[derive(Debug, Serialize, Deserialize)]
struct Happened(Payload);

impl Event for Happened {
    const EVENT_TYPE: &'static str = "bench.happened";
}

struct Nothing;

impl Handler<Happened> for Nothing {
    type Error = OutboxError;

    async fn handle(&self, _: Happened, _: &HandlerContext) -> Result<(), OutboxError> {
        handle();
        Ok(())
    }
}

async fn pool() -> PgPool {
    PgPoolOptions::new().max_connections(2 * WORKERS).connect(&url()).await.expect("the server")
}

/// It writes events one by one: a thousand in a transaction.
async fn fill(payloads: Vec<Payload>) -> Duration {
    let pool = pool().await;
    ensure_schema(&pool, TABLE).await.expect("a schema");
    let publisher = PgOutboxPublisher::new(pool.clone(), TABLE).expect("a table");
    let events: Vec<Happened> = payloads.into_iter().map(Happened).collect();
    let started = Instant::now();
    for some in events.chunks(BULK) {
        let mut tx = pool.begin().await.expect("a transaction");
        for event in some {
            publisher.publish_in_tx(&mut tx, event).await.expect("an event");
        }
        tx.commit().await.expect("a commit");
    }
    started.elapsed()
}

async fn drain() {
    let pool = pool().await;
    for _ in 0..WORKERS {
        let worker = PgOutboxWorkerBuilder::new(pool.clone())
            .table_name(TABLE)
            .register_handler::<Happened, _>(Nothing)
            .batch_size(100)
            .poll_interval(Duration::from_millis(1))
            .build()
            .expect("a worker");
        tokio::spawn(worker.run(CancellationToken::new()));
    }
}

#[tokio::main]
async fn main() {
    // Delivered events stay.
    peer(fill, drain, "SELECT 1 FROM bench_outbox WHERE delivered_at IS NULL LIMIT 1").await;
}
