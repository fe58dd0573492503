//! The log: to standard error, since standard output may be a sink.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts the log with `RUST_LOG`, else with this filter.
pub(crate) fn start(format: Format, filter: &str) {
    let chosen = std::env::var("RUST_LOG").ok().filter(|chosen| !chosen.trim().is_empty());
    let mut filter = chosen.unwrap_or_else(|| filter.to_owned());
    // The client of RabbitMQ logs what comes back with its payload.
    if !filter.contains("lapin") {
        filter.push_str(",lapin=off");
    }
    let filter = EnvFilter::builder().parse_lossy(filter);
    let builder = SubscriberBuilder::default()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // Its reports go through a macro that panics when standard error is closed.
        .log_internal_errors(false);
    // The only error is a log that was started before, which only happens in tests.
    let _ = match format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
}
