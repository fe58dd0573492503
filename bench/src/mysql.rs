//! Drain on MariaDB: how fast a backlog is delivered to nowhere, by a relay and by the bare SQL of the same strategy on the
//! same server.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use postbox_core::{Delivery, DispatchError, Dispatcher, History, Receipts, Relay, Settings};
use postbox_stores::mysql::migrate::Extras;
use postbox_stores::mysql::{MySqlStore, Strategy, connect_options, migrate};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, Row as _};

use crate::drain::median;

const TABLE: &str = "bench_outbox";

/// Found without a lock, locked and read by key, leased: what a relay does, in three statements.
const PICK: &str = "SELECT sequence FROM bench_outbox FORCE INDEX (bench_outbox_pending_by_available)
    WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= UTC_TIMESTAMP(6)
      AND (locked_at IS NULL OR locked_at < UTC_TIMESTAMP(6) - INTERVAL 60 SECOND)
    ORDER BY available_at, sequence LIMIT ?";
const LOCK: &str = "SELECT sequence, event_id, tenant_id, topic, attempts, payload FROM bench_outbox FORCE INDEX (PRIMARY)
    WHERE sequence IN (<in>) AND published_at IS NULL AND dead_at IS NULL AND locked_at IS NULL FOR UPDATE SKIP LOCKED";
const LEASE: &str = "UPDATE bench_outbox FORCE INDEX (PRIMARY)
    SET attempts = attempts + 1, locked_at = UTC_TIMESTAMP(6), locked_by = 'bench' WHERE sequence IN (<in>)";
const SETTLE: &str = "UPDATE bench_outbox FORCE INDEX (PRIMARY)
    SET published_at = UTC_TIMESTAMP(6), locked_at = NULL, locked_by = NULL, last_error = NULL
    WHERE sequence IN (<in>) AND locked_by = 'bench' AND published_at IS NULL";

/// Read by key set and settled by key, without a claim: what an owner does, in two statements.
const READ: &str = "SELECT sequence, event_id, tenant_id, topic, attempts, payload, available_at
    FROM bench_outbox FORCE INDEX (bench_outbox_pending_by_available)
    WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= UTC_TIMESTAMP(6) AND locked_at IS NULL
      AND available_at >= ? AND (available_at > ? OR sequence > ?)
    ORDER BY available_at, sequence LIMIT ?";
const KEEP: &str = "UPDATE bench_outbox FORCE INDEX (PRIMARY)
    SET published_at = UTC_TIMESTAMP(6), attempts = attempts + 1, last_error = NULL
    WHERE sequence IN (<in>) AND published_at IS NULL AND dead_at IS NULL AND locked_at IS NULL";
const DELETE: &str =
    "DELETE FROM bench_outbox WHERE sequence IN (<in>) AND published_at IS NULL AND dead_at IS NULL
    AND locked_at IS NULL";

struct Bench {
    options: MySqlConnectOptions,
    lease: bool,
    history: History,
    events: usize,
    batch: usize,
}

/// A database for benchmarks on this server.
pub(crate) async fn database(url: &str) -> MySqlConnectOptions {
    let server = url.trim_end_matches('/');
    let options = connect_options(&format!("{server}/mysql")).expect("a URL");
    let mut connection = options.connect().await.expect("the server");
    sqlx::raw_sql("CREATE DATABASE IF NOT EXISTS bench").execute(&mut connection).await.expect("a database");
    connection.close().await.expect("a close");
    connect_options(&format!("{server}/bench")).expect("a URL").disable_statement_logging()
}

/// Delivers to nowhere, and knows since when.
#[derive(Debug, Clone, Default)]
struct Nowhere(Arc<OnceLock<Instant>>);

impl Dispatcher for Nowhere {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        self.0.get_or_init(Instant::now);
        Ok(())
    }

    async fn dispatch_batch(&self, _: &[Delivery], receipts: &mut Receipts) {
        self.0.get_or_init(Instant::now);
        receipts.all_delivered();
    }

    fn batch_limit(&self) -> usize {
        10_000
    }
}

/// Alternates the two, prints each run, then the medians and their ratio.
pub(crate) async fn run(lease: bool, history: &str, events: usize, rounds: usize, batch: usize) {
    let kept = match history {
        "keep" => History::Keep,
        "move" => History::Move,
        "none" => History::None,
        _ => panic!("--history keep, move or none"),
    };
    assert!(!lease || kept == History::Keep, "--lease is measured where rows are kept");
    let url =
        std::env::var("POSTBOX_BENCH_MARIADB_URL").expect("POSTBOX_BENCH_MARIADB_URL: use cargo xtask bench");
    let options = database(&url).await;
    let bench = Bench { options, lease, history: kept, events, batch };
    let how = if lease { "leased" } else { "owned" };
    println!(
        "drain of {events} events on MariaDB, history {history}, {how}, 300-byte payloads, batch {batch}, {rounds} rounds"
    );
    let (mut bare, mut relay) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.fill().await;
        let took = if lease { bench.drain_leasing().await } else { bench.drain_owning().await };
        bare.push(bench.rate(took).await);
        bench.fill().await;
        let took = bench.drain_by_relay().await;
        relay.push(bench.rate(took).await);
        println!("round {round}: bare SQL {:>8.0}/s   relay {:>8.0}/s", bare[round - 1], relay[round - 1]);
    }
    let (bare, relay) = (median(&mut bare), median(&mut relay));
    println!("median: bare SQL {bare:.0}/s, relay {relay:.0}/s, ratio {:.2}", relay / bare);
}

impl Bench {
    async fn connect(&self) -> MySqlConnection {
        let mut connection = self.options.connect().await.expect("a connection");
        let session = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        sqlx::raw_sql(session).execute(&mut connection).await.expect("a setting");
        connection
    }

    /// A fresh table with a backlog.
    async fn fill(&self) {
        let mut connection = self.connect().await;
        let table = TABLE.parse().expect("a name");
        // The first time there is none.
        migrate::down(&mut connection, &table, true).await.ok();
        let extras = Extras { history: self.history == History::Move, ..Extras::default() };
        migrate::up_with(&mut connection, &table, extras, |_| {}).await.expect("a table");
        let fill = format!(
            "INSERT INTO bench_outbox (tenant_id, topic, payload, event_id)
             SELECT x'00000000000000000000000000000000', 'bench.thing.happened.v1',
                    JSON_OBJECT('n', seq, 'text', REPEAT(MD5(seq), 8)), UNHEX(MD5(CONCAT('bench', seq))) FROM seq_1_to_{}",
            self.events
        );
        for sql in [fill.as_str(), "ANALYZE TABLE bench_outbox"] {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect("a statement");
        }
        connection.close().await.expect("a close");
        // What was written goes to disk meanwhile, and not into the measurement.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    /// A plain loop, read after settle.
    async fn drain_owning(&self) -> Duration {
        let mut connection = self.connect().await;
        let limit = i64::try_from(self.batch).expect("a batch size");
        let settles = match self.history {
            History::Keep => vec![KEEP.to_owned()],
            History::None => vec![DELETE.to_owned()],
            History::Move => vec![self.arrive(&mut connection).await, DELETE.to_owned()],
        };
        let (started, mut from) = (Instant::now(), (time::macros::datetime!(2000-01-01 0:00), 0_i64));
        loop {
            let read = sqlx::query(READ).bind(from.0).bind(from.0).bind(from.1).bind(limit);
            let rows = read.fetch_all(&mut connection).await.expect("a look");
            let Some(last) = rows.last() else { break };
            from = (last.get(6), last.get(0));
            let read = |row: &sqlx::mysql::MySqlRow| {
                // What any relay must at least read.
                let (_, _): (&str, &str) = (row.get(3), row.get(5));
                row.get(0)
            };
            let sequences: Vec<i64> = rows.iter().map(read).collect();
            let many = settles.len() > 1;
            if many {
                sqlx::raw_sql("START TRANSACTION").execute(&mut connection).await.expect("a begin");
            }
            for sql in &settles {
                let sql = sql.replace("<in>", &vec!["?"; sequences.len()].join(", "));
                let query =
                    sequences.iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, one| query.bind(*one));
                query.execute(&mut connection).await.expect("a settle");
            }
            if many {
                sqlx::raw_sql("COMMIT").execute(&mut connection).await.expect("a commit");
            }
        }
        let took = started.elapsed();
        connection.close().await.expect("a close");
        took
    }

    /// The statement that brings rows into the history.
    async fn arrive(&self, connection: &mut MySqlConnection) -> String {
        let columns = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns
            WHERE table_schema = DATABASE() AND table_name = 'bench_outbox' ORDER BY ordinal_position";
        let columns: Vec<String> = sqlx::query_scalar(columns).fetch_all(connection).await.expect("columns");
        let value = |name: &String| match name.as_str() {
            "published_at" => "UTC_TIMESTAMP(6)".to_owned(),
            "attempts" => "attempts + 1".to_owned(),
            name => name.to_owned(),
        };
        let values: Vec<String> = columns.iter().map(value).collect();
        format!(
            "INSERT INTO bench_outbox_history ({}) SELECT {} FROM bench_outbox FORCE INDEX (PRIMARY)
             WHERE sequence IN (<in>) AND published_at IS NULL AND dead_at IS NULL AND locked_at IS NULL FOR UPDATE",
            columns.join(", "),
            values.join(", ")
        )
    }

    /// A plain loop, claim after settle.
    async fn drain_leasing(&self) -> Duration {
        let mut connection = self.connect().await;
        let started = Instant::now();
        let limit = i64::try_from(self.batch).expect("a batch size");
        loop {
            let picked = sqlx::query_scalar::<_, i64>(PICK).bind(limit).fetch_all(&mut connection).await;
            let picked = picked.expect("a look");
            if picked.is_empty() {
                break;
            }
            let with = |sql: &str| sql.replace("<in>", &vec!["?"; picked.len()].join(", "));
            let bind = |sql: String| {
                picked.iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, one| query.bind(*one))
            };
            sqlx::raw_sql("START TRANSACTION").execute(&mut connection).await.expect("a begin");
            for row in bind(with(LOCK)).fetch_all(&mut connection).await.expect("a lock") {
                // What any relay must at least read.
                let (_, _): (&str, &str) = (row.get(3), row.get(5));
            }
            bind(with(LEASE)).execute(&mut connection).await.expect("a lease");
            sqlx::raw_sql("COMMIT").execute(&mut connection).await.expect("a commit");
            bind(with(SETTLE)).execute(&mut connection).await.expect("a settle");
        }
        let took = started.elapsed();
        connection.close().await.expect("a close");
        took
    }

    async fn drain_by_relay(&self) -> Duration {
        let store = MySqlStore::builder(self.options.clone(), TABLE.parse().expect("a name"));
        let strategy = if self.lease { Strategy::Lease } else { Strategy::Owner };
        let (store, sink) = (store.history(self.history).strategy(strategy).build(), Nowhere::default());
        let settings = Settings { batch_size: self.batch, ..Settings::default() };
        let relay = Relay::builder(store)
            .dispatcher(sink.clone())
            .settings(settings)
            .build()
            .expect("a relay")
            .spawn();
        let mut connection = self.connect().await;
        // By the index: a look must not cost what is being measured.
        let left = "SELECT EXISTS (SELECT 1 FROM bench_outbox FORCE INDEX (bench_outbox_pending_by_available)
            WHERE published_at IS NULL AND dead_at IS NULL)";
        while sqlx::query_scalar(left).fetch_one(&mut connection).await.expect("an answer") {
            tokio::time::sleep(Duration::from_millis(if self.history == History::None { 20 } else { 200 }))
                .await;
        }
        let took = sink.0.get().map(Instant::elapsed).expect("events");
        relay.shutdown().await.expect("an end");
        connection.close().await.expect("a close");
        took
    }

    /// By the database's own record, from the first to the last event published; where there is none, by what it took.
    async fn rate(&self, took: Duration) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        if self.history == History::None {
            return self.events as f64 / took.as_secs_f64();
        }
        let mut connection = self.connect().await;
        let table = if self.history == History::Move { "bench_outbox_history" } else { "bench_outbox" };
        let took = format!(
            "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(published_at), MAX(published_at)), COUNT(published_at) FROM {table}"
        );
        let row = sqlx::query(AssertSqlSafe(took)).fetch_one(&mut connection).await.expect("a time");
        connection.close().await.expect("a close");
        assert_eq!(row.get::<i64, _>(1), i64::try_from(self.events).expect("a number"), "all were published");
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let (events, micros) = (self.events as f64, row.get::<i64, _>(0) as f64);
        events / (micros / 1e6)
    }
}
