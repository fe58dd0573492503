//! `cargo xtask test`: every test there is, on one private server of each kind.

use std::num::NonZero;
use std::process::Command;
use std::{env, fs, thread};

use postbox_testkit::server::postgres;
use postbox_testkit::skip::SKIPS_ENV;
use postbox_testkit::{MariaDbServer, PgServer};

use crate::brokers::{self, Brokers};
use crate::run::{cargo, step};
use crate::{browser, install};

/// Skips that a run may have and still pass, as beginnings of their reasons.
const ALLOWED_SKIPS: &[&str] = &[
    // The store suite on a table that has only the twelve standard columns.
    "a bare table has no",
    "a bare table cannot be paused",
    "a bare table cannot remember which sinks have confirmed",
    "no history here",
    // MySQL and MariaDB check every constraint at once.
    "no constraint is deferred here",
    // And what only such a table refuses, on the others.
    "this table can remember which sinks have confirmed",
    "this table has a place for what became of dead letters",
    // The promises of order, on tables without its indexes; the suite runs on others that have them.
    "this store keeps no order",
    // Neither there, nor for a role that may only write.
    "no hot path here",
    // The sink suite, of brokers that cannot have a promise by their nature.
    "the broker does not know events again",
    "the broker keeps no order",
    "the broker takes payloads of any size",
    "the broker knows no credentials",
    // Blocks of the book in another language, where that is missing.
    "the book: this machine does not have `node",
    // The unit is verified where there is systemd, which containers seldom have.
    "this machine has no systemd-analyze",
    // Kafka and Pulsar come from a repository of jars, which not every machine reaches.
    "Maven could not fetch",
    // So does axe, from npm's.
    "axe-core could not be fetched",
];

/// How many tests of a program run at the same time, as libtest reads it.
const THREADS: &str = "RUST_TEST_THREADS";

/// The package whose tests need the points of failure built in.
const PROGRAM: &str = "postbox-cli";

/// The packages that speak to brokers, each with the features by which it does.
const WITH_BROKERS: [(&str, &[&str]); 5] = [
    // What `full` leaves out for the sake of those who have no OpenSSL is tested, too.
    ("postbox-sinks", &["full", "kafka-tls"]),
    ("postbox-consumers", &["full"]),
    ("exactly-once", &["nats"]),
    // The page of the book that shows consumers; the others come along.
    ("postbox-book", &["consumers"]),
    // Last: the others are tested whole, and of the program only what needs a broker.
    (PROGRAM, &["full", "kafka-tls"]),
];

/// Tests at the same time, for each core. Most wait: for leases to run out, for servers, for processes.
const AT_ONCE: usize = 3;

/// One call of `cargo test`.
struct Part {
    name: &'static str,
    args: Vec<String>,
}

impl Part {
    fn new(name: &'static str, args: &[&str]) -> Self {
        Self { name, args: args.iter().map(|arg| (*arg).to_owned()).collect() }
    }

    /// Of these packages with their brokers. What cargo builds depends on all that are named: to name more than is tested saves
    /// building what they share again.
    fn with_brokers(name: &'static str, packages: &[(&str, &[&str])], args: &[&str]) -> Self {
        let features = packages.iter().flat_map(|(package, features)| {
            features.iter().map(move |feature| format!("{package}/{feature}"))
        });
        let features = features.collect::<Vec<_>>().join(",");
        let mut part = Self::new(name, &["--features", &features]);
        part.args.extend(packages.iter().map(|(package, _)| format!("--package={package}")));
        part.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        part
    }

    /// Builds what it runs.
    fn build(&self) -> Result<(), String> {
        step(&format!("{} is built", self.name), &mut self.command(&["--no-run"]))
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut cargo = cargo();
        cargo.arg("test").args(more).args(&self.args);
        cargo
    }
}

/// What is tested: all that the caller has chosen; or everything, and then what other features make of some packages.
fn parts(extra: &[&str]) -> Vec<Part> {
    // One that fails must not hide what else fails.
    let mut first = Part::new("cargo test", &["--no-fail-fast"]);
    first.args.extend(selection(extra));
    first.args.extend(extra.iter().map(|arg| (*arg).to_owned()));
    if !extra.is_empty() {
        return vec![first];
    }
    let [others @ .., _program] = &WITH_BROKERS;
    vec![
        first,
        // On its own: the program is built and tested as it ships, without this feature.
        Part::new("cargo test with otel", &["--package", "postbox-core", "--features", "otel", "--lib"]),
        // Brokers are features that the program does not have by default.
        Part::with_brokers("cargo test of sinks, consumers, and what is made of them", others, &[]),
        // In a storm, too, and with canaries, whose receivers are a webhook's.
        Part::with_brokers(
            "cargo test of the program and brokers",
            &WITH_BROKERS,
            &["--test", "brokers", "--test", "canaries", "--test", "storm"],
        ),
        // And the page of the book that needs one of them and nothing else to install.
        Part::with_brokers(
            "cargo test of the book on webhooks",
            &WITH_BROKERS,
            &["--test", "book", "webhooks"],
        ),
    ]
}

/// Runs the tests; `extra` goes to `cargo test`.
pub(crate) fn run(extra: &[&str]) -> Result<(), String> {
    let chosen = chosen(extra);
    let with_brokers = brokers::needed(&chosen);
    let with_browser = browser::needed(&chosen);
    install::test_needs(with_brokers)?;
    if with_browser {
        install::browser_needs()?;
    }
    let parts = parts(extra);
    install::fetch_beside(with_brokers, with_browser, || parts.first().map_or(Ok(()), Part::build))?;
    // One server for all test programs: each would start its own otherwise, a second and 40 MB every time. It is
    // stopped when this goes out of scope, or by its watchdog when we are killed.
    let server = PgServer::try_with(&[])?;
    let mariadb = MariaDbServer::try_start()?;
    let brokers = with_brokers.then(Brokers::start);
    // In the server's folder, which goes away even when we are killed.
    let skips = server.dir().ok_or("the private server has no folder")?.join("skips");
    let test = |part: Part| {
        let mut cargo = part.command(&[]);
        if env::var_os(THREADS).is_none() {
            let cores = thread::available_parallelism().map_or(1, NonZero::get);
            cargo.env(THREADS, (AT_ONCE * cores).to_string());
        }
        let urls = [(postgres::URL_ENV, server.url("postgres")), (MariaDbServer::URL_ENV, mariadb.urls())];
        cargo.envs(urls).envs(brokers.iter().flat_map(Brokers::variables)).env(SKIPS_ENV, &skips);
        step(part.name, &mut cargo)
    };
    let mut failed: Vec<String> = parts.into_iter().filter_map(|part| test(part).err()).collect();
    let skipped = not_allowed(&fs::read_to_string(&skips).unwrap_or_default());
    drop((server, mariadb, brokers));
    for skip in &skipped {
        eprintln!("skipped: {skip}");
    }
    if !skipped.is_empty() {
        let count = skipped.len();
        failed.push(format!(
            "{count} tests did not run, and ALLOWED_SKIPS in xtask/src/test.rs does not list them"
        ));
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n       ")) }
}

/// The packages that the caller has chosen.
fn chosen<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    // What follows a further `--` is for the test programs.
    let ours = extra.split(|arg| *arg == "--").next().unwrap_or_default();
    ours.iter()
        .zip(ours.iter().skip(1).map(Some).chain([None]))
        .filter_map(|(arg, next)| match *arg {
            "-p" | "--package" => next.copied(),
            _ => arg.strip_prefix("--package=").or_else(|| arg.strip_prefix("-p")),
        })
        .collect()
}

/// Everything, unless the caller has chosen packages.
fn selection(extra: &[&str]) -> Vec<String> {
    let chosen = chosen(extra);
    let mut selection = Vec::new();
    if chosen.is_empty() {
        selection.push("--workspace".to_owned());
    }
    if chosen.is_empty() || chosen.contains(&PROGRAM) {
        selection.extend(["--features".to_owned(), format!("{PROGRAM}/failpoints")]);
    }
    selection
}

/// The skips among these notes, one a line, that no allowance covers.
fn not_allowed(notes: &str) -> Vec<String> {
    notes.lines().filter(|line| !is_allowed(line)).map(|line| line.replace('\t', ": ")).collect()
}

fn is_allowed(note: &str) -> bool {
    let reason = note.split_once('\t').map_or(note, |(_, reason)| reason);
    ALLOWED_SKIPS.iter().any(|allowed| reason.starts_with(allowed))
}

#[cfg(test)]
mod tests {
    use super::{Part, WITH_BROKERS, not_allowed, parts, selection};

    #[test]
    fn what_needs_openssl_is_tested_with_the_brokers() {
        let part = Part::with_brokers("some", &WITH_BROKERS, &["--test", "storm"]);
        let [flag, features, packages @ .., _, storm] = part.args.as_slice() else {
            panic!("{:?}", part.args)
        };
        assert_eq!(
            (flag.as_str(), storm.as_str(), packages.len()),
            ("--features", "storm", WITH_BROKERS.len())
        );
        for feature in ["postbox-sinks/full", "postbox-sinks/kafka-tls", "exactly-once/nats"] {
            assert!(features.split(',').any(|given| given == feature), "{features}");
        }
    }

    #[test]
    fn everything_is_tested_unless_packages_are_chosen() {
        let all = ["--workspace", "--features", "postbox-cli/failpoints"];
        assert_eq!(selection(&[]), all);
        assert_eq!(selection(&["a_test", "--", "-p"]), all);
        assert!(selection(&["-p", "postbox-core"]).is_empty());
        assert!(selection(&["--package=postbox-core", "name"]).is_empty());
        assert_eq!(selection(&["-p", "postbox-core", "-p", "postbox-cli"]), all[1..]);
    }

    #[test]
    fn what_the_caller_names_is_tested_alone() {
        let [part] =
            parts(&["-p", "postbox-core", "lease"]).try_into().unwrap_or_else(|_| panic!("one part"));
        assert_eq!(part.args, ["--no-fail-fast", "-p", "postbox-core", "lease"]);
        assert_eq!(parts(&[]).len(), 5);
    }

    #[test]
    fn a_noted_skip_counts() {
        assert!(not_allowed("").is_empty());
        assert_eq!(not_allowed("a_test\tno moon\n"), ["a_test: no moon"]);
        assert!(not_allowed("a_test\tMaven could not fetch kafka: no such host\n").is_empty());
    }
}
