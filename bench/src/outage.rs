//! Outage: how fast one sink is served while a million events of the same table wait for another that is down.

use crate::drain::{Bench, median};

const WELL: &str = "bench.well.happened.v1";
const DOWN: &str = "bench.down.happened.v1";

/// The sink is down because its directory does not exist.
const CONFIG: &str = r#"
[sinks.down]
url = "file:/nonexistent/postbox/out.jsonl"
[sinks.well]
url = "null:"
[[route]]
topic = "bench.down.**"
sink = "down"
[[route]]
topic = "**"
sink = "well"
"#;

/// Alternates runs without and with the backlog, prints each, then the medians and their ratio.
pub(crate) async fn run(events: usize, rounds: usize, waiting: usize) {
    let bench = Bench::new(events, 500).await;
    let config = std::env::temp_dir().join(format!("postbox-bench-{}.toml", std::process::id()));
    std::fs::write(&config, CONFIG).expect("a file");
    let args = ["--config", config.to_str().expect("a path")];
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
    let charged =
        "SELECT count(*) FROM bench_outbox WHERE topic = $1 AND (attempts > 1 OR dead_at IS NOT NULL)";
    let charged: i64 =
        sqlx::query_scalar(charged).bind(DOWN).fetch_one(&bench.pool).await.expect("an answer");
    let (alone, beside) = (median(&mut alone), median(&mut beside));
    println!(
        "median: alone {alone:.0}/s, beside {beside:.0}/s, ratio {:.2}, peak memory {memory} KiB, waiting events charged: {charged}",
        beside / alone
    );
    std::fs::remove_file(config).ok();
}
