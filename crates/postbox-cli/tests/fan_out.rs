//! Several sinks, a sink for dead events, and dead events that are tried again, by the built program.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::fan_out::{CONFIG, lines, relay, wait_for};
use common::{LONG, Place, TABLE, TOPIC, address, get};
use postbox_testkit::eventually_blocking;

#[test]
fn one_sink_is_down_and_the_other_goes_on() {
    let place = Place::new();
    place.file("postbox.toml", CONFIG);
    let shown = place.ok(&["config", "show"]);
    assert!(shown.contains("(dead events)") && shown.contains("file:later/audit.jsonl"), "{shown}");
    let mut program = relay(&place, &["--listen", "127.0.0.1:0"], &[]);
    program.wait_for_line(
        "relaying public.org_outbox → org.** to file:main.jsonl and file:later/audit.jsonl, dead events to file:dead.jsonl",
        LONG,
    );
    place.insert(20);
    place.ok(&["enqueue", "--table", TABLE, "--topic", "nowhere.to.go.v1", "--payload", "7"]);
    wait_for(&place, "main.jsonl", 20);
    place.insert(5);
    wait_for(&place, "main.jsonl", 25);
    eventually_blocking("all to wait for one", LONG, || {
        place.count("sinks_done = '{main}' AND published_at IS NULL AND attempts = 0 AND locked_at IS NULL")
            == 25
    });
    // What nobody takes is dead, stays, and goes where dead events go.
    wait_for(&place, "dead.jsonl", 1);
    eventually_blocking("dlq_at", LONG, || place.count("dead_at IS NOT NULL AND dlq_at IS NOT NULL") == 1);
    let dead = &lines(&place, "dead.jsonl")[0];
    assert_eq!((&dead["topic"], &dead["payload"]), (&"nowhere.to.go.v1".into(), &7.into()));
    let headers = &dead["headers"];
    assert!(headers["postbox-dead-reason"].as_str().unwrap().starts_with("OUTBOX_UNROUTABLE"), "{headers}");
    assert_eq!(headers["postbox-dead-table"], TABLE);
    // The log names it as `postbox dead show` wants it.
    let log = program.stderr();
    let told = log.lines().find(|line| line.contains("event is dead")).unwrap_or(&log);
    assert!(told.contains(dead["event_id"].as_str().unwrap()), "{told}");
    let (_, metrics) = get(&address(&program), "/metrics");
    let counted = "outbox_dlq_total{table=\"public.org_outbox\",topic=\"nowhere.to.go.v1\"} 1";
    assert!(metrics.contains(counted), "{metrics}");

    std::fs::create_dir(place.dir.path().join("later")).unwrap();
    wait_for(&place, "later/audit.jsonl", 25);
    eventually_blocking("all to be published", LONG, || place.count("published_at IS NOT NULL") == 25);
    program.sigterm();
    assert_eq!(program.wait(LONG).code(), Some(0));
    assert_eq!((lines(&place, "main.jsonl").len(), lines(&place, "later/audit.jsonl").len()), (25, 25));
    assert_eq!(lines(&place, "dead.jsonl").len(), 1);
}

#[test]
fn dead_events_are_tried_again_so_often_and_no_more() {
    let place = Place::new();
    let again = ["--sink", "file:out.jsonl", "--redrive-after", "1s", "--redrive-max", "1"];
    // Nobody takes this one; after the route is there, it arrives by itself.
    place.file("postbox.toml", "[[route]]\ntopic = \"other.**\"\nsink = \"file:other.jsonl\"\n");
    place.ok(&["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "1"]);
    let mut program = relay(&place, &[], &[]);
    eventually_blocking("a dead event", LONG, || place.count("dead_at IS NOT NULL") == 1);
    program.sigterm();
    assert_eq!(program.wait(LONG).code(), Some(0));
    let mut program = relay(&place, &again, &[]);
    place.wait_for_delivered(1);
    eventually_blocking("it to be published", LONG, || {
        place.count("published_at IS NOT NULL AND redrives = 1") == 1
    });
    program.sigterm();
    assert_eq!(program.wait(LONG).code(), Some(0));
    let audited = place.db.psql("SELECT action || ' ' || events FROM postbox_audit");
    assert_eq!(audited, "redrive 1");
}

#[test]
fn what_a_table_cannot_remember_is_refused_with_the_next_step() {
    let place = Place::new();
    place.file("postbox.toml", CONFIG);
    // As an earlier version left it: everything but the newest column.
    place.db.psql(&format!("ALTER TABLE {TABLE} DROP COLUMN redrives"));
    let done = place.run(&["relay", "--table", TABLE, "--redrive-after", "1m"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("OUTBOX_COLUMN_MISSING") && done.stderr.contains("redrives"), "{done:?}");
    // The rest works as before.
    let mut program = relay(&place, &[], &[]);
    place.insert(1);
    wait_for(&place, "main.jsonl", 1);
    program.sigterm();
    assert_eq!(program.wait(LONG).code(), Some(0));
    place.ok(&["migrate", "up", "--table", TABLE]);
    // Only the twelve columns: nothing to remember by.
    place.db.psql(&format!("ALTER TABLE {TABLE} DROP COLUMN sinks_done CASCADE"));
    let done = place.run(&["relay", "--table", TABLE]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("sinks_done") && done.stderr.contains("postbox migrate up"), "{done:?}");
}
