//! `postbox bench` beside a SQLite file: the file is not touched, and nothing is left beside it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::process::Command;

use common::{Done, LONG, TOPIC, finish};
use postbox_testkit::{Program, eventually_blocking};
use serde_json::Value;
use tempfile::TempDir;

const QUICK: [&str; 7] = ["bench", "--events", "2500", "--seconds", "1", "--connections", "1,3"];
const ENDLESS: [&str; 5] = ["--events", "10000000", "--seconds", "600", "--connections=2"];

/// A folder with a database in which events wait; its name is one that URLs have to escape.
fn folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("100% sure").tempdir().unwrap();
    for args in [&["migrate", "up"][..], &["enqueue", "--topic", TOPIC, "--payload", "1"]] {
        let done = run(&folder, &[args, &["--table", "shop_outbox"]].concat());
        assert_eq!(done.code, 0, "{done:#?}");
    }
    folder
}

fn command(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
    command.args(args).current_dir(folder.path()).env_clear();
    command
}

fn run(folder: &TempDir, args: &[&str]) -> Done {
    finish(command(folder, args), "")
}

/// Every file, and what is in it.
fn everything(folder: &TempDir) -> BTreeMap<String, Vec<u8>> {
    let entries = folder.path().read_dir().unwrap().map(Result::unwrap);
    let entries = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    entries.map(|(name, path)| (name, std::fs::read(path).unwrap_or_default())).collect()
}

fn benches(folder: &TempDir) -> Vec<String> {
    everything(folder).into_keys().filter(|name| name.starts_with("postbox-bench-")).collect()
}

#[test]
fn figures_add_up_and_the_file_is_not_touched() {
    let folder = folder();
    let before = everything(&folder);
    let done = run(&folder, &[&QUICK[..], &["--json"]].concat());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:#?}");
    let account: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        (&account["database"]["product"], &account["database"]["settings"]["synchronous"]),
        (&"SQLite".into(), &"full".into())
    );
    let events = |step: usize| account["steps"][step]["events"].as_u64().unwrap();
    assert!(events(0) > 0 && events(1) > 0, "{account}");
    assert_eq!((events(2), events(3), events(4)), (2500, 2500, 200));
    assert_eq!(everything(&folder), before);
    for history in ["move", "none"] {
        // By its whole path, as a URL has it.
        let path = folder.path().join("postbox.db").display().to_string().replace('%', "%25");
        let url = format!("sqlite:{path}");
        let done = run(
            &folder,
            &["bench", "drain", "--events", "2000", "--history", history, "--database-url", &url],
        );
        assert_eq!(done.code, 0, "{done:#?}");
        assert!(
            done.stdout.contains("[SQLite ") && done.stdout.contains(&format!("drain, history {history}")),
            "{done:#?}"
        );
        assert_eq!(everything(&folder), before);
    }
}

#[test]
fn stopped_or_killed_it_leaves_nothing_that_is_not_named() {
    let folder = folder();
    let before = everything(&folder);
    let start = |what| {
        let known = benches(&folder);
        let bench = Program::from_command(command(
            &folder,
            &[&["bench", what, "--rate", "50"], &ENDLESS[..]].concat(),
        ));
        // It measures: how far it has come by then depends on the machine.
        bench.wait_for_line(" event", LONG);
        let name = eventually_blocking("its folder", LONG, || {
            benches(&folder).into_iter().find(|name| !known.contains(name))
        });
        (bench, name)
    };
    for what in ["enqueue", "drain", "latency"] {
        let (mut bench, _) = start(what);
        if what == "drain" {
            bench.sigterm();
        } else {
            bench.sigint();
        }
        assert_eq!(bench.wait(LONG).code(), Some(1), "{}", bench.stderr());
        assert_eq!(everything(&folder), before, "{what}");
    }
    let (mut killed, left) = start("enqueue");
    killed.kill9();
    let (mut running, alive) = start("latency");
    assert!(
        running.stderr().contains(&format!("left behind: ./{left}; remove: postbox bench --clean-up")),
        "{}",
        running.stderr()
    );
    assert_eq!(run(&folder, &["bench", "--clean-up"]).stdout, format!("removed ./{left}\n"));
    assert_eq!(benches(&folder), [alive]);
    running.sigterm();
    running.wait(LONG);
    assert_eq!(everything(&folder), before);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.db"), "this is no database, whatever it is called").unwrap();
    for (args, exit, says) in [
        (&["bench"][..], 1, "postbox.db: it does not exist"),
        (&["bench", "--database-url", "sqlite:notes.db"], 1, "notes.db: it is no SQLite database"),
        (&["bench", "--database-url", "sqlite:none/app.db"], 1, "none/app.db: it does not exist"),
        (&["bench", "--database-url", "oracle://db/app"], 2, "this build knows"),
    ] {
        let done = run(&folder, args);
        assert_eq!(done.code, exit, "{done:#?}");
        assert!(done.stderr.contains(says) && done.stderr.contains("  next: "), "{done:#?}");
    }
    std::fs::write(folder.path().join("app.db"), "").unwrap();
    let done = run(
        &folder,
        &["bench", "drain", "--claim", "owner", "--events", "10", "--database-url", "sqlite:app.db"],
    );
    assert_eq!(done.code, 2, "{done:#?}");
    assert!(done.stderr.contains("rows of a SQLite file are leased"), "{done:#?}");
    assert_eq!(benches(&folder), Vec::<String>::new());
}
