//! Outage: how fast one sink is served while a million events of the same table wait for another that is down.
//! With `--brokers` see `sinks/outage.rs`.

use crate::drain::{Bench, config_file, median};

const WELL: &str = "bench.well.happened.v1";
pub(crate) const DOWN: &str = "bench.down.happened.v1";

/// A sink that is down because its directory does not exist, and one that does nothing.
const PLAIN: &str = r#"
[sinks.down]
url = "file:/nonexistent/postbox/out.jsonl"
[sinks.well]
url = "null:"
"#;

const ROUTES: &str = r#"
[[route]]
topic = "bench.down.**"
sink = "down"
[[route]]
topic = "**"
sink = "well"
"#;

/// Between sinks that need nobody.
pub(crate) async fn run(events: usize, rounds: usize, waiting: usize) {
    let bench = Bench::new(events, 500).await;
    compare(&bench, &config(PLAIN), rounds, waiting).await;
}

/// The arguments that lead events to the sinks `down` and `well` of this configuration.
pub(crate) fn config(sinks: &str) -> [String; 2] {
    ["--config".to_owned(), config_file(&format!("{sinks}{ROUTES}"))]
}

/// Alternates runs without and with the backlog, prints each, then the medians and their ratio.
pub(crate) async fn compare(bench: &Bench, config: &[String; 2], rounds: usize, waiting: usize) {
    let (events, args) = (bench.events, config.each_ref().map(String::as_str));
    println!(
        "drain of {events} events, alone and beside {waiting} that wait for a sink that is down, {rounds} rounds"
    );
    let (mut alone, mut beside, mut memory) = (Vec::new(), Vec::new(), 0);
    for round in 1..=rounds {
        for (backlog, rates) in [(0, &mut alone), (waiting, &mut beside)] {
            bench.make_table().await;
            bench.add(DOWN, backlog).await;
            bench.add(WELL, events).await;
            bench.settle_down().await;
            memory = memory.max(bench.drain(&args, WELL).await);
            rates.push(bench.rate(WELL).await);
        }
        println!("round {round}: alone {:>8.0}/s   beside {:>8.0}/s", alone[round - 1], beside[round - 1]);
    }
    let (alone, beside) = (median(&mut alone), median(&mut beside));
    println!(
        "median: alone {alone:.0}/s, beside {beside:.0}/s, ratio {:.2}, peak memory {memory} KiB, waiting events charged: {}",
        beside / alone,
        charged(bench).await
    );
}

/// How many of those that waited had more than the attempt by which they were delivered.
pub(crate) async fn charged(bench: &Bench) -> i64 {
    let charged =
        "SELECT count(*) FROM bench_outbox WHERE topic = $1 AND (attempts > 1 OR dead_at IS NOT NULL)";
    sqlx::query_scalar(charged).bind(DOWN).fetch_one(&bench.pool).await.expect("an answer")
}
