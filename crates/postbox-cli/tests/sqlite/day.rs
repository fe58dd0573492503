//! An operator's day with a file.

use postbox_testkit::eventually_blocking;
use serde_json::Value;

use crate::common::every::check_every_command;
use crate::common::{LONG, TOPIC, address, distinct, finish, get};
use crate::folder::{Folder, NOW, TABLE};

#[test]
fn from_nothing_to_a_delivered_event() {
    let folder = Folder::empty();
    let meant = "postbox.db: it does not exist (no database is named, so this file is meant)";
    for words in ["status", "doctor", "events list", "pause", "relay --sink stdout:", "migrate down --yes"] {
        let done = folder.run(words);
        assert!(
            done.code != 0 && format!("{}{}", done.stdout, done.stderr).contains(meant),
            "{words}: {done:?}"
        );
        assert_eq!(folder.0.path().read_dir().unwrap().count(), 0, "{words} made a file");
    }
    let plan = folder.ok("migrate up --dry-run");
    assert!(plan.starts_with("+ file postbox.db\n") && plan.contains("nothing was changed"), "{plan}");
    assert_eq!(folder.0.path().read_dir().unwrap().count(), 0);
    assert!(folder.ok("migrate up").starts_with("+ file postbox.db\n"));
    assert_eq!(folder.ok("migrate up"), "shop_outbox: nothing to do\n");
    let enqueued = folder.ok(&format!("enqueue --topic {TOPIC} --payload {{\"n\":1}}"));
    assert!(enqueued.ends_with(" in shop_outbox, sequence 1\n"), "{enqueued}");
    assert!(folder.ok("status").starts_with("shop_outbox  no leader  waiting 1  oldest "));
    let mut relay = folder.relay(&[]);
    eventually_blocking("the event", LONG, || folder.delivered().len() == 1);
    eventually_blocking("its settlement", LONG, || {
        folder.json("status")["tables"][0]["counts"]["pending"] == 0
    });
    assert!(folder.ok("status").starts_with("shop_outbox  leader testhost:"));
    assert_eq!(folder.ok("pause"), "paused shop_outbox\n");
    assert_eq!(folder.ok("resume"), "resumed shop_outbox\n");
    relay.sigterm();
    assert!(relay.wait(LONG).success());
    assert_eq!(folder.ok("migrate down --yes"), "removed shop_outbox\n");
}

#[test]
fn a_blocked_aggregate_is_seen_and_freed() {
    let folder = Folder::new();
    for n in 1..=3 {
        folder.ok(&format!("enqueue --topic {TOPIC} --payload {n}"));
    }
    folder.sql(&format!(
        "UPDATE {TABLE} SET aggregate_type = 'order', aggregate_id = iif(sequence < 3, '7', '8')"
    ));
    folder.sql(&format!("UPDATE {TABLE} SET dead_at = {NOW}, last_error = 'HTTP 410' WHERE sequence = 1"));
    let order = ["--ordering", "aggregate", "--listen", "127.0.0.1:0"];
    let mut relay = folder.relay(&order);
    eventually_blocking("the other aggregate", LONG, || folder.delivered().len() == 1);
    assert_eq!(folder.delivered()[0]["sequence"], 3);
    let (address, gauge) = (address(&relay), format!("outbox_blocked{{table=\"{TABLE}\"}} 1"));
    eventually_blocking(&gauge, LONG, || get(&address, "/metrics").1.lines().any(|line| line == gauge));
    assert!(folder.ok("status").contains("  blocked 1"), "{}", folder.ok("status"));
    assert_eq!(folder.json("status")["tables"][0]["counts"]["blocked"], 1);
    // `--dead-retention` is not for what others wait behind.
    folder.sql(&format!("UPDATE {TABLE} SET dead_at = 1 WHERE sequence = 1"));
    folder.ok("clean --cleaner-dead-retention 1s");
    folder.ok("dead replay --all --yes");
    eventually_blocking("both", LONG, || folder.delivered().len() == 3);
    let sequences: Vec<_> = folder.delivered().iter().map(|line| line["sequence"].as_i64()).collect();
    assert_eq!(sequences, [Some(3), Some(1), Some(2)]);
    relay.sigterm();
    assert!(relay.wait(LONG).success());
    assert!(!folder.ok("status").contains("blocked"));
}

#[test]
fn every_command_speaks_json() {
    let folder = Folder::new();
    let [sent, dead] = ["00000000-0000-7000-8000-000000000002", "00000000-0000-7000-8000-000000000003"];
    for id in ["00000000-0000-7000-8000-000000000001", sent, dead] {
        folder.ok(&format!("enqueue --topic {TOPIC} --payload 1 --event-id {id}"));
    }
    folder.sql(&format!("UPDATE {TABLE} SET published_at = {NOW}, attempts = 1 WHERE sequence = 2"));
    folder.sql(&format!(
        "UPDATE {TABLE} SET dead_at = {NOW}, attempts = 3, last_error = 'HTTP 410 from a' WHERE sequence = 3"
    ));
    check_every_command(&|args| finish(folder.command(args), ""), TABLE, sent, dead);
}

#[test]
fn an_empty_table_is_no_problem() {
    let folder = Folder::new();
    assert_eq!(folder.ok("events list"), "no event matches\n");
    assert_eq!(folder.ok("events tail --for 100ms"), "");
    assert_eq!(folder.ok("events replay --since 1h --yes"), "no published event matches\n");
    assert_eq!(folder.ok("dead list"), "no dead events\n");
    assert_eq!(folder.ok("dead replay --all --yes"), "no dead event matches\n");
    assert_eq!(folder.ok("dead discard --all --yes"), "no dead event matches\n");
    assert_eq!(folder.ok("clean"), "shop_outbox: deleted 0 events\n");
    assert_eq!(folder.ok("clean --dry-run"), "shop_outbox: would delete 0 published; nothing was changed\n");
    assert_eq!(folder.ok("status --check --format nagios"), "OK shop_outbox oldest=0s;10;30\n");
    let well = folder.ok("doctor");
    assert!(well.contains("✓ SQLite ") && well.ends_with("all is well\n"), "{well}");
}

#[test]
fn a_hundred_thousand_events_are_answered_for() {
    let folder = Folder::new();
    folder.fill(
        100_000,
        &format!(
            "UPDATE {TABLE} SET attempts = 3, published_at = CASE WHEN sequence <= 80000 THEN {NOW} - 8 * 86400000000 END,
                dead_at = CASE WHEN sequence > 90000 THEN {NOW} END,
                last_error = CASE WHEN sequence > 90000 THEN 'HTTP 410 for ' || sequence END"
        ),
    );
    let page = folder.json("events list --limit 3");
    assert_eq!(
        (&page["events"][0]["sequence"], &page["next"]),
        (&Value::from(100_000), &Value::from(99_998)),
        "{page}"
    );
    let page = folder.json("events list --limit 2 --after 90000 --status failed");
    assert_eq!(page["events"][1]["sequence"], 89_998, "{page}");
    let page = folder.json("events list --deep --oldest --limit 1 --error 95123");
    assert_eq!(page["events"][0]["sequence"], 95_123, "{page}");
    let causes = folder.json("dead list");
    assert_eq!(causes["events"], 10_000, "{causes}");
    assert_eq!(causes["causes"][0]["cause"], "HTTP # for #", "{causes}");
    assert_eq!(folder.json("clean --dry-run")["tables"][0]["due"]["published"], 80_000);
    folder.ok("events tail --for 100ms");
    let doctor = folder.run("doctor");
    assert!(doctor.code == 3 && doctor.stdout.contains("10,000 events dead"), "{doctor:?}");
    assert_eq!(folder.json("dead discard --all --yes")["discarded"], 10_000);
    assert_eq!(folder.json("clean")["tables"][0]["deleted"], 80_000);
    assert_eq!(folder.sql(&format!("SELECT CAST(count(*) AS TEXT) FROM {TABLE}")), "10000");
}

#[test]
fn dead_events_come_back_one_cause_at_a_time() {
    let folder = Folder::new();
    folder.fill(
        60,
        &format!(
            "UPDATE {TABLE} SET attempts = 25, dead_at = {NOW}, last_error = CASE WHEN sequence <= 40 THEN 'HTTP 410 from ' ELSE 'no ' END || sequence"
        ),
    );
    let relay = folder.relay(&[]);
    assert!(folder.ok("dead list").starts_with("2 causes, 60 events\n"));
    assert_eq!(folder.ok("dead replay --cause 1 --first 1 --yes"), "replayed 1  ✓ delivered 1\n");
    assert_eq!(folder.ok("dead replay --cause 1 --rate 500/s --yes"), "replayed 39  ✓ delivered 39\n");
    assert_eq!(distinct(&folder.delivered()), 40);
    assert_eq!(folder.ok("dead discard --all --yes"), "discarded 20\n");
    assert_eq!(folder.ok("events replay --since 1h --first 5 --yes"), "replayed 5  ✓ delivered 5\n");
    assert_eq!((folder.delivered().len(), distinct(&folder.delivered())), (45, 40));
    assert_eq!(folder.sql("SELECT group_concat(DISTINCT who) FROM postbox_audit"), "tester@testhost");
    drop(relay);
}

/// The age that a filter goes by is that of the question, however long the answer takes to carry out.
#[test]
fn a_slow_replay_of_what_died_just_now_is_not_cut_short() {
    let folder = Folder::new();
    folder.fill(8, &format!("UPDATE {TABLE} SET dead_at = {NOW}, last_error = 'no'"));
    let done = folder.json("dead replay --since 2s --rate 2/s --watch 0 --yes");
    assert_eq!((&done["replayed"], &done["left"]), (&Value::from(8), &Value::from(0)), "{done}");
}

#[test]
fn what_somebody_made_up_is_shown_within_bounds() {
    let folder = Folder::new();
    folder.fill(
        1_200,
        &format!(
            "UPDATE {TABLE} SET dead_at = sequence - 99999999999999999, attempts = 25,
                last_error = replace(replace(replace(hex(sequence), '1', 'a'), '2', 'b'), '3', 'c'),
                topic = CASE WHEN sequence = 1 THEN replace(hex(zeroblob(200000)), '00', 't') || sequence ELSE topic END"
        ),
    );
    // As many as can be told apart, but all are counted.
    folder.sql(&format!("UPDATE {TABLE} SET topic = topic || hex(sequence)"));
    let list = folder.ok("dead list");
    assert!(list.starts_with("1,000 causes or more, 1,200 events\n"), "{}", &list[..100]);
    assert_eq!(folder.json("dead list")["events"], 1_200);
    assert!(folder.ok("events list --oldest").len() < 50_000, "one topic does not fill the screen");
}

#[test]
fn a_tail_ends_when_nobody_reads_it() {
    let folder = Folder::new();
    let mut command = folder.command(&["events", "tail", "--table", TABLE]);
    let mut tail = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(tail.stdout.take());
    eventually_blocking("its end", LONG, || {
        folder.fill(1, "SELECT ''");
        tail.try_wait().unwrap().is_some()
    });
    assert_eq!(tail.wait().unwrap().code(), Some(0));
}

#[test]
fn what_is_removed_is_counted_and_written_down() {
    let folder = Folder::new();
    folder.fill(6, &format!("UPDATE {TABLE} SET dead_at = {NOW}, last_error = 'no' WHERE sequence < 3"));
    folder.sql(&format!("UPDATE {TABLE} SET published_at = {NOW} WHERE sequence = 3"));
    let down = folder.json("migrate down --yes --discard-unpublished");
    let held = serde_json::json!([{ "table": TABLE, "waiting": 3, "dead": 2, "published": 1 }]);
    assert_eq!((&down["removed"], &down["held"]), (&serde_json::json!([TABLE]), &held), "{down}");
    let log = "SELECT who || ' ' || action || ' ' || tbl || ' ' || json_extract(what, '$.waiting') || ' ' || json_extract(what, '$.dead')
                      || ' ' || json_extract(what, '$.published') || ' ' || events FROM postbox_audit";
    assert_eq!(folder.sql(log), "tester@testhost migrate_down shop_outbox 3 2 1 6");
    folder.refuses(
        "migrate down --yes",
        1,
        "OUTBOX_TABLE_MISSING",
        "nothing is left to do, or correct the name",
    );
}

/// A container has a user by number.
#[test]
fn who_has_no_name_is_known_by_number() {
    let folder = Folder::new();
    let mut command = folder.command(&["pause", "--table", TABLE]);
    command.env_remove("USER");
    let done = finish(command, "");
    assert_eq!(done.code, 0, "{done:?}");
    let number = rustix::process::getuid().as_raw();
    assert_eq!(folder.sql("SELECT who FROM postbox_audit"), format!("uid {number}@testhost"));
}
