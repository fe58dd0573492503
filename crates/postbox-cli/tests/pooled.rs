//! The program where only a transaction pooler leads to the database.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Done, LONG, Place, TABLE, TOPIC, address, finish, get};
use postbox_testkit::{PgBouncer, Program, eventually_blocking};

/// The address of a place's database through the pooler.
fn through(place: &Place) -> String {
    place.db.url_through(PgBouncer::shared().addr())
}

/// Runs a command through the pooler.
fn run(place: &Place, args: &[&str]) -> Done {
    let mut command = place.command(args);
    command.env("DATABASE_URL", through(place));
    finish(command, "")
}

/// The same; it must work. Several times: the pooler gives each transaction another server process.
#[track_caller]
fn ok(place: &Place, args: &[&str]) -> String {
    let mut last = String::new();
    for _ in 0..3 {
        let done = run(place, args);
        assert_eq!(done.code, 0, "{args:?}: {done:#?}");
        last = done.stdout;
    }
    last
}

#[test]
fn operators_need_no_session() {
    let place = Place::new();
    place.insert(3);
    place.db.psql(&format!(
        "UPDATE {TABLE} SET dead_at = now(), attempts = 3, last_error = 'OUTBOX_REJECTED: no'
         WHERE sequence = (SELECT min(sequence) FROM {TABLE})"
    ));
    assert!(ok(&place, &["status", "--table", TABLE]).contains("dead 1"));
    assert!(ok(&place, &["events", "list", "--table", TABLE]).contains(TOPIC));
    assert!(ok(&place, &["dead", "list", "--table", TABLE]).contains("OUTBOX_REJECTED"));
    ok(&place, &["pause", "--table", TABLE, "--reason", "move"]);
    ok(&place, &["resume", "--table", TABLE]);
    ok(&place, &["clean", "--table", TABLE, "--dry-run"]);
    ok(&place, &["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "{}"]);
    assert_eq!(place.count("true"), 6, "three more");
    let gone = run(&place, &["dead", "discard", "--table", TABLE, "--all", "--yes"]);
    assert_eq!((gone.code, place.count("true")), (0, 5), "{gone:#?}");
    let doctor = run(&place, &["doctor", "--table", TABLE]);
    assert!(doctor.stdout.contains("! a transaction pooler is in between"), "{doctor:#?}");
    assert!(doctor.stdout.contains("OUTBOX_DIRECT_URL"), "{doctor:#?}");
    assert!(doctor.stdout.contains("✓ the schema is as this version wants it"), "{doctor:#?}");
}

#[test]
fn a_relay_with_cleaner_and_metrics_needs_no_session() {
    let place = Place::new();
    place.insert(500);
    let mut command = place.command(&["relay", "--table", TABLE, "--listen", "127.0.0.1:0"]);
    command.env("DATABASE_URL", through(&place));
    command.envs([
        ("OUTBOX_SINK", "file:out.jsonl"),
        ("OUTBOX_RELAY_POLL_INTERVAL", "50ms"),
        ("OUTBOX_CLEANER_RETENTION", "1s"),
        ("OUTBOX_CLEANER_INTERVAL", "1s"),
    ]);
    let relay = Program::from_command(command);
    let address = address(&relay);
    place.wait_for_delivered(500);
    eventually_blocking("the cleaner", LONG, || place.count("true") == 0);
    eventually_blocking("the metrics", LONG, || {
        let (status, body) = get(&address, "/metrics");
        status == 200 && body.contains("outbox_pending{") && body.contains("outbox_locked{")
    });
}

#[test]
fn a_migration_through_a_pooler_is_refused_before_anything_is_done() {
    let place = Place::empty();
    let up = ["migrate", "up", "--table", TABLE];
    let refused = run(&place, &up);
    assert_ne!(refused.code, 0, "{refused:#?}");
    for text in ["OUTBOX_POOLER_UNSUPPORTED", "OUTBOX_DIRECT_URL"] {
        assert!(refused.stderr.contains(text), "no {text} in {refused:#?}");
    }
    assert_eq!(place.db.psql("SELECT to_regclass('org_outbox') IS NULL"), "t");
    // What would be done can be looked at; past the pooler, it is done.
    assert!(ok(&place, &["migrate", "up", "--dry-run", "--table", TABLE]).contains("+ table"));
    let mut command = place.command(&up);
    command.env("DATABASE_URL", through(&place)).env("OUTBOX_DIRECT_URL", &place.db.url);
    let done = finish(command, "");
    assert_eq!(done.code, 0, "{done:#?}");
    ok(&place, &["status", "--table", TABLE]);
    assert_eq!(run(&place, &["migrate", "down", "--table", TABLE, "--yes"]).code, 0);
    assert_eq!(place.db.psql("SELECT to_regclass('org_outbox') IS NULL"), "t");
}
