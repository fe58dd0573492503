//! Measures Postbox against the bare SQL of the same strategy, alternating in one run.
//!
//! `cargo xtask bench drain [--sqlite | --history keep|move|none] [events] [rounds] [batch]`, `cargo xtask bench outage [events] [rounds] [waiting]`,
//! `cargo xtask bench latency [rate] [rounds] [seconds]`. Absolute figures depend on the machine; the ratio is what counts,
//! and only ratios of one run.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

mod bare;
mod drain;
mod history;
mod latency;
mod outage;
mod sqlite;

#[tokio::main]
async fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let on_sqlite = args.iter().position(|arg| arg == "--sqlite").map(|place| args.remove(place)).is_some();
    let history = args.iter().position(|arg| arg == "--history").map(|place| {
        args.remove(place);
        assert!(place < args.len(), "--history keep, move or none");
        args.remove(place)
    });
    let number = |place: usize, default: usize| {
        args.get(place).map_or(default, |text| text.parse().expect("a number"))
    };
    match args.first().map(String::as_str) {
        Some("drain") if history.is_some() => {
            let history = history.as_deref().unwrap_or("keep");
            history::run(history, number(1, 200_000), number(2, 3), number(3, 500)).await;
        }
        Some("drain") if on_sqlite => sqlite::run(number(1, 500_000), number(2, 3), number(3, 500)).await,
        Some("drain") => drain::run(number(1, 200_000), number(2, 3), number(3, 500)).await,
        Some("outage") => outage::run(number(1, 100_000), number(2, 3), number(3, 1_000_000)).await,
        Some("latency") => latency::run(number(1, 500), number(2, 3), number(3, 20)).await,
        _ => eprintln!(
            "usage: cargo xtask bench drain [--sqlite | --history keep|move|none] [events] [rounds] [batch] | outage [events] [rounds] [waiting] | \
             latency [rate] [rounds] [seconds]"
        ),
    }
}
