//! Drain by leases: how fast a backlog is delivered to nowhere, by `postbox relay` and by the bare SQL of the same strategy.

use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::bare;

pub(crate) const TOPIC: &str = "bench.thing.happened.v1";

/// A server, the program, and one table that is made anew for each run.
pub(crate) struct Bench {
    url: String,
    /// A transaction pooler in front of the server, for relays and for bare SQL.
    pub(crate) pooler: Option<String>,
    program: String,
    pub(crate) pool: PgPool,
    pub(crate) events: usize,
    pub(crate) batch: usize,
}

/// Alternates the two, prints each run, then the medians and their ratio.
pub(crate) async fn run(events: usize, rounds: usize, batch: usize) {
    let bench = Bench::new(events, batch).await;
    println!("drain of {events} events, leased, 300-byte payloads, batch {batch}, {rounds} rounds");
    let (mut bare, mut relay, mut memory) = (Vec::new(), Vec::new(), 0);
    for round in 1..=rounds {
        bare.push(bench.bare().await);
        let (rate, peak) = bench.relay().await;
        relay.push(rate);
        memory = memory.max(peak);
        println!(
            "round {round}: bare SQL {:>8.0}/s   postbox relay {rate:>8.0}/s   peak {peak} KiB",
            bare[round - 1]
        );
    }
    let (bare, relay) = (median(&mut bare), median(&mut relay));
    println!(
        "median: bare SQL {bare:.0}/s, postbox relay {relay:.0}/s, ratio {:.2}, peak memory {memory} KiB",
        relay / bare
    );
}

impl Bench {
    pub(crate) async fn new(events: usize, batch: usize) -> Self {
        let variable = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use cargo xtask bench"))
        };
        let (url, program) = (variable("POSTBOX_BENCH_PG_URL"), variable("POSTBOX_BIN"));
        let pooler = std::env::var("POSTBOX_BENCH_POOLER_URL").ok();
        let options = PgConnectOptions::from_str(&url).expect("a URL");
        let pool = PgPoolOptions::new().max_connections(2).connect_with(options).await.expect("the server");
        Self { url, pooler, program, pool, events, batch }
    }

    async fn bare(&self) -> f64 {
        self.fill().await;
        bare::drain(&self.pool.connect_options(), self.batch).await;
        self.rate(TOPIC).await
    }

    async fn relay(&self) -> (f64, u64) {
        self.fill().await;
        let peak = self.drain(&["--sink", "null:", "--claim", "lease"], TOPIC).await;
        (self.rate(TOPIC).await, peak)
    }

    /// Runs the program until no event of the topic waits; answers its peak memory.
    pub(crate) async fn drain(&self, args: &[&str], topic: &str) -> u64 {
        let mut child = self
            .postbox(&["relay", "--table", "public.bench_outbox", "--cleaner-enabled=false"])
            .args(["--batch-size", &self.batch.to_string()])
            .args(args)
            .stderr(Stdio::null())
            .spawn()
            .expect("the program");
        // The last rows by their keys: to look for what waits costs more the more is done.
        let last = "SELECT array_agg(id) FROM (SELECT id FROM bench_outbox WHERE topic = $1 ORDER BY sequence DESC LIMIT 1000) l";
        let mut left: Vec<uuid::Uuid> =
            sqlx::query_scalar(last).bind(topic).fetch_one(&self.pool).await.expect("the last rows");
        while !left.is_empty() {
            assert!(child.try_wait().expect("its state").is_none(), "the relay ended early");
            tokio::time::sleep(Duration::from_millis(200)).await;
            let look = "SELECT coalesce(array_agg(id), '{}') FROM bench_outbox WHERE id = ANY ($1) AND published_at IS NULL";
            left = sqlx::query_scalar(look).bind(&left).fetch_one(&self.pool).await.expect("an answer");
        }
        let waits = "SELECT count(*) FROM bench_outbox WHERE topic = $1 AND published_at IS NULL";
        while sqlx::query_scalar::<_, i64>(waits).bind(topic).fetch_one(&self.pool).await.expect("an answer")
            > 0
        {
            assert!(child.try_wait().expect("its state").is_none(), "the relay ended early");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let peak = peak_memory(&child);
        child.kill().expect("a kill");
        child.wait().expect("its end");
        peak
    }

    /// Where another database of the same server is.
    pub(crate) fn url_of(&self, database: &str) -> String {
        let server = self.url.rsplit_once('/').map_or(self.url.as_str(), |(server, _)| server);
        format!("{server}/{database}")
    }

    pub(crate) fn postbox(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let url = self.pooler.as_ref().filter(|_| args.first() == Some(&"relay")).unwrap_or(&self.url);
        command.args(args).env("DATABASE_URL", url).env("RUST_LOG", "warn");
        command
    }

    /// A fresh table with a backlog, settled on disk, so that no run pays for the one before.
    pub(crate) async fn fill(&self) {
        self.make_table().await;
        self.add(TOPIC, self.events).await;
        self.settle_down().await;
    }

    pub(crate) async fn make_table(&self) {
        self.make_table_for("keep").await;
    }

    /// The same, with what a history needs.
    pub(crate) async fn make_table_for(&self, history: &str) {
        self.drop_table().await;
        let made = self
            .postbox(&["migrate", "up", "--table", "public.bench_outbox", "--history", history])
            .output()
            .expect("the program");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// With all that is known of its relays: the last one was killed, and would keep the next one waiting.
    async fn drop_table(&self) {
        self.sql("DROP VIEW IF EXISTS bench_outbox_status").await;
        self.sql("DROP TABLE IF EXISTS bench_outbox, bench_outbox_history, postbox_relay, postbox_audit")
            .await;
    }

    pub(crate) async fn add(&self, topic: &str, events: usize) {
        let fill = format!(
            "INSERT INTO bench_outbox (tenant_id, topic, payload, event_id)
             SELECT '00000000-0000-0000-0000-000000000000', '{topic}',
                    jsonb_build_object('n', n, 'text', repeat(md5(n::text), 8)), gen_random_uuid()
             FROM generate_series(1, {events}) n"
        );
        self.sql(&fill).await;
    }

    /// A fresh table for delivery in order, with a backlog about these aggregates.
    pub(crate) async fn make_ordered_table(&self, aggregate: &str) {
        self.drop_table().await;
        let made = self
            .postbox(&["migrate", "up", "--table", "public.bench_outbox", "--order-index"])
            .output()
            .expect("the program");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let events = self.events;
        let fill = format!(
            "INSERT INTO bench_outbox (tenant_id, topic, payload, event_id, aggregate_type, aggregate_id)
             SELECT '00000000-0000-0000-0000-000000000000', '{TOPIC}',
                    jsonb_build_object('n', n, 'text', repeat(md5(n::text), 8)), gen_random_uuid(), 'thing', {aggregate}
             FROM generate_series(1, {events}) n"
        );
        self.sql(&fill).await;
        self.settle_down().await;
    }

    pub(crate) async fn settle_down(&self) {
        self.sql("VACUUM ANALYZE bench_outbox").await;
        self.sql("CHECKPOINT").await;
    }

    pub(crate) async fn sql(&self, sql: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.expect("a statement");
    }

    /// By the database's own record: from the first to the last event published.
    pub(crate) async fn rate(&self, topic: &str) -> f64 {
        let took = "SELECT extract(epoch FROM max(published_at) - min(published_at))::float8 FROM bench_outbox WHERE topic = $1";
        let took: f64 = sqlx::query_scalar(took).bind(topic).fetch_one(&self.pool).await.expect("a time");
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        let events = self.events as f64;
        events / took
    }
}

/// A configuration file for the program.
pub(crate) fn config_file(text: &str) -> String {
    let config = std::env::temp_dir().join(format!("postbox-bench-{}.toml", std::process::id()));
    std::fs::write(&config, text).expect("a file");
    config.to_str().expect("a path").to_owned()
}

/// The most memory that the process ever had, in KiB.
pub(crate) fn peak_memory(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

pub(crate) fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
