//! What the API changes: in the database, and in its audit log.

use postbox_testkit::{eventually_blocking, read_jsonl};
use serde_json::{Value, json};

use crate::client::Client;
use crate::common::LONG;
use crate::look::until;
use crate::site::{LOST, OPERATOR, SENT, Site, TOKENS};

/// A site whose relay has let `lost` events die, and one that has a way for them now.
fn with_dead(site: &Site, lost: usize) -> (postbox_testkit::Program, Client) {
    site.some_routes();
    for n in 0..lost {
        site.enqueue(LOST, &format!("letter/{n}"), "1");
    }
    let (mut relay, client) = site.relay(&[], &TOKENS);
    let operator = client.bearer(OPERATOR);
    until(&operator, &site.path("/dead/count"), "all dead", |seen| seen["count"] == lost);
    relay.stop(LONG);
    site.all_routes();
    let (relay, client) = site.relay(&[], &TOKENS);
    (relay, client.bearer(OPERATOR))
}

#[track_caller]
fn finished(client: &Client, job: &Value) -> Value {
    let path = format!("/jobs/{}", job["id"].as_str().unwrap());
    until(client, &path, "the job's end", |job| !job["ended_at"].is_null())
}

#[test]
fn one_is_replayed_then_the_rest_of_its_cause_and_the_result_is_the_truth() {
    for site in Site::both() {
        let (mut relay, client) = with_dead(&site, 5);
        let (path, table) = (site.path("/dead/replay"), site.table);
        let causes = client.json(&site.path("/dead/causes"));
        let cause = causes["causes"][0]["id"].as_str().unwrap();
        for wrong in [
            json!({}),
            json!({ "rows": 5 }),
            json!({ "rows": 5, "cause": cause, "all": true }),
            json!({ "rows": 0, "cause": cause }),
            json!({ "rows": 5, "cause": cause, "more": 1 }),
            json!({ "rows": 5, "cause": cause, "rate": 0 }),
            json!({ "rows": 5, "topic": "a\u{0}" }),
            json!([1]),
        ] {
            let answer = client.post(&path, &wrong);
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (400, "OUTBOX_ADMIN_REQUEST"),
                "{wrong}: {answer:?}"
            );
        }
        let first = client.done(&path, &json!({ "cause": cause, "rows": 5, "first": 1 }));
        assert_eq!((first["kind"].as_str(), first["rows"].as_u64()), (Some("replay_dead"), Some(1)));
        assert_eq!(
            first["command"],
            format!("postbox dead replay --table {table} --cause {cause} --first 1")
        );
        let first = finished(&client, &first);
        assert_eq!(
            (first["state"].as_str(), first["delivered"].as_u64()),
            (Some("done"), Some(1)),
            "{first}"
        );
        assert_eq!(site.count(&format!("{table} WHERE dead_at IS NOT NULL")), 4);
        let rest = client.done(&path, &json!({ "cause": cause, "rows": 4, "rate": 50 }));
        let rest = finished(&client, &rest);
        assert_eq!(rest["sentence"], "replayed 4 of 4: 4 delivered", "{rest}");
        assert_eq!(site.count(&format!("{table} WHERE published_at IS NOT NULL")), 5);
        assert_eq!(read_jsonl(site.dir.path().join("out.jsonl")).len(), 5);
        let who = site.sql("SELECT min(who) || max(action) FROM postbox_audit");
        assert_eq!(who, "alice (operator)replay");
        assert_eq!(site.sql("SELECT CAST(sum(events) AS TEXT) FROM postbox_audit"), "5");
        let nothing = client.post(&path, &json!({ "topic": LOST, "rows": 4 }));
        assert_eq!((nothing.status, nothing.code().as_str()), (409, "OUTBOX_ADMIN_CONFLICT"), "{nothing:?}");
        relay.stop(LONG);
    }
}

/// As many may be dead as before, and not the same: one was replayed by somebody else, and another has died.
#[test]
fn what_has_died_since_the_preview_is_left_alone() {
    for site in Site::both() {
        let (mut relay, client) = with_dead(&site, 3);
        let (path, table) = (site.path("/dead/discard"), site.table);
        let in_sql = |hours: u64| match site.db {
            Some(_) => format!("interval '{hours} hours'"),
            None => (hours * 3_600_000_000).to_string(),
        };
        let latest = format!("SELECT max(sequence) FROM {table}");
        site.sql(&format!(
            "UPDATE {table} SET dead_at = dead_at - {} WHERE sequence < ({latest})",
            in_sql(2)
        ));
        // Who has looked an hour ago has seen two.
        let body = json!({ "topic": LOST, "rows": 3, "at": "1h" });
        let job = finished(&client, &client.done(&path, &body));
        assert_eq!(job["sentence"], "discarded 2 of 2", "{job}");
        let preview = client.json(&site.path("/dead/preview?action=discard&since=15m"));
        assert_eq!(preview["rows"], 1, "{preview}");
        let causes = client.json(&site.path("/dead/causes"));
        let cause = causes["causes"][0]["id"].as_str().unwrap();
        // Who looked an hour ago has not seen what has died of the same cause since.
        let unseen = client.post(&path, &json!({ "cause": cause, "since": "15m", "rows": 1, "at": "1h" }));
        assert_eq!((unseen.status, unseen.code().as_str()), (409, "OUTBOX_ADMIN_CONFLICT"), "{unseen:?}");
        // Nor has it grown too old by the time that he confirms.
        site.sql(&format!("UPDATE {table} SET dead_at = dead_at - {}", in_sql(1)));
        let body = json!({ "cause": cause, "since": "15m", "rows": 1, "at": "59m" });
        let job = finished(&client, &client.done(&path, &body));
        assert_eq!(job["sentence"], "discarded 1 of 1", "{job}");
        let wrong = client.post(&path, &json!({ "all": true, "rows": 1, "at": "yesterday" }));
        assert_eq!(wrong.code(), "OUTBOX_ADMIN_REQUEST", "{wrong:?}");
        relay.stop(LONG);
    }
}

/// All addresses of this machine answer, and only some of them say so.
#[test]
fn a_database_elsewhere_is_changed_by_whoever_types_its_name() {
    let site = Site::postgres();
    site.ok(&["migrate", "up", "--table", site.table]);
    let db = site.db.as_ref().unwrap();
    let (remote, name) = (db.url.replace("127.0.0.1", "0.0.0.0"), db.name.clone());
    assert_ne!(remote, db.url);
    site.some_routes();
    for n in 0..3 {
        site.enqueue(LOST, &format!("letter/{n}"), "1");
    }
    site.enqueue(SENT, "member/1", "1");
    let env = [&TOKENS[..], &[("DATABASE_URL", remote.as_str())]].concat();
    let (mut relay, client) = site.relay(&[], &env);
    let operator = client.bearer(OPERATOR);
    until(&operator, &site.path("/dead/count"), "all dead", |seen| seen["count"] == 3);
    until(&operator, &site.path("/events?status=sent"), "the other", |page| !page["events"][0].is_null());
    for preview in
        ["/dead/preview?all=true", "/dead/preview?all=true&action=discard", "/published/preview?since=1h"]
    {
        assert_eq!(operator.json(&site.path(preview))["confirm"], name.as_str(), "{preview}");
    }
    let bodies = [
        ("/dead/replay", json!({ "all": true, "rows": 3 })),
        ("/dead/discard", json!({ "all": true, "rows": 3 })),
        ("/published/replay", json!({ "since": "1h", "rows": 1 })),
    ];
    for (path, body) in &bodies {
        for confirm in [Value::Null, json!(""), json!("y"), json!(name.to_uppercase())] {
            let mut body = body.clone();
            body["confirm"] = confirm;
            let answer = operator.post(&site.path(path), &body);
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (409, "OUTBOX_ADMIN_CONFLICT"),
                "{path} {body}: {answer:?}"
            );
        }
    }
    assert_eq!(site.count(&format!("{} WHERE dead_at IS NOT NULL", site.table)), 3, "nothing has changed");
    assert_eq!(
        (site.count("postbox_audit"), operator.json("/jobs")["jobs"].as_array().unwrap().len()),
        (0, 0)
    );
    let body = json!({ "all": true, "rows": 3, "confirm": name });
    let job = finished(&operator, &operator.done(&site.path("/dead/discard"), &body));
    assert_eq!(job["sentence"], "discarded 3 of 3", "{job}");
    relay.stop(LONG);
}

#[test]
fn a_slow_job_can_be_stopped_and_says_how_far_it_got() {
    let site = Site::sqlite();
    site.ok(&["migrate", "up", "--table", site.table]);
    let (mut relay, client) = with_dead(&site, 4);
    let job = client.done(&site.path("/dead/replay"), &json!({ "all": true, "rows": 4, "rate": 0.1 }));
    let path = format!("/jobs/{}", job["id"].as_str().unwrap());
    until(&client, &path, "the first", |job| job["delivered"] == 1);
    let stopped = client.done(&format!("{path}/stop"), &json!({}));
    assert_eq!(
        (stopped["state"].as_str(), stopped["done"].as_u64()),
        (Some("stopped"), Some(1)),
        "{stopped}"
    );
    assert!(stopped["sentence"].as_str().unwrap().ends_with("stopped before the end"), "{stopped}");
    assert_eq!(site.count(&format!("{} WHERE dead_at IS NOT NULL", site.table)), 3);
    assert_eq!(client.json("/jobs")["jobs"][0]["id"], job["id"]);
    relay.stop(LONG);
}

#[test]
fn single_events_come_back_and_chosen_ones_are_discarded() {
    for site in Site::both() {
        let (mut relay, client) = with_dead(&site, 3);
        let table = site.table;
        let dead = client.json(&site.path("/dead"));
        let id = |n: usize| dead["events"][n]["event_id"].as_str().unwrap().to_owned();
        let one = client.done(&site.path(&format!("/events/{}/replay", id(0))), &json!({}));
        assert_eq!((one["replayed"].as_bool(), one["was"].as_str()), (Some(true), Some("DEAD")));
        let sent = format!("{table} WHERE published_at IS NOT NULL");
        eventually_blocking("its delivery", LONG, || site.count(&sent) == 1);
        // What was delivered can be delivered once more.
        let again = client.done(&site.path(&format!("/events/{}/replay", id(0))), &json!({}));
        assert_eq!(again["was"], "SENT");
        let out = || read_jsonl(site.dir.path().join("out.jsonl")).len();
        eventually_blocking("two deliveries", LONG, || out() == 2);
        let discard = client.done(&site.path("/dead/discard"), &json!({ "event_ids": [id(1)], "rows": 1 }));
        let discard = finished(&client, &discard);
        assert_eq!(discard["sentence"], "discarded 1 of 1", "{discard}");
        assert_eq!((site.count(table), site.count(&format!("{table} WHERE dead_at IS NOT NULL"))), (2, 1));
        assert_eq!(site.count("postbox_audit WHERE action = 'discard' AND who = 'alice (operator)'"), 1);
        assert_eq!(
            client.post(&site.path(&format!("/events/{}/replay", id(1))), &json!({})).code(),
            "OUTBOX_EVENT_MISSING"
        );

        // By the time of their publication.
        eventually_blocking("it is settled", LONG, || site.count(&sent) == 1);
        let body = json!({ "since": "1h", "rows": 10 });
        let job = finished(&client, &client.done(&site.path("/published/replay"), &body));
        assert_eq!((job["rows"].as_u64(), job["delivered"].as_u64()), (Some(1), Some(1)), "{job}");
        assert_eq!(out(), 3);
        relay.stop(LONG);
    }
}

#[test]
fn what_waits_for_its_next_attempt_is_tried_at_once() {
    for site in Site::both() {
        site.all_routes();
        let (mut relay, client) = site.relay(&[], &TOKENS);
        let operator = client.bearer(OPERATOR);
        let later = ["enqueue", "--table", site.table, "--topic", SENT, "--payload", "1", "--delay", "1h"];
        let said = site.ok(&[&later[..], &["--json"]].concat());
        let said: Value = serde_json::from_str(&said).unwrap();
        let event = said["event_id"].as_str().unwrap();
        let (page, again) =
            (site.path(&format!("/events/{event}")), site.path(&format!("/events/{event}/replay")));
        // Its writer has chosen the time.
        let scheduled = operator.json(&page);
        assert_eq!(scheduled["can_replay"], false);
        assert!(scheduled["commands"]["replay"].is_null(), "no command that would be refused: {scheduled}");
        assert_eq!(operator.post(&again, &json!({})).status, 409);
        site.sql(&format!("UPDATE {} SET attempts = 3, last_error = 'HTTP 503'", site.table));
        let failed = operator.json(&page);
        let command = format!("postbox events replay --table {} {event}", site.table);
        assert_eq!(
            (failed["event"]["status"].as_str(), failed["can_replay"].as_bool()),
            (Some("FAILED"), Some(true))
        );
        assert_eq!(failed["commands"]["replay"], command);
        assert_eq!(operator.done(&again, &json!({}))["was"], "FAILED");
        let seen = until(&operator, &page, "its delivery", |page| page["event"]["status"] == "SENT");
        assert_eq!(seen["event"]["attempts"], 4, "what it has used stays used");
        let audit = operator.json(&site.path("/audit?limit=1"));
        assert_eq!(
            (audit["entries"][0]["action"].as_str(), audit["entries"][0]["who"].as_str()),
            (Some("retry now"), Some("alice (operator)"))
        );
        relay.stop(LONG);
    }
}

#[test]
fn a_pause_pauses_and_says_who_and_why() {
    for site in Site::both() {
        site.all_routes();
        let (mut relay, client) = site.relay(&[], &TOKENS);
        let operator = client.bearer(OPERATOR);
        let paused = operator.done(&site.path("/pause"), &json!({ "reason": "broker <migration>" }));
        assert_eq!(
            (paused["changed"].as_bool(), paused["paused"]["by"].as_str()),
            (Some(true), Some("alice (operator)"))
        );
        assert_eq!(operator.done(&site.path("/pause"), &json!({}))["changed"], false);
        until(&operator, "/overview", "the pause", |seen| seen["tables"][0]["here"]["standing"] == "paused");
        let event = site.enqueue(SENT, "member/1", "1");
        let seen = until(&operator, "/overview", "one waits", |seen| seen["tables"][0]["waiting"] == 1);
        assert_eq!(seen["sentence"], "Paused by alice (operator) (broker <migration>): 1 event waits.");
        let waiting = operator.post(&site.path(&format!("/events/{event}/replay")), &json!({}));
        assert_eq!((waiting.status, waiting.code().as_str()), (409, "OUTBOX_ADMIN_CONFLICT"));
        assert_eq!(operator.done(&site.path("/resume"), &json!({}))["changed"], true);
        until(&operator, &site.path("/events?status=sent"), "its delivery", |page| {
            page["events"][0]["event_id"] == event.as_str()
        });
        let audit = operator.json(&site.path("/audit?limit=1"));
        assert_eq!(audit["entries"][0]["action"], "resume");
        let older = operator.json(&site.path(&format!("/audit?before={}", audit["next"].as_str().unwrap())));
        assert_eq!(older["entries"][0]["what"]["reason"], "broker <migration>");
        assert_eq!((older["entries"].as_array().unwrap().len(), older["next"].is_null()), (1, true));
        relay.stop(LONG);
    }
}

#[test]
fn a_test_event_goes_the_way_of_all_events() {
    for site in Site::both() {
        site.all_routes();
        let (mut relay, client) = site.relay(&[], &TOKENS);
        let operator = client.bearer(OPERATOR);
        let sent = operator.post(&site.path("/test"), &json!({ "topic": SENT }));
        assert_eq!(sent.status, 201, "{sent:?}");
        let id = sent.json()["event_id"].as_str().unwrap().to_owned();
        let page = site.path(&format!("/events/{id}"));
        let seen = until(&operator, &page, "its delivery", |page| page["event"]["status"] == "SENT");
        assert_eq!(seen["event"]["topic"], SENT);
        let audit = operator.json(&site.path("/audit?limit=1"));
        assert_eq!(audit["entries"][0]["action"], "enqueue");
        assert_eq!(audit["entries"][0]["what"]["event_id"], id.as_str());
        // Whoever names no topic gets one that every table takes.
        let sent = operator.post(&site.path("/test"), &json!({}));
        assert_eq!(
            (sent.status, sent.json()["topic"].as_str()),
            (201, Some("postbox.relay.test.v1")),
            "{sent:?}"
        );
        let page = site.path(&format!("/events/{}", sent.json()["event_id"].as_str().unwrap()));
        until(&operator, &page, "its delivery", |page| page["event"]["status"] == "SENT");
        let wrong = operator.post(&site.path("/test"), &json!({ "topic": "not a topic" }));
        assert_eq!((wrong.status, wrong.code().as_str()), (400, "OUTBOX_ADMIN_REQUEST"));
        relay.stop(LONG);
    }
}
