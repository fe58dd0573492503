//! Set-ups that are broken on purpose: a doctor names what is wrong with each, and finds nothing in one that is well.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod server;
mod setups;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use common::{Done, LONG, Place, TABLE, finish};
use postbox_testkit::{PgBouncer, PgServer, eventually_blocking};
use serde_json::Value;
use setups::{Broken, SETUPS, writer};

/// A server of this test's own: some set-ups are those of a whole server.
fn server() -> &'static PgServer {
    static SERVER: OnceLock<PgServer> = OnceLock::new();
    SERVER.get_or_init(|| PgServer::with(&["max_prepared_transactions=4", "track_counts=on"]))
}

fn place_on(server: &PgServer) -> Place {
    let place = Place { db: server.database(), dir: tempfile::tempdir().unwrap() };
    place.ok(&["migrate", "up", "--table", TABLE]);
    place
}

fn doctor(place: &Place, args: &[&str], env: &[(&str, &str)]) -> (Done, Value) {
    let args: Vec<&str> =
        ["doctor", "--table", TABLE, "--json"].into_iter().chain(args.iter().copied()).collect();
    let mut command = place.command(&args);
    command.envs(env.iter().copied());
    let done = finish(command, "");
    let json = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:#?}"));
    (done, json)
}

/// The findings that are none of good.
fn findings(json: &Value) -> Vec<&Value> {
    json["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] != "good").collect()
}

fn check(place: &Place, broken: &Broken) {
    let Broken { name, how, args, env, code, says } = broken;
    let kept = how(place);
    let (done, json) = doctor(place, args, env);
    assert_eq!(done.code, 3, "{name}: {done:#?}");
    assert_eq!(json["ok"], false, "{name}: {json:#}");
    let named = findings(&json).into_iter().find(|finding| {
        let text = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        finding["code"] == *code && format!("{} {}", text("what"), text("fix")).contains(says)
    });
    assert!(named.is_some(), "{name}: no {code} that says {says:?} in {json:#}");
    // For people, the same.
    let explain = format!("more: postbox explain {}", code.trim_start_matches("OUTBOX_"));
    let mut command = place.command(&["doctor", "--table", TABLE]);
    command.args(*args).envs(env.iter().copied());
    let told = finish(command, "");
    assert!(told.stdout.lines().any(|line| line.ends_with(&explain)), "{name}: {told:#?}");
    place.ok(&["explain", code]);
    for mut program in kept {
        program.kill9();
    }
}

#[test]
fn each_of_many_broken_set_ups_is_named() {
    for broken in SETUPS {
        let place = place_on(server());
        check(&place, broken);
        // Of the whole server: they would be found in the next set-up, too, and keep the database from being dropped.
        if place.db.psql("SELECT count(*) FROM pg_prepared_xacts") != "0" {
            place.db.psql("ROLLBACK PREPARED 'forgotten'");
        }
        place.db.psql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots");
    }
    let names: BTreeSet<&str> = SETUPS.iter().map(|broken| broken.code).collect();
    assert!(names.len() >= 10, "{names:?}");
}

#[test]
fn a_transaction_pooler_is_named_and_the_way_past_it_is_well() {
    let place = Place::new();
    let pooled = place.db.url_through(PgBouncer::shared().addr());
    let (done, json) = doctor(&place, &[], &[("DATABASE_URL", &pooled)]);
    assert_eq!(done.code, 3, "{done:#?}");
    assert!(findings(&json).iter().any(|finding| finding["code"] == "OUTBOX_POOLED"), "{json:#}");
    let direct = place.db.url.clone();
    let (done, json) = doctor(&place, &[], &[("DATABASE_URL", &pooled), ("OUTBOX_DIRECT_URL", &direct)]);
    assert_eq!((done.code, findings(&json).len()), (0, 0), "{json:#}");
    // Only what is wrong, for those who want that.
    let (done, json) = doctor(&place, &["--fail-on", "wrong"], &[("DATABASE_URL", &pooled)]);
    assert_eq!(
        (done.code, &json["ok"], &json["doubtful"]),
        (0, &Value::from(true), &Value::from(1)),
        "{json:#}"
    );
}

#[test]
fn a_server_without_room_for_a_relay_is_named() {
    let small = PgServer::with(&["max_connections=12", "superuser_reserved_connections=2"]);
    let place = place_on(&small);
    let (done, json) = doctor(&place, &[], &[("OUTBOX_LISTEN", "127.0.0.1:0")]);
    assert_eq!(done.code, 0, "room for one table: {json:#}");
    let tables = ["--table", "public.a_outbox"];
    place.ok(&["migrate", "up", "--table", "public.a_outbox"]);
    let (done, json) = doctor(&place, &tables, &[("OUTBOX_LISTEN", "127.0.0.1:0")]);
    assert_eq!(done.code, 3, "{json:#}");
    let short = findings(&json).into_iter().find(|finding| finding["code"] == "OUTBOX_CONNECTIONS_SHORT");
    assert!(short.unwrap()["what"].as_str().unwrap().contains("max_connections = 12"), "{json:#}");
}

#[test]
fn a_set_up_that_is_well_has_no_findings() {
    // Not the one that others break.
    let server = PgServer::start();
    let place = place_on(&server);
    let relay = place.relay(&["--listen", "127.0.0.1:0"]);
    relay.wait_for_line("standing=Active", LONG);
    place.insert(500);
    place.wait_for_delivered(500);
    eventually_blocking("all is settled", LONG, || place.count("published_at IS NULL") == 0);
    let env = [("OUTBOX_SINK", "file:out.jsonl"), ("OUTBOX_LISTEN", "127.0.0.1:9187")];
    let (done, json) = doctor(&place, &[], &env);
    assert_eq!((done.code, findings(&json).len(), &json["ok"]), (0, 0, &Value::from(true)), "{json:#}");
    let checks: BTreeSet<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|finding| finding["check"].as_str()).collect();
    for check in [
        "settings",
        "sink",
        "connection",
        "server",
        "clock",
        "pooler",
        "table",
        "layout",
        "schema",
        "vacuum",
        "transactions",
        "replication",
        "owner",
        "listen",
        "connections",
        "relay",
        "lag",
        "dead",
    ] {
        assert!(checks.contains(check), "{check} was not looked at: {checks:?}");
    }
    // Busy is not ill: while events come and go, two looks find nothing either.
    let mut writer = writer(&place);
    eventually_blocking("it writes", LONG, || place.count("true") > 510);
    for _ in 0..5 {
        let (done, json) = doctor(&place, &["--between", "200ms"], &env);
        assert_eq!((done.code, findings(&json).len()), (0, 0), "{json:#}");
    }
    writer.kill9();
}
