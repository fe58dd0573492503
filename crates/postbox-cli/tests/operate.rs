//! What operators look at: every command on tables that are empty, large, bare, missing, forbidden, or ill.

mod common;

use std::time::{Duration, Instant};

use common::case::case;
use common::every::check_every_command;
use common::{Done, LONG, Place, TABLE, TOPIC, finish, url_as};
use postbox_testkit::{Program, eventually_blocking};
use serde_json::Value;

const NEW: &str = "00000000-0000-7000-8000-000000000001";
const SENT: &str = "00000000-0000-7000-8000-000000000002";
const DEAD: &str = "00000000-0000-7000-8000-000000000003";

/// One event of each of three kinds.
fn three_events(place: &Place) {
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (event_id, tenant_id, topic, payload, published_at, dead_at, attempts, last_error, aggregate_type,
                              aggregate_id, attempts_log)
         SELECT id::uuid, '00000000-0000-0000-0000-000000000000', '{TOPIC}', '{{\"secret\": 12345678901234567890.5}}',
                CASE n WHEN 2 THEN now() END, CASE n WHEN 3 THEN now() END, CASE n WHEN 1 THEN 0 ELSE 3 END,
                CASE n WHEN 3 THEN 'HTTP 410 from a' END, 'organization', n,
                CASE n WHEN 3 THEN '[{{\"at\": \"2026-11-15T10:00:00Z\", \"relay\": \"pod-7\", \"duration_ms\": 5, \"outcome\": \"reject\", \"error\": \"gone\"}}]'::jsonb END
         FROM unnest(ARRAY['{NEW}', '{SENT}', '{DEAD}']) WITH ORDINALITY AS ids (id, n)"
    ));
}

#[test]
fn every_command_speaks_json() {
    let place = Place::new();
    three_events(&place);
    check_every_command(&|args| place.run(args), TABLE, SENT, DEAD);
}

#[test]
fn an_empty_table_is_no_problem() {
    let place = Place::new();
    let on = |args: &str| {
        let args: Vec<&str> = args.split(' ').chain(["--table", TABLE]).collect();
        place.ok(&args)
    };
    assert_eq!(on("events list"), "no event matches\n");
    assert_eq!(on("events tail --for 100ms"), "");
    assert_eq!(on("events replay --since 1h --yes"), "no published event matches\n");
    assert_eq!(on("dead list"), "no dead events\n");
    assert_eq!(on("dead replay --all --yes"), "no dead event matches\n");
    assert_eq!(on("dead discard --all --yes"), "no dead event matches\n");
    assert_eq!(on("clean"), "public.org_outbox: deleted 0 events\n");
    assert_eq!(on("clean --dry-run"), "public.org_outbox: would delete 0 published; nothing was changed\n");
    assert_eq!(on("status --check --format nagios"), "OK org_outbox oldest=0s;10;30\n");
    let well = on("doctor");
    assert!(well.ends_with("all is well\n") && !well.contains('\u{1b}'), "{well}");
    assert!(
        well.contains("✓ PostgreSQL ") && well.contains("✓ nobody relays, and nothing waits\n"),
        "{well}"
    );
}

#[test]
fn a_hundred_thousand_events_are_answered_for() {
    let place = Place::new();
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (event_id, tenant_id, topic, payload, published_at, dead_at, attempts, last_error, available_at)
         SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', '{TOPIC}', '1',
                CASE WHEN n <= 80000 THEN now() - interval '8 days' END, CASE WHEN n > 90000 THEN now() END, 3,
                CASE WHEN n > 90000 THEN 'HTTP 410 for ' || n END, now() + CASE WHEN n % 2 = 0 THEN interval '1 year' ELSE '0' END
         FROM generate_series(1, 100000) n"
    ));
    let started = Instant::now();
    let json = |args: &str| {
        let args: Vec<&str> = args.split(' ').chain(["--table", TABLE]).collect();
        place.json(&args)
    };
    let page = json("events list --limit 3");
    assert_eq!(page["events"][0]["sequence"], 100_000, "{page}");
    assert_eq!((&page["next"], &page["bounded"]), (&Value::from(99_998), &Value::from(false)), "{page}");
    let page = json("events list --limit 2 --after 90000 --status failed");
    assert_eq!(page["events"][1]["sequence"], 89_998, "{page}");
    let page = json("events list --deep --oldest --limit 1 --error 95123");
    assert_eq!(page["events"][0]["sequence"], 95_123, "{page}");
    let causes = json("dead list");
    assert_eq!(
        (causes["events"].as_u64(), causes["causes"][0]["cause"].as_str()),
        (Some(10_000), Some("HTTP # for #"))
    );
    assert_eq!(json("dead list --cause 1 --limit 7")["events"].as_array().unwrap().len(), 7);
    assert_eq!(json("clean --dry-run")["tables"][0]["due"]["published"], 80_000);
    place.ok(&["events", "tail", "--for", "100ms", "--table", TABLE]);
    let doctor = place.run(&["doctor", "--table", TABLE]);
    assert!(doctor.code == 3 && doctor.stdout.contains("✗ at least 10,000 events dead"), "{doctor:?}");
    assert_eq!(json("dead discard --all --yes")["discarded"], 10_000);
    assert_eq!(json("clean")["tables"][0]["deleted"], 80_000);
    assert_eq!(place.count("true"), 10_000);
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
}

/// The commands that need a table, each with what it needs besides.
fn all() -> Vec<Vec<&'static str>> {
    let words = [
        "status --check",
        "events list",
        "events tail --for 1s",
        "dead list",
        "dead replay --all --yes",
        "dead discard --all --yes",
        "events replay --since 1h --yes",
        "clean",
    ];
    let mut all: Vec<Vec<&str>> = words.iter().map(|words| words.split(' ').collect()).collect();
    all.extend([vec!["events", "show", NEW], vec!["dead", "show", NEW]]);
    all
}

fn on<'a>(mut args: Vec<&'a str>, table: &'a str) -> Vec<&'a str> {
    args.extend(["--table", table]);
    args
}

#[test]
fn without_a_database_or_a_table() {
    let place = Place::new();
    let closed = "postgres://app:Zq9@127.0.0.1:1/app";
    for args in all() {
        let there = on(args.clone(), TABLE);
        case("unreachable", &there, 1, "OUTBOX_DB_UNREACHABLE", &["127.0.0.1:1"])
            .env("DATABASE_URL", closed)
            .check(&place);
        let guess = ["Did you mean public.org_outbox?"];
        case("missing", &on(args.clone(), "public.ogr_outbox"), 1, "OUTBOX_TABLE_MISSING", &guess)
            .check(&place);
        case("none", &args, 2, "OUTBOX_NO_TABLES", &[]).check(&place);
    }
    for (args, says) in
        [("events show", NEW), ("dead show", DEAD), ("dead replay --yes", NEW), ("events replay --yes", NEW)]
    {
        let args: Vec<&str> = args.split(' ').chain([says]).collect();
        case("no event", &on(args, TABLE), 1, "OUTBOX_EVENT_MISSING", &[]).check(&place);
    }
    for (args, says) in [
        ("events show seven", "give UUIDs"),
        ("events list --since yesterday", "2026-11-15T12:00:00Z"),
        ("events list --limit many", "a whole number"),
        ("dead replay --all --rate fast", "such as 50/s"),
        ("dead list --cause 9", "there are 0 causes"),
        ("events list --aggregate /1", "organization/42"),
    ] {
        case(args, &on(args.split(' ').collect(), TABLE), 2, "OUTBOX_CONFIG_INVALID", &[says]).check(&place);
    }
    // A doctor says what is wrong instead of failing of it.
    let mut command = place.command(&["doctor", "--table", TABLE]);
    command.env("DATABASE_URL", closed);
    let done = finish(command, "");
    assert!(done.code == 3 && done.stdout.contains("✗ 127.0.0.1:1: "), "{done:?}");
    let done = place.run(&["doctor", "--table", "public.ogr_outbox"]);
    assert!(
        done.code == 3 && done.stdout.contains("✗ public.ogr_outbox does not exist. Did you mean"),
        "{done:?}"
    );
    assert!(done.stdout.contains("fix: postbox migrate up --table public.ogr_outbox"), "{done:?}");
}

#[test]
fn a_viewer_sees_everything_but_payloads_and_changes_nothing() {
    let place = Place::new();
    three_events(&place);
    let role = format!("viewer_{}", place.db.name.len() + usize::try_from(std::process::id()).unwrap());
    place.db.psql(&format!("DROP ROLE IF EXISTS \"{role}\"; CREATE ROLE \"{role}\" LOGIN"));
    place.ok(&["migrate", "up", "--table", TABLE, "--grants", &format!("viewer={role}")]);
    let run = |words: &str| {
        let mut command = place.command(&on(words.split(' ').collect(), TABLE));
        command.env("DATABASE_URL", url_as(&place.db.url, &role));
        finish(command, "")
    };
    for words in [
        "status",
        "events list",
        "events tail --for 100ms",
        "dead list",
        "dead list --cause 1",
        "clean --dry-run",
    ] {
        let done = run(words);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{words}: {done:?}");
    }
    let shown = run(&format!("events show {DEAD}"));
    assert!(
        shown.code == 0 && shown.stdout.contains("payload         hidden; --payload shows it"),
        "{shown:?}"
    );
    assert!(shown.stdout.contains("reject after 5ms by pod-7: gone"), "{shown:?}");
    let doctor = run("doctor");
    assert!(doctor.code == 3 && doctor.stdout.contains("GRANT pg_read_all_stats"), "{doctor:?}");
    for words in [
        &format!("events show {DEAD} --payload"),
        &format!("events replay {SENT} --yes"),
        "dead replay --all --yes",
        &format!("dead replay {DEAD} --yes"),
        "dead discard --all --yes",
        "clean",
    ] {
        let done = run(words);
        assert!(done.code == 1 && done.stderr.contains("error[OUTBOX_DB_PERMISSION]"), "{words}: {done:?}");
    }
    assert_eq!(place.count("true"), 3);
    place.db.psql(&format!("DROP OWNED BY \"{role}\"; DROP ROLE \"{role}\""));
    let shown = place.ok(&["events", "show", DEAD, "--payload", "--json", "--table", TABLE]);
    assert!(shown.contains("12345678901234567890.5"), "digit for digit: {shown}");
}

#[test]
fn a_check_has_its_exit_codes() {
    let place = Place::new();
    let check = |more: &str| {
        let more = more.split(' ').filter(|word| !word.is_empty());
        place.run(&["status", "--check", "--table", TABLE].into_iter().chain(more).collect::<Vec<_>>())
    };
    assert_eq!(check("").code, 0);
    place.insert(3);
    place.db.psql(&format!(
        "UPDATE {TABLE} SET created_at = now() - interval '38 s', available_at = now() - interval '38 s'"
    ));
    let nagios = check("--format nagios");
    assert_eq!(nagios.code, 2, "{nagios:?}");
    let line = nagios.stdout.trim_end();
    assert!(line.starts_with("CRITICAL org_outbox oldest=") && line.ends_with("s;10;30"), "{line}");
    place.ok(&["migrate", "up", "--table", "public.a_outbox"]);
    let nagios = ["status", "--check", "--format", "nagios"];
    let several = place.run(&[&nagios[..], &["--table", "public.a_outbox", "--table", TABLE]].concat());
    let lines: Vec<&str> = several.stdout.lines().collect();
    assert!(several.code == 2 && lines[0].starts_with("CRITICAL org_outbox "), "{several:?}");
    assert!(lines.len() == 2 && lines[1].starts_with("OK a_outbox "), "{several:?}");
    let text = check("");
    assert!(text.code == 3 && text.stdout.starts_with("✗ public.org_outbox  oldest "), "{text:?}");
    let warning = check("--format nagios --max-age 60s");
    assert!(warning.code == 1 && warning.stdout.starts_with("WARNING "), "{warning:?}");
    let mut away = place.command(&["status", "--check", "--format", "nagios", "--table", TABLE]);
    away.env("DATABASE_URL", "postgres://127.0.0.1:1/app");
    let away = finish(away, "");
    assert!(away.code == 3 && away.stdout.starts_with("UNKNOWN postbox: 127.0.0.1:1: "), "{away:?}");
    assert_eq!(check("--max-age 1h --max-pending 3").code, 0);
    assert_eq!(check("--max-age 1h --max-pending 2 --json").code, 3);
    place.db.psql(&format!("UPDATE {TABLE} SET dead_at = now()"));
    let dead: Done = check("--json");
    let judged: Value = serde_json::from_str(&dead.stdout).unwrap();
    assert_eq!((dead.code, judged["tables"][0]["beyond"][0].as_str()), (3, Some("dead 3 (max 0)")));
    assert_eq!(check("--max-dead 3").code, 0);
    assert_eq!(place.run(&["status", "--table", TABLE, "--max-dead", "3"]).code, 2, "only with --check");
}

#[test]
fn a_pause_that_fails_half_way_says_how_far_it_came() {
    let place = Place::new();
    let done = place.run(&["pause", "--json", "--table", TABLE, "--table", "public.nowhere_outbox"]);
    assert!(done.code == 1 && done.stderr.contains("(paused 1 table before)"), "{done:?}");
}

/// Nobody answers: the other table's row is somebody else's.
#[test]
fn a_pause_that_hangs_half_way_says_how_far_it_came() {
    let place = Place::new();
    let other = "public.other_outbox";
    place.ok(&["migrate", "up", "--table", other]);
    let holder = place.hold(&format!("SELECT 1 FROM postbox_relay WHERE tbl = '{other}' FOR UPDATE"));
    let done = place.run(&["pause", "--table", TABLE, "--table", other]);
    assert_eq!((done.code, done.stdout.as_str()), (1, "paused public.org_outbox\n"), "{done:?}");
    assert!(done.stderr.contains("no answer from the database within 30s"), "{done:?}");
    assert!(done.stderr.contains("(paused 1 table before)"), "{done:?}");
    drop(holder);
}

/// Its row lasts for 15 s; its session ended with it.
#[test]
fn a_relay_that_was_killed_leads_no_more() {
    let place = Place::new();
    let status = || place.ok(&["status", "--table", TABLE]);
    let mut relay = place.relay(&[]);
    eventually_blocking("a leader", LONG, || status().contains("  leader testhost:"));
    relay.kill9();
    eventually_blocking("nobody to lead", Duration::from_secs(8), || status().contains("  no leader  "));
}

#[test]
fn a_doctor_finds_what_is_wrong() {
    let place = Place::new();
    let doctor = || place.run(&["doctor", "--table", TABLE, "--max-transaction", "100ms"]);
    let finds = |exit: i32, texts: &[&str]| {
        let done = doctor();
        assert_eq!(done.code, exit, "{done:#?}");
        for text in texts {
            assert!(done.stdout.contains(text), "no {text:?} in {done:#?}");
        }
    };
    finds(0, &["✓ no transaction pooler", "✓ the schema is as this version wants it", "all is well"]);
    place.ok(&["pause", "--table", TABLE, "--reason", "move"]);
    finds(3, &["! paused by tester@testhost: move      fix: postbox resume --table public.org_outbox"]);
    place.ok(&["resume", "--table", TABLE]);
    place.insert(2);
    finds(3, &["✗ nobody relays, and 2 events wait      fix: postbox relay --table public.org_outbox"]);
    place.db.psql(&format!("UPDATE {TABLE} SET dead_at = now()"));
    finds(3, &["✗ 2 events dead      fix: postbox dead list --table public.org_outbox"]);
    place.db.psql(&format!("DELETE FROM {TABLE}"));
    place.db.psql("DROP INDEX org_outbox_published_by_time");
    finds(
        3,
        &["✗ schema differs: + index org_outbox_published_by_time CONCURRENTLY      fix: postbox migrate up"],
    );
    place.ok(&["migrate", "up", "--table", TABLE]);
    place.db.psql(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'org_outbox_pending_by_available'::regclass;
         DROP VIEW org_outbox_status",
    );
    finds(
        3,
        &[
            "✗ schema differs: - invalid index org_outbox_pending_by_available",
            "! schema differs: + status view",
        ],
    );
    place.ok(&["migrate", "up", "--table", TABLE]);
    finds(0, &["all is well"]);
    place.db.psql("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$");
    finds(3, &["! synchronous_commit is off"]);
    // Somebody holds a snapshot.
    let mut holder = std::process::Command::new("psql");
    holder.args([
        "-X",
        "-d",
        &place.db.url,
        "-c",
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_sleep(60)",
    ]);
    let mut holder = Program::from_command(holder);
    let held =
        || doctor().stdout.lines().any(|line| line.starts_with("✗ pid ") && line.contains(" open for "));
    eventually_blocking("the holder is found", LONG, held);
    finds(3, &["fix: end it: SELECT pg_terminate_backend("]);
    holder.sigterm();
    holder.wait(Duration::from_secs(20));
}

#[test]
fn a_bare_table_can_be_looked_after() {
    let place = Place::empty();
    let bare = place.ok(&["migrate", "print", "--table", TABLE]);
    place.db.psql(bare.split("ALTER TABLE").next().unwrap());
    place.insert(4);
    place.db.psql(&format!(
        "UPDATE {TABLE} SET attempts = 25, last_error = 'no' WHERE sequence = 2;
         UPDATE {TABLE} SET published_at = now(), last_error = NULL WHERE sequence = 3;
         UPDATE {TABLE} SET locked_at = now(), attempts = 25 WHERE sequence = 4"
    ));
    let page = place.json(&["events", "list", "--table", TABLE]);
    let statuses: Vec<&str> =
        page["events"].as_array().unwrap().iter().map(|event| event["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["PUBLISHING", "SENT", "DEAD", "NEW"], "{page}");
    // A time that no client can hold hides nobody else.
    place.db.psql(&format!(
        "UPDATE {TABLE} SET available_at = 'infinity', created_at = '-infinity' WHERE sequence = 1"
    ));
    assert_eq!(
        place.json(&["events", "list", "--oldest", "--table", TABLE])["events"].as_array().unwrap().len(),
        4
    );
    place.db.psql(&format!("UPDATE {TABLE} SET available_at = now(), created_at = now() WHERE sequence = 1"));
    let done = place.run(&["doctor", "--table", TABLE]);
    assert!(done.stdout.contains("! bare table: no pause, no dead_at"), "{done:?}");
    let dead = page["events"][2]["event_id"].as_str().unwrap();
    place.ok(&["dead", "show", dead, "--table", TABLE]);
    let replayed = place.json(&["dead", "replay", dead, "--yes", "--watch", "0", "--table", TABLE]);
    assert_eq!(
        (&replayed["replayed"], &replayed["waiting"]),
        (&Value::from(1), &Value::from(1)),
        "{replayed}"
    );
    let sent = page["events"][1]["event_id"].as_str().unwrap();
    place.ok(&["events", "replay", sent, "--yes", "--watch", "0", "--table", TABLE]);
    assert_eq!(place.count("attempts = 0 AND published_at IS NULL AND last_error IS NULL"), 3);
}
