//! `--history`: published events are moved or deleted, and operators find, replay and clean what was moved.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::case::case;
use common::{LONG, Place, TABLE, distinct};
use postbox_testkit::eventually_blocking;
use serde_json::{Value, json};

fn words(text: &str) -> Vec<&str> {
    text.split(' ').chain(["--table", TABLE]).collect()
}

fn history(place: &Place, condition: &str) -> usize {
    place.db.psql(&format!("SELECT count(*) FROM {TABLE}_history WHERE {condition}")).parse().unwrap()
}

/// From a table that keeps to one that moves, and all that an operator does with it.
#[test]
fn what_was_published_is_moved_found_replayed_and_cleaned() {
    let place = Place::new();
    // Refused with the next step, which works.
    case(
        "no history",
        &words("relay --history move --sink stdout:"),
        1,
        "OUTBOX_HISTORY_MISSING",
        &["postbox migrate up --history move --table public.org_outbox"],
    )
    .check(&place);
    let doctor = place.run(&words("doctor --history move"));
    assert!(doctor.code == 3 && doctor.stdout.contains("has no history"), "{doctor:?}");
    let plan = place.ok(&words("migrate up --history move --dry-run"));
    assert!(plan.contains("+ table org_outbox_history") && plan.contains("3 steps"), "{plan}");
    place.ok(&words("migrate up --history move"));
    assert_eq!(place.ok(&words("migrate up --history move")), "public.org_outbox: nothing to do\n");
    assert_eq!(place.ok(&words("migrate up")), "public.org_outbox: nothing to do\n", "it is kept up");
    assert!(!place.run(&words("doctor --history move")).stdout.contains("has no history"));

    let relay = place.relay(&["--history", "move"]);
    relay.wait_for_line("a repeated event_id is recognised only until its event was published", LONG);
    place.insert(20);
    let first = place.wait_for_delivered(20);
    eventually_blocking("all moved", LONG, || place.count("true") == 0);
    assert_eq!(history(&place, "published_at IS NOT NULL AND attempts = 1 AND locked_by IS NULL"), 20);
    let ids: Vec<&str> = first.iter().map(|event| event["event_id"].as_str().unwrap()).collect();

    // Found wherever one looks.
    let list = place.json(&words("events list --limit 7"));
    assert_eq!((list["events"].as_array().unwrap().len(), &list["events"][0]["status"]), (7, &json!("SENT")));
    let shown = place.ok(&words(&format!("events show {} --payload", ids[3])));
    assert!(shown.contains("SENT") && shown.contains("\"n\""), "{shown}");
    let status = place.json(&words("status"));
    assert!(status["tables"][0]["counts"]["published_per_second"].as_f64().unwrap() > 0.0, "{status}");

    // Replayed by id and by time, as from the table itself.
    let two = place.run(&words(&format!("events replay {} {} --yes", ids[0], ids[1])));
    assert_eq!((two.code, two.stdout.as_str()), (0, "replayed 2  ✓ delivered 2\n"), "{two:?}");
    assert!(
        two.stderr.contains("INSERT INTO public.org_outbox SELECT … FROM public.org_outbox_history"),
        "{two:?}"
    );
    let slow = place.json(&words("events replay --since 1h --first 5 --rate 50/s --yes"));
    assert_eq!((&slow["matched"], &slow["delivered"]), (&Value::from(5), &Value::from(5)), "{slow}");
    let all = place.json(&words("events replay --since 1h --until 0s --yes"));
    assert_eq!(all["replayed"], 20, "each once, though it is published again meanwhile: {all}");
    let delivered = place.wait_for_delivered(47);
    assert_eq!((delivered.len(), distinct(&delivered)), (47, 20));
    let audit = "SELECT sum(events) FROM postbox_audit WHERE action = 'replay published'";
    assert_eq!(place.db.psql(audit), "27");
    eventually_blocking("all moved again", LONG, || place.count("true") == 0);
    assert_eq!(history(&place, "sequence <= 20"), 20);
    drop(relay);

    // One that was written again since is left where it is, and said to be.
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
         SELECT tenant_id, topic, payload, event_id FROM {TABLE}_history WHERE sequence = 1"
    ));
    let one = place.db.psql(&format!("SELECT event_id FROM {TABLE}_history WHERE sequence = 1"));
    let left = place.run(&words(&format!("events replay {one} {} --watch 0 --yes", ids[5])));
    assert!(left.code == 3 && left.stdout.contains("replayed 1  left alone 1"), "{left:?}");
    assert_eq!(history(&place, "sequence = 1"), 1);

    // Cleaned after its retention.
    place.db.psql(&format!(
        "UPDATE {TABLE}_history SET published_at = now() - interval '8 days' WHERE sequence <= 5"
    ));
    let due = place.json(&words("clean --dry-run"));
    let waiting = history(&place, "sequence <= 5");
    assert_eq!(due["tables"][0]["due"]["published"], waiting, "{due}");
    assert_eq!(place.json(&words("clean"))["tables"][0]["deleted"], waiting);
    assert_eq!(history(&place, "sequence <= 5"), 0);

    // Removed with its table, and named before.
    let down = place.run(&words("migrate down --discard-unpublished --yes"));
    assert!(
        down.code == 0 && down.stderr.contains("DROP TABLE public.org_outbox, public.org_outbox_history: "),
        "{down:?}"
    );
    assert_eq!(place.db.psql("SELECT to_regclass('org_outbox_history') IS NULL"), "t");
}

#[test]
fn what_was_published_is_deleted_where_nobody_wants_it() {
    let place = Place::new();
    let _relay = place.relay(&["--history", "none"]);
    place.insert(50);
    let delivered = place.wait_for_delivered(50);
    assert_eq!(distinct(&delivered), 50);
    eventually_blocking("all gone", LONG, || place.count("true") == 0);
    // Nothing is said that is not known.
    let status = place.json(&words("status"));
    assert_eq!(status["tables"][0]["counts"]["published_per_second"], Value::Null, "{status}");
    let id = delivered[0]["event_id"].as_str().unwrap();
    let replay =
        words(&format!("events replay {id} --yes")).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let replay: Vec<&str> = replay.iter().map(String::as_str).collect();
    case("nothing to replay", &replay, 1, "OUTBOX_EVENT_MISSING", &[]).check(&place);
    assert_eq!(place.ok(&words("events list")), "no event matches\n");
}

/// The setting is the same wherever it stands: a migration makes what the relay of this configuration needs.
#[test]
fn a_configuration_that_moves_is_migrated_and_printed_with_a_history() {
    let place = Place::empty();
    place.file("postbox.toml", "[relay]\ntables = [\"public.org_outbox\"]\nhistory = \"move\"\n");
    let up = place.ok(&["migrate", "up"]);
    assert!(up.contains("+ table org_outbox_history"), "{up}");
    let sql = place.ok(&["migrate", "print", "--grants", "relay=postbox,viewer=ops"]);
    assert!(
        sql.contains("GRANT SELECT, INSERT, DELETE, UPDATE (locked_at) ON \"public\".\"org_outbox_history\""),
        "{sql}"
    );
    assert!(
        place
            .ok(&["migrate", "print", "--down"])
            .contains("DROP TABLE IF EXISTS \"public\".\"org_outbox_history\"")
    );
    let kept = place.ok(&["migrate", "print", "--history", "keep", "--grants", "relay=postbox"]);
    assert!(!kept.contains("_history"), "{kept}");
    let sqlite =
        place.ok(&["migrate", "print", "--dialect", "sqlite", "--table", "org_outbox", "--format", "goose"]);
    assert!(sqlite.contains("CREATE TABLE IF NOT EXISTS \"org_outbox_history\""), "{sqlite}");
}

/// The same on a file.
#[test]
fn a_file_moves_too() {
    let place = Place::empty();
    let sqlite = |text: &str| {
        let mut command =
            place.command(&text.split(' ').chain(["--table", "org_outbox"]).collect::<Vec<_>>());
        command.env("DATABASE_URL", "sqlite:app.db");
        command
    };
    let ok = |text: &str| {
        let done = common::finish(sqlite(text), "");
        assert_eq!(done.code, 0, "{text}: {done:?}");
        done
    };
    ok("migrate up --history move");
    let topic = common::TOPIC;
    for n in 0..3 {
        ok(&format!("enqueue --topic {topic} --payload {n}"));
    }
    let mut command = sqlite("relay --history move --sink file:out.jsonl --poll-interval 50ms");
    command.env_remove("OUTBOX_SINK");
    let relay = postbox_testkit::Program::from_command(command);
    let delivered = place.wait_for_delivered(3);
    eventually_blocking("all settled", LONG, || {
        ok("events list --status sent --json").stdout.matches("\"SENT\"").count() == 3
    });
    let id = delivered[0]["event_id"].as_str().unwrap();
    let replayed = ok(&format!("events replay {id} --yes"));
    assert_eq!(replayed.stdout, "replayed 1  ✓ delivered 1\n", "{replayed:?}");
    drop(relay);
    assert!(ok("clean --dry-run --cleaner-retention 1ms").stdout.contains("would delete 3 published"));
    let down = ok("migrate down --yes");
    let lost = "DROP TABLE org_outbox, org_outbox_history: 0 waiting, 0 dead, 3 published: for good\n3 rows in org_outbox @ app.db";
    assert!(down.stderr.contains(lost), "{down:?}");
}
