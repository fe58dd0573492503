//! Delivery by the built program: exactly what committed, through stops, restarts, pauses and deaths.

mod common;

use std::time::{Duration, Instant};

use common::{LONG, Place, TABLE, TOPIC, address, distinct, finish, ready, wait_for_standing};
use postbox_testkit::{eventually_blocking, skip};

#[test]
fn psql_alone_is_enough_to_write_events() {
    let place = Place::empty();
    let sql = place.ok(&["migrate", "print", "--table", TABLE]);
    place.db.psql(&sql);
    place.db.psql("CREATE TABLE orders (id INT PRIMARY KEY)");
    let event = |id: &str, n: u32| {
        format!(
            "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
             VALUES ('00000000-0000-0000-0000-000000000000', '{TOPIC}', '{{\"n\": {n}}}', '{id}');"
        )
    };
    let (good, bad) = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222");
    let mut relay = place.relay(&[]);
    place.db.psql(&format!("BEGIN; INSERT INTO orders VALUES (1); {} COMMIT;", event(good, 1)));
    place.db.psql(&format!("BEGIN; INSERT INTO orders VALUES (2); {} ROLLBACK;", event(bad, 2)));
    // Delivered after the one that was rolled back, so that one had its chance.
    place.db.psql(&event("33333333-3333-4333-8333-333333333333", 3));
    let delivered = place.wait_for_delivered(2);
    relay.sigterm();
    assert_eq!(relay.wait(LONG).code(), Some(0));
    assert_eq!(place.delivered().len(), 2, "{delivered:?}");
    assert_eq!(delivered[0]["event_id"], good);
    assert_eq!(delivered[0]["topic"], TOPIC);
    assert_eq!(delivered[0]["payload"], serde_json::json!({ "n": 1 }));
    assert!(!delivered.iter().any(|event| event["event_id"] == bad));
    assert_eq!(place.db.psql("SELECT count(*) FROM orders"), "1");
    assert_eq!(place.count("published_at IS NULL"), 0);
}

#[test]
fn enqueue_prints_its_receipt_and_all_its_fields_arrive() {
    let place = Place::new();
    let id = "11111111-1111-4111-8111-111111111111";
    let all = [
        "enqueue",
        "--table",
        TABLE,
        "--topic",
        TOPIC,
        "--payload",
        "-",
        "--event-id",
        id,
        "--tenant",
        "acme",
        "--aggregate",
        "organization/42",
        "--header",
        "region=eu",
        "--header",
        "a=b=c",
        "--delay",
        "100ms",
    ];
    let done = finish(place.command(&all), "{\"big\": 12345678901234567890.50}");
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.stdout, format!("enqueued {id} in {TABLE}, sequence 1\n"));
    let again = finish(place.command(&all), "{}");
    assert_eq!(again.stdout, format!("{id} is in {TABLE} already, sequence 1; nothing was written\n"));
    let receipt = place.json(&["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "-1"]);
    assert_eq!(receipt["result"], "written");
    let mut relay = place.relay(&[]);
    let delivered = place.wait_for_delivered(2);
    relay.sigint();
    assert_eq!(relay.wait(LONG).code(), Some(0));
    let event = delivered.iter().find(|event| event["event_id"] == id).unwrap();
    assert_eq!(event["aggregate_type"], "organization");
    assert_eq!(event["aggregate_id"], "42");
    assert_eq!(event["headers"], serde_json::json!({ "a": "b=c", "region": "eu", "tenant": "acme" }));
    assert!(event["payload"].to_string().contains("big"), "{event}");
}

#[test]
fn a_bare_table_is_written_shown_and_relayed() {
    let place = Place::empty();
    place.db.psql(&format!(
        "CREATE TABLE {TABLE} (id UUID NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY, tenant_id UUID NOT NULL,
           topic TEXT NOT NULL, payload JSONB NOT NULL, event_id UUID NOT NULL UNIQUE, sequence BIGSERIAL NOT NULL,
           created_at TIMESTAMPTZ NOT NULL DEFAULT now(), published_at TIMESTAMPTZ, attempts INT NOT NULL DEFAULT 0,
           available_at TIMESTAMPTZ NOT NULL DEFAULT now(), locked_at TIMESTAMPTZ, last_error TEXT)"
    ));
    place.ok(&["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "{\"a\":1}"]);
    let status = place.ok(&["status", "--table", TABLE]);
    assert!(status.contains("bare table") && status.contains("waiting 1"), "{status}");
    let paused = place.run(&["pause", "--table", TABLE]);
    assert_eq!(paused.code, 1);
    assert!(paused.stderr.contains("error[OUTBOX_COLUMN_MISSING]"), "{paused:?}");
    assert!(paused.stderr.contains("next: postbox migrate up --table public.org_outbox"), "{paused:?}");
    let mut relay = place.relay(&[]);
    place.wait_for_delivered(1);
    relay.sigterm();
    assert_eq!(relay.wait(LONG).code(), Some(0));
    assert_eq!(place.count("published_at IS NOT NULL"), 1);
}

#[test]
fn sigterm_under_load_duplicates_nothing() {
    let place = Place::new();
    place.insert(20_000);
    for round in 1..=3 {
        let before = place.delivered().len();
        let mut relay = place.relay(&["--batch-size", "50", "--drain-timeout", "30s"]);
        place.wait_for_delivered(before + 200);
        relay.sigterm();
        assert_eq!(relay.wait(LONG).code(), Some(0), "{}", relay.stderr());
        let delivered = place.delivered();
        assert!(delivered.len() < 20_000, "round {round}: it was not stopped under load");
        assert_eq!(distinct(&delivered), delivered.len(), "round {round}");
        assert_eq!(place.count("published_at IS NOT NULL"), delivered.len(), "round {round}");
        assert_eq!(place.count("locked_at IS NOT NULL OR (published_at IS NULL AND attempts > 0)"), 0);
    }
    let relay = place.relay(&["--batch-size", "1000"]);
    let delivered = place.wait_for_delivered(20_000);
    drop(relay);
    assert_eq!((delivered.len(), distinct(&delivered)), (20_000, 20_000));
}

#[test]
fn a_second_signal_ends_at_once() {
    if !cfg!(feature = "failpoints") {
        skip!("built without failpoints");
    }
    let place = Place::new();
    place.insert(1);
    let hang = [("POSTBOX_FAILPOINTS", "dispatch.before=hang")];
    let mut relay = place.relay_with(&["--drain-timeout", "1h"], &hang);
    let in_flight = "width_bucket(sequence, (SELECT win FROM postbox_relay)) % 2 = 1";
    eventually_blocking("the event in flight", LONG, || place.count(in_flight) == 1);
    relay.sigterm();
    relay.wait_for_line("SIGTERM: stopping", LONG);
    let at = Instant::now();
    relay.sigint();
    assert_eq!(relay.wait(LONG).code(), Some(130));
    assert!(at.elapsed() < Duration::from_secs(5), "{:?}", at.elapsed());
    assert!(place.delivered().is_empty());
}

#[test]
fn pause_works_across_processes_and_restarts() {
    let place = Place::new();
    let listen = ["--listen", "127.0.0.1:0", "--poll-interval", "200ms"];
    let mut relay = place.relay(&listen);
    place.insert(1);
    place.wait_for_delivered(1);
    let said = place.ok(&["pause", "--table", TABLE, "--reason", "broker move"]);
    assert_eq!(said, format!("paused {TABLE}\n"));
    let at = Instant::now();
    wait_for_standing(&address(&relay), "paused");
    assert!(at.elapsed() < Duration::from_secs(3), "a tick is 200ms, it took {:?}", at.elapsed());
    assert_eq!(ready(&address(&relay)).0, 200, "paused is green");
    assert_eq!(place.ok(&["pause", "--table", TABLE]), format!("{TABLE} was paused already\n"));
    // The program takes no such reason, but others may write the row.
    place.db.psql("UPDATE postbox_relay SET paused_reason = E'broker\\x1b[31m move'");
    let status = place.ok(&["status", "--table", TABLE]);
    assert!(status.contains("paused by tester@testhost (broker"), "{status}");
    assert!(!status.contains('\u{1b}'), "{status:?}");
    place.insert(1);
    relay.sigterm();
    assert_eq!(relay.wait(LONG).code(), Some(0));

    let relay = place.relay(&listen);
    wait_for_standing(&address(&relay), "paused");
    // Its claim, and not only its standing, said so: nothing was taken.
    assert_eq!(place.count("attempts > 0 AND published_at IS NULL"), 0);
    assert_eq!(place.delivered().len(), 1);
    assert_eq!(place.json(&["resume", "--table", TABLE])["tables"][0]["changed"], true);
    place.wait_for_delivered(2);
    assert_eq!(place.ok(&["resume", "--table", TABLE]), format!("{TABLE} was not paused\n"));
    let audit = place.db.psql("SELECT who, action FROM postbox_audit ORDER BY id");
    assert_eq!(audit, "tester@testhost|pause\ntester@testhost|resume");
}

#[test]
fn of_two_relays_one_works_and_the_other_takes_over() {
    let place = Place::new();
    let listen = ["--listen", "127.0.0.1:0"];
    let mut first = place.relay(&listen);
    wait_for_standing(&address(&first), "active");
    let second = place.relay(&listen);
    wait_for_standing(&address(&second), "standby");
    assert_eq!(ready(&address(&second)).0, 200, "a standby is green");
    let status = place.json(&["status", "--table", TABLE]);
    let leader = status["tables"][0]["relay"]["leader"].as_str().unwrap();
    assert!(leader.starts_with(&format!("testhost:{}/", first.id())), "{leader}");
    place.insert(100);
    place.wait_for_delivered(100);
    assert_eq!(ready(&address(&second)).1["tables"][0]["last_delivery_seconds"], serde_json::Value::Null);
    first.kill9();
    place.insert(100);
    eventually_blocking("all delivered", LONG, || distinct(&place.delivered()) == 200);
    wait_for_standing(&address(&second), "active");
    let line = place.ok(&["status", "--table", TABLE]);
    assert!(line.contains(&format!("leader testhost:{} (epoch 2)", second.id())), "{line}");
}

#[test]
fn a_relay_waits_for_its_database_but_not_for_a_wrong_one() {
    let place = Place::new();
    let proxy = postbox_testkit::Proxy::start(place.db.addr());
    proxy.cut();
    let url = place.db.url_through(proxy.addr());
    let mut command =
        place.command(&["relay", "--table", TABLE, "--sink", "file:out.jsonl", "--listen", ":0"]);
    command.env("DATABASE_URL", &url);
    let relay = postbox_testkit::Program::from_command(command);
    relay.wait_for_line("the store cannot be opened, trying again", LONG);
    let (status, body) = ready(&address(&relay));
    assert_eq!((status, &body["tables"][0]["standing"]), (503, &"starting".into()), "{body}");
    place.insert(1);
    proxy.pass();
    relay.wait_for_line("relaying public.org_outbox → file:out.jsonl (single active)", LONG);
    place.wait_for_delivered(1);
    drop(relay);

    let mut command = place.command(&["relay", "--table", TABLE, "--sink", "null:"]);
    command.env("DATABASE_URL", common::url_as(&place.db.url, "nobody_at_all"));
    let done = finish(command, "");
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("error[OUTBOX_DB_AUTH]"), "{done:?}");
}

#[test]
fn a_relay_that_is_switched_off_says_so_and_one_that_only_cleans_cleans() {
    let place = Place::new();
    let mut command = place.command(&["relay", "--table", TABLE, "--cleaner-enabled=false"]);
    command.env("OUTBOX_RELAY_ENABLED", "false");
    let done = finish(command, "");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.stderr.contains("switched off (relay.enabled = false from OUTBOX_RELAY_ENABLED): nothing to do"),
        "{done:?}"
    );

    place.insert(3);
    place.db.psql(&format!("UPDATE {TABLE} SET published_at = now() - interval '8 days' WHERE sequence < 3"));
    let args = ["relay", "--table", TABLE, "--relay-enabled=false"];
    let mut cleaner = postbox_testkit::Program::from_command(place.command(&args));
    eventually_blocking("clean table", LONG, || place.count("true") == 1);
    cleaner.sigterm();
    assert_eq!(cleaner.wait(LONG).code(), Some(0));
    assert!(place.delivered().is_empty());
}

#[test]
fn several_tables_in_one_relay() {
    let place = Place::new();
    place.ok(&["migrate", "up", "--table", "public.crm_outbox"]);
    let relay = place.relay(&["--table", "public.crm_outbox"]);
    relay.wait_for_line("relaying public.crm_outbox → file:out.jsonl (single active)", LONG);
    for table in [TABLE, "public.crm_outbox"] {
        place.ok(&["enqueue", "--table", table, "--topic", TOPIC, "--payload", "1"]);
    }
    place.wait_for_delivered(2);
    let status = place.ok(&["status", "--table", TABLE, "--table", "public.crm_outbox"]);
    assert_eq!(status.lines().filter(|line| line.contains("leader testhost:")).count(), 2, "{status}");
}
