//! Drain with each history: how fast a backlog is delivered to nowhere and then kept, moved or deleted, and how much the
//! server writes for it, by `postbox relay` and by the same thing by hand.

use std::fmt;
use std::process::Stdio;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, Postgres, Row as _};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::drain::{Bench, TOPIC, median, peak_memory};

/// Rows behind the last that was read, with all that an event may carry; nothing is written for them.
const READ: &str = "SELECT id, event_id, topic, attempts, payload::text, sequence, tenant_id, now(), created_at, available_at,
           payload_raw, content_type, headers::text, aggregate_type, aggregate_id, occurred_at, schema_id, schema_version,
           routing_key, metadata::text, traceparent, tracestate, sinks_done
    FROM bench_outbox
    WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now() AND locked_at IS NULL
      AND (available_at, sequence) > ($1, $2)
    ORDER BY available_at, sequence LIMIT $3";

const KEEP: &str =
    "UPDATE bench_outbox t SET published_at = now(), attempts = t.attempts + 1, last_error = NULL
    FROM unnest($1::uuid[]) AS s (id) WHERE t.id = s.id AND t.published_at IS NULL";

/// What makes a read safe to hand on: which rows are in flight is written before they go, and an owner who was replaced settles
/// nothing. It goes with the settle of the batch before, which saves a statement.
const OWNER: &str = "UPDATE bench_owner SET in_flight = $2::bigint[] WHERE epoch = 1 RETURNING 1";

const NONE: &str = "DELETE FROM bench_outbox t USING unnest($1::uuid[]) AS s (id)
    WHERE t.id = s.id AND t.published_at IS NULL";

/// What a session of the relay sets, and nothing else.
const SESSION: &str = "SET plan_cache_mode = force_generic_plan; SET jit = off; SET max_parallel_workers_per_gather = 0; SET enable_seqscan = off;
    SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// How often it is looked whether a drain has begun, and ended.
const CLOSELY: Duration = Duration::from_millis(3);

/// What one drain did.
#[derive(Clone, Copy)]
pub(crate) struct Drained {
    /// Events per second.
    pub(crate) rate: f64,
    /// Bytes of log per event.
    pub(crate) wal: f64,
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7.0}/s {:>4.0} B of WAL", self.rate, self.wal)
    }
}

/// By hand, in two ways.
#[derive(Clone, Copy)]
enum ByHand {
    /// Read and settled, and nothing more: a crash would leave no trace of what was in flight.
    Bare,
    /// The strategy whole: what is in flight is written down, and every settle is fenced.
    Owned,
}

/// Alternates the three, prints each run, then the medians and their ratio.
pub(crate) async fn run(history: &str, events: usize, rounds: usize, batch: usize) {
    assert!(["keep", "move", "none"].contains(&history), "--history keep, move or none");
    let bench = Bench::new(events, batch).await;
    println!(
        "drain of {events} events, history {history}, owned, 300-byte payloads, batch {batch}, {rounds} rounds{}",
        if bench.pooler.is_some() { ", all behind a pooler" } else { "" }
    );
    let (mut bare, mut owned, mut relay, mut memory) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for round in 1..=rounds {
        bare.push(drained(&bench, history, by_hand(&bench, history, ByHand::Bare)).await.0);
        owned.push(drained(&bench, history, by_hand(&bench, history, ByHand::Owned)).await.0);
        let (by_relay, peak) = drained(&bench, history, by_relay(&bench, history)).await;
        relay.push(by_relay);
        memory = memory.max(peak);
        let [bare, owned, relay] = [&bare, &owned, &relay].map(|runs| runs[round - 1]);
        println!(
            "round {round}: bare SQL {bare}   with owner {owned}   postbox relay {relay}   peak {peak} KiB"
        );
    }
    let [bare, owned, relay] = [&bare, &owned, &relay].map(|runs| Drained {
        rate: median(&mut runs.iter().map(|run| run.rate).collect::<Vec<_>>()),
        wal: median(&mut runs.iter().map(|run| run.wal).collect::<Vec<_>>()),
    });
    println!(
        "median: bare SQL {bare}   with owner {owned}   postbox relay {relay}\n\
         ratio to bare SQL {:.2}, to bare SQL with owner {:.2}; WAL {:.2} and {:.2}; peak memory {memory} KiB",
        relay.rate / bare.rate,
        relay.rate / owned.rate,
        relay.wal / bare.wal,
        relay.wal / owned.wal,
    );
}

/// Fills the table and has it drained.
async fn drained<T>(bench: &Bench, history: &str, drain: impl Future<Output = T>) -> (Drained, T) {
    bench.make_table_for(history).await;
    bench.add(TOPIC, bench.events).await;
    bench.settle_down().await;
    Box::pin(watched(bench, drain)).await
}

/// What a relay does with a table that is filled.
pub(crate) async fn relayed(bench: &Bench, history: &str) -> Drained {
    Box::pin(watched(bench, by_relay(bench, history))).await.0
}

/// Watches a drain. Times are taken here, from the first settle to the last: where rows are deleted, the database has no record
/// of them.
async fn watched<T>(bench: &Bench, drain: impl Future<Output = T>) -> (Drained, T) {
    let before = wal(&bench.pool).await;
    let watch = async {
        let first = key(bench, "ASC").await;
        let last = key(bench, "DESC").await;
        until_settled(bench, first, CLOSELY).await;
        let started = Instant::now();
        until_settled(bench, last, CLOSELY).await;
        while !is_empty(bench).await {
            tokio::time::sleep(CLOSELY).await;
        }
        started.elapsed()
    };
    let (took, done) = tokio::join!(watch, drain);
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let events = bench.events as f64;
    let wal = wal_since(&bench.pool, &before).await / events;
    (Drained { rate: events / took.as_secs_f64(), wal }, done)
}

/// How far the server's log has come.
pub(crate) async fn wal(pool: &PgPool) -> String {
    let now = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text").fetch_one(pool);
    now.await.expect("a place in the log")
}

/// Bytes that were written to it since.
pub(crate) async fn wal_since(pool: &PgPool, before: &str) -> f64 {
    let written = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), $1::pg_lsn)::float8";
    sqlx::query_scalar(written).bind(before).fetch_one(pool).await.expect("a number")
}

/// The first or the last row in the order of delivery.
async fn key(bench: &Bench, direction: &str) -> Uuid {
    let sql = format!(
        "SELECT id FROM bench_outbox WHERE published_at IS NULL AND dead_at IS NULL
         ORDER BY available_at {direction}, sequence {direction} LIMIT 1"
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&bench.pool).await.expect("a row")
}

/// By its key: a look must not cost what is being measured.
async fn until_settled(bench: &Bench, row: Uuid, often: Duration) {
    let waits = "SELECT EXISTS (SELECT 1 FROM bench_outbox WHERE id = $1 AND published_at IS NULL)";
    while sqlx::query_scalar(waits).bind(row).fetch_one(&bench.pool).await.expect("an answer") {
        tokio::time::sleep(often).await;
    }
}

async fn is_empty(bench: &Bench) -> bool {
    let empty =
        "SELECT NOT EXISTS (SELECT 1 FROM bench_outbox WHERE published_at IS NULL AND dead_at IS NULL)";
    sqlx::query_scalar(empty).fetch_one(&bench.pool).await.expect("an answer")
}

async fn by_relay(bench: &Bench, history: &str) -> u64 {
    let last = key(bench, "DESC").await;
    let mut child = bench
        .postbox(&["relay", "--table", "public.bench_outbox", "--cleaner-enabled=false", "--sink", "null:"])
        .args(["--claim", "owner", "--history", history, "--batch-size", &bench.batch.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("the program");
    // The last row by its key: to look for what waits costs more the more is done. Seldom: only this side looks twice.
    until_settled(bench, last, Duration::from_millis(100)).await;
    while !is_empty(bench).await {
        assert!(child.try_wait().expect("its state").is_none(), "the relay ended early");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let peak = peak_memory(&child);
    child.kill().expect("a kill");
    child.wait().expect("its end");
    peak
}

/// A connection of the bare SQL.
struct Hand {
    connection: PgConnection,
    /// Behind a pooler each statement is a transaction, with what it needs set for that alone, and prepared for this once: the next
    /// one may reach another server process.
    pooled: bool,
}

impl Hand {
    async fn reach(bench: &Bench) -> Self {
        let options = match &bench.pooler {
            Some(url) => PgConnectOptions::from_str(url).expect("a URL").statement_cache_capacity(0),
            None => (*bench.pool.connect_options()).clone(),
        };
        let connection = options.disable_statement_logging().connect().await.expect("a connection");
        let mut hand = Self { connection, pooled: bench.pooler.is_some() };
        if !hand.pooled {
            hand.say(SESSION).await;
        }
        hand
    }

    async fn say(&mut self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection).await.expect("a statement");
    }

    async fn run(&mut self, query: Query<'_, Postgres, PgArguments>) -> Vec<PgRow> {
        if !self.pooled {
            return query.fetch_all(&mut self.connection).await.expect("a statement");
        }
        self.say(&format!("BEGIN; {}", SESSION.replace("SET ", "SET LOCAL "))).await;
        let rows = query.persistent(false).fetch_all(&mut self.connection).await.expect("a statement");
        self.say("COMMIT").await;
        rows
    }
}

/// Reads by key set on one connection, settles on another, overlapped.
async fn by_hand(bench: &Bench, history: &str, how: ByHand) {
    let (mut reads, settles) = (Hand::reach(bench).await, Hand::reach(bench).await);
    let settle = settle_sql(bench, history, how).await;
    let (sender, receiver) = mpsc::channel(2);
    let settler = tokio::spawn(settle_all(settles, settle, how, receiver));
    let limit = i64::try_from(bench.batch).expect("a batch size");
    // All rows of the backlog are available since the same moment.
    let start = "SELECT coalesce(min(available_at), now()) FROM bench_outbox";
    let at: time::OffsetDateTime = sqlx::query_scalar(start).fetch_one(&bench.pool).await.expect("a time");
    let mut behind = 0_i64;
    loop {
        let rows = reads.run(sqlx::query(READ).bind(at).bind(behind).bind(limit)).await;
        let Some(last) = rows.last() else { break };
        behind = last.get(5);
        // What any relay must at least read.
        let ids = rows.iter().map(|row| {
            let (_, _): (&str, &str) = (row.get(2), row.get(4));
            row.get(0)
        });
        let bounds = vec![rows[0].get(5), behind];
        sender.send(Batch { ids: ids.collect(), bounds }).await.expect("the settler");
    }
    drop(sender);
    settler.await.expect("the settler");
}

/// Rows that were read, and between which sequences they lie.
struct Batch {
    ids: Vec<Uuid>,
    bounds: Vec<i64>,
}

/// Settles batch after batch. With an owner each settle writes down the next batch, which goes only after that.
async fn settle_all(mut settles: Hand, sql: String, how: ByHand, mut read: mpsc::Receiver<Batch>) {
    let mut next = read.recv().await;
    while let Some(Batch { mut ids, .. }) = next {
        ids.sort_unstable();
        let settle = sqlx::query(AssertSqlSafe(sql.as_str())).bind(ids);
        if matches!(how, ByHand::Owned) {
            next = read.recv().await;
            let in_flight = next.as_ref().map_or(Vec::new(), |batch| batch.bounds.clone());
            settles.run(settle.bind(in_flight)).await;
        } else {
            settles.run(settle).await;
            next = read.recv().await;
        }
    }
}

async fn settle_sql(bench: &Bench, history: &str, how: ByHand) -> String {
    let mut owner = String::new();
    let mut fence = "";
    if matches!(how, ByHand::Owned) {
        let table = "DROP TABLE IF EXISTS bench_owner; CREATE TABLE bench_owner (epoch bigint PRIMARY KEY, in_flight bigint[]);
            INSERT INTO bench_owner VALUES (1)";
        sqlx::raw_sql(table).execute(&bench.pool).await.expect("an owner");
        owner = format!("WITH owner AS ({OWNER})");
        fence = "AND EXISTS (SELECT 1 FROM owner)";
    }
    match history {
        "keep" => format!("{owner} {KEEP} {fence}"),
        "none" => format!("{owner} {NONE} {fence}"),
        _ => {
            let with = if owner.is_empty() { "WITH".to_owned() } else { owner + "," };
            format!("{with} gone AS ({NONE} {fence} RETURNING t.*) {}", arrive_sql(bench).await)
        }
    }
}

/// The move by hand: the table's columns by their names.
async fn arrive_sql(bench: &Bench) -> String {
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = 'bench_outbox'::regclass AND attnum > 0 AND NOT attisdropped
         ORDER BY attnum",
    )
    .fetch_all(&bench.pool)
    .await
    .expect("columns");
    let value = |column: &String| match column.as_str() {
        "published_at" => "now()".to_owned(),
        "attempts" => "attempts + 1".to_owned(),
        "last_error" => "NULL".to_owned(),
        column => column.to_owned(),
    };
    let values: Vec<String> = columns.iter().map(value).collect();
    format!(
        "INSERT INTO bench_outbox_history ({}) SELECT {} FROM gone",
        columns.join(", "),
        values.join(", ")
    )
}
