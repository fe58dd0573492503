//! Growth: whether a relay keeps its pace on a table that is old, or beside a transaction that is; and whether a table keeps its size
//! under writers that do not stop.

use std::process::Stdio;
use std::time::{Duration, Instant};

use postbox::{Outbox, Record, Topic};
use sqlx::{Connection as _, PgConnection};

use crate::drain::{Bench, TOPIC, median};
use crate::history::relayed;

const PUBLISHED: usize = 1_000_000;
const DEAD: usize = 100_000;
/// Two writers, each so many events a transaction.
const WRITERS: usize = 2;
const TOGETHER: usize = 100;

/// What a table is like before its backlog is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Empty,
    Old,
    /// Empty, but a transaction from before stays open: nothing that dies meanwhile can be cleared away.
    HeldOpen,
}

const AGES: [(&str, Age); 3] = [
    ("empty table", Age::Empty),
    ("1,000,000 published, 100,000 dead", Age::Old),
    ("a transaction held open", Age::HeldOpen),
];

/// Alternates drains of tables of each age, prints each run, then the medians and their ratios to the empty one.
pub(crate) async fn run(history: &str, events: usize, rounds: usize, batch: usize) {
    let bench = Bench::new(events, batch).await;
    println!("drain of {events} events, history {history}, owned, batch {batch}, {rounds} rounds");
    let mut rates: [Vec<f64>; 3] = Default::default();
    for round in 1..=rounds {
        for ((name, age), rates) in AGES.iter().zip(&mut rates) {
            let rate = drain(&bench, history, *age).await;
            println!("round {round}: {rate:>8.0}/s   {name}");
            rates.push(rate);
        }
    }
    let medians = rates.map(|mut rates| median(&mut rates));
    for ((name, _), rate) in AGES.iter().zip(medians) {
        println!("median: {rate:>8.0}/s   ratio {:.2}   {name}", rate / medians[0]);
    }
}

async fn drain(bench: &Bench, history: &str, age: Age) -> f64 {
    bench.make_table_for(history).await;
    if age == Age::Old {
        add(bench, "bench.thing.was.v1", PUBLISHED, 1, "published_at").await;
        add(bench, "bench.thing.was.v1", DEAD, 2, "dead_at").await;
    }
    bench.settle_down().await;
    let options = bench.pool.connect_options();
    let mut holder: PgConnection = sqlx::ConnectOptions::connect(&*options).await.expect("a connection");
    if age == Age::HeldOpen {
        let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM bench_outbox";
        sqlx::raw_sql(hold).execute(&mut holder).await.expect("a transaction");
    }
    add(bench, TOPIC, bench.events, 3, "occurred_at").await;
    bench.settle_down().await;
    let rate = relayed(bench, history).await.rate;
    holder.close().await.expect("its end");
    rate
}

/// Writes events as the library does, whose ids rise, each with a time in this column.
async fn add(bench: &Bench, topic: &str, events: usize, age: u8, column: &str) {
    let id = format!("('0190000{age}-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid");
    let sql = format!(
        "INSERT INTO bench_outbox (id, event_id, tenant_id, topic, payload, {column})
         SELECT {id}, {id}, '00000000-0000-0000-0000-000000000000', '{topic}',
                jsonb_build_object('n', n, 'text', repeat(md5(n::text), 8)), now() - interval '1 hour'
         FROM generate_series(1, {events}) n"
    );
    bench.sql(&sql).await;
}

/// Writers that do not stop, with one relay: how many events wait and how large the table is, as time goes by.
pub(crate) async fn sustain(history: &str, seconds: usize, batch: usize) {
    let bench = Bench::new(0, batch).await;
    bench.make_table_for(history).await;
    println!(
        "{WRITERS} writers, {TOGETHER} events a transaction, {seconds} s, history {history}, batch {batch}"
    );
    let mut relay = bench
        .postbox(&["relay", "--table", "public.bench_outbox", "--sink", "null:"])
        .args(["--history", history, "--batch-size", &bench.batch.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("the program");
    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(write(bench.pool.clone(), until))).collect();
    let mut largest = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(5)).await;
        largest = largest.max(look(&bench, history).await);
    }
    let mut written = 0;
    for writer in writers {
        written += writer.await.expect("a writer");
    }
    println!("written: {written}, {}/s", written / seconds.max(1));
    largest = largest.max(look(&bench, history).await);
    relay.kill().expect("a kill");
    relay.wait().expect("its end");
    let live = live_size(&bench).await;
    println!("the table at its largest: {largest} MiB; what is in it at the end, written anew: {live} MiB");
}

async fn write(pool: sqlx::PgPool, until: Instant) -> usize {
    let outbox = Outbox::new("public.bench_outbox".parse().expect("a name"));
    let text = "0123456789abcdef".repeat(16);
    let mut written = 0;
    while Instant::now() < until {
        let record = |n: usize| {
            let payload = serde_json::json!({ "n": n, "text": text });
            Record::builder(Topic::from_static(TOPIC)).json(&payload).build().expect("an event")
        };
        let records: Vec<Record> = (written..written + TOGETHER).map(record).collect();
        let mut tx = pool.begin().await.expect("a transaction");
        outbox.enqueue_all(&mut tx, records).await.expect("an enqueue");
        tx.commit().await.expect("a commit");
        written += TOGETHER;
    }
    written
}

/// Prints how many wait and how large the table is; answers the latter in MiB, with its indexes.
async fn look(bench: &Bench, history: &str) -> i64 {
    let sql = "SELECT (SELECT count(*) FROM bench_outbox WHERE published_at IS NULL AND dead_at IS NULL),
                      pg_table_size('bench_outbox') >> 20, pg_total_relation_size('bench_outbox') >> 20,
                      coalesce(pg_total_relation_size(to_regclass('bench_outbox_history')), 0) >> 20";
    let (waiting, table, total, moved): (i64, i64, i64, i64) =
        sqlx::query_as(sql).fetch_one(&bench.pool).await.expect("figures");
    let moved = if history == "move" { format!("   history {moved} MiB") } else { String::new() };
    println!("{waiting:>8} wait   table {table:>5} MiB, with indexes {total:>5} MiB{moved}");
    total
}

/// The size of what is there, without what is dead.
async fn live_size(bench: &Bench) -> i64 {
    bench.sql("VACUUM FULL bench_outbox").await;
    let size = "SELECT pg_total_relation_size('bench_outbox') >> 20";
    sqlx::query_scalar(size).fetch_one(&bench.pool).await.expect("a size")
}
