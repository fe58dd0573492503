//! An order has its effect once, from the customer's click to the shelf, whatever is killed on the way.
//!
//! ```text
//! customers ── POST, Idempotency-Key ──> shop ── order + event, one commit ──> relay ──> NATS JetStream ──> stock ── inbox + movement, one commit
//! ```
//!
//! `cargo run -p exactly-once --features nats -- --chaos --for 60s` runs shop, relay and stock as processes of their own and kills one of them, or
//! the broker, every now and then. Then it audits the books. What is worth reading is in `shop.rs`, `relay.rs` and `stock.rs`.

mod audit;
mod broker;
mod customers;
mod director;
mod relay;
mod settings;
mod shop;
mod stock;

use std::process::ExitCode;

use settings::{Part, Settings};

/// Anything that can go wrong, in its own words.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    // What a part complains of while others are killed is no news; RUST_LOG=warn shows it.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into());
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).init();
    let settings = match Settings::parse(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(problem) => {
            eprintln!("exactly-once: {problem}\n{}", settings::USAGE);
            return ExitCode::from(2);
        }
    };
    let ended = match &settings.part {
        None => director::run(&settings).await,
        Some(part) => run(*part, &settings).await.map(|()| true),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("exactly-once: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One of the parts, until the director closes its standard input, or kills it.
async fn run(part: Part, settings: &Settings) -> Result<()> {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    match part {
        Part::Shop => shop::run(settings).await,
        Part::Relay => relay::run(settings).await,
        Part::Stock => stock::run(settings).await,
    }
}
