//! Measures Postbox against the bare SQL of the same strategy, alternating in one run.
//!
//! `cargo xtask bench drain [--sqlite | --mysql] [--lease | --history keep|move|none] [events] [rounds] [batch]`,
//! `cargo xtask bench order [--lease] [events] [rounds] [batch]`, `cargo xtask bench hang [events] [rounds] [batch]`,
//! `cargo xtask bench growth [--history …] [events] [rounds] [batch]`, `cargo xtask bench sustain [--history …] [seconds] [batch]`,
//! `cargo xtask bench share [events] [rounds] [batch]`, `cargo xtask bench enqueue [seconds] [rounds]`,
//! `cargo xtask bench outage [--brokers] [events] [rounds] [waiting]`, `cargo xtask bench latency [rate] [rounds] [seconds]`;
//! `cargo xtask bench databases [events] [rounds]`, `cargo xtask bench idempotency [--sqlite | --mysql] [calls] [rounds]`;
//! against brokers' own clients: `cargo xtask bench sinks [events] [rounds] [batch] [--only nats,redis,rabbitmq,kafka]`; and against
//! others: `cargo xtask bench peers [events] [rounds] [--only NAME,…] [--json FILE] [--svg FILE] [--from FILE]`. Absolute
//! figures depend on the machine; the ratio is what counts, and only ratios of one run.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

mod bare;
mod databases;
mod drain;
mod enqueue;
mod growth;
mod hang;
mod history;
mod idempotency;
mod latency;
mod mysql;
mod order;
mod outage;
mod peers;
mod share;
#[cfg(feature = "brokers")]
mod sinks;
mod sqlite;

#[tokio::main]
async fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut flag =
        |name: &str| args.iter().position(|arg| arg == name).map(|place| args.remove(place)).is_some();
    let (on_sqlite, on_mysql) = (flag("--sqlite"), flag("--mysql"));
    let (lease, brokers) = (flag("--lease"), flag("--brokers"));
    let mut value = |name: &str| {
        args.iter().position(|arg| arg == name).map(|place| {
            args.remove(place);
            assert!(place < args.len(), "{name} needs a value");
            args.remove(place)
        })
    };
    let history = value("--history");
    let (only, json, svg, from) = (value("--only"), value("--json"), value("--svg"), value("--from"));
    let number = |place: usize, default: usize| {
        args.get(place).map_or(default, |text| text.parse().expect("a number"))
    };
    match args.first().map(String::as_str) {
        Some("drain") if on_sqlite => sqlite::run(number(1, 500_000), number(2, 3), number(3, 500)).await,
        Some("drain") if on_mysql => {
            let history = history.as_deref().unwrap_or("keep");
            mysql::run(lease, history, number(1, 100_000), number(2, 3), number(3, 500)).await;
        }
        Some("drain") if lease => drain::run(number(1, 200_000), number(2, 3), number(3, 500)).await,
        Some("drain") => {
            let history = history.as_deref().unwrap_or("keep");
            history::run(history, number(1, 200_000), number(2, 3), number(3, 500)).await;
        }
        Some("order") => {
            let claim = if lease { "lease" } else { "owner" };
            order::run(claim, number(1, 200_000), number(2, 3), number(3, 500)).await;
        }
        Some("share") => share::run(number(1, 20_000), number(2, 3), number(3, 100)).await,
        Some("growth") => {
            let history = history.as_deref().unwrap_or("keep");
            growth::run(history, number(1, 200_000), number(2, 3), number(3, 500)).await;
        }
        Some("sustain") => {
            growth::sustain(history.as_deref().unwrap_or("none"), number(1, 60), number(2, 500)).await;
        }
        Some("hang") => hang::run(number(1, 200_000), number(2, 3), number(3, 500)).await,
        Some("enqueue") => enqueue::run(number(1, 5), number(2, 3)).await,
        #[cfg(feature = "brokers")]
        Some("outage") if brokers => {
            sinks::outage::run(number(1, 100_000), number(2, 3), number(3, 1_000_000)).await;
        }
        Some("outage") if !brokers => {
            outage::run(number(1, 100_000), number(2, 3), number(3, 1_000_000)).await;
        }
        Some("databases") => databases::run(number(1, 500_000), number(2, 3)).await,
        Some("idempotency") => idempotency::run(number(1, 2_000), number(2, 5)).await,
        Some("latency") => latency::run(number(1, 500), number(2, 3), number(3, 20)).await,
        #[cfg(feature = "brokers")]
        Some("sinks") => {
            sinks::run(number(1, 200_000), number(2, 3), number(3, 1_000), names(only)).await;
        }
        Some("peers") => {
            let (events, rounds, only) = (number(1, 200_000), number(2, 3), names(only));
            let options = peers::Options { events, rounds, only, json, svg, from };
            peers::run(&options).await;
        }
        _ => eprintln!(
            "usage: cargo xtask bench drain [--sqlite | --mysql] [--lease | --history keep|move|none] [events] [rounds] [batch] | \
             order [--lease] [events] [rounds] [batch] | hang [events] [rounds] [batch] | \
             share [events] [rounds] [batch] | growth [--history …] [events] [rounds] [batch] | \
             sustain [--history …] [seconds] [batch] | enqueue [seconds] [rounds] | outage [--brokers] [events] [rounds] [waiting] | \
             databases [events] [rounds] | idempotency [--sqlite | --mysql] [calls] [rounds] | sinks [events] [rounds] [batch] [--only NAME,…] | latency [rate] [rounds] [seconds] | \
             peers [events] [rounds] [--only NAME,…] [--json FILE] [--svg FILE] [--from FILE]"
        ),
    }
}

/// What `--only` names.
fn names(only: Option<String>) -> Option<Vec<String>> {
    only.map(|names| names.split(',').map(str::to_owned).collect())
}
