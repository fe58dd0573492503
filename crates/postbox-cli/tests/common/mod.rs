//! The built program against a real PostgreSQL.
#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod case;
pub(crate) mod every;
pub(crate) mod fan_out;
pub(crate) mod terminal;
pub(crate) mod writer;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use postbox_testkit::{PgServer, Program, TestDb, eventually_blocking, read_jsonl};
use serde_json::Value;
use tempfile::TempDir;

/// The usual table.
pub(crate) const TABLE: &str = "public.org_outbox";

/// The usual topic.
pub(crate) const TOPIC: &str = "org.organization.created.v1";

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// A database and a directory of a test's own.
pub(crate) struct Place {
    pub(crate) db: TestDb,
    pub(crate) dir: TempDir,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    /// An empty database.
    pub(crate) fn empty() -> Self {
        Self { db: PgServer::shared().database(), dir: tempfile::tempdir().unwrap() }
    }

    /// A database with the usual table.
    pub(crate) fn new() -> Self {
        let place = Self::empty();
        place.ok(&["migrate", "up", "--table", TABLE]);
        place
    }

    /// The program with these arguments, in the test's directory and with nothing in its environment but the database.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.dir.path()).env_clear().env("DATABASE_URL", &self.db.url);
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost")]);
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        finish(self.command(args), "")
    }

    /// Runs a command that must work; gives what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code, 0, "{args:?}: {done:#?}");
        done.stdout
    }

    /// Runs a command with `--json` that must work.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.ok(&args)).unwrap()
    }

    /// Starts a relay of the usual table to `out.jsonl`, with quick polling, and waits until it is up.
    pub(crate) fn relay(&self, more: &[&str]) -> Program {
        self.relay_with(more, &[])
    }

    /// The same with additions to the environment.
    pub(crate) fn relay_with(&self, more: &[&str], env: &[(&str, &str)]) -> Program {
        let args: Vec<&str> = ["relay", "--table", TABLE].into_iter().chain(more.iter().copied()).collect();
        let mut command = self.command(&args);
        // As variables, so that a test can have them otherwise by flags.
        command.envs([("OUTBOX_SINK", "file:out.jsonl"), ("OUTBOX_RELAY_POLL_INTERVAL", "50ms")]);
        command.envs(env.iter().copied());
        let relay = Program::from_command(command);
        relay.wait_for_line("relaying public.org_outbox → ", LONG);
        relay
    }

    /// What the relay delivered.
    pub(crate) fn delivered(&self) -> Vec<Value> {
        read_jsonl(self.dir.path().join("out.jsonl"))
    }

    /// Waits until this many events have been delivered.
    #[track_caller]
    pub(crate) fn wait_for_delivered(&self, events: usize) -> Vec<Value> {
        let look = || {
            let delivered = self.delivered();
            (delivered.len() >= events).then_some(delivered)
        };
        eventually_blocking(&format!("{events} delivered events"), LONG, look)
    }

    /// Writes events by SQL alone.
    pub(crate) fn insert(&self, events: usize) {
        self.db.psql(&format!(
            "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
             SELECT '00000000-0000-0000-0000-000000000000', '{TOPIC}', jsonb_build_object('n', n), gen_random_uuid()
             FROM generate_series(1, {events}) n"
        ));
    }

    /// How many rows of the usual table meet a condition.
    pub(crate) fn count(&self, condition: &str) -> usize {
        self.db.psql(&format!("SELECT count(*) FROM {TABLE} WHERE {condition}")).parse().unwrap()
    }

    /// A session that keeps what this statement locked.
    pub(crate) fn hold(&self, statement: &str) -> Program {
        let mut holder = Command::new("psql");
        let script = format!("BEGIN; {statement}; SELECT 'held'; SELECT pg_sleep(120)");
        // One after the other: as one statement nothing would be seen before the end.
        holder.args(["-X", "-d", &self.db.url]).args(script.split("; ").flat_map(|part| ["-c", part]));
        let holder = Program::from_command(holder);
        holder.wait_for_line("held", LONG);
        holder
    }

    /// A file in the test's directory.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// Runs a command to its end with this input.
pub(crate) fn finish(mut command: Command, input: &str) -> Done {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // A command that refuses its arguments does not read to the end.
        scope.spawn(move || stdin.write_all(input.as_bytes()).ok());
        child.wait_with_output().unwrap()
    });
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Where a relay with `--listen 127.0.0.1:0` listens.
pub(crate) fn address(relay: &Program) -> String {
    let line = relay.wait_for_line("listening on http://", LONG);
    line.split("http://").nth(1).unwrap().trim().to_owned()
}

/// A GET by hand: status and body.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, body.to_owned())
}

/// `/readyz`: status and JSON.
pub(crate) fn ready(address: &str) -> (u16, Value) {
    let (status, body) = get(address, "/readyz");
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

/// Waits until the first table of `/readyz` has this standing.
#[track_caller]
pub(crate) fn wait_for_standing(address: &str, standing: &str) {
    let look = || ready(address).1["tables"][0]["standing"] == standing;
    eventually_blocking(&format!("standing {standing}"), LONG, look);
}

/// The distinct event ids of deliveries.
pub(crate) fn distinct(delivered: &[Value]) -> usize {
    let ids: std::collections::BTreeSet<&str> =
        delivered.iter().filter_map(|d| d["event_id"].as_str()).collect();
    ids.len()
}

/// The database's URL for another user.
pub(crate) fn url_as(url: &str, user: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    format!("{scheme}://{user}@{}", rest.split_once('@').unwrap().1)
}
