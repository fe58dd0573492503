//! `postbox bench` on a real PostgreSQL: its figures add up, and it leaves nothing behind, however it ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::case::case;
use common::terminal::{Terminal, without_escapes};
use common::{LONG, Place, TABLE, finish, url_as};
use postbox_testkit::{Program, eventually_blocking};
use serde_json::Value;

/// Quick, and yet all of it.
const QUICK: [&str; 7] = ["bench", "--events", "2500", "--seconds", "1", "--connections", "1,3"];
/// Longer than any test waits.
const ENDLESS: [&str; 5] = ["--events", "10000000", "--seconds", "600", "--connections=2"];

/// Everything that is in a database: schemas, what is in them, and every row of ours.
fn everything(place: &Place) -> String {
    let objects = place.db.psql(
        "SELECT string_agg(what, ' ' ORDER BY what) FROM (
            SELECT nspname || '.' || relname || ':' || relkind::text AS what FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
             WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
            UNION ALL SELECT nspname || '.' || proname || '()' FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
             WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
            UNION ALL SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_') o",
    );
    let mut rows = String::new();
    for table in ["org_outbox", "postbox_relay", "postbox_audit"].map(|name| format!("public.{name}")) {
        if place.db.psql(&format!("SELECT to_regclass('{table}') IS NOT NULL")) == "t" {
            let all = format!("SELECT string_agg(t::text, '|' ORDER BY t::text) FROM {table} t");
            rows += &place.db.psql(&all);
        }
    }
    format!("{objects}\n{rows}")
}

/// The schemas that benches have, running or not.
fn benches(place: &Place) -> Vec<String> {
    let names = "SELECT coalesce(string_agg(nspname, ' ' ORDER BY nspname), '') FROM pg_namespace WHERE nspname ~ '^postbox_bench_'";
    place.db.psql(names).split_whitespace().map(str::to_owned).collect()
}

/// Percentiles that are in order.
#[track_caller]
fn check_times(times: &Value) {
    let mut last = 0;
    for name in ["p50", "p90", "p99", "p999", "max"] {
        let value = times[name].as_u64().unwrap_or_else(|| panic!("no {name} in {times}"));
        assert!(value >= last, "{times}");
        last = value;
    }
}

/// What the figures of a quick run must be.
#[track_caller]
fn check_figures(account: &Value) {
    let steps = account["steps"].as_array().unwrap();
    let shape: Vec<(&str, Option<u64>)> = steps
        .iter()
        .map(|step| (step["step"].as_str().unwrap(), step["events_per_transaction"].as_u64()))
        .collect();
    assert_eq!(
        shape,
        [
            ("enqueue", Some(1)),
            ("enqueue", Some(1)),
            ("enqueue", Some(1000)),
            ("drain", None),
            ("latency", None)
        ]
    );
    for step in steps {
        let [events, seconds, rate] =
            ["events", "seconds", "events_per_second"].map(|name| step[name].as_f64().unwrap());
        assert!(events >= 1.0 && seconds > 0.0 && (events / seconds - rate).abs() < rate * 0.01, "{step}");
    }
    for (step, connections) in steps[..3].iter().zip([1, 3, 1]) {
        assert_eq!(step["connections"], connections);
        check_times(&step["transaction_us"]);
    }
    // What was written was drained.
    assert_eq!((&steps[2]["events"], &steps[3]["events"]), (&2500.into(), &2500.into()));
    assert_eq!((&steps[4]["events"], &steps[4]["wanted_per_second"]), (&200.into(), &200.into()));
    check_times(&steps[4]["commit_to_dispatch_us"]);
    check_times(&steps[4]["with_commit_us"]);
    assert!(
        steps[4]["with_commit_us"]["max"].as_u64() >= steps[4]["commit_to_dispatch_us"]["max"].as_u64(),
        "{account}"
    );
    assert_eq!((&account["stopped"], &account["leftovers"]), (&false.into(), &serde_json::json!([])));
    assert!(account["machine"]["cores"].as_u64().unwrap() >= 1);
}

#[test]
fn an_empty_database_is_empty_afterwards() {
    let place = Place::empty();
    let before = everything(&place);
    let account = place.json(&QUICK);
    check_figures(&account);
    assert_eq!(account["database"]["product"], "PostgreSQL");
    for step in &account["steps"].as_array().unwrap()[..4] {
        assert!(step["wal_bytes_per_event"].as_u64().unwrap() > 0, "{step}");
    }
    assert_eq!(everything(&place), before);
}

#[test]
fn a_table_that_is_in_use_and_its_events_are_not_touched() {
    let place = Place::new();
    place.insert(20);
    place.db.psql(&format!("UPDATE {TABLE} SET published_at = now() WHERE sequence % 2 = 0"));
    place.db.psql("INSERT INTO postbox_audit (who, action, tbl, events) VALUES ('me', 'replay', 'public.org_outbox', 1)");
    let before = everything(&place);
    for more in [
        &["--history", "keep", "--claim", "lease"][..],
        &["--history", "move", "--batch-size", "500"],
        &["--history", "none", "--ordering", "aggregate"],
    ] {
        let account = place.json(&[&["bench", "drain", "--events", "3000"], more].concat());
        let step = &account["steps"][0];
        assert_eq!(
            (&step["step"], &step["events"], &step["history"]),
            (&"drain".into(), &3000.into(), &more[1].into())
        );
        assert_eq!(everything(&place), before);
    }
}

#[test]
fn people_see_a_table_what_to_read_it_with_and_how_far_it_is() {
    let place = Place::empty();
    let name = place.db.psql("SELECT current_database()");
    place.db.psql(&format!("ALTER DATABASE \"{name}\" SET synchronous_commit = off"));
    let done = place.run(&QUICK);
    assert_eq!(done.code, 0, "{done:#?}");
    for text in [
        "enqueue, 1 connection   ",
        "enqueue, 3 connections  ",
        "enqueue, 1,000 a transaction   2,500",
        "drain, history keep            2,500",
        "latency at 200/s                 200",
        "  and the commit itself",
        "[PostgreSQL ",
        " · synchronous_commit off · round trip ",
        " here]\npayload 300 bytes, batch size 100, claim auto, ordering none;",
        "! synchronous_commit is off: commits do not wait for the disk",
    ] {
        assert!(done.stdout.contains(text), "no {text:?} in {done:#?}");
    }
    assert!(done.stdout.lines().all(|line| line.chars().count() <= 130), "{done:#?}");
    assert!(done.stderr.contains(" of 300 events\n") && done.stderr.contains("under full load"), "{done:#?}");
    let json = finish(place.command(&["bench", "latency", "--seconds", "1", "--json"]), "");
    assert_eq!((json.code, json.stderr.as_str()), (0, ""), "{json:#?}");

    let mut command = place.command(&["bench", "drain", "--events", "20000"]);
    command.env("TERM", "xterm");
    let mut terminal = Terminal::start(command, (100, 30));
    terminal.sees("enqueue, 1,000 a transaction: ");
    terminal.sees("░");
    let (status, written) = terminal.end();
    assert!(status.success(), "{written}");
    assert!(without_escapes(&written).contains("drain, history keep  20,000"), "{written}");
}

/// In each of the steps.
#[test]
fn whoever_stops_it_finds_nothing_left() {
    let place = Place::new();
    place.insert(5);
    let before = everything(&place);
    let steps = [
        ("enqueue", "enqueue, 2 connections: ", "SIGINT"),
        ("drain", "enqueue, 1,000 a transaction: ", "SIGTERM"),
        ("latency", "latency at 50/s: ", "SIGINT"),
    ];
    for (what, line, signal) in steps {
        let mut bench =
            Program::from_command(place.command(&[&["bench", what, "--rate", "50"], &ENDLESS[..]].concat()));
        bench.wait_for_line(line, LONG);
        // In the middle of the step.
        let written = || {
            benches(&place).first().is_some_and(|name| {
            place.db.psql(&format!("SELECT coalesce((SELECT n_tup_ins + n_live_tup FROM pg_stat_all_tables WHERE relid = to_regclass('{name}.outbox')), 0) > 0")) == "t"
        })
        };
        eventually_blocking("some events", LONG, written);
        if signal == "SIGINT" {
            bench.sigint();
        } else {
            bench.sigterm();
        }
        let status = bench.wait(LONG);
        assert_eq!(status.code(), Some(1), "{what}: {}{}", bench.stdout(), bench.stderr());
        assert!(
            bench.stderr().contains("stopping: what the bench made is removed"),
            "{what}: {}",
            bench.stderr()
        );
        assert!(bench.stdout().contains("stopped before the end"), "{what}: {}", bench.stdout());
        assert_eq!(everything(&place), before, "{what}");
    }
}

#[test]
fn a_drain_that_is_stopped_leaves_nothing_and_says_so_in_json() {
    let place = Place::empty();
    let before = everything(&place);
    // So slow that it is stopped before its end.
    let args = ["bench", "drain", "--events", "30000", "--batch-size", "1", "--claim", "lease"];
    let mut bench = Program::from_command(place.command(&args));
    bench.wait_for_line("drain, history keep: ", LONG);
    bench.sigterm();
    assert_eq!(bench.wait(LONG).code(), Some(1), "{}", bench.stderr());
    assert_eq!(everything(&place), before);

    let mut bench = Program::from_command(place.command(&[&["bench", "--json"], &ENDLESS[..]].concat()));
    eventually_blocking("its schema", LONG, || !benches(&place).is_empty());
    bench.sigint();
    assert_eq!(bench.wait(LONG).code(), Some(1), "{}", bench.stderr());
    let account: Value = serde_json::from_str(&bench.stdout()).unwrap();
    assert_eq!((&account["stopped"], &account["steps"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(everything(&place), before);
}

#[test]
fn what_a_killed_one_left_is_named_and_removed_and_nothing_else() {
    let place = Place::new();
    place.insert(5);
    // What looks like one of a bench and is none.
    place.db.psql("CREATE SCHEMA postbox_bench_00000000; CREATE TABLE postbox_bench_00000000.outbox (n int)");
    let before = everything(&place);
    let start = || {
        let known = benches(&place);
        let bench = Program::from_command(place.command(&[&["bench", "enqueue"], &ENDLESS[..]].concat()));
        bench.wait_for_line("enqueue, 2 connections: ", LONG);
        let name = benches(&place).into_iter().find(|name| !known.contains(name)).unwrap();
        (bench, name)
    };
    let (mut killed, left) = start();
    killed.kill9();
    let (mut running, alive) = start();
    // The server hears of a killed client when it next writes to it.
    eventually_blocking("the end of the killed one's session", LONG, || {
        let done = place.run(&["bench", "latency", "--seconds", "1", "--rate", "20"]);
        assert_eq!(done.code, 0, "{done:#?}");
        done.stderr.contains(&format!(
            "! 1 bench that ended early left behind: {left}; remove: postbox bench --clean-up"
        ))
    });
    assert_eq!(place.json(&["bench", "latency", "--seconds", "1"])["leftovers"], serde_json::json!([left]));
    assert_eq!(place.ok(&["bench", "--clean-up"]), format!("removed {left}\n"));
    assert_eq!(place.ok(&["bench", "--clean-up"]), "no bench has left anything behind\n");
    assert_eq!(place.json(&["bench", "--clean-up"]), serde_json::json!({ "removed": [] }));
    assert_eq!(benches(&place), {
        let mut names = vec!["postbox_bench_00000000".to_owned(), alive];
        names.sort();
        names
    });
    running.sigterm();
    running.wait(LONG);
    assert_eq!(everything(&place), before);
}

#[test]
fn mistakes_are_named_before_anything_is_made() {
    let place = Place::new();
    let before = everything(&place);
    for (args, says) in [
        (&["--events", "0"][..], "--events = \"0\" cannot be used"),
        (&["--events", "many"], "give a whole number from 1 to 10000000"),
        (&["--seconds", "0"], "give a whole number from 1 to 600"),
        (&["--rate", "0"], "give a whole number from 1 to 100000"),
        (&["--connections", "0"], "give a whole number from 1 to 1000"),
        (&["--connections", "1,,8"], "--connections = \"\" cannot be used"),
        (&["--connections", "1,2,3,4,5,6,7,8,9"], "give at most 8 numbers"),
        (&["--payload-bytes", "3"], "give a whole number from 16 to 1048576"),
        (&["--payload-bytes", "9999999"], "give a whole number from 16 to 1048576"),
        (&["--payload-bytes", "1048576", "--events", "100000"], "are more than 10 GiB of payload"),
        (&["everything"], "[possible values: all, enqueue, drain, latency]"),
    ] {
        let args = [&["bench"], args].concat();
        case(&args.join(" "), &args, 2, "OUTBOX_CONFIG_INVALID", &[says]).check(&place);
    }
    let name = place.db.psql("SELECT current_database()");
    // Roles are the server's, which others use too.
    let [nobody, few] = ["nobody", "few"].map(|role| format!("{role}_{name}"));
    place.db.psql(&format!("CREATE ROLE \"{nobody}\" LOGIN; CREATE ROLE \"{few}\" LOGIN CONNECTION LIMIT 4"));
    place.db.psql(&format!("GRANT CREATE ON DATABASE \"{name}\" TO \"{few}\""));
    case("no right to make a schema", &["bench"], 1, "OUTBOX_DB_PERMISSION", &["GRANT CREATE ON DATABASE"])
        .env("DATABASE_URL", url_as(&place.db.url, &nobody))
        .check(&place);
    let args = ["bench", "enqueue", "--connections", "9"];
    case(
        "too many connections",
        &args,
        1,
        "OUTBOX_DB_UNREACHABLE",
        &["of 9: ", "give fewer by --connections"],
    )
    .env("DATABASE_URL", url_as(&place.db.url, &few))
    .check(&place);
    let nowhere = "postgres://app:Zq9@127.0.0.1:1/app";
    case("no server", &["bench"], 1, "OUTBOX_DB_UNREACHABLE", &["127.0.0.1:1"])
        .env("DATABASE_URL", nowhere)
        .check(&place);
    assert_eq!(everything(&place), before);
    place.db.psql(&format!(
        "REVOKE CREATE ON DATABASE \"{name}\" FROM \"{few}\"; DROP ROLE \"{nobody}\", \"{few}\""
    ));
}
