//! `cargo xtask bench`: one benchmark, on a server that keeps its promises.

use std::process::Command;

use postbox_testkit::{MariaDbServer, PgBouncer, PgServer, ServerOptions};

use crate::run::{cargo, root, step};
use crate::{install, metadata, peers};

/// A benchmark without these measures a database that may lose what it confirmed.
const SETTINGS: &[&str] = &["fsync=on", "synchronous_commit=on", "shared_buffers=512MB", "max_wal_size=4GB"];

/// The same for MariaDB.
const MARIADB: &[&str] = &[
    "innodb_flush_method=fsync",
    "innodb_doublewrite=1",
    "innodb_buffer_pool_size=512M",
    "innodb_log_file_size=1G",
];

/// What the program and the benchmark need for those that deliver to brokers.
const BROKERS: &str =
    "postbox-bench/brokers,postbox-cli/kafka,postbox-cli/nats,postbox-cli/rabbitmq,postbox-cli/redis";

/// Builds for release, starts the server (PostgreSQL, or MariaDB; SQLite needs none), runs the benchmark.
pub(crate) fn run(name: &str, args: &[&str]) -> Result<(), String> {
    let with_brokers = name == "sinks" || args.contains(&"--brokers");
    if !args.contains(&"--sqlite") {
        install::test_needs(with_brokers)?;
    }
    install::fetch_beside(with_brokers, false, || build(with_brokers))?;
    measure(name, args, &mut |bench| step(&format!("bench {name}"), bench))
}

/// Builds the benchmarks and the program for release.
pub(crate) fn build(with_brokers: bool) -> Result<(), String> {
    let mut build = cargo();
    build.args(["build", "--release", "--package", "postbox-bench", "--package", "postbox-cli"]);
    if with_brokers {
        build.args(["--features", BROKERS]);
    }
    step("cargo build --release", &mut build)
}

/// Gives a benchmark that is built to whoever runs it, with the server that it needs.
pub(crate) fn measure(
    name: &str,
    args: &[&str],
    run: &mut dyn FnMut(&mut Command) -> Result<(), String>,
) -> Result<(), String> {
    let (on_sqlite, on_mysql) = (args.contains(&"--sqlite"), args.contains(&"--mysql"));
    let behind = args.contains(&"--pooler");
    let args: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--pooler").collect();
    let target = metadata::read()?.target;
    let release = target.join("release");
    let mut bench = Command::new(release.join("postbox-bench"));
    bench.arg(name).args(&args).current_dir(root());
    // Not the system's folder for such files: that is often kept in memory, where to sync costs nothing.
    bench.env("POSTBOX_BENCH_FOLDER", &target).env("POSTBOX_BIN", release.join("postbox"));
    if name == "peers" {
        bench.env(peers::MISSING, peers::prepare(&args, &target));
    }
    let server = if on_sqlite || on_mysql { None } else { Some(PgServer::try_with(SETTINGS)?) };
    let mut mariadb = None;
    if on_mysql {
        let options = MARIADB.iter().fold(ServerOptions::new(), |options, setting| options.setting(setting));
        let mariadb = mariadb.insert(MariaDbServer::try_with(&options)?);
        bench.env("POSTBOX_BENCH_MARIADB_URL", mariadb.urls());
    }
    let mut pooler = None;
    if let Some(server) = &server {
        bench.env("POSTBOX_BENCH_PG_URL", server.url("postgres"));
        if behind {
            let pooler = pooler.insert(PgBouncer::in_front_of(server)?);
            bench.env("POSTBOX_BENCH_POOLER_URL", format!("postgres://postgres@{}/postgres", pooler.addr()));
        }
    }
    run(&mut bench)
}
