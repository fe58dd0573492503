//! The built program against a real MariaDB: an operator's day, and crashes judged by an oracle.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postbox_testkit::{MariaDb, MariaDbServer, Oracle, Program, eventually_blocking, read_jsonl};
use serde_json::Value;
use uuid::Uuid;

const LIMIT: Duration = Duration::from_mins(2);
const KILLS: usize = 10;
/// What a crash may repeat at most: four batches.
const IN_FLIGHT: usize = 4 * 100;
const RELAYS: usize = 4;
const TABLE: &str = "org_outbox";

/// A database and a directory of a test's own.
struct Place {
    db: MariaDb,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { db: MariaDbServer::shared().database(), dir: tempfile::tempdir().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        // The other name that such a URL may have.
        let url = self.db.url.replacen("mysql://", "mariadb://", 1);
        command.args(args).current_dir(self.dir.path()).env_clear().env("DATABASE_URL", url);
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost")]);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must work; gives what it printed.
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert!(done.status.success(), "{args:?}: {done:#?}");
        String::from_utf8(done.stdout).unwrap()
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["--json"]].concat())).unwrap()
    }

    /// A relay with short leases, so that what a crash leaves behind is soon taken up. All write one file.
    fn relay(&self, more: &[&str]) -> Program {
        let args = ["relay", "--table", TABLE, "--sink", "file:out.jsonl", "--poll-interval", "50ms"];
        let leases = ["--lock-ttl", "1500ms", "--dispatch-timeout", "1s"];
        Program::from_command(self.command(&[&args[..], &leases, more].concat()))
    }

    fn delivered(&self) -> Vec<Value> {
        read_jsonl(self.dir.path().join("out.jsonl"))
    }

    fn count(&self, condition: &str) -> usize {
        self.db.sql(&format!("select count(*) from {TABLE} where {condition}")).parse().unwrap()
    }
}

/// From the first migration to the last: every command that a table needs.
#[test]
fn an_operators_day() {
    let place = Place::new();
    let plan = place.ok(&["migrate", "up", "--table", TABLE, "--dry-run"]);
    assert!(plan.contains("+ table org_outbox") && plan.contains("nothing was changed"), "{plan}");
    assert_eq!(place.db.sql("show tables"), "");
    place.ok(&["migrate", "up", "--table", TABLE]);
    assert!(place.ok(&["migrate", "up", "--table", TABLE]).contains("nothing to do"));
    let printed = place.ok(&["migrate", "print", "--table", TABLE, "--dialect", "mysql"]);
    assert!(printed.contains("AUTO_INCREMENT"), "{printed}");

    for (topic, payload) in [("org.a.b.v1", "{\"n\": 1}"), ("org.bad.b.v1", "2")] {
        place.ok(&["enqueue", "--table", TABLE, "--topic", topic, "--payload", payload]);
    }
    let routes = "[[route]]\ntopic = \"org.a.**\"\nsink = \"file:out.jsonl\"\n";
    std::fs::write(place.dir.path().join("postbox.toml"), routes).unwrap();
    let args = ["relay", "--table", TABLE, "--poll-interval", "50ms"];
    let mut relay = Program::from_command(place.command(&args));
    eventually_blocking("one to arrive and one to die", LIMIT, || {
        place.count("published_at is not null") == 1 && place.count("dead_at is not null") == 1
    });
    relay.stop(LIMIT);
    assert_eq!(place.delivered()[0]["payload"], serde_json::json!({ "n": 1 }));

    let status = place.json(&["status", "--table", TABLE]);
    assert!(status.to_string().contains("\"dead\":1"), "{status}");
    let events = place.ok(&["events", "list", "--table", TABLE]);
    assert!(events.contains("SENT") && events.contains("DEAD"), "{events}");
    assert!(place.ok(&["dead", "list", "--table", TABLE]).contains("OUTBOX_UNROUTABLE"));
    place.ok(&["dead", "replay", "--table", TABLE, "--topic", "org.bad.b.v1", "--yes", "--watch", "0"]);
    assert_eq!(place.count("dead_at is not null"), 0);
    place.ok(&["pause", "--table", TABLE]);
    place.ok(&["resume", "--table", TABLE]);
    assert_eq!(
        place.db.sql("select group_concat(action order by id) from postbox_audit"),
        "replay,pause,resume"
    );
    place.ok(&["clean", "--table", TABLE, "--dry-run"]);
    place.ok(&["config", "check"]);
    let doctor = place.run(&["doctor", "--table", TABLE]);
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains("MariaDB"), "{doctor}");

    let refused = place.run(&["migrate", "down", "--table", TABLE, "--yes"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("OUTBOX_NOT_EMPTY"), "{refused:#?}");
    let down = place.json(&["migrate", "down", "--table", TABLE, "--yes", "--discard-unpublished"]);
    let held = serde_json::json!([{ "table": TABLE, "waiting": 1, "dead": 0, "published": 1 }]);
    assert_eq!((&down["removed"], &down["held"]), (&serde_json::json!([TABLE]), &held), "{down}");
    assert_eq!(place.db.sql("show tables"), "postbox_audit\npostbox_relay\npostbox_window");
    let log = "select concat_ws(' ', who, tbl, json_value(what, '$.waiting'), json_value(what, '$.published'), events)
               from postbox_audit where action = 'migrate_down'";
    assert_eq!(place.db.sql(log), "tester@testhost org_outbox 1 1 2");
}

/// What is broken is named by its code.
#[test]
fn a_doctor_names_what_is_broken() {
    let place = Place::new();
    place.ok(&["migrate", "up", "--table", TABLE]);
    let found = |more: &[&str]| {
        let args = [&["doctor", "--table", TABLE, "--between", "50ms", "--json"], more].concat();
        let done = place.run(&args);
        let json: Value =
            serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:#?}"));
        let findings = json["findings"].as_array().unwrap();
        let codes: Vec<String> =
            findings.iter().filter_map(|finding| Some(finding["code"].as_str()?.to_owned())).collect();
        assert_eq!(done.status.success(), codes.is_empty(), "{json:#}");
        let looked = |check: &str| findings.iter().any(|finding| finding["check"] == check);
        assert!(looked("clock") && looked("connections") && looked("transactions"), "{json:#}");
        codes
    };
    // The server of tests does not wait for its disk.
    let usual = found(&[]);
    assert!(usual.iter().all(|code| code == "OUTBOX_COMMIT_ASYNC"), "{usual:?}");
    let more =
        |args: &[&str]| found(args).into_iter().filter(|code| !usual.contains(code)).collect::<Vec<_>>();
    let index = place.db.sql(&format!(
        "select index_name from information_schema.statistics where table_schema = database() and table_name = '{TABLE}'
         and index_name <> 'PRIMARY' and non_unique = 1 limit 1"
    ));
    place.db.sql(&format!("drop index {index} on {TABLE}"));
    assert_eq!(more(&[]), ["OUTBOX_INDEX_MISSING"]);
    place.ok(&["migrate", "up", "--table", TABLE]);
    place.ok(&["pause", "--table", TABLE]);
    assert_eq!(more(&[]), ["OUTBOX_PAUSED"]);
    place.ok(&["resume", "--table", TABLE]);
    place.ok(&["enqueue", "--table", TABLE, "--topic", "org.a.b.v1", "--payload", "1"]);
    assert_eq!(more(&[]), ["OUTBOX_NOBODY_RELAYS"]);
}

/// Calls by idempotency key are made, mended, forgotten after their retention and removed, as on every database.
#[test]
fn calls_by_idempotency_key_are_looked_after() {
    let place = Place::new();
    // Begun so many hours ago: done, crashed, and still running.
    let calls = |hours: u32| {
        for (state, lease) in [("done", -1), ("running", -1), ("running", 1)] {
            place.db.sql(&format!(
                "insert into org_idempotency (principal, route, idempotency_key, fingerprint, state, token, lease_until, created_at)
                 values ('acme', 'POST /orders', uuid(), '', '{state}', unhex(replace(uuid(), '-', '')), utc_timestamp(6) + interval {lease} hour,
                     utc_timestamp(6) - interval {hours} hour)"
            ));
        }
    };
    let left = || place.db.sql("select count(*) from org_idempotency");
    place.ok(&["migrate", "up", "--table", TABLE]);
    assert!(place.json(&["clean", "--table", TABLE])["tables"][0]["calls"].is_null(), "there are none");
    let relay = place.relay(&["--cleaner-interval", "100ms"]);
    let up = place.ok(&["migrate", "up", "--idempotency", "--table", TABLE]);
    assert!(up.contains("+ table org_idempotency"), "{up}");
    calls(25);
    eventually_blocking("a relay that was there before to forget them", LIMIT, || left() == "1");
    drop(relay);
    calls(1);
    calls(25);
    let dry = place.ok(&["clean", "--dry-run", "--table", TABLE]);
    assert!(dry.contains("org_idempotency: would forget 2 calls; nothing was changed"), "{dry}");
    assert_eq!(left(), "7");
    let clean = place.ok(&["clean", "--table", TABLE]);
    assert!(clean.contains("org_idempotency: forgot 2 calls"), "{clean}");
    let short = ["clean", "--table", TABLE, "--cleaner-idempotency-retention", "30m"];
    assert_eq!(place.json(&short)["tables"][0]["calls"]["deleted"], 2);
    assert_eq!(left(), "3", "those that run");

    place.db.sql("drop index org_idempotency_by_time on org_idempotency");
    let doctor = place.run(&["doctor", "--table", TABLE, "--between", "50ms", "--json"]);
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        doctor.contains("OUTBOX_INDEX_MISSING") && doctor.contains("org_idempotency_by_time"),
        "{doctor}"
    );
    place.ok(&["migrate", "up", "--table", TABLE]);
    assert!(place.ok(&["migrate", "up", "--table", TABLE]).contains("nothing to do"));
    let printed = place.ok(&["migrate", "print", "--idempotency", "--table", TABLE, "--dialect", "mysql"]);
    assert!(printed.contains("CREATE TABLE IF NOT EXISTS `org_idempotency`"), "{printed}");
    let down = place.run(&["migrate", "down", "--yes", "--table", TABLE]);
    let said = String::from_utf8_lossy(&down.stderr);
    assert!(
        down.status.success() && said.contains("org_idempotency (calls by idempotency key)"),
        "{down:#?}"
    );
    assert_eq!(place.db.sql("show tables"), "postbox_audit\npostbox_relay\npostbox_window");
}

/// What it cannot do is refused before anything happens.
#[test]
fn what_it_cannot_do_is_said() {
    let place = Place::new();
    place.ok(&["migrate", "up", "--table", TABLE]);
    for (args, says) in [
        (&["migrate", "up", "--table", TABLE, "--ordered"][..], "--order-index"),
        (&["migrate", "up", "--table", TABLE, "--wake-trigger"], "leave it out"),
        (&["migrate", "up", "--table", TABLE, "--grants", "relay=a"], "GRANT"),
        (
            &["relay", "--table", TABLE, "--sink", "null:", "--claim", "owner", "--single-active=false"],
            "single_active = false",
        ),
        (&["relay", "--table", TABLE, "--sink", "null:", "--ordering", "aggregate"], "--order-index"),
        (&["bench"], "PostgreSQL and SQLite"),
    ] {
        let done = place.run(args);
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && error.contains(says), "{args:?}: {error}");
    }
}

/// Writes an equal part after each kill, for aggregates of its own.
async fn write(url: &str, writer: usize, events: usize, kills: &AtomicUsize, oracle: &Oracle) {
    use sqlx::Connection as _;
    let mut connection = sqlx::MySqlConnection::connect(url).await.unwrap();
    let allowed = || events * (kills.load(Ordering::SeqCst) + 1) / KILLS;
    common::writer::write(oracle, events, allowed, async |n, ids, commits| {
        let mut tx = connection.begin().await.unwrap();
        let rows = vec!["(?, 'org.thing.happened.v1', '{}', ?, 'thing', ?)"; ids.len()].join(", ");
        let insert = format!(
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, aggregate_type, aggregate_id) VALUES {rows}"
        );
        let insert =
            ids.iter().enumerate().fold(sqlx::query(sqlx::AssertSqlSafe(insert)), |query, (place, id)| {
                query.bind(Uuid::nil()).bind(*id).bind(format!("{writer}-{}", (n + place) % 50))
            });
        insert.execute(&mut *tx).await.unwrap();
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    })
    .await;
}

/// 20,000 events, relays that share the table or stand by, and are killed in turn; no relay tells of a deadlock.
fn through_kills(oracle: &Oracle, migrate: &[&str], relay: &[&str]) {
    let place = Place::new();
    place.ok(&[&["migrate", "up", "--table", TABLE], migrate].concat());
    let (kills, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let start = || place.relay(&[&["--batch-size", "100"], relay].concat());
    let mut said = String::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let url = &place.db.url;
            let write = |writer| write(url, writer, 5_000, &kills, oracle);
            runtime.block_on(async { tokio::join!(write(0), write(1), write(2), write(3)) });
            done.store(true, Ordering::SeqCst);
        });
        let mut relays: Vec<Program> = (0..RELAYS).map(|_| start()).collect();
        for kill in 0..KILLS {
            let before = place.delivered().len();
            eventually_blocking("deliveries to go on", LIMIT, || place.delivered().len() > before + 200);
            kills.store(kill + 1, Ordering::SeqCst);
            let dead = &mut relays[kill % RELAYS];
            dead.kill9();
            said += &dead.stderr();
            *dead = start();
        }
        eventually_blocking("the writers to end", LIMIT, || done.load(Ordering::SeqCst));
        eventually_blocking("everything to be published", LIMIT, || place.count("published_at is null") == 0);
        for mut relay in relays {
            relay.wait_for_line("relaying", LIMIT);
            relay.stop(LIMIT);
            said += &relay.stderr();
        }
    });
    let said = said.to_lowercase();
    assert!(!said.contains("deadlock") && !said.contains("[1213]") && !said.contains("[1205]"), "{said}");
    for line in place.delivered() {
        let id: Uuid = line["event_id"].as_str().unwrap().parse().unwrap();
        let aggregate = line["aggregate_id"].as_str().unwrap_or_default().to_owned();
        oracle.delivered_in(id, aggregate, line["sequence"].as_i64().unwrap());
    }
    oracle.expect_dead([]);
    // In flight are at most four batches of 100 in each relay that is killed.
    let report = oracle.verdict(KILLS * IN_FLIGHT).unwrap();
    println!("{report:?}");
}

/// P2 under kill -9 at any instant, with relays that share the table.
#[test]
fn twenty_thousand_events_through_ten_kills() {
    through_kills(&Oracle::new(), &[], &["--single-active=false"]);
}

/// The same with one that owns the table and others that stand by.
#[test]
fn twenty_thousand_events_through_ten_kills_of_owners() {
    through_kills(&Oracle::new(), &[], &["--claim", "owner"]);
}

/// P4 besides.
#[test]
fn in_order_through_ten_kills() {
    through_kills(
        &Oracle::new().ordered(),
        &["--order-index"],
        &["--ordering", "aggregate", "--single-active=false"],
    );
}

/// Hazard 9: a relay that is stopped, not dead, loses its place; when it goes on it does no harm.
#[test]
fn a_stopped_leader_is_replaced_and_harmless_when_it_returns() {
    let place = Place::new();
    place.ok(&["migrate", "up", "--table", TABLE]);
    let insert = |events: usize| {
        place.db.sql(&format!(
            "insert into org_outbox (tenant_id, topic, payload, event_id)
             select x'00000000000000000000000000000000', 'org.thing.happened.v1', '{{}}', unhex(replace(uuid(), '-', ''))
             from seq_1_to_{events}"
        ));
    };
    let mut stopped = place.relay(&[]);
    stopped.wait_for_line("active relay", LIMIT);
    let args = ["relay", "--table", TABLE, "--sink", "file:other.jsonl", "--poll-interval", "50ms"];
    let other = Program::from_command(
        place.command(&[&args[..], &["--lock-ttl", "1500ms", "--dispatch-timeout", "1s"]].concat()),
    );
    other.wait_for_line("relaying", LIMIT);
    insert(500);
    eventually_blocking("the first to deliver", LIMIT, || !place.delivered().is_empty());
    stopped.sigstop();
    insert(500);
    other.wait_for_line("active relay", LIMIT);
    eventually_blocking("everything to be published", LIMIT, || place.count("published_at is null") == 0);
    stopped.sigcont();
    insert(100);
    eventually_blocking("everything to be published", LIMIT, || place.count("published_at is null") == 0);
    let other = read_jsonl(place.dir.path().join("other.jsonl"));
    assert!(place.delivered().len() + other.len() <= 1_100 + IN_FLIGHT, "few twice");
}
