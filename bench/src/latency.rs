//! Latency: from the commit of an event to the start of its handler, with the hot path, with wake-ups and by polling alone; the
//! relay in the writer's process, or in one of its own, which writes each event to a pipe.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use postbox::postgres::migrate;
use postbox::{
    Delivery, DispatchError, Dispatcher, HotPath, Outbox, Payload, Postbox, Record, TableName, Topic,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::time::MissedTickBehavior;

use crate::drain::median;

const TOPIC: Topic = Topic::from_static("bench.thing.happened.v1");
/// What comes first pays for connections and plans.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long the last events may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// How events come to their handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Right after their commit.
    Hot,
    /// By a relay that commits wake.
    Woken,
    /// The same, with a process of its own.
    Process,
    /// By a relay that looks so often, and that nobody wakes.
    Polled(Duration),
}

/// What is compared.
const WAYS: [(&str, Way); 4] = [
    ("hot path", Way::Hot),
    ("woken", Way::Woken),
    ("woken, own process", Way::Process),
    ("polled every 10 ms", Way::Polled(Duration::from_millis(10))),
];

/// One run's figures, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Figures {
    p50: f64,
    p99: f64,
    max: f64,
    /// The same from the call of `commit`, which takes in the commit itself.
    called_p50: f64,
    called_p99: f64,
}

/// Alternates the ways, prints each run, then the medians.
pub(crate) async fn run(rate: usize, rounds: usize, seconds: usize) {
    let url = std::env::var("POSTBOX_BENCH_PG_URL").expect("POSTBOX_BENCH_PG_URL: use cargo xtask bench");
    let options = PgConnectOptions::from_str(&url).expect("a URL");
    let pool = PgPoolOptions::new().max_connections(16).min_connections(16).connect_with(options);
    let pool = pool.await.expect("the server");
    let metrics = PrometheusBuilder::new().install_recorder().expect("a recorder");
    println!(
        "commit → start of the handler, {rate} events/s for {seconds} s, one a transaction, {rounds} rounds"
    );
    let mut all: Vec<Vec<Figures>> = vec![Vec::new(); WAYS.len()];
    for round in 1..=rounds {
        println!("round {round}, load {}", load());
        for ((name, way), all) in WAYS.iter().zip(&mut all) {
            let before = Counts::read(&metrics);
            let figures = measure(&pool, *way, rate, seconds).await;
            let counts = Counts::read(&metrics).since(before);
            println!(
                "  {name:<20}{figures}   hot {} claimed {} dropped {}",
                counts.hot, counts.cold, counts.dropped
            );
            all.push(figures);
        }
    }
    println!("medians of the rounds, and the longest of all:");
    for ((name, _), all) in WAYS.iter().zip(&all) {
        let of = |pick: fn(&Figures) -> f64| median(&mut all.iter().map(pick).collect::<Vec<_>>());
        let figures = Figures {
            p50: of(|f| f.p50),
            p99: of(|f| f.p99),
            max: all.iter().map(|f| f.max).fold(0.0, f64::max),
            called_p50: of(|f| f.called_p50),
            called_p99: of(|f| f.called_p99),
        };
        println!("  {name:<20}{figures}");
    }
    println!(
        "wanted of the hot path: p50 < 2 ms, p99 < 10 ms; of a relay that is woken: p50 < 1 ms, p99 < 5 ms"
    );
}

/// One run on a table of its own.
async fn measure(pool: &PgPool, way: Way, rate: usize, seconds: usize) -> Figures {
    let table: TableName = "public.bench_outbox".parse().expect("a name");
    let drop = "DROP VIEW IF EXISTS bench_outbox_status; DROP TABLE IF EXISTS bench_outbox, postbox_relay, postbox_audit";
    sqlx::raw_sql(drop).execute(pool).await.expect("no table");
    migrate::up(&mut pool.acquire().await.expect("a connection"), &table, |_| {}).await.expect("a table");
    sqlx::raw_sql("CHECKPOINT").execute(pool).await.expect("a checkpoint");

    let warm_up = usize::try_from(WARM_UP.as_secs()).expect("seconds") * rate;
    let times = Times::new(warm_up + rate * seconds);
    let relay = Relay::start(way, pool, table, &times).await;
    let outbox = match way {
        Way::Polled(_) => relay.outbox().quiet(),
        _ => relay.outbox(),
    };
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).expect("a rate"));
    // Whoever is late catches up: a slow database must not slow down the customers.
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..times.0.len() {
        tick.tick().await;
        writers.spawn(write(outbox.clone(), pool.clone(), times.clone(), n));
    }
    while let Some(written) = writers.join_next().await {
        written.expect("a write");
    }
    let handled = async {
        while !times.all_handled() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, handled).await.expect("every event to be handled");
    relay.stop().await;
    times.figures(warm_up)
}

/// The relay of one run.
enum Relay {
    Here(Box<Postbox>),
    Process(Child, TableName),
}

impl Relay {
    async fn start(way: Way, pool: &PgPool, table: TableName, times: &Times) -> Self {
        if way == Way::Process {
            return Self::process(pool, table, times.clone()).await;
        }
        let builder = Postbox::builder(pool, table).dispatcher(times.clone()).without_cleaner();
        let builder = match way {
            Way::Hot => builder.hot(HotPath::new()),
            Way::Polled(interval) => builder.set(|settings| settings.poll_interval = interval),
            Way::Woken | Way::Process => builder,
        };
        let postbox = builder.start().await.expect("a start");
        while postbox.hot().is_some_and(|path| path.remaining() == 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Self::Here(Box::new(postbox))
    }

    /// An event counts as dispatched when its line has come through the pipe.
    async fn process(pool: &PgPool, table: TableName, times: Times) -> Self {
        let program = std::env::var("POSTBOX_BIN").expect("POSTBOX_BIN: use cargo xtask bench");
        let url = std::env::var("POSTBOX_BENCH_PG_URL").expect("set above");
        let mut child = Command::new(program)
            .args(["relay", "--table", "public.bench_outbox", "--cleaner-enabled=false", "--sink", "stdout:"])
            .env("DATABASE_URL", url)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let now = Instant::now();
                let event: serde_json::Value = serde_json::from_str(&line).expect("an event");
                let n =
                    event["payload"]["n"].as_u64().and_then(|n| usize::try_from(n).ok()).expect("a number");
                times.note(n, |time| time.handled = Some(now));
            }
        });
        let leads = "SELECT EXISTS (SELECT 1 FROM postbox_relay WHERE holder IS NOT NULL)";
        while !sqlx::query_scalar::<_, bool>(leads).fetch_one(pool).await.expect("an answer") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Self::Process(child, table)
    }

    fn outbox(&self) -> Outbox {
        match self {
            Self::Here(postbox) => postbox.outbox(),
            Self::Process(_, table) => Outbox::new(table.clone()),
        }
    }

    async fn stop(self) {
        match self {
            Self::Here(postbox) => postbox.shutdown().await.expect("a stop"),
            Self::Process(mut child, _) => {
                child.kill().expect("a kill");
                child.wait().expect("its end");
            }
        }
    }
}

/// A payload of about 300 bytes.
#[derive(Serialize, Deserialize)]
struct Tick {
    n: usize,
    text: String,
}

async fn write(outbox: Outbox, pool: PgPool, times: Times, n: usize) {
    let event = Record::builder(TOPIC).json(&Tick { n, text: "x".repeat(256) });
    let mut tx = outbox.begin(&pool).await.expect("a transaction");
    outbox.enqueue(&mut tx, event).await.expect("an event");
    let called = Instant::now();
    tx.commit().await.expect("a commit");
    times.note(n, |time| (time.called, time.committed) = (Some(called), Some(Instant::now())));
}

/// What is known of one event.
#[derive(Debug, Default)]
struct Time {
    called: Option<Instant>,
    committed: Option<Instant>,
    handled: Option<Instant>,
}

/// Of each event, when it was committed and when its handler started.
#[derive(Clone)]
struct Times(Arc<[Mutex<Time>]>);

impl Dispatcher for Times {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let now = Instant::now();
        let Payload::Json(json) = &delivery.payload else { return Err(DispatchError::reject("bytes")) };
        let tick: Tick = json.decode().map_err(|error| DispatchError::reject(error.to_string()))?;
        self.note(tick.n, |time| time.handled = Some(now));
        Ok(())
    }
}

impl Times {
    fn new(events: usize) -> Self {
        Self((0..events).map(|_| Mutex::default()).collect())
    }

    fn note(&self, n: usize, note: impl FnOnce(&mut Time)) {
        note(&mut self.0[n].lock().expect("a lock"));
    }

    fn all_handled(&self) -> bool {
        self.0.iter().all(|time| time.lock().expect("a lock").handled.is_some())
    }

    /// A handler may start before the writer has heard of its commit: that is no time at all.
    fn figures(&self, skip: usize) -> Figures {
        let since = |pick: fn(&Time) -> Option<Instant>| {
            let mut times: Vec<f64> = self.0[skip..]
                .iter()
                .map(|time| {
                    let time = time.lock().expect("a lock");
                    let (from, to) = pick(&time).zip(time.handled).expect("an event that was handled");
                    to.saturating_duration_since(from).as_secs_f64() * 1e3
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let (committed, called) = (since(|time| time.committed), since(|time| time.called));
        let at = |times: &[f64], per_cent: usize| times[(times.len() * per_cent / 100).min(times.len() - 1)];
        Figures {
            p50: at(&committed, 50),
            p99: at(&committed, 99),
            max: at(&committed, 100),
            called_p50: at(&called, 50),
            called_p99: at(&called, 99),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50, p99, max, called_p50, called_p99 } = self;
        write!(f, "p50 {p50:>8.3} ms  p99 {p99:>8.3} ms  max {max:>8.2} ms")?;
        write!(f, "   (from the call of commit: p50 {called_p50:.2}, p99 {called_p99:.2})")
    }
}

/// How many events went which way.
#[derive(Debug, Clone, Copy)]
struct Counts {
    hot: u64,
    cold: u64,
    dropped: u64,
}

impl Counts {
    fn read(metrics: &PrometheusHandle) -> Self {
        let text = metrics.render();
        let count = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
        };
        Self {
            hot: count("outbox_hot_enqueued_total"),
            cold: count("outbox_cold_enqueued_total"),
            dropped: count("outbox_hot_dropped_total"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            hot: self.hot - before.hot,
            cold: self.cold - before.cold,
            dropped: self.dropped - before.dropped,
        }
    }
}

/// How busy the machine is with others.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}
