//! Servers that belong to one test run: started on a free port in a temporary folder, stopped and removed at the end.
//!
//! None of them touches a server that already runs on the machine, and each is cleaned up by a watchdog process, so
//! that even a test that is killed leaves neither process nor folder behind.

mod account;
pub mod broker;
pub mod chromedriver;
mod database;
mod instance;
pub mod java;
pub mod kafka;
pub mod mariadb;
pub mod nats;
pub mod options;
pub mod pgbouncer;
pub mod postgres;
pub mod pulsar;
pub mod rabbitmq;
pub mod redis;
mod room;
mod tls;
mod url;
mod watchdog;

use std::process::Command;

pub use broker::Broker;
pub use chromedriver::ChromeDriver;
pub use database::TestDb;
pub use kafka::KafkaServer;
pub use mariadb::{MariaDb, MariaDbServer};
pub use nats::NatsServer;
pub use options::ServerOptions;
pub use pgbouncer::PgBouncer;
pub use postgres::PgServer;
pub use pulsar::PulsarServer;
pub use rabbitmq::RabbitServer;
pub use redis::RedisServer;

/// Runs a command to its end: its standard output, or what it said when it failed.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let shown = format!("{} {:?}", command.get_program().display(), command.get_args().collect::<Vec<_>>());
    let output = command.output().map_err(|error| format!("cannot run {shown}: {error}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(stdout.into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{shown} ended with {}\n{stdout}{stderr}", output.status))
}
