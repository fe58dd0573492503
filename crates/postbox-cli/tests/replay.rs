//! Dead and published events come back: by cause, at a pace, asked for, written down, and reported truthfully.

mod common;

use common::case::case;
use common::{LONG, Place, TABLE, TOPIC, distinct};
use postbox_testkit::{Program, eventually_blocking};
use serde_json::Value;

/// Events that died of one thing.
fn bury(place: &Place, events: usize, topic: &str, error: &str) {
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (event_id, tenant_id, topic, payload, dead_at, attempts, last_error)
         SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', '{topic}', '1', now(), 25, '{error} ' || n
         FROM generate_series(1, {events}) n"
    ));
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').chain(["--table", TABLE]).collect()
}

fn routed(place: &Place) -> Program {
    place.file(
        "postbox.toml",
        "[sinks.main]\nurl = \"file:out.jsonl\"\n[[route]]\ntopic = \"org.**\"\nsink = \"main\"\n",
    );
    let mut command = place.command(&["relay", "--table", TABLE, "--poll-interval", "50ms"]);
    command.env_remove("OUTBOX_SINK");
    let relay = Program::from_command(command);
    relay.wait_for_line("relaying public.org_outbox", LONG);
    relay
}

#[test]
fn four_hundred_dead_events_come_back_one_cause_at_a_time() {
    let place = Place::new();
    bury(&place, 250, TOPIC, "HTTP 410 from a");
    bury(&place, 100, TOPIC, "HTTP 500 for");
    bury(&place, 50, "nowhere.to.go.v1", "no route");
    let relay = routed(&place);
    let list = place.ok(&words("dead list"));
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines[0], "3 causes, 400 events", "{list}");
    assert!(
        lines[1].starts_with("#1  c")
            && lines[1].contains("  250  HTTP # from a #  org.organization.created.v1  "),
        "{list}"
    );
    assert!(lines[2].starts_with("    such as HTTP 410 from a "), "the error with its numbers: {list}");
    let causes = place.json(&words("dead list"))["causes"].clone();
    let id = |at: usize| causes[at]["id"].as_str().unwrap().to_owned();
    // One first, then the rest at a pace, by the id that stays while numbers change.
    let one = place.run(&words("dead replay --cause 1 --first 1 --yes"));
    assert_eq!((one.code, one.stdout.as_str()), (0, "replayed 1  ✓ delivered 1\n"), "{one:?}");
    assert!(one.stderr.contains("UPDATE public.org_outbox SET attempts = 0"), "{one:?}");
    assert!(one.stderr.contains("cause = \"HTTP # from a #\", the first 1 of 250"), "{one:?}");
    assert!(one.stderr.contains("1 row in public.org_outbox @ 127.0.0.1/"), "{one:?}");
    let rest = place.run(&words(&format!("dead replay --cause {} --rate 500/s --yes", id(0))));
    assert_eq!((rest.code, rest.stdout.as_str()), (0, "replayed 249  ✓ delivered 249\n"), "{rest:?}");
    assert_eq!(distinct(&place.wait_for_delivered(250)), 250);
    assert_eq!(place.count("dead_at IS NOT NULL"), 150, "the other causes are as they were");
    let second = place.json(&words(&format!("dead replay --cause {} --yes", id(1))));
    assert_eq!(
        (&second["matched"], &second["delivered"]),
        (&Value::from(100), &Value::from(100)),
        "{second}"
    );
    // Nothing was done about the third: it dies again, and is replayed once all the same.
    let third = place.run(&words("dead replay --cause 1 --yes"));
    let end = "replayed 50  ✗ dead again 50 → postbox dead list --table public.org_outbox --since 1m\n";
    assert_eq!((third.code, third.stdout.as_str()), (3, end), "{third:?}");
    assert_eq!(place.json(&words("dead list --since 1m"))["events"], 50);
    assert_eq!(distinct(&place.delivered()), 350);
    let audit = place.db.psql("SELECT DISTINCT who, action, tbl FROM postbox_audit");
    assert_eq!(audit, "tester@testhost|replay|public.org_outbox");
    assert_eq!(place.db.psql("SELECT sum(events) FROM postbox_audit"), "400");
    drop(relay);
    // Nobody is there to deliver: what waits is said to wait.
    let waiting = place.run(&words("dead replay --all --first 2 --watch 300ms --yes"));
    assert_eq!(
        (waiting.code, waiting.stdout.as_str()),
        (0, "replayed 2  waiting 2 → postbox status --table public.org_outbox\n")
    );
}

#[test]
fn published_events_are_delivered_once_more_under_their_old_ids() {
    let place = Place::new();
    let _relay = routed(&place);
    place.insert(20);
    let first = place.wait_for_delivered(20);
    eventually_blocking("all settled", LONG, || place.count("published_at IS NULL") == 0);
    let ids: Vec<&str> = first.iter().map(|event| event["event_id"].as_str().unwrap()).collect();
    let two = place.run(&words(&format!("events replay {} {} --yes", ids[0], ids[1])));
    assert_eq!((two.code, two.stdout.as_str()), (0, "replayed 2  ✓ delivered 2\n"), "{two:?}");
    let range = place.json(&words("events replay --since 1h --first 15 --yes"));
    assert_eq!((&range["matched"], &range["delivered"]), (&Value::from(15), &Value::from(15)), "{range}");
    let all = place.json(&words("events replay --since 1h --until 0s --yes"));
    assert_eq!(all["replayed"], 20, "each once, though it is published again meanwhile: {all}");
    let delivered = place.wait_for_delivered(57);
    assert_eq!((delivered.len(), distinct(&delivered)), (57, 20));
    assert_eq!(place.count("attempts = 1 AND sequence <= 20"), 20);
    assert_eq!(
        place.db.psql("SELECT sum(events) FROM postbox_audit WHERE action = 'replay published'"),
        "37"
    );
    let nothing = place.json(&words("events replay --since 3h --until 2h --yes"));
    assert_eq!(nothing["replayed"], 0);
}

#[test]
fn a_failed_event_is_tried_at_once_with_the_attempts_it_has_left() {
    let place = Place::new();
    place.insert(3);
    let later = "available_at = now() + interval '1 hour'";
    place.db.psql(&format!("UPDATE {TABLE} SET attempts = 3, last_error = 'HTTP 503', {later}"));
    let _relay = place.relay(&[]);
    let id = place.db.psql(&format!("SELECT event_id FROM {TABLE} WHERE sequence = 2"));
    let done = place.run(&words(&format!("events replay {id} --watch 30s --yes")));
    assert_eq!((done.code, done.stdout.as_str()), (0, "replayed 1  ✓ delivered 1\n"), "{done:?}");
    assert!(
        done.stderr.contains("SET available_at = now() WHERE 1 event that failed: tried at once"),
        "{done:?}"
    );
    assert_eq!(place.count("published_at IS NOT NULL AND attempts = 4 AND sequence = 2"), 1);
    assert_eq!(place.count("published_at IS NULL AND attempts = 3"), 2, "the others wait on");
    // Both kinds together: one is delivered once more, the other for the first time.
    let more = place.db.psql(&format!("SELECT event_id FROM {TABLE} WHERE sequence = 3"));
    let both = place.json(&words(&format!("events replay {id} {more} --watch 30s --yes")));
    assert_eq!((both["replayed"].as_u64(), both["delivered"].as_u64()), (Some(2), Some(2)), "{both}");
    let audit = place.db.psql("SELECT action, sum(events) FROM postbox_audit GROUP BY 1 ORDER BY 1");
    assert_eq!(audit, "replay published|1\nretry now|2");
    // The one has come before it is the other's turn, and is not sent again in its place.
    place.db.psql(&format!("UPDATE {TABLE} SET published_at = now() + interval '1 hour' WHERE sequence = 2"));
    let last = place.db.psql(&format!("SELECT event_id FROM {TABLE} WHERE sequence = 1"));
    let slow = place.json(&words(&format!("events replay {id} {last} --rate 1/s --watch 30s --yes")));
    assert_eq!(slow["delivered"], 2, "{slow}");
    assert_eq!(place.count("published_at > now()"), 0, "what was published is sent once more");
    assert_eq!(place.count("attempts = 4 AND sequence = 1"), 1, "what had failed is sent once");
}

#[test]
fn nothing_is_changed_by_accident() {
    let place = Place::new();
    let (missing, invalid) = ("OUTBOX_CONFIG_MISSING", "OUTBOX_CONFIG_INVALID");
    for verb in ["replay", "discard"] {
        let dead = |more: &'static str| ["dead", verb].into_iter().chain(words(more)).collect::<Vec<_>>();
        case("nothing said", &dead("--yes"), 2, missing, &["give event ids, --cause N", "--all"])
            .check(&place);
        case("too much said", &dead("--all --topic a.b.c.v1 --yes"), 2, invalid, &[]).check(&place);
        // A table of the environment is not meant.
        case("no table", &["dead", verb, "--all", "--yes"], 2, "OUTBOX_NO_TABLES", &["--table"])
            .env("OUTBOX_RELAY_TABLES", TABLE)
            .check(&place);
    }
    case("no range", &words("events replay --yes"), 2, missing, &["--since 2h --until 1h"]).check(&place);
    bury(&place, 10, TOPIC, "HTTP 410 from a");
    bury(&place, 5, "crm.contact.added.v1", "gone");
    for args in ["dead discard --all", "dead replay --cause 1", "dead discard --error gone"] {
        let done = place.run(&words(args));
        assert!(done.code == 2 && done.stderr.contains("next: pass --yes"), "{args}: {done:?}");
        assert!(done.stderr.contains("public.org_outbox @ 127.0.0.1/"), "{args}: {done:?}");
    }
    assert_eq!(place.count("dead_at IS NOT NULL"), 15);
    assert_eq!(place.db.psql("SELECT count(*) FROM postbox_audit"), "0");
    // Times that no client can hold are no reason to fail.
    place.db.psql(&format!(
        "UPDATE {TABLE} SET created_at = 'infinity', dead_at = '-infinity' WHERE sequence = 1"
    ));
    assert_eq!(place.json(&words("dead list"))["events"], 15);
    assert_eq!(place.json(&words("dead list --cause 1"))["count"], 10);
    let done = place.run(&words("dead discard --error gone --yes"));
    assert_eq!((done.code, done.stdout.as_str()), (0, "discarded 5\n"), "{done:?}");
    assert!(
        done.stderr.contains("DELETE FROM public.org_outbox WHERE dead, error contains \"gone\": for good")
    );
    let id = place.db.psql(&format!("SELECT event_id FROM {TABLE} LIMIT 1"));
    assert_eq!(place.ok(&words(&format!("dead discard {id} --yes"))), "discarded 1\n");
    assert_eq!(place.count("dead_at IS NOT NULL"), 9);
    assert_eq!(place.db.psql("SELECT action, sum(events) FROM postbox_audit GROUP BY 1"), "discard|6");
}

#[test]
fn a_tail_shows_new_events_and_what_becomes_of_them() {
    let place = Place::new();
    place.insert(1);
    let mut tail = Program::from_command(place.command(&words("events tail")));
    // What is there at its first look is not new to it; what comes later is.
    eventually_blocking("something new", LONG, || {
        place.insert(1);
        tail.stdout().contains("  NEW  ")
    });
    let _relay = place.relay(&[]);
    tail.wait_for_line("  SENT  ", LONG);
    tail.sigint();
    assert_eq!(tail.wait(LONG).code(), Some(0));
    let lines = tail.stdout();
    assert!(lines.lines().all(|line| line.contains("  org.organization.created.v1  -  ")), "{lines}");
    let about_the_first =
        |status: &str| lines.lines().any(|line| line.contains(status) && line.contains("         1  "));
    assert!(!about_the_first("NEW"), "{lines}");
}

#[test]
fn what_others_hold_is_left_alone_and_said_so() {
    let place = Place::new();
    bury(&place, 20, TOPIC, "HTTP 410 from a");
    let holder = place.hold(&format!("SELECT 1 FROM {TABLE} WHERE sequence % 2 = 0 FOR UPDATE"));
    let done = place.run(&words("dead discard --all --yes"));
    let left = "discarded 10  left alone 10: others changed them meanwhile, or hold them\n";
    assert_eq!((done.code, done.stdout.as_str()), (3, left), "{done:?}");
    assert_eq!(place.count("dead_at IS NOT NULL"), 10);
    drop(holder);
}

/// Each batch stays done, so who is told of a failure has to know how many are gone for good.
#[test]
fn a_change_that_fails_half_way_says_how_far_it_came() {
    for (args, past) in [("discard", "discarded"), ("replay --watch 0", "replayed")] {
        let place = Place::new();
        bury(&place, 1_200, TOPIC, "HTTP 410 from a");
        place.db.psql(&format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
             CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON {TABLE}
             FOR EACH ROW WHEN (OLD.sequence = 1100) EXECUTE FUNCTION refuse()"
        ));
        let done = place.run(&words(&format!("dead {args} --all --yes")));
        assert!(done.code == 1 && done.stderr.contains("not this one"), "{done:?}");
        assert!(done.stderr.contains(&format!("(1000 were {past} before)")), "{done:?}");
        assert_eq!(place.count("dead_at IS NOT NULL"), 200);
    }
}

#[test]
fn a_doctor_names_whom_everybody_waits_for() {
    let place = Place::new();
    let holder = place.hold(&format!("LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE"));
    let pid = place.db.psql("SELECT pid FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation::regclass::text = 'org_outbox'");
    let done = place.run(&words("doctor"));
    let wanted = format!("✗ public.org_outbox is locked: everybody waits for pid {pid}      fix: end it: ");
    assert!(done.code == 3 && done.stdout.contains(&wanted), "{done:?}");
    drop(holder);
}
