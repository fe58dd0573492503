//! What somebody on call does: replay one, replay a cause, stop, discard, pause.

use postbox_core::{Pattern, Topic};

use crate::common::{Place, TABLE, TOPIC, distinct};
use crate::desk::{bury, desk, sent};

#[test]
fn one_event_is_replayed_from_its_page() {
    let place = Place::new();
    bury(&place, 1, TOPIC, "HTTP 410 from a");
    let desk = desk!(place);
    let id = desk.place.db.psql(&format!("SELECT event_id FROM {TABLE}"));
    desk.goto(&format!("event/{id}"));
    desk.browser.see("Nothing more happens to it unless it is replayed");
    desk.browser.press("Replay…");
    // The button shows its line.
    desk.browser.see(&format!("postbox dead replay --table {TABLE} {id}"));
    desk.browser.press("Replay");
    desk.wait_for_rows(1, "published_at IS NOT NULL");
    desk.browser.see("Delivered");
    assert_eq!(distinct(&desk.place.wait_for_delivered(1)), 1);
    let audit = desk.place.db.psql("SELECT action, events FROM postbox_audit");
    assert_eq!(audit, "replay|1");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn an_event_that_waits_for_its_next_attempt_is_tried_now() {
    let place = Place::new();
    place.insert(1);
    let later = "available_at = now() + interval '1 hour'";
    place.db.psql(&format!("UPDATE {TABLE} SET attempts = 3, last_error = 'HTTP 503', {later}"));
    let desk = desk!(place);
    let id = desk.place.db.psql(&format!("SELECT event_id FROM {TABLE}"));
    desk.goto(&format!("event/{id}"));
    desk.browser.see("Failed 3 times; tried again in");
    desk.browser.press("Try now…");
    desk.browser.see(&format!("postbox events replay --table {TABLE} {id}"));
    desk.browser.press("Try now");
    desk.browser.see("Delivered");
    desk.wait_for_rows(1, "published_at IS NOT NULL AND attempts = 4");
    assert_eq!(desk.place.db.psql("SELECT action, events FROM postbox_audit"), "retry now|1");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_cause_is_replayed_one_first_and_then_the_rest() {
    let place = Place::new();
    bury(&place, 40, TOPIC, "HTTP 410 from a");
    bury(&place, 7, TOPIC, "the schema is not known");
    let desk = desk!(place);
    desk.goto("dead");
    desk.browser.see("47 events, 2 causes");
    desk.browser.press("Replay one…");
    desk.browser.see("Replay one event of this cause?");
    desk.browser.see("--first 1");
    desk.browser.press("Replay 1");
    // On the page of the cause one watches it arrive, and the rest can follow.
    desk.browser.see("1 event arrived.");
    desk.wait_for_rows(1, "published_at IS NOT NULL");
    assert_eq!(desk.place.count("dead_at IS NOT NULL"), 46, "one and no more");
    desk.browser.press("Replay the other 39…");
    desk.browser.fill("#rate", "200");
    desk.browser.see("--rate 200/s");
    desk.browser.press("Replay 39");
    desk.browser.see("No event is dead of this any more");
    desk.wait_for_rows(40, "published_at IS NOT NULL");
    assert_eq!(desk.place.count("dead_at IS NOT NULL"), 7, "the other cause is as it was");
    assert_eq!(distinct(&desk.place.wait_for_delivered(40)), 40);
    assert_eq!(desk.place.db.psql("SELECT sum(events) FROM postbox_audit WHERE action = 'replay'"), "40");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

/// Answers and the stream come by different ways: one that is late must not show a job as running that has ended.
#[test]
fn what_has_ended_stays_so() {
    let desk = desk!(Place::new());
    let script = "const tell = arguments[arguments.length - 1];
        import(new URL('assets/live.js', document.baseURI)).then(({ live }) => {
            const states = ['running', 'watching', 'done', 'watching'];
            tell(states.map((state) => { live.know({ id: 'one', state }); return live.jobs.get('one').state; }).join());
        });";
    let states = desk.browser.run_async(script, &[]);
    assert_eq!(states.as_str(), Some("running,watching,done,done"));
}

#[test]
fn what_was_delivered_within_some_time_is_delivered_again() {
    let desk = desk!(Place::new());
    desk.place.insert(6);
    desk.wait_for_rows(6, "published_at IS NOT NULL");
    let oldest = format!("SELECT sequence FROM {TABLE} ORDER BY sequence LIMIT 2");
    let earlier = "published_at = now() - interval '3 hours'";
    desk.place.db.psql(&format!("UPDATE {TABLE} SET {earlier} WHERE sequence IN ({oldest})"));
    desk.goto("events?status=sent");
    desk.browser.press("Deliver again by time…");
    desk.browser.fill("#topic", "no.such.thing.v1");
    desk.browser.press("See what that is");
    desk.browser.see("No event that is kept was delivered then");
    desk.browser.fill("#topic", TOPIC);
    desk.browser.press("See what that is");
    desk.browser.see("Deliver 4 events again?");
    desk.browser.see(&format!("postbox events replay --table {TABLE} --since"));
    desk.browser.press("Replay 4");
    desk.browser.see("replayed 4 of 4: 4 delivered");
    let delivered = desk.place.wait_for_delivered(10);
    assert_eq!((delivered.len(), distinct(&delivered)), (10, 6), "those of the last hour twice");
    assert_eq!(desk.place.count("published_at < now() - interval '2 hours'"), 2, "these are as they were");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

/// Of the filter nothing is lost on the way: else more would be replayed or discarded than was looked at.
#[test]
fn all_that_match_a_filter_of_events_are_all_that_match_it_among_the_dead() {
    let place = Place::new();
    bury(&place, 9, TOPIC, "HTTP 410 from a");
    bury(&place, 9, "org.member.left.v1", "HTTP 410 from a");
    bury(&place, 9, TOPIC, "the schema is not known");
    let desk = desk!(place);
    desk.goto("events?status=dead&aggregate=member%2F7&since=1h");
    desk.browser.see("3 shown, the last ones");
    desk.browser.see("not by when they were written");
    let link = "document.querySelector('[data-key=bulk]')";
    assert_eq!(desk.browser.run(&format!("return {link} === null"), &[]), true, "since: is not carried");
    let tenant = "00000000-0000-0000-0000-000000000000";
    desk.goto(&format!("events?status=dead&aggregate=member%2F7&error=HTTP&topic={TOPIC}&tenant={tenant}"));
    desk.browser.see("1 shown, the last ones");
    desk.browser.press("See what these died of, and replay all that match →");
    desk.browser.see("1 event, 1 cause");
    desk.browser.press("Discard…");
    desk.browser.see(&format!("postbox dead discard --table {TABLE} --topic {TOPIC} --aggregate member/7"));
    desk.browser.keys("discard");
    desk.browser.press("Discard 1");
    desk.wait_for_rows(26, "dead_at IS NOT NULL");
    let left = format!("aggregate_id = '7' AND topic = '{TOPIC}' AND last_error LIKE 'HTTP%'");
    assert_eq!(desk.place.count(&left), 0, "it was the one that was meant");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn what_dies_again_is_said_and_a_slow_replay_is_stopped() {
    let place = Place::new();
    bury(&place, 60, "nobody.takes.this.v1", "HTTP 500 for");
    place.file(
        "postbox.toml",
        "[sinks.main]\nurl = \"file:out.jsonl\"\n[[route]]\ntopic = \"org.**\"\nsink = \"main\"\n",
    );
    let browser = postbox_testkit::broker_or_skip!(postbox_testkit::Browser::open());
    let mut command =
        place.command(&["relay", "--table", TABLE, "--dashboard", "--admin-listen", "127.0.0.1:0"]);
    command.env("OUTBOX_RELAY_POLL_INTERVAL", "50ms");
    let relay = postbox_testkit::Program::from_command(command);
    let line = relay.wait_for_line("dashboard on http://", crate::common::LONG);
    let url = format!("http://{}", line.split("http://").nth(1).unwrap().trim());
    browser.goto(&format!("{url}#/dead"));
    browser.press("Replay one…");
    browser.press("Replay 1");
    browser.see("1 event died again.");
    // One a second: there is time to stop it.
    browser.goto(&format!("{url}#/dead?topic=nobody.takes.this.v1"));
    browser.press("Replay all that match…");
    browser.fill("#rate", "1");
    browser.press("Replay 60");
    browser.press("Stop");
    browser.wait("a stopped job", "document.querySelector('[data-job=stopped]')");
    let replayed = || {
        place
            .db
            .psql("SELECT coalesce(sum(events), 0) FROM postbox_audit WHERE action = 'replay'")
            .parse::<i64>()
            .unwrap()
    };
    assert!(replayed() < 60, "it went on: {}", replayed());
    assert_eq!(place.count("true"), 60, "nothing is lost");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn what_is_discarded_is_typed_first() {
    let place = Place::new();
    bury(&place, 3, TOPIC, "HTTP 410 from a");
    sent(&place, 2);
    let desk = desk!(place);
    desk.goto("dead");
    desk.browser.press("Discard…");
    desk.browser.see("deleted for good");
    let refused = desk.browser.run("return document.querySelector('dialog [type=submit]').disabled", &[]);
    assert_eq!(refused, true, "nothing was typed");
    desk.browser.keys("discard");
    desk.browser.press("Discard 3");
    desk.browser.see("Nothing is dead");
    desk.wait_for_rows(0, "dead_at IS NOT NULL");
    assert_eq!(desk.place.count("true"), 2, "what was sent is still there");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

/// All addresses of this machine answer, and only some of them say so.
#[test]
fn the_name_of_a_database_elsewhere_is_typed_before_a_replay() {
    let place = Place::new();
    bury(&place, 2, TOPIC, "HTTP 410 from a");
    let (remote, name) = (place.db.url.replace("127.0.0.1", "0.0.0.0"), place.db.name.clone());
    let desk = desk!(place, &[], &[("DATABASE_URL", &remote)]);
    desk.goto("dead");
    desk.browser.press("Replay all…");
    desk.browser.see(&format!("{TABLE} @ 0.0.0.0"));
    let refused = "return document.querySelector('dialog [type=submit]').disabled";
    assert_eq!(desk.browser.run(refused, &[]), true, "nothing was typed");
    desk.browser.fill("dialog input:not(#rate)", "y");
    assert_eq!(desk.browser.run(refused, &[]), true, "y is no database");
    desk.browser.fill("dialog input:not(#rate)", &name);
    desk.browser.press("Replay 2");
    desk.wait_for_rows(2, "published_at IS NOT NULL");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_table_is_paused_with_a_reason_and_resumed() {
    let place = Place::new();
    let desk = desk!(place);
    desk.goto("table");
    desk.browser.press("Pause…");
    desk.browser.fill("#reason", "broker's migration");
    desk.browser.see("--reason 'broker'\\''s migration'");
    desk.browser.press("Pause");
    desk.browser.see("broker's migration");
    desk.browser.see("Events are still written and wait");
    desk.place.insert(5);
    assert_eq!(desk.place.db.psql("SELECT action FROM postbox_audit"), "pause");
    desk.browser.wait(
        "5 waiting",
        "[...document.querySelectorAll('.stat')].some((one) => one.innerText.startsWith('Waiting\\n5'))",
    );
    assert_eq!(desk.place.delivered().len(), 0);
    desk.browser.press("Resume…");
    desk.browser.press("Resume");
    assert_eq!(distinct(&desk.place.wait_for_delivered(5)), 5);
    desk.browser.wait("no pause", "!document.body.innerText.includes('Paused by')");
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}

/// What a test event is called before somebody calls it otherwise: a topic that can be written and that goes to the sink.
#[test]
fn every_pattern_has_a_topic_for_trying() {
    let desk = desk!(Place::new());
    let cases = [
        ("**", "postbox.relay.test.v1"),
        ("*.*.*.*", "postbox.relay.test.v1"),
        ("shop.**", "shop.relay.test.v1"),
        ("shop.order.**", "shop.order.test.v1"),
        ("shop.order.placed.**", "shop.order.placed.v1"),
        ("shop.order.placed.late.**", "shop.order.placed.late.v1"),
        ("shop.*.*.*", "shop.relay.test.v1"),
        ("shop.*.placed.v2", "shop.relay.placed.v2"),
        ("**.placed.*", "postbox.relay.placed.v1"),
        ("shop.**.v3", "shop.relay.test.v3"),
        ("shop.**.order.**", "shop.order.test.v1"),
        ("a.b.c.d.*.*", "a.b.c.d.test.v1"),
        ("org.member.added.v1", "org.member.added.v1"),
        // No topic that can be written goes there.
        ("shop.*.*", ""),
        ("OrderPlaced", ""),
        ("shop.order.placed.late", ""),
    ];
    let script = "const [patterns, tell] = arguments;
        import(new URL('assets/pages/sinks.js', document.baseURI)).then(({ example }) => tell(patterns.map(example)));";
    let patterns: Vec<&str> = cases.iter().map(|(pattern, _)| *pattern).collect();
    let topics = desk.browser.run_async(script, &[serde_json::json!(patterns)]);
    for (i, (pattern, wanted)) in cases.into_iter().enumerate() {
        assert_eq!(topics[i], wanted, "{pattern}");
        let goes = |topic| pattern.parse::<Pattern>().unwrap().matches(&topic);
        assert!(wanted.is_empty() || Topic::parse(wanted).is_ok_and(goes), "{pattern}: {wanted}");
    }
}

#[test]
fn a_test_event_is_sent_and_followed_to_its_trace() {
    let setting = ("OUTBOX_ADMIN_TRACE_URL", "https://traces.example/trace/{trace_id}");
    let desk = desk!(Place::new(), &[], &[setting]);
    desk.goto("sinks");
    desk.browser.press("Send a test event…");
    desk.browser.see(&format!("postbox enqueue --table {TABLE} --topic postbox.relay.test.v1"));
    desk.browser.press("Send");
    desk.browser.wait("its page", "location.hash.startsWith('#/event/')");
    desk.browser.see("Delivered");
    assert_eq!(distinct(&desk.place.wait_for_delivered(1)), 1);
    // An event with a trace leads there.
    bury(&desk.place, 1, TOPIC, "HTTP 410 from a");
    let traced = "UPDATE {} SET traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
                  WHERE dead_at IS NOT NULL RETURNING event_id";
    let id = desk.place.db.psql(&traced.replace("{}", TABLE));
    desk.goto(&format!("event/{}", id.lines().next().unwrap()));
    let link =
        "document.querySelector('a[href=\"https://traces.example/trace/4bf92f3577b34da6a3ce929d0e0e4736\"]')";
    desk.browser.wait("a link to its trace", link);
    assert_eq!(desk.browser.complaints(), Vec::<String>::new());
}
