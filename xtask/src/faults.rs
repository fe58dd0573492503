//! `cargo xtask faults`: everything that is made to fail, by scenario. The tests are those of `cargo xtask test`; this runs them on their
//! own, again and again and from other seeds, and says what each of them shows.

use std::process::Command;
use std::time::Instant;

use postbox_testkit::server::postgres;
use postbox_testkit::{MariaDbServer, PgServer};

use crate::install;
use crate::run::cargo;

/// A test program, as `cargo test` is asked for it.
type Program = &'static [&'static str];

const POSTGRES: Program = &["-p", "postbox-stores", "--all-features", "--test", "postgres"];
const SQLITE: Program = &["-p", "postbox-stores", "--all-features", "--test", "sqlite"];
const MARIADB: Program = &["-p", "postbox-stores", "--all-features", "--test", "mysql"];
const CRASH: Program = &["-p", "postbox-cli", "--features", "failpoints,http", "--test", "crash"];
const CLOCKS: Program = &["-p", "postbox-cli", "--features", "failpoints,http", "--test", "clocks"];
const KILLS_ON_MARIADB: Program = &["-p", "postbox-cli", "--features", "failpoints,http", "--test", "mysql"];
const STORM: Program = &["-p", "postbox-cli", "--features", "failpoints,http", "--test", "storm"];

struct Scenario {
    name: &'static str,
    what: &'static str,
    program: Program,
    /// Parts of the names of its tests.
    tests: &'static [&'static str],
}

const fn scenario(
    name: &'static str,
    what: &'static str,
    program: Program,
    tests: &'static [&'static str],
) -> Scenario {
    Scenario { name, what, program, tests }
}

const SCENARIOS: &[Scenario] = &[
    scenario(
        "baseline",
        "nothing fails; some transactions are rolled back",
        POSTGRES,
        &[
            "migrated::an_event_exists_only_if_its_transaction_committed",
            "migrated::many_relays_share_a_table",
        ],
    ),
    scenario(
        "kills",
        "relays are killed again and again under load",
        CRASH,
        &["twenty_thousand_events_through_fifteen_kills"],
    ),
    scenario(
        "aborts",
        "a relay dies before and after each claim, dispatch, settle and renewal, and in a stop",
        CRASH,
        &["an_abort_at_any_point", "an_abort_during"],
    ),
    scenario(
        "frozen",
        "the active relay is stopped, replaced, and goes on",
        CRASH,
        &["a_stopped_leader_is_replaced", "a_relay_whose_threads_are_all_blocked"],
    ),
    scenario("sigterm", "orderly stops under load repeat nothing", CRASH, &["a_sigterm_under_load"]),
    scenario("poison", "an event kills each process that has it", CRASH, &["poison_that_aborts"]),
    scenario(
        "network",
        "the database is silent, or its replies are lost",
        POSTGRES,
        &["hazard_5_", "hazard_8_", "faults::hazard_25_", "hazard_30_", "whose_reply_was_lost"],
    ),
    scenario(
        "database",
        "the server crashes, sessions are ended, conflicts are injected",
        POSTGRES,
        &["a_database_that_crashes", "hazard_10_", "conflicts_cost_time_only", "durable::"],
    ),
    scenario(
        "server",
        "a standby is promoted, the disk is full, an old snapshot holds the room",
        POSTGRES,
        &["servers::", "tidy::"],
    ),
    scenario(
        "settings",
        "hostile defaults of sessions, plans made for an empty table",
        POSTGRES,
        &["hazard_17_hostile_defaults", "plans::"],
    ),
    scenario(
        "sinks",
        "a sink refuses, hangs, panics, is slow or down",
        POSTGRES,
        &[
            "migrated::an_outage",
            "migrated::a_sink_that_hangs",
            "migrated::poison",
            "migrated::a_slow_sink",
            "circuits::",
        ],
    ),
    scenario(
        "order",
        "writers that do not lock, failures, kills, stalls, late commits; also behind a pooler",
        POSTGRES,
        &["order_faults::", "whatever_happens", "in_order_"],
    ),
    scenario(
        "late",
        "transactions commit late and out of order",
        POSTGRES,
        &["what_commits_behind", "late_commits"],
    ),
    scenario(
        "hot",
        "the hot path of a service that is killed",
        POSTGRES,
        &["hot::a_service_that_is_killed", "migrated::a_full_path", "hot::a_commit_whose_reply"],
    ),
    scenario(
        "races",
        "16 racers for a message and for an idempotency key, crashes in the middle",
        POSTGRES,
        &["of_many_that_race", "of_16_racers", "after_a_crash_one_of_16"],
    ),
    scenario("clocks", "clocks that are ten minutes wrong", CLOCKS, &[""]),
    scenario(
        "sqlite",
        "kills, a full disk, a stuck leader, order under failures",
        SQLITE,
        &[
            "faults::",
            "processes::hazard_20",
            "whatever_happens",
            "in_order_",
            "of_many_that_race",
            "of_16_racers",
        ],
    ),
    scenario(
        "mariadb",
        "deadlocks, lost answers, take-overs, order under failures",
        MARIADB,
        &[
            "faults::",
            "hazard_10_",
            "whose_answer_was_lost",
            "whose_reply_was_lost",
            "whatever_happens",
            "of_many_that_race",
            "of_16_racers",
        ],
    ),
    scenario(
        "mariadb-kills",
        "relays on MariaDB are killed and frozen, with and without order",
        KILLS_ON_MARIADB,
        &["kill"],
    ),
    scenario("storm", "all of it at once, by a seed", STORM, &[""]),
];

struct Wanted<'a> {
    names: Vec<&'a str>,
    times: u64,
    seed: Option<u64>,
    soak: Option<u64>,
}

fn parse<'a>(args: &[&'a str]) -> Result<Wanted<'a>, String> {
    let mut wanted = Wanted { names: Vec::new(), times: 1, seed: None, soak: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = |what: &str| -> Result<u64, String> {
            let text = args.next().ok_or_else(|| format!("{arg} needs {what}"))?;
            text.parse().map_err(|_| format!("{arg} needs {what}, not {text:?}"))
        };
        match *arg {
            "--times" => wanted.times = number("how many times")?,
            "--seed" => wanted.seed = Some(number("a number")?),
            "--soak" => wanted.soak = Some(number("minutes, such as 30")?),
            name if SCENARIOS.iter().any(|scenario| scenario.name == name) => wanted.names.push(name),
            name => {
                let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
                return Err(format!("no scenario or option {name:?}; there are {}", known.join(", ")));
            }
        }
    }
    Ok(wanted)
}

/// Runs the scenarios and prints a table of them.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let wanted = parse(args)?;
    install::test_needs(false)?;
    let server = PgServer::try_with(&[])?;
    let mariadb = MariaDbServer::try_start()?;
    let seed = wanted.seed.unwrap_or_else(|| u64::from(std::process::id()) * 1_000);
    let scenarios: Vec<&Scenario> = match wanted.soak {
        Some(_) => SCENARIOS.iter().filter(|scenario| scenario.name == "storm").collect(),
        None => SCENARIOS
            .iter()
            .filter(|scenario| wanted.names.is_empty() || wanted.names.contains(&scenario.name))
            .collect(),
    };
    let (mut failed, began) = (Vec::new(), Instant::now());
    println!("{:<14} {:>4} {:>6} {:>7}  result", "scenario", "seed", "tests", "seconds");
    for round in 0..wanted.times {
        for scenario in &scenarios {
            let mut command = cargo();
            command
                .arg("test")
                .args(scenario.program)
                .arg("--")
                .args(scenario.tests)
                .env(postgres::URL_ENV, server.url("postgres"))
                .env(MariaDbServer::URL_ENV, mariadb.urls())
                .env("POSTBOX_STORM_SEED", (seed + round).to_string());
            if let Some(minutes) = wanted.soak {
                command.arg("--nocapture").env("POSTBOX_STORM_SECONDS", (minutes * 60).to_string());
            }
            let began = Instant::now();
            let result = passed(&mut command);
            let (tests, outcome) = match &result {
                Ok((tests, _)) => (*tests, "passed"),
                Err(_) => (0, "FAILED"),
            };
            let seconds = began.elapsed().as_secs();
            println!(
                "{:<14} {:>4} {tests:>6} {seconds:>7}  {outcome}: {}",
                scenario.name,
                seed + round,
                scenario.what
            );
            match result {
                Ok((_, output)) if wanted.soak.is_some() => println!("{output}"),
                Ok(_) => {}
                Err(output) => {
                    println!("{output}");
                    failed.push(format!("{} (seed {})", scenario.name, seed + round));
                }
            }
        }
    }
    println!(
        "{} scenarios, {} times, from seed {seed}: {} s",
        scenarios.len(),
        wanted.times,
        began.elapsed().as_secs()
    );
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// How many tests passed, and what they printed; all output when one failed, or none was there.
fn passed(command: &mut Command) -> Result<(u64, String), String> {
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = |line: &str| line.strip_prefix("test result: ok. ")?.split_once(' ')?.0.parse::<u64>().ok();
    match text.lines().find_map(count) {
        Some(tests) if tests > 0 && output.status.success() => Ok((tests, text)),
        _ => Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::{SCENARIOS, parse};
    use crate::run::root;

    #[test]
    fn names_are_different_and_each_says_what_it_does() {
        let mut names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SCENARIOS.len());
        assert!(SCENARIOS.iter().all(|scenario| !scenario.tests.is_empty() && !scenario.what.is_empty()));
    }

    /// Else a scenario would shrink when a test is renamed, and nobody would know.
    #[test]
    fn every_test_that_is_named_is_there() {
        let sources = sources(&root().join("crates"));
        let wanted = SCENARIOS.iter().flat_map(|scenario| scenario.tests).filter(|test| !test.is_empty());
        for test in wanted {
            let part = test.trim_end_matches("::").rsplit("::").next().unwrap();
            let names = if test.ends_with("::") {
                [format!("mod {part};"), format!("mod {part} {{")]
            } else {
                [format!("fn {part}"), format!("_{part}")]
            };
            assert!(names.iter().any(|name| sources.contains(name)), "no test is called {test}");
        }
    }

    /// All that is written in a folder, one after another.
    fn sources(folder: &std::path::Path) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                text.push_str(&sources(&entry));
            } else if entry.extension().is_some_and(|kind| kind == "rs") {
                text.push_str(&std::fs::read_to_string(&entry).unwrap());
            }
        }
        text
    }

    #[test]
    fn arguments_are_understood_or_named() {
        let wanted = parse(&["kills", "--times", "5", "--seed", "7"]).unwrap();
        assert_eq!((wanted.names, wanted.times, wanted.seed, wanted.soak), (vec!["kills"], 5, Some(7), None));
        assert!(parse(&["--soak"]).err().unwrap().contains("needs minutes"));
        assert!(parse(&["nothing"]).err().unwrap().contains("there are baseline"));
    }
}
