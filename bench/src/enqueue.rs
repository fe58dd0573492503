//! Enqueue: what it costs the writer, against the same rows by SQL of one's own, and with a relay that wants to be woken.

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postbox::{Outbox, Record, Topic};
use serde_json::json;
use sqlx::PgConnection;
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::drain::{Bench, TOPIC, median};

/// How many are written at once.
const BULK: usize = 1000;

/// The same row as an enqueue of this event writes.
const ROW: &str = "INSERT INTO bench_outbox (event_id, tenant_id, topic, payload, available_at, headers, occurred_at, schema_version)
    VALUES ($1, $2, $3, $4::jsonb, now(), NULL, $5, 1) ON CONFLICT (event_id) DO NOTHING RETURNING event_id, sequence";

const ROWS: &str = "INSERT INTO bench_outbox (event_id, tenant_id, topic, payload, occurred_at)
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::jsonb[], $5::timestamptz[])
    ON CONFLICT (event_id) DO NOTHING RETURNING event_id, sequence";

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One beside the row of an order, in its transaction.
    One,
    OneByHand,
    /// A thousand in a transaction.
    Bulk,
    BulkByHand,
    /// One, while a relay works that commits wake.
    Woken,
    /// One, while a relay looks every 10 ms.
    Polled,
}

/// What is compared: the first against the second, on so many connections.
const PAIRS: [(&str, Way, Way, &[usize]); 3] = [
    ("one event in a transaction, against INSERT by hand", Way::One, Way::OneByHand, &[1, 8, 32]),
    ("enqueue_all of 1,000, against INSERT … SELECT unnest", Way::Bulk, Way::BulkByHand, &[1]),
    ("one event, relay woken, against relay at 10 ms", Way::Woken, Way::Polled, &[1, 8, 32]),
];

/// Alternates the two of each pair, prints each run, then the medians and their ratio.
pub(crate) async fn run(seconds: usize, rounds: usize) {
    let bench = Bench::new(0, 500).await;
    let seconds = Duration::from_secs(u64::try_from(seconds).expect("seconds"));
    for (name, ours, other, connections) in PAIRS {
        for &connections in connections {
            let (mut first, mut second) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                second.push(measure(&bench, other, connections, seconds).await);
                first.push(measure(&bench, ours, connections, seconds).await);
            }
            let (first, second) = (median(&mut first), median(&mut second));
            println!(
                "{name}, {connections:>2} connections: {first:>7.0}/s, {second:>7.0}/s, ratio {:.2}",
                first / second
            );
        }
    }
}

/// Events per second.
async fn measure(bench: &Bench, way: Way, connections: usize, seconds: Duration) -> f64 {
    bench.make_table().await;
    let orders = "DROP TABLE IF EXISTS bench_order; CREATE TABLE bench_order (id uuid PRIMARY KEY, item text NOT NULL)";
    sqlx::raw_sql(orders).execute(&bench.pool).await.expect("a table");
    bench.settle_down().await;
    let relay = matches!(way, Way::Woken | Way::Polled).then(|| relay(bench, way));
    let size = u32::try_from(connections).expect("connections");
    let pool = PgPoolOptions::new().max_connections(size).min_connections(size);
    let pool = pool.connect_with((*bench.pool.connect_options()).clone()).await.expect("the server");
    let outbox = Outbox::new("public.bench_outbox".parse().expect("a name"));
    let outbox = if way == Way::Polled { outbox.quiet() } else { outbox };
    // What comes first pays for plans.
    write_until(way, &pool, &outbox, connections, seconds / 10).await;
    let started = Instant::now();
    let events = write_until(way, &pool, &outbox, connections, seconds).await;
    let rate = f64::from(u32::try_from(events).expect("events")) / started.elapsed().as_secs_f64();
    if let Some(mut relay) = relay {
        relay.kill().expect("a kill");
        relay.wait().expect("its end");
    }
    rate
}

fn relay(bench: &Bench, way: Way) -> Child {
    let interval = if way == Way::Polled { "10ms" } else { "1s" };
    let args = ["relay", "--table", "public.bench_outbox", "--cleaner-enabled=false", "--sink", "null:"];
    let mut command = bench.postbox(&args);
    command.args(["--poll-interval", interval]).stderr(Stdio::null()).spawn().expect("the program")
}

async fn write_until(way: Way, pool: &PgPool, outbox: &Outbox, connections: usize, span: Duration) -> usize {
    let until = Instant::now() + span;
    let written = std::sync::Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for _ in 0..connections {
        let (pool, outbox, written) = (pool.clone(), outbox.clone(), std::sync::Arc::clone(&written));
        writers.spawn(async move {
            while Instant::now() < until {
                let events = write(way, &pool, &outbox).await;
                written.fetch_add(events, Ordering::Relaxed);
            }
        });
    }
    writers.join_all().await;
    written.load(Ordering::Relaxed)
}

async fn write(way: Way, pool: &PgPool, outbox: &Outbox) -> usize {
    let mut tx = pool.begin().await.expect("a transaction");
    let payload = json!({ "n": 1, "text": "x".repeat(256) });
    let record = || Record::builder(const { Topic::from_static(TOPIC) }).json(&payload);
    let events = match way {
        Way::One | Way::Woken | Way::Polled => {
            order(&mut tx).await;
            outbox.enqueue(&mut tx, record()).await.expect("an event");
            1
        }
        Way::OneByHand => {
            order(&mut tx).await;
            let row = sqlx::query(ROW).bind(Uuid::now_v7()).bind(Uuid::nil()).bind(TOPIC);
            let row = row.bind(payload.to_string()).bind(time::OffsetDateTime::now_utc());
            row.fetch_all(&mut *tx).await.expect("a row");
            1
        }
        Way::Bulk => {
            outbox.enqueue_all(&mut tx, (0..BULK).map(|_| record())).await.expect("events");
            BULK
        }
        Way::BulkByHand => {
            let times = vec![time::OffsetDateTime::now_utc(); BULK];
            let rows = sqlx::query(ROWS)
                .bind((0..BULK).map(|_| Uuid::now_v7()).collect::<Vec<_>>())
                .bind(vec![Uuid::nil(); BULK])
                .bind(vec![TOPIC; BULK])
                .bind((0..BULK).map(|_| payload.clone()).collect::<Vec<_>>())
                .bind(times);
            rows.fetch_all(&mut *tx).await.expect("rows");
            BULK
        }
    };
    tx.commit().await.expect("a commit");
    events
}

/// What the business wants to write.
async fn order(tx: &mut PgConnection) {
    let order = sqlx::query("INSERT INTO bench_order VALUES ($1, 'tea')").bind(Uuid::now_v7());
    order.execute(tx).await.expect("an order");
}
