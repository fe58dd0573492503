//! Set-ups that are broken on purpose: a doctor names what is wrong with each, and finds nothing in one that is well.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod server;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::OnceLock;

use common::{Done, LONG, Place, TABLE, finish};
use postbox_testkit::{PgBouncer, PgServer, Program, eventually_blocking};
use serde_json::Value;

/// What keeps a set-up broken for as long as it is looked at.
type Kept = Vec<Program>;

/// A set-up, and what a doctor must say of it.
struct Broken {
    name: &'static str,
    /// Breaks it.
    how: fn(&Place) -> Kept,
    /// What the doctor is asked with.
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    code: &'static str,
    /// In what it found, and in what to do.
    says: &'static str,
}

fn sql(place: &Place, statements: &str) -> Kept {
    place.db.psql(statements);
    Vec::new()
}

/// A session that does this and stays.
fn session(place: &Place, statements: &str, there: &str) -> Kept {
    let mut command = Command::new("psql");
    command.args(["-X", "-d", &place.db.url, "-c", &format!("{statements}; SELECT pg_sleep(300)")]);
    let held = vec![Program::from_command(command)];
    eventually_blocking("the session", LONG, || place.db.psql(there) == "t");
    held
}

/// Writes an event every few milliseconds.
fn writer(place: &Place) -> Program {
    let mut writer = Command::new("psql");
    let insert = format!(
        "DO $$ BEGIN LOOP
             INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
             VALUES ('00000000-0000-0000-0000-000000000000', 'a.b.c.v1', '1', gen_random_uuid());
             COMMIT;
             PERFORM pg_sleep(0.01);
         END LOOP; END $$"
    );
    writer.args(["-X", "-q", "-d", &place.db.url, "-c", &insert]);
    Program::from_command(writer)
}

const SETUPS: &[Broken] = &[
    Broken {
        name: "a dropped index",
        how: |place| sql(place, "DROP INDEX org_outbox_pending_by_available"),
        args: &[],
        env: &[],
        code: "OUTBOX_INDEX_MISSING",
        says: "+ index org_outbox_pending_by_available",
    },
    Broken {
        name: "an index whose build was interrupted",
        how: |place| {
            sql(
                place,
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'org_outbox_published_by_time'::regclass",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_INDEX_INVALID",
        says: "invalid index org_outbox_published_by_time",
    },
    Broken {
        name: "an index that nobody uses",
        how: |place| {
            place.insert(20_000);
            // Text that does not get smaller: 20,000 times about 1,300 bytes.
            sql(
                place,
                "CREATE FUNCTION noise(BIGINT) RETURNS TEXT IMMUTABLE LANGUAGE sql AS
                     $$ SELECT string_agg(md5(($1 * 100 + n)::text), '') FROM generate_series(1, 40) n $$;
                 CREATE INDEX org_outbox_of_somebody ON org_outbox (noise(sequence));
                 UPDATE org_outbox SET published_at = now()",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_INDEX_UNUSED",
        says: "DROP INDEX CONCURRENTLY org_outbox_of_somebody",
    },
    Broken {
        name: "a column that was dropped",
        how: |place| sql(place, "ALTER TABLE org_outbox DROP COLUMN dead_at CASCADE"),
        args: &[],
        env: &[],
        code: "OUTBOX_COLUMN_MISSING",
        says: "lacks dead_at",
    },
    Broken {
        name: "a view that was dropped",
        how: |place| sql(place, "DROP VIEW org_outbox_status"),
        args: &[],
        env: &[],
        code: "OUTBOX_SCHEMA_DRIFT",
        says: "+ status view",
    },
    Broken {
        name: "a table that is gone",
        how: |place| sql(place, "DROP TABLE org_outbox CASCADE"),
        args: &[],
        env: &[],
        code: "OUTBOX_TABLE_MISSING",
        says: "postbox migrate up --table public.org_outbox",
    },
    Broken {
        name: "a table that somebody has for himself",
        how: |place| {
            session(
                place,
                "BEGIN; LOCK TABLE org_outbox",
                "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = 'org_outbox'::regclass)",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_TABLE_LOCKED",
        says: "pg_terminate_backend",
    },
    Broken {
        name: "an open transaction",
        how: |place| {
            session(
                place,
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM org_outbox",
                "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()
                     AND backend_xmin IS NOT NULL AND clock_timestamp() - xact_start > interval '200 milliseconds')",
            )
        },
        args: &["--max-transaction", "100ms"],
        env: &[],
        code: "OUTBOX_TX_OPEN",
        says: "has a transaction open for",
    },
    Broken {
        name: "a prepared transaction that nobody ends",
        how: |place| {
            let prepare =
                "BEGIN; INSERT INTO postbox_audit (who, action, tbl, events) VALUES ('a', 'b', 'c', 0);
                           PREPARE TRANSACTION 'forgotten'";
            place.db.psql(prepare);
            eventually_blocking("it is old", LONG, || {
                place.db.psql("SELECT clock_timestamp() - prepared > interval '200 milliseconds' FROM pg_prepared_xacts") == "t"
            });
            Vec::new()
        },
        args: &["--max-transaction", "100ms"],
        env: &[],
        code: "OUTBOX_TX_OPEN",
        says: "ROLLBACK PREPARED 'forgotten'",
    },
    Broken {
        name: "a replication slot that nobody reads",
        how: |place| {
            place.db.psql("SELECT pg_create_physical_replication_slot('of_nobody', true)");
            for _ in 0..5 {
                place.db.psql("SELECT pg_logical_emit_message(false, 'a', 'b'); SELECT pg_switch_wal()");
            }
            Vec::new()
        },
        args: &[],
        env: &[],
        code: "OUTBOX_SLOT_IDLE",
        says: "pg_drop_replication_slot('of_nobody')",
    },
    Broken {
        name: "autovacuum that is off",
        how: |place| sql(place, "ALTER TABLE org_outbox SET (autovacuum_enabled = off)"),
        args: &[],
        env: &[],
        code: "OUTBOX_AUTOVACUUM_OFF",
        says: "RESET (autovacuum_enabled)",
    },
    Broken {
        name: "a bloated table",
        how: |place| {
            place.db.psql("ALTER TABLE org_outbox SET (autovacuum_enabled = off)");
            place.insert(30_000);
            place.db.psql("UPDATE org_outbox SET published_at = now()");
            place.db.psql("UPDATE org_outbox SET attempts = 1");
            eventually_blocking("the server has counted", LONG, || {
                place
                    .db
                    .psql("SELECT n_dead_tup > 55000 FROM pg_stat_user_tables WHERE relname = 'org_outbox'")
                    == "t"
            });
            Vec::new()
        },
        args: &[],
        env: &[],
        code: "OUTBOX_TABLE_BLOATED",
        says: "dead row versions beside",
    },
    Broken {
        name: "synchronous_commit that is off",
        how: |place| {
            sql(
                place,
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_COMMIT_ASYNC",
        says: "SET synchronous_commit = on",
    },
    Broken {
        name: "a clock that is ten minutes ahead",
        how: |place| {
            // Found before the server's own, by everybody who does not say which one he means.
            sql(
                place,
                "CREATE SCHEMA fake;
                 CREATE FUNCTION fake.clock_timestamp() RETURNS TIMESTAMPTZ LANGUAGE sql AS
                     $$ SELECT pg_catalog.clock_timestamp() + interval '10 minutes' $$;
                 DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = fake, pg_catalog, public', current_database()); END $$",
            )
        },
        args: &[],
        env: &[],
        code: "OUTBOX_CLOCK_DIFFERS",
        says: "s ahead of this machine's",
    },
    Broken {
        name: "an owner that is connected and does nothing",
        how: |place| {
            let mut relay = place.relay(&[]);
            relay.wait_for_line("standing=Active", LONG);
            relay.sigstop();
            place.insert(3);
            place.db.psql("UPDATE org_outbox SET available_at = now() - interval '1 minute', created_at = now() - interval '1 minute'");
            vec![relay]
        },
        args: &["--dispatch-timeout", "1s", "--between", "300ms"],
        env: &[],
        code: "OUTBOX_OWNER_STUCK",
        says: "end that process",
    },
    Broken {
        name: "a stranger with the lock of the active relay",
        how: |place| {
            // As `postbox relay` takes it: the hash of outbox:public.org_outbox.
            let lock = fnv1a(&format!("outbox:{TABLE}"));
            let there = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
            session(place, &format!("SELECT pg_advisory_lock({lock})"), there)
        },
        args: &[],
        env: &[],
        code: "OUTBOX_OWNER_STUCK",
        says: "no other relay can take over",
    },
    Broken {
        name: "nobody who relays",
        how: |place| {
            place.insert(2);
            Vec::new()
        },
        args: &["--between", "10ms"],
        env: &[],
        code: "OUTBOX_NOBODY_RELAYS",
        says: "postbox relay --table public.org_outbox",
    },
    Broken {
        name: "a backlog that grows",
        how: |place| {
            place.insert(1_500);
            let writer = writer(place);
            eventually_blocking("it writes", LONG, || place.count("true") > 1_502);
            vec![writer]
        },
        args: &["--between", "500ms"],
        env: &[],
        code: "OUTBOX_BACKLOG_GROWS",
        says: "events a second come in, 0 go out",
    },
    Broken {
        name: "dead events",
        how: |place| {
            place.insert(1);
            sql(place, "UPDATE org_outbox SET dead_at = now(), last_error = 'OUTBOX_REJECTED: no'")
        },
        args: &[],
        env: &[],
        code: "OUTBOX_DEAD_EVENTS",
        says: "postbox dead list --table public.org_outbox",
    },
    Broken {
        name: "a pause that was forgotten",
        how: |place| {
            place.ok(&["pause", "--table", TABLE, "--reason", "move"]);
            Vec::new()
        },
        args: &[],
        env: &[],
        code: "OUTBOX_PAUSED",
        says: "paused by tester@testhost: move",
    },
    Broken {
        name: "a lease shorter than the timeout",
        how: |_| Vec::new(),
        args: &[],
        env: &[("OUTBOX_RELAY_LOCK_TTL", "5s")],
        code: "OUTBOX_CONFIG_INVALID",
        says: "less than 1.5 × relay.dispatch_timeout",
    },
    Broken {
        name: "a sink that cannot be reached",
        how: |_| Vec::new(),
        args: &["--sink", "nats://127.0.0.1:1"],
        env: &[],
        code: "OUTBOX_SINK_UNREACHABLE",
        says: "cannot be reached: 127.0.0.1:1: Connection refused",
    },
    Broken {
        name: "a file in a folder that is not there",
        how: |_| Vec::new(),
        args: &["--sink", "file:nowhere/out.jsonl"],
        env: &[],
        code: "OUTBOX_SINK_UNREACHABLE",
        says: "mkdir -p nowhere",
    },
    Broken {
        name: "a setting that has no effect",
        how: |_| Vec::new(),
        args: &["--on-dead", "skip"],
        env: &[],
        code: "OUTBOX_CONFIG_DOUBTFUL",
        says: "relay.on_dead has no effect",
    },
];

/// The hash by which a relay knows its lock.
fn fnv1a(text: &str) -> i64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.cast_signed()
}

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
