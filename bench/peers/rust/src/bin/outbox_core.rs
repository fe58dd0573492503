//! outbox-core with outbox-postgres: batches of 1,000.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::prelude::*;
use outbox_postgres::{PostgresOutbox, PostgresWriter};
use postbox_bench_peers::{BULK, Payload as Body, handle, main as peer, url};
use sqlx08::{Executor as _, PgPool};
use tokio::sync::watch;

/// Table, indexes and wake-up as its documentation wants them; the package makes none of them itself.
const SCHEMA: &str = "
    CREATE TYPE status AS ENUM ('Pending', 'Processing', 'Sent');
    CREATE TABLE outbox_events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), idempotency_token text, event_type text NOT NULL,
        payload jsonb NOT NULL, status status NOT NULL DEFAULT 'Pending', created_at timestamptz NOT NULL DEFAULT now(),
        locked_until timestamptz NOT NULL DEFAULT '-infinity');
    CREATE INDEX ON outbox_events (locked_until, status) WHERE status IN ('Pending', 'Processing');
    CREATE UNIQUE INDEX ON outbox_events (idempotency_token);
    CREATE FUNCTION wake_outbox() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_notify('outbox_event', 'ping'); RETURN NEW; END $$;
    CREATE TRIGGER wake AFTER INSERT OR UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION wake_outbox()";

struct Nowhere;

#[async_trait::async_trait]
impl Transport<Body> for Nowhere {
    async fn publish(&self, _: Event<Body>) -> Result<(), OutboxError> {
        handle();
        Ok(())
    }
}

fn config() -> Arc<OutboxConfig<Body>> {
    let mut config = OutboxConfig::default();
    config.batch_size = 1000;
    config.idempotency_strategy = IdempotencyStrategy::None;
    config.poll_interval_secs = 1;
    Arc::new(config)
}

/// It writes events one by one: a thousand in a transaction.
async fn fill(payloads: Vec<Body>) -> Duration {
    let pool = PgPool::connect(&url()).await.expect("the server");
    pool.execute(SCHEMA).await.expect("a schema");
    let service = OutboxService::new(Arc::new(PostgresWriter), config());
    let started = Instant::now();
    for some in payloads.chunks(BULK) {
        let mut tx = pool.begin().await.expect("a transaction");
        for payload in some {
            service.add_event("bench", payload.clone(), None, &mut *tx).await.expect("an event");
        }
        tx.commit().await.expect("a commit");
    }
    started.elapsed()
}

async fn drain() {
    let pool = PgPool::connect(&url()).await.expect("the server");
    let (stop, stopped) = watch::channel(false);
    let manager = OutboxManagerBuilder::new()
        .storage(Arc::new(PostgresOutbox::new(pool, config())))
        .publisher(Arc::new(Nowhere))
        .config(config())
        .shutdown_rx(stopped)
        .build()
        .expect("a manager");
    tokio::spawn(async move {
        let _stop = stop;
        manager.run().await.expect("work");
    });
}

#[tokio::main]
async fn main() {
    // Sent events stay.
    peer(fill, drain, "SELECT 1 FROM outbox_events WHERE status <> 'Sent' LIMIT 1").await;
}
