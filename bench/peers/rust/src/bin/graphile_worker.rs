//! graphile_worker: local queue of 5,000, 500 at once, completions batched for 5 ms, as in its own benchmark.

use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
};
use postbox_bench_peers::{BULK, Payload, handle, main as peer, url};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};

#[derive(Serialize, Deserialize)]
struct Job(Payload);

impl TaskHandler for Job {
    const IDENTIFIER: &'static str = "bench";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        handle();
        Ok::<(), String>(())
    }
}

async fn options() -> WorkerOptions {
    let pool: PgPool = PgPoolOptions::new().max_connections(20).connect(&url()).await.expect("the server");
    WorkerOptions::default().pg_pool(pool).concurrency(500).define_job::<Job>()
}

async fn fill(payloads: Vec<Payload>) -> Duration {
    let utils = options().await.init().await.expect("a schema").create_utils();
    let started = Instant::now();
    for some in payloads.chunks(BULK) {
        let job = |payload| RawJobSpec {
            identifier: "bench".into(),
            payload: serde_json::to_value(payload).expect("JSON"),
            spec: JobSpec::default(),
        };
        utils.add_raw_jobs(&some.iter().map(job).collect::<Vec<_>>()).await.expect("jobs");
    }
    started.elapsed()
}

async fn drain() {
    let worker = options()
        .await
        .poll_interval(Duration::from_millis(5))
        .local_queue(LocalQueueConfig::default().with_size(5000))
        .complete_job_batch_delay(Duration::from_millis(5))
        .init()
        .await
        .expect("a worker");
    tokio::spawn(async move { worker.run().await.expect("work") });
}

#[tokio::main]
async fn main() {
    // Completed jobs are deleted.
    peer(fill, drain, "SELECT 1 FROM graphile_worker._private_jobs LIMIT 1").await;
}
