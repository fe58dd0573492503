//! What the tests need from the machine, installed where it is missing and can be.

use std::path::Path;
use std::process::Command;

use postbox_testkit::server::{mariadb, pgbouncer, postgres, rabbitmq};

use crate::run::{output, step, works};
use crate::{browser, jars, metadata};

/// A file whose absence means that a package is missing, searched for as a program when it has no slash, and the package.
const BROKER_NEEDS: &[(&str, &str)] = &[
    ("nats-server", "nats-server"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    (rabbitmq::SERVER, "rabbitmq-server"),
    // A client of RabbitMQ that is not the sink's.
    ("/usr/lib/python3/dist-packages/pika", "python3-pika"),
    ("kcat", "kcat"),
    // Kafka and Pulsar: see `jars`.
    // A whole kit: tests read Pulsar by a program of its own client, from its source.
    ("javac", "default-jdk-headless"),
    ("mvn", "maven"),
    // For certificates and passwords.
    ("openssl", "openssl"),
    // The client of Kafka is built from C and C++, the one of Pulsar from its protocol's description.
    ("g++", "g++"),
    ("make", "make"),
    ("/usr/include/zlib.h", "zlib1g-dev"),
    ("protoc", "protobuf-compiler"),
    // TLS for Kafka.
    ("pkg-config", "pkg-config"),
    ("/usr/include/openssl/ssl.h", "libssl-dev"),
];

/// Runs apt-get, `$@` being its arguments. What it installs must not start servers on the machine's usual ports: Debian asks
/// this file whether it may. One that is there already is somebody else's, and its answer stands. What it says is no output of
/// ours: `cargo xtask services` is read by a shell.
const APT_GET: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get "$@" >&2
"#;

/// Makes sure that there are a PostgreSQL server's programs, its pooler, MariaDB's, promtool, faketime, psycopg, and a C compiler; and, if asked for, the brokers
/// that are packages and what their clients are built with. `jars` has the others.
pub(crate) fn test_needs(brokers: bool) -> Result<(), String> {
    let mut packages = Vec::new();
    if brokers {
        packages.extend(BROKER_NEEDS.iter().filter(|(file, _)| !exists(file)).map(|(_, package)| *package));
    }
    if let Err(error) = postgres::find_binaries() {
        // Whoever names a folder wants that one, not a package.
        if std::env::var_os(postgres::BIN_ENV).is_some() {
            return Err(error);
        }
        packages.push("postgresql");
    }
    if !exists(mariadb::SERVER) {
        packages.push("mariadb-server");
    }
    if pgbouncer::find_program().is_err() {
        packages.push("pgbouncer");
    }
    // Alerts are tested by the program that comes with the server; the server itself is not started.
    if !exists("promtool") {
        packages.push("prometheus");
    }
    // The book writes events in Python, too.
    let psycopg = ["python3", "/usr/bin/python3"];
    if !psycopg.into_iter().any(|python| works(python, &["-c", "import psycopg"])) {
        packages.push("python3-psycopg");
    }
    // Programs under test are shown wrong clocks.
    if !exists("faketime") {
        packages.push("faketime");
    }
    // Dependencies compile C code.
    if !works("cc", &["--version"]) {
        packages.extend(["gcc", "libc6-dev"]);
    }
    if !packages.is_empty() {
        apt_get(&packages)?;
        pgbouncer::find_program()?;
        postgres::find_binaries()?;
    }
    Ok(())
}

/// Makes sure that there is a browser.
pub(crate) fn browser_needs() -> Result<(), String> {
    let missing = browser::NEEDS.iter().filter(|(file, _)| !exists(file));
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() { Ok(()) } else { apt_get(&packages) }
}

/// Builds while what no package has is fetched: the one waits for processors, the other for the network, minutes on a new machine.
pub(crate) fn fetch_beside(
    brokers: bool,
    browser: bool,
    build: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let target = metadata::read()?.target;
    let fetch = || {
        if brokers {
            jars::fetch(&target)?;
        }
        if browser { browser::fetch(&target) } else { Ok(()) }
    };
    std::thread::scope(|scope| {
        let fetching = scope.spawn(fetch);
        let done = build();
        fetching.join().unwrap_or_else(|_| Err("what no package has could not be fetched".into()))?;
        done
    })
}

fn exists(file: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/bin".into()])
        // A whole path stays what it is.
        .any(|folder| folder.join(file).exists())
}

/// Installs Debian packages.
fn apt_get(packages: &[&str]) -> Result<(), String> {
    let wanted = packages.join(" ");
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(format!(
            "this machine lacks {wanted} and has no apt-get: install them by its own means, or set {} to the folder \
             with initdb and pg_ctl",
            postgres::BIN_ENV
        ));
    }
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if !is_root && !works("sudo", &["-n", "true"]) {
        return Err(format!(
            "this machine lacks {wanted}: run `sudo apt-get install -y {wanted}`, then try again"
        ));
    }
    let apt = |args: &[&str]| {
        let mut command = if is_root { Command::new("sh") } else { Command::new("sudo") };
        if !is_root {
            command.args(["-n", "--preserve-env=DEBIAN_FRONTEND", "sh"]);
        }
        command.args(["-c", APT_GET, "apt-get"]).args(args).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    step("apt-get update", &mut apt(&["-q", "update"]))?;
    let mut args = vec!["-q", "install", "-y", "--no-install-recommends"];
    args.extend(packages);
    step(&format!("apt-get install {wanted}"), &mut apt(&args))
}
