//! Peers: the same events written and drained by Postbox and by other queues and outboxes, alternating, on one server.
//!
//! Each peer is a small program in `bench/peers`, whose README says what it must do. `cargo xtask bench peers` installs what they
//! need first.

mod chart;
mod program;
mod report;

use std::path::Path;
use std::time::Instant;

use postbox::{Outbox, Record, Topic};
use serde::Serialize;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::drain::{Bench, TOPIC};
use crate::history;
use program::{PEERS, Peer, Task};
use report::{Entry, Results};

/// How many events are written at once, by everyone.
const BULK: usize = 1000;

/// Its default is smaller, for the sake of others on the server; peers have large ones too.
const BATCH: usize = 1000;

const HISTORIES: [(&str, &str, &str); 3] = [
    ("postbox keep", "keep", "kept"),
    ("postbox move", "move", "moved to a history"),
    ("postbox none", "none", "deleted"),
];

/// What was asked for.
pub(crate) struct Options {
    pub(crate) events: usize,
    pub(crate) rounds: usize,
    /// Names, or the beginnings of them.
    pub(crate) only: Option<Vec<String>>,
    /// Where results go as JSON, and as a chart.
    pub(crate) json: Option<String>,
    pub(crate) svg: Option<String>,
    /// Results to which the new rounds are added.
    pub(crate) from: Option<String>,
}

/// One of those that are compared.
#[derive(Clone, Copy)]
enum Contestant {
    Postbox { name: &'static str, history: &'static str, after: &'static str },
    Peer(&'static Peer),
}

/// What one of them did in one round, events per second.
struct Measured {
    enqueue: f64,
    drain: f64,
    /// Bytes of log per event drained.
    wal: f64,
}

/// Alternates all, prints each run, then the table.
pub(crate) async fn run(options: &Options) {
    let bench = Bench::new(options.events, BATCH).await;
    let chosen = chosen(options.only.as_deref());
    assert!(!chosen.is_empty(), "--only names nobody: {}", names().join(", "));
    let mut results = match &options.from {
        Some(file) => Results::read(Path::new(file)),
        None => Results::new(options.events, server(&bench.pool).await),
    };
    println!(
        "{} events of about 300 bytes, written in thousands, then drained by a handler that does nothing; {} rounds",
        options.events, options.rounds
    );
    for round in 1..=options.rounds {
        for contestant in &chosen {
            let entry = results.entry(contestant.entry(options.events));
            if entry.skipped.is_some() {
                continue;
            }
            match contestant.measure(&bench).await {
                Ok(Measured { enqueue, drain, wal }) => {
                    println!(
                        "round {round}: {:<18} enqueue {enqueue:>7.0}/s   drain {drain:>7.0}/s   {wal:>5.0} B of WAL per event",
                        entry.name
                    );
                    entry.add(enqueue, drain, wal);
                }
                Err(why) => {
                    println!("skipped: {}: {why}", entry.name);
                    entry.skipped = Some(why);
                }
            }
        }
    }
    println!("\n{}", results.table());
    if let Some(file) = &options.json {
        results.write(Path::new(file));
    }
    if let Some(file) = &options.svg {
        std::fs::write(file, chart::svg(&results)).expect("the chart");
    }
}

fn all() -> impl Iterator<Item = Contestant> {
    let ours = HISTORIES.iter().map(|&(name, history, after)| Contestant::Postbox { name, history, after });
    ours.chain(PEERS.iter().map(Contestant::Peer))
}

fn names() -> Vec<&'static str> {
    all().map(Contestant::name).collect()
}

/// `keep` is short for `postbox keep`.
fn chosen(only: Option<&[String]>) -> Vec<Contestant> {
    let wanted = |contestant: &Contestant| {
        let name = contestant.name();
        only.is_none_or(|only| {
            only.iter().any(|wanted| wanted == name || name.strip_prefix("postbox ") == Some(wanted.as_str()))
        })
    };
    all().filter(wanted).collect()
}

/// What is measured on, in a line.
async fn server(pool: &PgPool) -> String {
    let settings = "SELECT format('PostgreSQL %s, shared_buffers %s, fsync %s, synchronous_commit %s', current_setting('server_version'),
        current_setting('shared_buffers'), current_setting('fsync'), current_setting('synchronous_commit'))";
    let settings: String = sqlx::query_scalar(settings).fetch_one(pool).await.expect("settings");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{settings}; {cores} cores")
}

impl Contestant {
    fn name(self) -> &'static str {
        match self {
            Self::Postbox { name, .. } => name,
            Self::Peer(peer) => peer.name,
        }
    }

    /// Where its results go.
    fn entry(self, events: usize) -> Entry {
        match self {
            Self::Postbox { name, after, .. } => {
                Entry::new(name, env!("CARGO_PKG_VERSION"), "Rust", after, events).ours()
            }
            Self::Peer(peer) => {
                let events = peer.at_most.map_or(events, |most| most.min(events));
                let entry = Entry::new(peer.name, peer.version, peer.language, peer.after, events);
                let mut entry = entry.log(peer.log);
                entry.skipped = peer.missing();
                entry
            }
        }
    }

    async fn measure(self, bench: &Bench) -> Result<Measured, String> {
        match self {
            Self::Postbox { history, .. } => Ok(postbox(bench, history).await),
            Self::Peer(peer) => other(bench, peer).await,
        }
    }
}

async fn postbox(bench: &Bench, history: &str) -> Measured {
    bench.make_table_for(history).await;
    let enqueue = enqueue(bench).await;
    bench.settle_down().await;
    let drained = history::relayed(bench, history).await;
    Measured { enqueue, drain: drained.rate, wal: drained.wal }
}

#[derive(Serialize)]
struct Payload {
    n: usize,
    text: String,
}

/// On one connection, a thousand in a transaction.
async fn enqueue(bench: &Bench) -> f64 {
    // Made before the clock starts, here as by the peers.
    let payloads: Vec<Payload> =
        (1..=bench.events).map(|n| Payload { n, text: format!("{n:032x}").repeat(8) }).collect();
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect_with((*bench.pool.connect_options()).clone()).await.expect("the server");
    let outbox = Outbox::new("public.bench_outbox".parse().expect("a name"));
    let started = Instant::now();
    for some in payloads.chunks(BULK) {
        let mut tx = pool.begin().await.expect("a transaction");
        let records =
            some.iter().map(|payload| Record::builder(const { Topic::from_static(TOPIC) }).json(payload));
        outbox.enqueue_all(&mut tx, records).await.expect("events");
        tx.commit().await.expect("a commit");
    }
    rate(bench.events, started.elapsed().as_secs_f64())
}

/// In a database of its own, made for this run and dropped after it.
async fn other(bench: &Bench, peer: &Peer) -> Result<Measured, String> {
    let database = format!("peer_{}", peer.name.replace('-', "_"));
    let sql = async |sql: String| {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&bench.pool).await.expect("a statement");
    };
    sql(format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)")).await;
    sql(format!("CREATE DATABASE {database}")).await;
    let options = (*bench.pool.connect_options()).clone().database(&database);
    let measured = measure_in(bench, peer, &options).await;
    sql(format!("DROP DATABASE {database} WITH (FORCE)")).await;
    measured
}

async fn measure_in(bench: &Bench, peer: &Peer, options: &PgConnectOptions) -> Result<Measured, String> {
    let url = bench.url_of(options.get_database().unwrap_or_default());
    let events = peer.at_most.map_or(bench.events, |most| most.min(bench.events));
    let enqueue = rate(events, peer.run(&url, Task::Fill, events).await?);
    let mut connection = PgConnection::connect_with(options).await.expect("the server");
    for settle in ["VACUUM ANALYZE", "CHECKPOINT"] {
        sqlx::raw_sql(settle).execute(&mut connection).await.expect("a statement");
    }
    let before = history::wal(&bench.pool).await;
    let drain = rate(events, peer.run(&url, Task::Drain, events).await?);
    let wal = history::wal_since(&bench.pool, &before).await / rate(events, 1.0);
    Ok(Measured { enqueue, drain, wal })
}

#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn rate(events: usize, seconds: f64) -> f64 {
    events as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::{chosen, names};

    #[test]
    fn names_choose_contestants() {
        let all = names();
        assert_eq!(chosen(None).len(), all.len());
        let only = ["keep".to_owned(), "pg-boss".to_owned()];
        let chosen: Vec<&str> = chosen(Some(&only)).into_iter().map(super::Contestant::name).collect();
        assert_eq!(chosen, ["postbox keep", "pg-boss"]);
    }
}
