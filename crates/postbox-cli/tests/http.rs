//! Health checks and metrics of the built program.

mod common;

use std::net::TcpListener;
use std::time::Duration;

use common::{LONG, Place, TABLE, TOPIC, address, finish, get, ready, wait_for_standing};
use postbox_testkit::{Program, eventually_blocking, skip};

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

#[test]
fn red_while_the_sink_is_down_and_green_when_it_is_back() {
    let place = Place::new();
    let relay = place.relay(&["--sink", "file:missing/out.jsonl", "--listen", "127.0.0.1:0"]);
    let address = address(&relay);
    wait_for_standing(&address, "active");
    assert_eq!(ready(&address).0, 200, "nothing waits");
    place.insert(3);
    let (_, body) =
        eventually_blocking("red", LONG, || Some(ready(&address)).filter(|(status, _)| *status == 503));
    let problem = body["tables"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("none is delivered: file is down") && problem.contains("missing"), "{body}");
    assert_eq!(body["ready"], false);
    assert_eq!(body["tables"][0]["sinks"][0]["sink"], "file");
    assert_eq!(get(&address, "/healthz").0, 200, "alive all the same");
    assert!(
        get(&address, "/metrics")
            .1
            .contains("outbox_circuit_open{table=\"public.org_outbox\",sink=\"file\"} 1")
    );
    assert_eq!(place.count("attempts > 1"), 0, "an outage spends no attempts");
    std::fs::create_dir(place.dir.path().join("missing")).unwrap();
    eventually_blocking("green again", LONG, || ready(&address).0 == 200);
    eventually_blocking("all delivered", LONG, || place.count("published_at IS NULL") == 0);
}

#[test]
fn red_while_the_relay_hangs_and_signals_still_work() {
    if !cfg!(feature = "failpoints") {
        skip!("built without failpoints");
    }
    let place = Place::new();
    place.insert(1);
    // One worker that a handler blocks: nothing of the relay runs any more.
    let env = [("POSTBOX_FAILPOINTS", "dispatch.before=block"), ("TOKIO_WORKER_THREADS", "1")];
    let mut relay = place.relay_with(&LISTEN, &env);
    let address = address(&relay);
    let (_, body) =
        eventually_blocking("red", LONG, || Some(ready(&address)).filter(|(status, _)| *status == 503));
    assert!(body["tables"][0]["problem"].as_str().unwrap().contains("stuck"), "{body}");
    assert_eq!(get(&address, "/healthz").0, 200);
    relay.sigterm();
    relay.wait_for_line("SIGTERM: stopping", LONG);
    relay.sigint();
    assert_eq!(relay.wait(Duration::from_secs(10)).code(), Some(130));
}

#[test]
fn every_metric_is_there_under_its_prefix() {
    let place = Place::new();
    place.file(
        "postbox.toml",
        "dead_letter = \"file:dead.jsonl\"\n[sinks.main]\nurl = \"file:out.jsonl\"\n[sinks.down]\nurl = \"file:missing/out.jsonl\"\n\
         [[route]]\ntopic = \"org.**\"\nsink = \"main\"\n[[route]]\ntopic = \"down.**\"\nsink = \"down\"\n",
    );
    let args = [
        "relay",
        "--table",
        TABLE,
        "--listen",
        "127.0.0.1:0",
        "--metrics-prefix",
        "shop",
        "--metrics-path",
        "/m",
        "--poll-interval",
        "50ms",
        "--dispatch-timeout",
        "1s",
        "--lock-ttl",
        "30s",
        "--cleaner-interval",
        "100ms",
    ];
    let mut command = place.command(&args);
    command.env("POSTBOX_FAILPOINTS", "dispatch.before=hang@org.lease.lost.v1");
    let relay = Program::from_command(command);
    relay.wait_for_line(
        "relaying public.org_outbox → org.** to file:out.jsonl, down.** to file:missing/out.jsonl",
        LONG,
    );
    let address = address(&relay);
    let enqueue = |topic: &str| place.ok(&["enqueue", "--table", TABLE, "--topic", topic, "--payload", "1"]);
    for topic in [TOPIC, "nowhere.to.go.v1", "down.to.earth.v1"] {
        enqueue(topic);
    }
    place.wait_for_delivered(1);
    let mut expected = vec![
        "enqueue_total{table=\"public.org_outbox\",topic=\"org.organization.created.v1\"}",
        "dispatch_total{table=\"public.org_outbox\",topic=\"org.organization.created.v1\",result=\"success\"} 1",
        "dispatch_total{table=\"public.org_outbox\",topic=\"down.to.earth.v1\",result=\"failure\"}",
        "dispatch_latency_seconds_bucket{table=\"public.org_outbox\",topic=\"org.organization.created.v1\",result=\"success\",le=\"30\"} 1",
        "delivery_lag_seconds_bucket{table=\"public.org_outbox\",le=\"3600\"} 1",
        "dead_total{table=\"public.org_outbox\",topic=\"nowhere.to.go.v1\"} 1",
        "dlq_total{table=\"public.org_outbox\",topic=\"nowhere.to.go.v1\"} 1",
        "cold_enqueued_total{table=\"public.org_outbox\"}",
        "cleaned_total{table=\"public.org_outbox\"}",
        "pending{table=\"public.org_outbox\"}",
        "locked{table=\"public.org_outbox\"}",
        "dead{table=\"public.org_outbox\"}",
        "scheduled{table=\"public.org_outbox\"}",
        "blocked{table=\"public.org_outbox\"}",
        "oldest_pending_age_seconds{table=\"public.org_outbox\"}",
        "oldest_transaction_age_seconds{table=\"public.org_outbox\"}",
        "relay_leader{table=\"public.org_outbox\"} 1",
        "circuit_open{table=\"public.org_outbox\",sink=\"down\"} 1",
        "queue_depth{table=\"public.org_outbox\",queue=\"main\"}",
    ];
    if cfg!(feature = "failpoints") {
        // Somebody else takes the row while its dispatch hangs.
        enqueue("org.lease.lost.v1");
        let steal = format!(
            "WITH x AS (UPDATE {TABLE} SET locked_by = 'thief', locked_at = now() WHERE topic = 'org.lease.lost.v1'
                AND width_bucket(sequence, (SELECT win FROM postbox_relay)) % 2 = 1 RETURNING 1) SELECT count(*) FROM x"
        );
        eventually_blocking("the theft", LONG, || place.db.psql(&steal) == "1");
        expected.push("lease_lost_total{table=\"public.org_outbox\"}");
    }
    for metric in &expected {
        let line = format!("shop_{metric}");
        let look = || get(&address, "/metrics").1.lines().any(|text| text.starts_with(&line));
        eventually_blocking(&line, LONG, look);
    }
    let (status, text) = get(&address, "/m");
    assert_eq!(status, 200);
    assert!(!text.contains("outbox_dispatch"), "only under its prefix: {text}");
    // Nothing that the program can record is missing above; it writes no events of its own that could be hot,
    // receives none and answers no calls: those are counted where they are, which the engine and the layer test.
    let all = postbox_core::telemetry::METRICS.iter();
    let elsewhere = ["hot_", "inbox_", "idempotency_"];
    for metric in all.filter(|metric| !elsewhere.iter().any(|start| metric.name.starts_with(start))) {
        let listed = expected.iter().any(|line| line.starts_with(metric.name));
        assert!(
            listed || (metric.name == "lease_lost_total" && !cfg!(feature = "failpoints")),
            "{}",
            metric.name
        );
        if listed {
            assert!(
                text.contains(&format!("# HELP shop_{} {}", metric.name, metric.help)),
                "{}: {text}",
                metric.name
            );
        }
    }
    assert_eq!(get(&address, "/nothing").0, 404);
}

#[test]
fn a_port_that_is_taken_is_an_error_at_the_start() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let done = place.run(&["relay", "--table", TABLE, "--sink", "null:", "--listen", &address]);
    assert_eq!(done.code, 1, "{done:?}");
    let wanted = format!("error[OUTBOX_CONFIG_INVALID]: listen = {address} cannot be used (from --listen): ");
    assert!(done.stderr.contains(&wanted) && done.stderr.contains("next: choose a free port"), "{done:?}");
}

#[test]
fn aggregates_that_wait_behind_a_dead_event_are_a_gauge() {
    let place = Place::new();
    place.ok(&["migrate", "up", "--order-index", "--table", TABLE]);
    // Two wait behind the dead one of aggregate 7, one of aggregate 8 behind nobody; what is dead in 9 holds nobody up.
    place.insert(5);
    let aggregate = "CASE WHEN sequence < 4 THEN '7' WHEN sequence = 4 THEN '8' ELSE '9' END";
    let dead = "CASE WHEN sequence IN (1, 5) THEN now() END";
    place.db.psql(&format!(
        "UPDATE {TABLE} SET aggregate_type = 'order', aggregate_id = {aggregate}, dead_at = {dead}"
    ));
    let relay = place.relay(&["--ordering", "aggregate", "--listen", "127.0.0.1:0"]);
    let address = address(&relay);
    place.wait_for_delivered(1);
    for line in
        ["outbox_blocked{table=\"public.org_outbox\"} 1", "outbox_dead{table=\"public.org_outbox\"} 2"]
    {
        let look = || get(&address, "/metrics").1.lines().any(|shown| shown == line);
        eventually_blocking(line, LONG, look);
    }
    assert_eq!(place.delivered().len(), 1, "the one that waits behind nobody");
}

#[test]
fn metrics_can_be_switched_off_and_logs_can_be_json() {
    let place = Place::new();
    let args = ["relay", "--table", TABLE, "--sink", "null:", "--listen", ":0", "--metrics-enabled=false"];
    let args: Vec<&str> = args.into_iter().chain(["--log-format", "json"]).collect();
    let mut relay = Program::from_command(place.command(&args));
    let line = relay.wait_for_line("listening on http://", LONG);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = line["message"].as_str().unwrap().split("http://").nth(1).unwrap().to_owned();
    relay.wait_for_line("relaying public.org_outbox → null: (single active)", LONG);
    assert_eq!(get(&address, "/metrics").0, 404);
    assert_eq!(get(&address, "/healthz"), (200, "alive\n".to_owned()));
    relay.sigterm();
    assert_eq!(relay.wait(LONG).code(), Some(0));
    for line in relay.stderr().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    let done = finish(
        place.command(&["relay", "--table", "public.nope", "--sink", "null:", "--log-format", "json"]),
        "",
    );
    let last: serde_json::Value = serde_json::from_str(done.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(last["errors"][0]["code"], "OUTBOX_TABLE_MISSING");
}
