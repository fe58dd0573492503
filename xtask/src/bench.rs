//! `cargo xtask bench`: one benchmark, on a server that keeps its promises.

use std::process::Command;

use postbox_testkit::PgServer;

use crate::run::{cargo, root, step};
use crate::{install, metadata};

/// A benchmark without these measures a database that may lose what it confirmed.
const SETTINGS: &[&str] = &["fsync=on", "synchronous_commit=on", "shared_buffers=512MB", "max_wal_size=4GB"];

/// Builds for release, starts the server, runs the benchmark.
pub(crate) fn run(name: &str, args: &[&str]) -> Result<(), String> {
    install::test_needs()?;
    step(
        "cargo build --release",
        cargo().args(["build", "--release", "--package", "postbox-bench", "--package", "postbox-cli"]),
    )?;
    let built = metadata::read()?.target.join("release");
    let server = PgServer::try_with(SETTINGS)?;
    step(
        &format!("bench {name}"),
        Command::new(built.join("postbox-bench"))
            .arg(name)
            .args(args)
            .current_dir(root())
            .env("POSTBOX_BENCH_PG_URL", server.url("postgres"))
            .env("POSTBOX_BIN", built.join("postbox")),
    )
}
