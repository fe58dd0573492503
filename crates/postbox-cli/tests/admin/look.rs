//! What the API shows.

use postbox_testkit::eventually_blocking;
use serde_json::{Value, json};

use crate::client::Client;
use crate::common::LONG;
use crate::site::{LOST, OPERATOR, SENT, Site, TOKENS, VIEWER};

/// Waits for something in an answer.
#[track_caller]
pub(crate) fn until(client: &Client, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually_blocking(what, LONG, || Some(client.json(path)).filter(|value| is(value)))
}

#[test]
fn every_page_has_its_answer_in_both_databases() {
    for site in Site::both() {
        site.some_routes();
        // Larger than what JavaScript can count.
        let big = "{\"n\": 9007199254740993}";
        let sent = site.enqueue(SENT, "member/1", big);
        let lost: Vec<String> = (0..3).map(|n| site.enqueue(LOST, &format!("letter/{n}"), big)).collect();
        let (mut relay, client) = site.relay(&[], &TOKENS);
        let viewer = client.bearer(VIEWER);
        let all = |seen: &Value| seen["tables"][0]["dead"] == 3 && seen["tables"][0]["waiting"] == 0;
        let seen = until(&viewer, "/overview", "three dead", all);
        assert_eq!((seen["health"].as_str(), seen["jobs_running"].as_u64()), (Some("doubtful"), Some(0)));
        assert_eq!(seen["sentence"], "3 events are dead; nothing waits.");
        let table = &seen["tables"][0];
        assert_eq!(
            (table["id"].as_str(), table["here"]["standing"].as_str()),
            (Some(site.table), Some("active"))
        );
        assert_eq!(table["sinks"][0]["state"], "closed", "{table}");
        assert!(table["lag_p99_seconds"].as_f64().unwrap() >= table["lag_p50_seconds"].as_f64().unwrap());
        assert!(table["leader"].as_str().unwrap().starts_with("testhost:"), "{table}");
        let one = viewer.json(&site.path(""));
        assert_eq!(one["commands"]["resume"], format!("postbox resume --table {}", site.table));
        let points = viewer.json(&site.path("/history"));
        assert!(points["points"].as_array().unwrap().iter().any(|point| point["dead"] == 3), "{points}");

        let page = viewer.json(&site.path("/events?limit=2&order=oldest"));
        assert_eq!(page["events"][0]["event_id"], sent.as_str());
        let next = page["next"].as_str().unwrap();
        assert_eq!(page["events"][1]["sequence"], next, "sequences are texts");
        let rest = viewer.json(&site.path(&format!("/events?order=oldest&after={next}")));
        assert_eq!((rest["events"].as_array().unwrap().len(), rest["next"].is_null()), (2, true));
        let only =
            viewer.json(&site.path("/events?status=dead&aggregate_type=letter&aggregate_id=1&since=1h"));
        assert_eq!(only["events"][0]["event_id"], lost[1].as_str());
        let command = format!(
            "postbox events list --table {} --aggregate letter/1 --status dead --since 1h",
            site.table
        );
        assert_eq!(only["command"], command);
        let event = viewer.json(&site.path(&format!("/events/{}", lost[1])));
        assert_eq!(event["event"]["headers"]["trace"], "<b>x</b>");
        assert_eq!(
            (event["can_replay"].as_bool(), event["event"]["attempts_log"].is_array()),
            (Some(true), true)
        );
        assert!(!event.to_string().contains("9007199254740993"), "the payload: {event}");

        let causes = viewer.json(&site.path("/dead/causes"));
        let cause = causes["causes"][0]["id"].as_str().unwrap();
        assert_eq!((causes["events"].as_u64(), causes["causes"][0]["topic"].as_str()), (Some(3), Some(LOST)));
        let dead = viewer.json(&site.path(&format!("/dead?cause={cause}&limit=2")));
        assert_eq!((dead["count"].as_u64(), dead["events"].as_array().unwrap().len()), (Some(3), 2));
        assert_eq!(viewer.json(&site.path("/dead/count?error=nobody"))["count"], 0);
        // A cause that nothing has died of, or not any more: its last event may have gone since somebody looked.
        let none = viewer.json(&site.path("/dead?cause=0000000"));
        assert_eq!((&none["count"], none["events"].as_array().unwrap().len()), (&json!(0), 0));
        assert_eq!(viewer.json(&site.path("/dead/count?cause=0000000"))["count"], 0);
        let preview = viewer.json(&site.path(&format!("/dead/preview?cause={cause}&first=1")));
        assert_eq!((preview["rows"].as_u64(), preview["matched"].as_u64()), (Some(1), Some(3)));
        assert!(
            preview["sql"].as_str().unwrap().starts_with(&format!("UPDATE {} SET attempts = 0", site.table))
        );
        let says = format!("postbox dead replay --table {} --cause {cause} --first 1", site.table);
        assert_eq!(preview["command"], says);
        let status = |path: &str| viewer.get(&format!("/api/v1{}", site.path(path))).status;
        assert_eq!(status("/dead/preview"), 400, "never all by silence");
        let one = viewer.json(&site.path("/dead/preview?aggregate_type=letter&aggregate_id=1"));
        let says = format!("postbox dead replay --table {} --aggregate letter/1", site.table);
        assert_eq!((one["rows"].as_u64(), one["command"].as_str()), (Some(1), Some(says.as_str())), "{one}");
        assert_eq!(status("/dead/preview?aggregate_id=1"), 400, "no command says this");
        let sent_again = viewer.json(&site.path("/published/preview?since=1h"));
        assert_eq!(sent_again["rows"], 1, "{sent_again}");

        assert_eq!(viewer.json(&site.path("/inbox"))["messages"], json!([]));
        assert_eq!(viewer.json(&site.path("/audit"))["entries"], json!([]));
        assert!(viewer.json(&site.path("/blocked"))["aggregates"].is_array());
        assert_eq!(viewer.json("/sinks")["sinks"][0]["tables"][0]["id"], site.table);
        let doctor = viewer.json("/doctor");
        assert_eq!(doctor["ok"], false, "three are dead: {doctor}");
        assert!(
            doctor["findings"].as_array().unwrap().iter().any(|found| found["check"] == "dead"),
            "{doctor}"
        );
        relay.stop(LONG);
    }
}

#[test]
fn what_waits_behind_a_dead_event_is_shown_with_it() {
    for site in [Site::sqlite(), Site::postgres(), Site::mariadb()] {
        site.ok(&["migrate", "up", "--order-index", "--table", site.table]);
        site.some_routes();
        let dead = site.enqueue(LOST, "letter/1", "1");
        for aggregate in ["letter/1", "letter/1", "letter/2"] {
            site.enqueue(SENT, aggregate, "1");
        }
        let (mut relay, client) = site.relay(&["--ordering", "aggregate"], &TOKENS);
        let viewer = client.bearer(VIEWER);
        // That of the other aggregate may still be on its way.
        until(&viewer, "/overview", "one is blocked and two wait", |seen| {
            seen["tables"][0]["blocked"] == 1 && seen["tables"][0]["waiting"] == 2
        });
        let blocked = viewer.json(&site.path("/blocked"));
        let [only] = blocked["aggregates"].as_array().unwrap().as_slice() else { panic!("{blocked}") };
        assert_eq!(
            (only["aggregate_type"].as_str(), only["aggregate_id"].as_str()),
            (Some("letter"), Some("1"))
        );
        assert_eq!((only["waiting"].as_u64(), only["waiting_bounded"].as_bool()), (Some(2), Some(false)));
        assert_eq!(
            (only["dead"]["event_id"].as_str(), only["dead"]["topic"].as_str()),
            (Some(&*dead), Some(LOST))
        );
        assert!(only["dead"]["last_error"].as_str().unwrap().contains("OUTBOX_UNROUTABLE"), "{only}");
        relay.stop(LONG);
    }
}

#[test]
fn a_sink_that_is_down_is_named_with_its_next_probe() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.enqueue(SENT, "member/1", "1");
    let (mut relay, client) = site.relay(&["--sink", "file:missing/out.jsonl"], &TOKENS);
    let viewer = client.bearer(VIEWER);
    let down =
        |seen: &Value| seen["tables"][0]["sinks"][0]["state"] == "open" && seen["tables"][0]["waiting"] == 1;
    let seen = until(&viewer, "/overview", "the sink is down", down);
    let (sentence, sink) = (seen["sentence"].as_str().unwrap(), &seen["tables"][0]["sinks"][0]);
    assert!(
        sentence.starts_with("file is down for ") && sentence.contains("1 event waits, next probe in "),
        "{sentence}"
    );
    assert_eq!(seen["health"], "bad");
    assert!(
        sink["next_probe_at"].is_string() && sink["last_error"].as_str().unwrap().contains("missing"),
        "{sink}"
    );
    let sinks = viewer.json("/sinks");
    assert_eq!(sinks["sinks"][0]["tables"][0]["state"], "open", "{sinks}");
    std::fs::create_dir(site.dir.path().join("missing")).unwrap();
    let seen = until(&viewer, "/overview", "it is back", |seen| seen["tables"][0]["waiting"] == 0);
    assert_eq!(seen["tables"][0]["sinks"][0]["next_probe_at"], Value::Null, "{seen}");
    relay.stop(LONG);
}

#[test]
fn whoever_reads_a_payload_is_written_down_before_and_every_digit_is_there() {
    for site in Site::both() {
        site.all_routes();
        let event = site.enqueue(SENT, "member/1", "{\"n\": 9007199254740993}");
        let (mut relay, client) = site.relay(&[], &TOKENS);
        let viewer = client.bearer(VIEWER);
        assert_eq!(site.count("postbox_audit"), 0);
        let payload = viewer.json(&site.path(&format!("/events/{event}/payload")));
        assert!(payload["payload"].as_str().unwrap().contains("9007199254740993"), "{payload}");
        assert_eq!(payload["logged"], true);
        assert_eq!(site.sql("SELECT who || ' ' || action FROM postbox_audit"), "viewer show_payload");
        let audit = viewer.json(&site.path("/audit"));
        assert_eq!(audit["entries"][0]["what"]["event_id"], event.as_str());
        assert_eq!(viewer.get(&format!("/api/v1{}", site.path("/events/nonsense/payload"))).status, 400);
        let nobody = format!("/api/v1{}", site.path(&format!("/events/{}/payload", uuid::Uuid::nil())));
        assert_eq!(viewer.get(&nobody).code(), "OUTBOX_EVENT_MISSING");
        assert_eq!(site.count("postbox_audit"), 1);
        assert!(!relay.stderr().contains("9007199254740993"), "a payload in the log");
        relay.stop(LONG);
    }
}

#[test]
fn the_stream_tells_what_changes_and_how_jobs_go() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.some_routes();
    site.enqueue(LOST, "letter/1", "1");
    let (mut relay, client) = site.relay(&[], &TOKENS);
    let operator = client.bearer(OPERATOR);
    let mut stream = operator.stream();
    let (name, first) = stream.next().unwrap();
    assert_eq!((name.as_str(), first["tables"][0]["id"].as_str()), ("overview", Some(site.table)));
    until(&operator, "/overview", "one dead", |seen| seen["tables"][0]["dead"] == 1);
    let body = json!({ "all": true, "rows": 1 });
    let job = operator.done(&site.path("/dead/replay"), &body);
    let mut last = Value::Null;
    for (name, news) in stream.by_ref() {
        if name == "job" {
            assert_eq!(news["id"], job["id"]);
            last = news;
            if last["state"] == "done" {
                break;
            }
        }
    }
    assert_eq!((last["done"].as_u64(), last["dead_again"].as_u64()), (Some(1), Some(1)), "{last}");
    // So many at a time, and a place that is left is free again.
    let many: Vec<_> = (0..31).map(|_| operator.stream()).collect();
    assert_eq!(operator.get("/api/v1/stream").code(), "OUTBOX_ADMIN_BUSY");
    drop(many);
    eventually_blocking("a free place", LONG, || {
        // Nobody is told that a reader has gone before something is written to it.
        let answer = std::panic::catch_unwind(|| operator.stream().next().is_some());
        answer.is_ok_and(|first| first)
    });
    drop(stream);
    relay.stop(LONG);
}

/// The same as the program's, by two looks: settings, sinks, room for connections, and a backlog that grows.
#[test]
fn the_doctor_looks_at_sinks_connections_and_what_grows() {
    let site = Site::postgres();
    site.ok(&["migrate", "up", "--table", site.table]);
    std::fs::write(site.dir.path().join("postbox.toml"), "sink = \"file:gone/out.jsonl\"\n").unwrap();
    let (mut relay, client) = site.relay(&[], &TOKENS);
    let viewer = client.bearer(VIEWER);
    let found = |code: &str| {
        let doctor = viewer.json("/doctor");
        let one = doctor["findings"].as_array().unwrap().iter().find(|found| found["code"] == code).cloned();
        one.map(|found| found["what"].as_str().unwrap().to_owned())
    };
    let sink = found("OUTBOX_SINK_UNREACHABLE").unwrap();
    assert!(sink.contains("cannot be written: gone is not a folder"), "{sink}");
    let room = |found: &Value| found["check"] == "connections" && found["level"] == "good";
    assert!(viewer.json("/doctor")["findings"].as_array().unwrap().iter().any(room), "connections");
    let event = "INSERT INTO public.org_outbox (event_id, tenant_id, topic, payload)
                 SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000000', 'org.member.added.v1', '1'";
    site.sql(&format!("{event} FROM generate_series(1, 1500)"));
    // Ends with the test, or by itself.
    let body = format!("FOR i IN 1..2000 LOOP {event}; COMMIT; PERFORM pg_sleep(0.02); END LOOP;");
    let mut writer = std::process::Command::new("psql");
    writer.args(["-X", "-d", &site.db.as_ref().unwrap().url, "-c", &format!("DO $$ BEGIN {body} END $$")]);
    let _writer = postbox_testkit::Program::from_command(writer);
    let grows = eventually_blocking("a second look", LONG, || found("OUTBOX_BACKLOG_GROWS"));
    assert!(grows.contains("events a second come in, 0 go out"), "{grows}");
    relay.stop(LONG);
}

#[test]
fn a_table_that_cannot_do_a_thing_says_so() {
    let site = Site::postgres();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.all_routes();
    let (mut relay, client) = site.relay(&[], &TOKENS);
    let operator = client.bearer(OPERATOR);
    let inbox = operator.get(&format!("/api/v1{}", site.path("/inbox")));
    assert_eq!((inbox.status, inbox.code().as_str()), (409, "OUTBOX_INBOX_MISSING"), "{inbox:?}");
    assert_eq!(operator.get("/api/v1/tables/public.nope/events").code(), "OUTBOX_ADMIN_NOT_FOUND");
    assert_eq!(operator.json(&site.path("/blocked"))["supported"], false);
    site.sql("DROP TABLE public.org_outbox CASCADE");
    let gone = operator.get(&format!("/api/v1{}", site.path("/events")));
    assert_eq!((gone.status, gone.code().as_str()), (409, "OUTBOX_TABLE_MISSING"), "{gone:?}");
    let seen = until(&operator, "/overview", "the error", |seen| !seen["tables"][0]["error"].is_null());
    assert_eq!(
        (seen["health"].as_str(), seen["tables"][0]["error"]["code"].as_str()),
        (Some("bad"), Some("OUTBOX_TABLE_MISSING"))
    );
    relay.sigterm();
    relay.wait(LONG);
}

#[test]
fn one_dead_event_is_found_in_a_big_table_while_many_look() {
    let site = Site::postgres();
    site.ok(&["migrate", "up", "--table", site.table]);
    site.all_routes();
    let columns = "tenant_id, topic, payload, event_id";
    site.sql(&format!(
        "INSERT INTO {} ({columns}, published_at, attempts, dead_at, last_error)
         SELECT gen_random_uuid(), '{SENT}', '{{}}', gen_random_uuid(), CASE WHEN n % 4 > 0 THEN now() END, 1,
                CASE WHEN n % 4 = 0 THEN now() END,
                CASE WHEN n % 4 = 0 THEN 'HTTP 503 from host ' || n || CASE WHEN n = 199996 THEN ' needle' ELSE '' END END
         FROM generate_series(1, 200000) n",
        site.table
    ));
    let (mut relay, client) = site.relay(&[], &TOKENS);
    let viewer = client.bearer(VIEWER);
    // Far below what a statement may take; a machine that does other things as well is slow.
    let most = std::time::Duration::from_secs(5);
    let ask = |path: &str| {
        let began = std::time::Instant::now();
        let value = viewer.json(path);
        assert!(began.elapsed() < most, "{path} took {:?}", began.elapsed());
        value
    };
    let seen =
        until(&viewer, "/overview", "an estimate", |seen| seen["tables"][0]["dead"].as_u64() >= Some(10_000));
    assert_eq!(seen["tables"][0]["estimated"], true, "{seen}");
    let page = ask(&site.path("/events?limit=50"));
    assert_eq!(page["events"].as_array().unwrap().len(), 50);
    let causes = ask(&site.path("/dead/causes"));
    assert_eq!((causes["events"].as_u64(), causes["causes"].as_array().unwrap().len()), (Some(50_000), 2));
    assert_eq!(ask(&site.path("/dead?error=needle"))["count"], 1);
    assert_eq!(ask(&site.path("/events?status=dead&error=needle"))["events"].as_array().unwrap().len(), 1);
    // Who looks at the same time shares what was counted.
    let counted = || seen_version(&viewer);
    let before = counted();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| viewer.json("/overview"));
        }
    });
    assert!(counted() <= before + 5, "twenty looks were counted one by one");
    relay.stop(LONG);
}

fn seen_version(client: &Client) -> u64 {
    client.json("/overview")["version"].as_str().unwrap().parse().unwrap()
}
