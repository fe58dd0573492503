//! A move to another database needs another URL and `migrate up`: the same commands, files and answers on all three.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use postbox_testkit::{MariaDbServer, PgServer, Program, eventually_blocking, read_jsonl};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(1);
const TABLE: &str = "shop_outbox";

/// What the operator wrote once, for whatever database.
const CONFIGURATION: &str = r#"
[relay]
tables = ["shop_outbox"]
poll_interval = "50ms"

[[route]]
topic = "shop.order.**"
sink = "file:out.jsonl"
"#;

struct Place {
    url: String,
    dir: tempfile::TempDir,
}

impl Place {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.dir.path()).env_clear().env("DATABASE_URL", &self.url);
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost")]);
        command
    }

    /// Runs a command that must work; what it printed, of which each line is JSON.
    fn json(&self, args: &[&str]) -> Vec<Value> {
        let done = self.command(&[args, &["--json"]].concat()).output().unwrap();
        assert!(done.status.success(), "{}: {args:?}: {done:#?}", self.url);
        let lines = String::from_utf8(done.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn status(&self) -> Value {
        self.json(&["status", "--table", TABLE]).remove(0)
    }
}

/// From an empty database to its last command; all that was answered, without what differs from run to run.
fn a_day(url: String) -> String {
    let place = Place { url, dir: tempfile::tempdir().unwrap() };
    std::fs::write(place.dir.path().join("postbox.toml"), CONFIGURATION).unwrap();
    let mut told = String::new();
    let mut tell = |args: &[&str], answer: Vec<Value>| {
        let answer: Vec<String> = answer.into_iter().map(|line| lasting(line).to_string()).collect();
        writeln!(told, "$ postbox {}\n{}", args.join(" "), answer.join("\n")).unwrap();
    };
    let mut run = |args: &[&str]| tell(args, place.json(args));

    // Its steps are the database's own.
    place.json(&["migrate", "up", "--table", TABLE, "--inbox"]);
    place.json(&["config", "check"]);
    for (id, topic, payload) in [
        ("00000000-0000-7000-8000-000000000001", "shop.order.placed.v1", r#"{"item":"tea"}"#),
        ("00000000-0000-7000-8000-000000000002", "shop.order.placed.v1", r#"{"item":"milk"}"#),
        // Again.
        ("00000000-0000-7000-8000-000000000001", "shop.order.placed.v1", r#"{"item":"tea"}"#),
        // Nobody wants it.
        ("00000000-0000-7000-8000-000000000003", "shop.stock.reduced.v1", "3"),
    ] {
        run(&["enqueue", "--table", TABLE, "--topic", topic, "--payload", payload, "--event-id", id]);
    }
    run(&["status", "--table", TABLE]);
    let mut relay = Program::from_command(place.command(&["relay"]));
    let settled = |status: Value| status["pending"] == 0 && status["dead"] == 1;
    eventually_blocking("all to be settled", LIMIT, || settled(counts(place.status())));
    relay.stop(LIMIT);
    run(&["status", "--table", TABLE]);
    run(&["events", "list", "--table", TABLE]);
    run(&["dead", "list", "--table", TABLE]);
    run(&["dead", "show", "00000000-0000-7000-8000-000000000003", "--table", TABLE]);
    run(&["pause", "--table", TABLE]);
    run(&["dead", "replay", "--table", TABLE, "--topic", "shop.stock.reduced.v1", "--yes", "--watch", "0"]);
    run(&["resume", "--table", TABLE]);
    run(&["status", "--table", TABLE]);
    run(&["inbox", "list", "--table", TABLE]);
    run(&["clean", "--table", TABLE, "--dry-run"]);
    for delivered in read_jsonl(place.dir.path().join("out.jsonl")) {
        writeln!(told, "{}", lasting(delivered)).unwrap();
    }
    told
}

/// The part of a status that counts.
fn counts(mut status: Value) -> Value {
    status["tables"][0]["counts"].take()
}

const VARIES: [&str; 8] = [
    "duration_ms",
    "first",
    "last",
    "oldest_pending_age_seconds",
    "ordered",
    "published_per_second",
    "relay",
    "sequence",
];

/// Without times, ages, rates, names of processes, what a database has for order, and sequences, of which a duplicate costs one
/// here and none there.
fn lasting(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(name, _)| !VARIES.contains(&name.as_str()) && name != "at" && !name.ends_with("_at"))
            .map(|(name, value)| (name, lasting(value)))
            .collect(),
        Value::Array(values) => values.into_iter().map(lasting).collect(),
        Value::String(text) => json!(text.replace("public.", "")),
        value => value,
    }
}

#[test]
fn the_same_commands_have_the_same_answers() {
    let (postgres, mariadb) = (PgServer::shared().database(), MariaDbServer::shared().database());
    let folder = tempfile::tempdir().unwrap();
    let sqlite = a_day(format!("sqlite:{}", folder.path().join("shop.db").display()));
    assert!(sqlite.contains("OUTBOX_UNROUTABLE") && sqlite.contains("milk"), "{sqlite}");
    for url in [&postgres.url, &mariadb.url] {
        let other = a_day(url.clone());
        for (line, (was, is)) in sqlite.lines().zip(other.lines()).enumerate() {
            assert_eq!(was, is, "line {line} of:\n{other}");
        }
        assert_eq!(sqlite.lines().count(), other.lines().count());
    }
}
