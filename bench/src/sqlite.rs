//! Drain on SQLite: how fast a backlog is delivered to nowhere, by a relay and by the bare SQL of the same strategy on
//! the same file with the same settings.

use std::path::PathBuf;
use std::time::Duration;

use postbox_core::{Relay, Settings};
use postbox_sinks::NullSink;
use postbox_stores::sqlite::{SqliteStore, connect_options, migrate};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, SqliteConnection};

use crate::drain::median;

const TABLE: &str = "bench_outbox";

const CLAIM: &str = "UPDATE bench_outbox SET locked_at = ?1, attempts = attempts + 1, locked_by = ?2
    WHERE sequence IN (
        SELECT sequence FROM bench_outbox
        WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= ?1
          AND (locked_at IS NULL OR locked_at < ?1 - 60000000)
        ORDER BY available_at, sequence LIMIT ?3
    )
    RETURNING sequence, event_id, topic, attempts, payload";

const SETTLE: &str =
    "UPDATE bench_outbox SET published_at = ?1, locked_at = NULL, locked_by = NULL, last_error = NULL
    WHERE sequence IN (SELECT value FROM json_each(?2)) AND locked_by = ?3";

/// Alternates the two, prints each run, then the medians and their ratio.
pub(crate) async fn run(events: usize, rounds: usize, batch: usize) {
    let folder =
        std::env::var_os("POSTBOX_BENCH_FOLDER").expect("POSTBOX_BENCH_FOLDER: use cargo xtask bench");
    let folder = PathBuf::from(folder).join(format!("bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let bench = Bench { file: folder.join("drain.db"), events, batch };
    println!("drain of {events} events on SQLite, 300-byte payloads, batch {batch}, {rounds} rounds");
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
    std::fs::remove_dir_all(folder).ok();
}

struct Bench {
    file: PathBuf,
    events: usize,
    batch: usize,
}

fn now() -> i64 {
    i64::try_from(time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000).expect("a time")
}

impl Bench {
    /// A write-ahead log and commits that are synced, as every user of a table has them.
    fn options(&self) -> SqliteConnectOptions {
        let url = format!("sqlite:{}?mode=rwc", self.file.display());
        connect_options(&url).expect("a URL").disable_statement_logging()
    }

    async fn connect(&self) -> SqliteConnection {
        self.options().connect().await.expect("a connection")
    }

    /// A fresh file with a backlog, settled on disk, so that no run pays for the one before.
    async fn fill(&self) {
        for end in ["", "-wal", "-shm"] {
            let mut file = self.file.clone().into_os_string();
            file.push(end);
            std::fs::remove_file(file).ok();
        }
        let mut connection = self.connect().await;
        migrate::up(&mut connection, &TABLE.parse().expect("a name"), |_| {}).await.expect("a table");
        let fill = format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT {})
             INSERT INTO bench_outbox (tenant_id, topic, payload, event_id)
             SELECT zeroblob(16), 'bench.thing.happened.v1',
                    json_object('n', n, 'text', lower(hex(randomblob(128)))), randomblob(16) FROM n",
            self.events
        );
        for sql in [fill.as_str(), "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"] {
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect("a statement");
        }
        connection.close().await.expect("a close");
    }

    /// A plain loop: SQLite has one writer, so there is nothing to overlap.
    async fn drain_bare(&self) {
        let mut connection = self.connect().await;
        let limit = i64::try_from(self.batch).expect("a batch size");
        loop {
            let claim = sqlx::query(CLAIM).bind(now()).bind("bench").bind(limit);
            let rows = claim.fetch_all(&mut connection).await.expect("a claim");
            let sequences: Vec<String> = rows
                .iter()
                .map(|row| {
                    // What any relay must at least read.
                    let (_, _): (&str, &str) = (row.get(2), row.get(4));
                    row.get::<i64, _>(0).to_string()
                })
                .collect();
            if sequences.is_empty() {
                break;
            }
            let settle =
                sqlx::query(SETTLE).bind(now()).bind(format!("[{}]", sequences.join(","))).bind("bench");
            settle.execute(&mut connection).await.expect("a settle");
        }
        connection.close().await.expect("a close");
    }

    async fn drain_by_relay(&self) {
        let store = SqliteStore::builder(self.options(), TABLE.parse().expect("a name")).build();
        let settings = Settings { batch_size: self.batch, ..Settings::default() };
        let relay =
            Relay::builder(store).dispatcher(NullSink).settings(settings).build().expect("a relay").spawn();
        let mut connection = self.connect().await;
        // By the index: a look must not cost what is being measured.
        let left = "SELECT EXISTS (SELECT 1 FROM bench_outbox INDEXED BY bench_outbox_pending_by_available
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
        let took = "SELECT (max(published_at) - min(published_at)) / 1000000.0, count(published_at) FROM bench_outbox";
        let row = sqlx::query(took).fetch_one(&mut connection).await.expect("a time");
        connection.close().await.expect("a close");
        assert_eq!(row.get::<i64, _>(1), i64::try_from(self.events).expect("a number"), "all were published");
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let events = self.events as f64;
        events / row.get::<f64, _>(0)
    }
}
