//! What the tests of Postbox stand on: private servers, a proxy that breaks connections on demand, an oracle that
//! judges what was delivered, and a hold on the built program.
//!
//! - [`server`]: [`PgServer`] starts a PostgreSQL of its own and leaves nothing behind, even after `kill -9`;
//!   [`TestDb`] is a fresh database for one test. MariaDB likewise: [`MariaDbServer`], [`MariaDb`]. And brokers:
//!   [`NatsServer`], [`RedisServer`], [`RabbitServer`], [`KafkaServer`], [`PulsarServer`].
//! - [`proxy`]: [`Proxy`] stands between a client and its server and delays, cuts, swallows, or loses one reply.
//! - [`oracle`]: [`Oracle`] compares what was written with what arrived.
//! - [`process`]: [`Program`] runs a binary, waits for its lines, stops it in every way there is.
//! - [`browser`]: [`Browser`] is a real one, driven as a person would.
//! - [`eventually()`]: waits for a condition, and says what it waited for when it never came.
//! - [`fuzz`]: [`Fuzz`] sends a parser what nobody would.
//! - [`suite`]: what every store must keep, written once; [`store_suite!`] makes tests of it.
//! - [`mod@sink_suite`]: what every sink to a broker must keep, written once; [`sink_suite!`] makes tests of it.
//! - [`mod@skip`]: a test that cannot run says so, and `cargo xtask test` hears it.
//!
//! Only `server` and `skip` exist without the `kit` feature; whatever needs the engine or tokio stands behind it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test kit fails by panicking"
)]

#[cfg(feature = "kit")]
pub mod browser;
#[cfg(feature = "kit")]
pub mod eventually;
#[cfg(feature = "kit")]
pub mod fuzz;
#[cfg(feature = "kit")]
pub mod oracle;
#[cfg(feature = "kit")]
pub mod process;
#[cfg(feature = "kit")]
pub mod proxy;
pub mod server;
#[cfg(feature = "kit")]
pub mod sink_suite;
pub mod skip;
#[cfg(feature = "kit")]
pub mod suite;

#[cfg(feature = "kit")]
pub use browser::Browser;
#[cfg(feature = "kit")]
pub use eventually::{eventually, eventually_blocking};
#[cfg(feature = "kit")]
pub use fuzz::Fuzz;
#[cfg(feature = "kit")]
pub use oracle::{Oracle, Report, read_jsonl};
#[cfg(feature = "kit")]
pub use process::Program;
#[cfg(feature = "kit")]
pub use proxy::Proxy;
pub use server::{
    ChromeDriver, KafkaServer, MariaDb, MariaDbServer, NatsServer, PgBouncer, PgServer, PulsarServer,
    RabbitServer, RedisServer, ServerOptions, TestDb,
};
pub use skip::skipped;
