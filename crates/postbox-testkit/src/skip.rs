//! Tests that cannot run here say so, loudly enough that a green run means they ran.
//!
//! A skipped test looks like a passed one to `cargo test`. So every skip is printed as a line that starts with
//! `skipped:`, past the harness's capture, and noted in the file that [`SKIPS_ENV`] names. `cargo xtask test` sets
//! it and fails when a skip is not on its allow-list.

use std::fs::OpenOptions;
use std::io::Write;

/// Names the file to which each skip is appended, one line each: the test, a tab, the reason.
pub const SKIPS_ENV: &str = "POSTBOX_TEST_SKIPS";

/// Says that the current test does not run, and why; the test then returns.
pub fn skipped(reason: impl AsRef<str>) {
    let reason = reason.as_ref().replace(['\n', '\t'], " ");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    // Straight to the descriptor: the harness hides what the print macros write in tests that pass.
    writeln!(std::io::stderr(), "skipped: {test}: {reason}").ok();
    if let Some(path) = std::env::var_os(SKIPS_ENV) {
        // One write of one line: appends of several test processes must not mix.
        let line = format!("{test}\t{reason}\n");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("cannot note a skip in {}: {error}", path.display()));
    }
}

/// Leaves the current test with a reason, by [`skipped`] and `return`.
///
/// ```no_run
/// # fn has_broker() -> bool { false }
/// fn needs_a_broker() {
///     if !has_broker() {
///         postbox_testkit::skip!("no broker on this machine");
///     }
/// }
/// ```
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skipped(format!($($reason)+));
        return;
    }};
}

/// The shared PostgreSQL, or leaves the current test when the machine has none.
///
/// ```no_run
/// fn reads_a_row() {
///     let db = postbox_testkit::postgres_or_skip!().database();
///     assert_eq!(db.psql("select 1"), "1");
/// }
/// ```
#[macro_export]
macro_rules! postgres_or_skip {
    () => {
        $crate::broker_or_skip!($crate::PgServer::try_shared())
    };
}

/// The server that was asked for, or leaves the current test with the reason why there is none.
///
/// ```no_run
/// use postbox_testkit::{NatsServer, broker_or_skip};
///
/// fn survives_a_restart_of_the_broker() {
///     let nats = broker_or_skip!(NatsServer::try_start());
///     nats.stop();
///     nats.start_again();
/// }
/// ```
#[macro_export]
macro_rules! broker_or_skip {
    ($server:expr) => {
        match $server {
            Ok(server) => server,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}
