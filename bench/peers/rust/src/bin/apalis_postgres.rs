//! apalis-postgres: four workers in the process, batches of 1,000, tasks run in parallel, not locked one by one. Workers write
//! their last acknowledgements at a heartbeat, so these are often.

use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use postbox_bench_peers::{BULK, Payload, handle, main as peer, url};

async fn storage() -> PostgresStorage<Payload> {
    let pool = PgPool::connect(&url()).await.expect("the server");
    PostgresStorage::setup(&pool).await.expect("a schema");
    let config = Config::default().queue("bench").batch_size(1000).lock_tasks(false);
    let config = config.heartbeat_interval(Duration::from_millis(100)).missed_heartbeats(300);
    PostgresStorage::new(&pool).with_config(config)
}

async fn fill(payloads: Vec<Payload>) -> Duration {
    let mut storage = storage().await;
    let started = Instant::now();
    for some in payloads.chunks(BULK) {
        storage.push_bulk(some.to_vec()).await.expect("tasks");
    }
    started.elapsed()
}

async fn job(_: Payload) -> Result<(), BoxDynError> {
    handle();
    Ok(())
}

/// In runtimes of their own: the compiler cannot tell that these workers may be spawned.
async fn drain() {
    for name in ["one", "two", "three", "four"] {
        std::thread::spawn(move || {
            tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
                let worker = WorkerBuilder::new(name).backend(storage().await);
                worker.parallelize(tokio::spawn).build(job).run().await.expect("work");
            });
        });
    }
}

#[tokio::main]
async fn main() {
    // Completed tasks stay.
    peer(fill, drain, "SELECT 1 FROM apalis.jobs WHERE status <> 'Done' LIMIT 1").await;
}
