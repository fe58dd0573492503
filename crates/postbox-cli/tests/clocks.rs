//! Hazard 3: the built program on machines whose clocks are wrong. Only the database's clock decides.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::terminal::Terminal;
use postbox_testkit::{MariaDbServer, PgServer, Program, eventually_blocking, read_jsonl, skip};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_mins(2);
const TABLE: &str = "org_outbox";
const EVENTS: usize = 500;

/// Twenty minutes lie between the two; a lease lasts three seconds.
const SLOW: &str = "-10m";
const FAST: &str = "+10m";

/// The library that has a program see another time. A wrong clock is no clock that runs backwards or stands still: what counts
/// local deadlines is left alone.
fn faketime() -> Result<PathBuf, String> {
    let folders = std::fs::read_dir("/usr/lib").map_err(|error| error.to_string())?;
    let library = |folder: std::fs::DirEntry| folder.path().join("faketime/libfaketime.so.1");
    let found = folders.filter_map(Result::ok).map(library).find(|library| library.exists());
    found.ok_or_else(|| "there is no libfaketime: apt-get install faketime".to_owned())
}

/// A database with its own way to run a statement, and to say the time and an id.
struct Place<'a> {
    url: String,
    sql: &'a dyn Fn(&str) -> String,
    now: &'static str,
    literal: fn(Uuid) -> String,
    faketime: PathBuf,
    dir: tempfile::TempDir,
}

impl Place<'_> {
    fn command(&self, clock: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.dir.path()).env_clear().env("DATABASE_URL", &self.url);
        command.env("LD_PRELOAD", &self.faketime).env("FAKETIME", clock).env("DONT_FAKE_MONOTONIC", "1");
        command
    }

    fn run(&self, clock: &str, args: &[&str]) -> String {
        let done = self.command(clock, args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:#?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn relay(&self, clock: &str, more: &[&str]) -> Program {
        let args = ["relay", "--table", TABLE, "--sink", "file:out.jsonl", "--poll-interval", "50ms"];
        let leases = ["--lock-ttl", "3s", "--dispatch-timeout", "2s"];
        let relay = Program::from_command(self.command(clock, &[&args[..], &leases, more].concat()));
        relay.wait_for_line("relaying", LIMIT);
        relay
    }

    fn count(&self, from: &str) -> usize {
        (self.sql)(&format!("SELECT count(*) FROM {from}")).parse().unwrap()
    }

    fn all_published(&self) {
        eventually_blocking("everything to be published", LIMIT, || {
            self.count(&format!("{TABLE} WHERE published_at IS NULL")) == 0
        });
    }

    /// Writes events, of which ten are somebody's who does not come back, and ten are for later.
    fn write(&self) {
        for chunk in 0..EVENTS / 100 {
            let rows: Vec<String> = (0..100)
                .map(|n| {
                    let [nobody, id] = [Uuid::nil(), Uuid::now_v7()].map(self.literal);
                    let (locked, by, attempts) = match (chunk, n) {
                        (0, 0..10) => (self.now, "'gone/1'", 1),
                        _ => ("NULL", "NULL", 0),
                    };
                    let due = match (chunk, n) {
                        (0, 10..20) => format!("{} + interval '3' second", self.now),
                        _ => self.now.to_owned(),
                    };
                    format!("({nobody}, 'org.a.b.v1', '{n}', {id}, {due}, {locked}, {by}, {attempts})")
                })
                .collect();
            (self.sql)(&format!(
                "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id, available_at, locked_at, locked_by, attempts)
                 VALUES {}",
                rows.join(", ")
            ));
        }
        (self.sql)(&format!("CREATE TABLE written AS SELECT {} AS at", self.now));
    }

    /// Each arrived once, and none before its time by the database's clock.
    fn judge(&self, expected: usize) {
        let delivered = read_jsonl(self.dir.path().join("out.jsonl"));
        let ids: std::collections::BTreeSet<&str> =
            delivered.iter().filter_map(|line| line["event_id"].as_str()).collect();
        assert_eq!((delivered.len(), ids.len()), (expected, expected), "each arrives once");
        assert_eq!(self.count(&format!("{TABLE} WHERE published_at < available_at")), 0, "too early");
        let stolen =
            format!("{TABLE}, written WHERE attempts > 1 AND published_at < at + interval '2' second");
        assert_eq!(self.count(&stolen), 0, "a lease was taken from whom it belonged to");
        assert_eq!(self.count(&format!("{TABLE} WHERE attempts > 1")), 10, "all others at the first attempt");
    }
}

/// Relays that share the table.
fn relays_share(place: &Place<'_>) {
    place.run(FAST, &["migrate", "up", "--table", TABLE]);
    let mut relays = [SLOW, FAST].map(|clock| place.relay(clock, &["--single-active=false"]));
    place.write();
    // Whoever writes with a wrong clock writes what is due now.
    place.run(FAST, &["enqueue", "--table", TABLE, "--topic", "org.a.b.v1", "--payload", "1"]);
    place.all_published();
    for relay in &mut relays {
        relay.stop(LIMIT);
    }
    place.judge(EVENTS + 1);
}

/// A relay that works and one in reserve, which takes over when the first is gone, and not before.
fn one_stands_by(place: &Place<'_>) {
    place.run(SLOW, &["migrate", "up", "--table", TABLE]);
    let mut first = place.relay(SLOW, &[]);
    place.write();
    let mut second = place.relay(FAST, &[]);
    place.all_published();
    assert_eq!((place.sql)("SELECT epoch FROM postbox_relay"), "1", "nobody took over");
    first.kill9();
    place.run(SLOW, &["enqueue", "--table", TABLE, "--topic", "org.a.b.v1", "--payload", "1"]);
    place.all_published();
    second.stop(LIMIT);
    place.judge(EVENTS + 1);
}

/// The machine's clock is an hour slow, and is put right while somebody thinks about the answer. They mean what they were shown.
#[test]
fn a_clock_that_is_put_right_at_a_question_changes_no_answer() {
    let faketime = match faketime() {
        Ok(faketime) => faketime,
        Err(reason) => skip!("{reason}"),
    };
    let table = common::TABLE;
    for verb in ["discard", "replay"] {
        let place = common::Place::new();
        place.insert(2);
        place.db.psql(&format!(
            "UPDATE {table} SET last_error = 'no', dead_at = now() - CASE sequence WHEN 1 THEN interval '65 min' ELSE '5 min' END"
        ));
        let clock = place.file("clock", "-1h");
        let mut command = place.command(&["dead", verb, "--since", "15m", "--table", table]);
        if verb == "replay" {
            command.args(["--watch", "0"]);
        }
        command.env("TERM", "xterm").env("LD_PRELOAD", &faketime).env("DONT_FAKE_MONOTONIC", "1");
        command.env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
        let mut terminal = Terminal::start(command, (100, 30));
        terminal.sees("1 row in public.org_outbox");
        terminal.sees("them? [y/N] ");
        std::fs::rename(place.file("right", "+0h"), &clock).unwrap();
        terminal.press("y\n");
        let (status, screen) = terminal.end();
        assert_eq!(status.code(), Some(0), "{screen}");
        assert_eq!(
            place.db.psql(&format!("SELECT sequence FROM {table} WHERE dead_at IS NOT NULL")),
            "1",
            "{screen}"
        );
    }
}

fn on_postgres(story: fn(&Place<'_>)) {
    let faketime = match faketime() {
        Ok(faketime) => faketime,
        Err(reason) => skip!("{reason}"),
    };
    let db = PgServer::shared().database();
    let sql = |sql: &str| db.psql(sql);
    let dir = tempfile::tempdir().unwrap();
    let literal = |id: Uuid| format!("'{id}'");
    story(&Place { url: db.url.clone(), sql: &sql, now: "now()", literal, faketime, dir });
}

fn on_mariadb(story: fn(&Place<'_>)) {
    let faketime = match faketime() {
        Ok(faketime) => faketime,
        Err(reason) => skip!("{reason}"),
    };
    let db = MariaDbServer::shared().database();
    let sql = |sql: &str| db.sql(sql);
    let dir = tempfile::tempdir().unwrap();
    let literal = |id: Uuid| format!("x'{}'", id.simple());
    story(&Place { url: db.url.clone(), sql: &sql, now: "utc_timestamp(6)", literal, faketime, dir });
}

#[test]
fn wrong_clocks_share_a_table_on_postgres() {
    on_postgres(relays_share);
}

#[test]
fn wrong_clocks_stand_by_on_postgres() {
    on_postgres(one_stands_by);
}

#[test]
fn wrong_clocks_share_a_table_on_mariadb() {
    on_mariadb(relays_share);
}

#[test]
fn wrong_clocks_stand_by_on_mariadb() {
    on_mariadb(one_stands_by);
}
