//! Drain on MariaDB: how fast a backlog is delivered to nowhere, by a relay and by the bare SQL of the same strategy on the
//! same server.

use std::time::Duration;

use postbox_core::{History, Relay, Settings};
use postbox_sinks::NullSink;
use postbox_stores::mysql::{MySqlStore, connect_options, migrate};
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

struct Bench {
    options: MySqlConnectOptions,
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

/// Alternates the two, prints each run, then the medians and their ratio.
pub(crate) async fn run(events: usize, rounds: usize, batch: usize) {
    let url =
        std::env::var("POSTBOX_BENCH_MARIADB_URL").expect("POSTBOX_BENCH_MARIADB_URL: use cargo xtask bench");
    let bench = Bench { options: database(&url).await, events, batch };
    println!("drain of {events} events on MariaDB, 300-byte payloads, batch {batch}, {rounds} rounds");
    let (mut bare, mut relay) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.fill().await;
        bench.drain_bare().await;
        bare.push(bench.rate().await);
        bench.fill().await;
        bench.drain_by_relay().await;
        relay.push(bench.rate().await);
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
        migrate::up(&mut connection, &table, |_| {}).await.expect("a table");
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

    /// A plain loop, claim after settle.
    async fn drain_bare(&self) {
        let mut connection = self.connect().await;
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
        connection.close().await.expect("a close");
    }

    async fn drain_by_relay(&self) {
        let store = MySqlStore::builder(self.options.clone(), TABLE.parse().expect("a name"));
        let store = store.history(History::Keep).build();
        let settings = Settings { batch_size: self.batch, ..Settings::default() };
        let relay =
            Relay::builder(store).dispatcher(NullSink).settings(settings).build().expect("a relay").spawn();
        let mut connection = self.connect().await;
        // By the index: a look must not cost what is being measured.
        let left = "SELECT EXISTS (SELECT 1 FROM bench_outbox FORCE INDEX (bench_outbox_pending_by_available)
            WHERE published_at IS NULL AND dead_at IS NULL)";
        while sqlx::query_scalar(left).fetch_one(&mut connection).await.expect("an answer") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        relay.shutdown().await.expect("an end");
        connection.close().await.expect("a close");
    }

    /// By the database's own record: from the first to the last event published.
    async fn rate(&self) -> f64 {
        let mut connection = self.connect().await;
        let took = "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(published_at), MAX(published_at)), COUNT(published_at) FROM bench_outbox";
        let row = sqlx::query(took).fetch_one(&mut connection).await.expect("a time");
        connection.close().await.expect("a close");
        assert_eq!(row.get::<i64, _>(1), i64::try_from(self.events).expect("a number"), "all were published");
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let (events, micros) = (self.events as f64, row.get::<i64, _>(0) as f64);
        events / (micros / 1e6)
    }
}
