//! What people get wrong: each is refused with a code, a next step and the right exit, and nothing is written.

#[path = "../common/mod.rs"]
mod common;
mod given;
mod settings;

use common::case::{Case, case};
use common::{LONG, Place, TABLE, TOPIC, finish, url_as};
use postbox_testkit::{PgServer, eventually_blocking};

const CLOSED: &str = "postgres://app:Zq9@127.0.0.1:1/app";

#[test]
fn tables() {
    let place = Place::new();
    place.db.psql(
        "CREATE TABLE public.wrong_outbox (LIKE public.org_outbox);
         ALTER TABLE public.wrong_outbox ALTER payload TYPE text, DROP event_id;
         CREATE VIEW public.view_outbox AS SELECT * FROM public.org_outbox",
    );
    let enqueue = |table| ["enqueue", "--table", table, "--topic", TOPIC, "--payload", "1"];
    let relay = |table| ["relay", "--sink", "null:", "--table", table];
    let guess = [
        "public.ogr_outbox does not exist. Did you mean public.org_outbox?",
        "next: postbox migrate up --table public.ogr_outbox",
    ];
    let missing = "OUTBOX_TABLE_MISSING";
    let mismatch = ["payload is text, not jsonb", "event_id is missing"];
    let cases = [
        case("relay", &relay("public.ogr_outbox"), 1, missing, &guess),
        case("status", &["status", "--table", "public.ogr_outbox"], 1, missing, &guess),
        case("pause", &["pause", "--table", "public.ogr_outbox"], 1, missing, &guess),
        case("enqueue", &enqueue("public.ogr_outbox"), 1, missing, &guess),
        case(
            "schema",
            &["migrate", "up", "--table", "nope.org_outbox"],
            1,
            missing,
            &["next: create the schema first: CREATE SCHEMA nope"],
        ),
        case("view", &relay("public.view_outbox"), 1, missing, &["public.view_outbox does not exist"]),
        case("relay wrong", &relay("public.wrong_outbox"), 1, "OUTBOX_TABLE_MISMATCH", &mismatch),
        case(
            "migrate wrong",
            &["migrate", "up", "--table", "public.wrong_outbox"],
            1,
            "OUTBOX_TABLE_MISMATCH",
            &mismatch,
        ),
        case(
            "status wrong",
            &["status", "--table", "public.wrong_outbox"],
            1,
            "OUTBOX_TABLE_MISMATCH",
            &mismatch,
        ),
        case(
            "one of two",
            &["relay", "--sink", "null:", "--table", TABLE, "--table", "public.ogr_outbox"],
            1,
            missing,
            &guess,
        ),
        case("no table", &["relay", "--sink", "null:"], 2, "OUTBOX_NO_TABLES", &["OUTBOX_RELAY_TABLES"]),
        case("no table for status", &["status"], 2, "OUTBOX_NO_TABLES", &[]),
        case(
            "no table for pause",
            &["pause"],
            2,
            "OUTBOX_NO_TABLES",
            &["next: name the table on the command line"],
        )
        .env("OUTBOX_RELAY_TABLES", TABLE),
        case(
            "role",
            &["migrate", "up", "--table", TABLE, "--grants", "viewer=nobody_at_all"],
            1,
            "OUTBOX_DB_ERROR",
            &["next: create the role first"],
        ),
        case(
            "grants",
            &["migrate", "print", "--table", TABLE, "--grants", "boss=app"],
            2,
            "OUTBOX_CONFIG_INVALID",
            &["boss"],
        ),
        case(
            "hostile role",
            &["migrate", "up", "--table", TABLE, "--grants", "writer=a\"; drop table x; --"],
            2,
            "OUTBOX_CONFIG_INVALID",
            &[],
        ),
    ];
    for case in &cases {
        case.check(&place);
    }
    // A table that cannot be looked at does not hide the others.
    let done = place.run(&["status", "--table", TABLE, "--table", "public.ogr_outbox"]);
    assert_eq!(done.code, 1);
    assert!(done.stdout.starts_with("public.org_outbox  no leader  waiting 0"), "{done:?}");
}

#[test]
fn hostile_table_names() {
    let place = Place::new();
    let long = "a".repeat(5000);
    for name in [
        "org_outbox; DROP TABLE org_outbox",
        "org_outbox\"--",
        "org_outbox'",
        "Org_Outbox",
        "a.b.c",
        "public.",
        "../../etc/passwd",
        "\u{1b}[31mred",
        "pg_catalog.\"x\"",
        "äöü",
        "a b",
        &long,
    ] {
        // Control characters are refused in every setting, before anybody asks what it means.
        let control = name.contains(char::is_control);
        let code = if control { "OUTBOX_CONFIG_INVALID" } else { "OUTBOX_TABLE_NAME_INVALID" };
        case(name, &["migrate", "up", "--table", name], 2, code, &[]).check(&place);
        case(name, &["relay", "--sink", "null:", "--table", name], 2, code, &[]).check(&place);
        case(name, &["migrate", "print", "--table", name], 2, code, &[]).check(&place);
    }
}

#[test]
fn databases() {
    let place = Place::new();
    let commands: [&[&str]; 6] = [
        &["status", "--table", TABLE],
        &["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "1"],
        &["migrate", "up", "--table", TABLE],
        &["migrate", "down", "--table", TABLE, "--yes"],
        &["pause", "--table", TABLE],
        &["resume", "--table", TABLE],
    ];
    let relay: &[&str] = &["relay", "--table", TABLE, "--sink", "null:"];
    for args in commands {
        case("unreachable", args, 1, "OUTBOX_DB_UNREACHABLE", &["127.0.0.1:1"])
            .env("DATABASE_URL", CLOSED)
            .check(&place);
    }
    for args in commands.into_iter().chain([relay]) {
        let auth = || {
            case(
                "auth",
                args,
                1,
                "OUTBOX_DB_AUTH",
                &["next: Check user, password and database name in DATABASE_URL."],
            )
        };
        auth().env("DATABASE_URL", url_as(&place.db.url, "nobody_at_all:Zq9")).check(&place);
        auth().env("DATABASE_URL", place.db.url.replace(&place.db.name, "no_such_database")).check(&place);
        for url in [
            "oracle://app:Zq9@db/app",
            "mysql://app:Zq9@db",
            "postgres://app:Zq9@db:port/app",
            "postgres://app:Zq9@db/app?sslmode=nope",
        ] {
            case("url", args, 2, "OUTBOX_DB_URL", &[]).env("DATABASE_URL", url).check(&place);
        }
        case("not a url", args, 2, "OUTBOX_CONFIG_INVALID", &["database_url"])
            .env("DATABASE_URL", "Zq9")
            .check(&place);
        let file = "postbox.db: it does not exist (no database is named, so this file is meant)";
        let none = match args {
            // It would make the file, if a file had schemas.
            ["migrate", "up", ..] => {
                let says = ["(no database is named, so postbox.db is meant)", "--table org_outbox"];
                case("none", args, 2, "OUTBOX_TABLE_NAME_INVALID", &says)
            }
            _ => case("none", args, 1, "OUTBOX_DB_FILE", &[file, "DATABASE_URL=postgres://"]),
        };
        none.env("DATABASE_URL", "").check(&place);
        assert!(!place.dir.path().join("postbox.db").exists(), "{args:?} made a file");
    }
}

#[test]
fn a_wrong_password() {
    // The shared server trusts everybody, this one does not.
    let server = PgServer::start();
    let place = Place { db: server.database(), dir: tempfile::tempdir().unwrap() };
    place.ok(&["migrate", "up", "--table", TABLE]);
    let hba = place.db.psql("SHOW hba_file");
    place.db.psql(&format!(
        "CREATE ROLE app LOGIN PASSWORD 'right';
         COPY (SELECT 'host all app all scram-sha-256' UNION ALL SELECT 'host all all all trust') TO '{hba}';
         SELECT pg_reload_conf()"
    ));
    let status: &[&str] = &["status", "--table", TABLE];
    let relay: &[&str] = &["relay", "--table", TABLE, "--sink", "null:"];
    let wrong = || {
        case("password", status, 1, "OUTBOX_DB_AUTH", &["password authentication failed for user \"app\""])
    };
    let refused = || {
        let mut command = place.command(status);
        command.env("DATABASE_URL", url_as(&place.db.url, "app:Zq9"));
        finish(command, "").stderr.contains("OUTBOX_DB_AUTH")
    };
    eventually_blocking("the server to ask for passwords", LONG, refused);
    for args in [status, relay] {
        let case = Case { args: args.to_vec(), ..wrong() };
        case.env("DATABASE_URL", url_as(&place.db.url, "app:Zq9")).check(&place);
    }
    // With the right one it is only a matter of grants.
    let permission = case("grants", status, 1, "OUTBOX_DB_PERMISSION", &["--grants"]);
    permission.env("DATABASE_URL", url_as(&place.db.url, "app:right")).check(&place);
}

#[test]
fn events() {
    let place = Place::new();
    let enqueue = |topic: &'static str, payload: &'static str| {
        ["enqueue", "--table", TABLE, "--topic", topic, "--payload", payload]
    };
    let with = |flag: &'static str, value: &'static str| {
        enqueue(TOPIC, "1").into_iter().chain([flag, value]).collect::<Vec<_>>()
    };
    let mut cases = vec![
        case("nul", &enqueue(TOPIC, r#"{"a":"\u0000"}"#), 2, "OUTBOX_PAYLOAD_INVALID", &[]),
        case("not JSON", &enqueue(TOPIC, "{nope"), 2, "OUTBOX_PAYLOAD_INVALID", &["line 1"]),
        case("empty", &enqueue(TOPIC, ""), 2, "OUTBOX_PAYLOAD_INVALID", &[]),
        case("two values", &enqueue(TOPIC, "1 2"), 2, "OUTBOX_PAYLOAD_INVALID", &[]),
        case(
            "too large",
            &enqueue(TOPIC, "-"),
            2,
            "OUTBOX_PAYLOAD_TOO_LARGE",
            &["1048578 bytes, the limit is 1048576"],
        )
        .input(format!("\"{}\"", "x".repeat(1_048_576))),
        case("too deep", &enqueue(TOPIC, "-"), 2, "OUTBOX_PAYLOAD_INVALID", &[]).input(format!(
            "{}{}",
            "[".repeat(1000),
            "]".repeat(1000)
        )),
        case("id", &with("--event-id", "seven"), 2, "OUTBOX_CONFIG_INVALID", &["next: give a UUID"]),
        case(
            "aggregate",
            &with("--aggregate", "organization"),
            2,
            "OUTBOX_CONFIG_INVALID",
            &["organization/42"],
        ),
        case("header", &with("--header", "region"), 2, "OUTBOX_CONFIG_INVALID", &["region=eu"]),
        case("header value", &with("--header", "a=b\r\nc: d"), 2, "OUTBOX_HEADERS_INVALID", &[]),
        case("delay", &with("--delay", "5"), 2, "OUTBOX_CONFIG_INVALID", &["has no unit"]),
        case("two tables", &with("--table", "public.b"), 2, "OUTBOX_CONFIG_INVALID", &["give --table once"]),
        case(
            "no topic",
            &["enqueue", "--table", TABLE, "--payload", "1"],
            2,
            "OUTBOX_CONFIG_MISSING",
            &["--topic", "next: postbox enqueue --help"],
        ),
    ];
    for topic in [
        "Org.Created",
        "org",
        "org.organization.created",
        "org.organization.created.v0",
        "a b.c.d.v1",
        "",
        "org..created.v1",
    ] {
        cases.push(case(topic, &enqueue(topic, "1"), 2, "OUTBOX_TOPIC_INVALID", &[]));
    }
    for case in &cases {
        case.check(&place);
    }
}
