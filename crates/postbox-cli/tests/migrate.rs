//! `postbox migrate`: up, down, print and grants, against a real PostgreSQL.

mod common;

use common::{LONG, Place, TABLE, TOPIC, finish, url_as};
use postbox_testkit::eventually_blocking;

fn tables(place: &Place) -> String {
    place.db.psql(
        "SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_tables WHERE schemaname = 'public'",
    )
}

#[test]
fn up_twice_has_nothing_to_do_and_a_dry_run_changes_nothing() {
    let place = Place::empty();
    let plan = place.ok(&["migrate", "up", "--table", TABLE, "--dry-run"]);
    assert!(
        plan.contains("+ table public.org_outbox") && plan.contains("no rewrite, no long lock"),
        "{plan}"
    );
    assert_eq!(tables(&place), "");
    let up = place.ok(&["migrate", "up", "--table", TABLE]);
    assert!(up.lines().count() > 5 && up.contains("public.org_outbox: done, "), "{up}");
    assert_eq!(tables(&place), "org_outbox postbox_audit postbox_relay");
    assert_eq!(place.ok(&["migrate", "up", "--table", TABLE]), "public.org_outbox: nothing to do\n");
    assert_eq!(
        place.ok(&["migrate", "up", "--table", TABLE, "--dry-run"]),
        "public.org_outbox: nothing to do\n"
    );
    let json = place.json(&["migrate", "up", "--table", TABLE, "--table", "crm_outbox"]);
    assert_eq!(json["tables"][0]["steps"], serde_json::json!([]));
    assert_eq!(json["tables"][1]["table"], "public.crm_outbox");
    assert!(!json["tables"][1]["steps"].as_array().unwrap().is_empty());
}

#[test]
fn a_bare_table_is_upgraded_in_place() {
    let place = Place::empty();
    place.db.psql(&format!(
        "CREATE TABLE {TABLE} (id UUID NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY, tenant_id UUID NOT NULL,
           topic TEXT NOT NULL, payload JSONB NOT NULL, event_id UUID NOT NULL, sequence BIGSERIAL NOT NULL,
           created_at TIMESTAMPTZ NOT NULL DEFAULT now(), published_at TIMESTAMPTZ, attempts INT NOT NULL DEFAULT 0,
           available_at TIMESTAMPTZ NOT NULL DEFAULT now(), locked_at TIMESTAMPTZ, last_error TEXT);
         CREATE INDEX org_outbox_pending_by_available ON {TABLE} (available_at, sequence) WHERE published_at IS NULL"
    ));
    place.insert(3);
    let plan = place.ok(&["migrate", "up", "--table", TABLE, "--dry-run"]);
    assert!(plan.contains("dead_at") && plan.contains("CONCURRENTLY"), "{plan}");
    place.ok(&["migrate", "up", "--table", TABLE]);
    assert_eq!(place.ok(&["migrate", "up", "--table", TABLE]), "public.org_outbox: nothing to do\n");
    assert_eq!(place.count("dead_at IS NULL AND attempts = 0"), 3);
    let _relay = place.relay(&[]);
    place.wait_for_delivered(3);
}

/// From the refusal to the delivery: what the program says on the way to a table whose events go in order.
#[test]
fn a_table_becomes_ordered_and_is_relayed_in_order() {
    let place = Place::new();
    let refused = place.run(&["relay", "--table", TABLE, "--sink", "stdout:", "--ordering", "aggregate"]);
    assert_ne!(refused.code, 0);
    assert!(
        refused.stderr.contains("OUTBOX_ORDER_UNSUPPORTED")
            && refused.stderr.contains("migrate up --ordered"),
        "{}",
        refused.stderr
    );
    let plan = place.ok(&["migrate", "up", "--ordered", "--dry-run", "--table", TABLE]);
    assert!(plan.contains("+ trigger postbox_ordered") && plan.contains("pending_by_aggregate"), "{plan}");
    assert!(!place.ok(&["status", "--table", TABLE]).contains("ordered"));
    place.ok(&["migrate", "up", "--order-index", "--table", TABLE]);
    assert!(place.ok(&["status", "--table", TABLE]).contains("ordered by its writers"));
    place.ok(&["migrate", "up", "--ordered", "--table", TABLE]);
    assert_eq!(place.ok(&["migrate", "up", "--table", TABLE]), "public.org_outbox: nothing to do\n");
    assert_eq!(place.json(&["status", "--table", TABLE])["tables"][0]["ordered"], "writers");
    assert!(place.ok(&["doctor", "--table", TABLE]).contains("ordered: sequence is the order of commits"));
    let printed = place.ok(&["migrate", "print", "--ordered", "--table", TABLE]);
    assert!(printed.contains("CREATE OR REPLACE TRIGGER postbox_ordered"), "{printed}");
    let both = place.run(&["migrate", "up", "--ordered", "--order-index", "--table", TABLE]);
    assert_eq!(both.code, 2, "one or the other: {}", both.stderr);

    place.db.psql(&format!(
        "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id, aggregate_id)
         SELECT '00000000-0000-0000-0000-000000000000', '{TOPIC}', jsonb_build_object('n', n), gen_random_uuid(), n % 3
         FROM generate_series(1, 60) n"
    ));
    let _relay = place.relay(&["--ordering", "aggregate"]);
    let mut last = std::collections::HashMap::new();
    for event in place.wait_for_delivered(60) {
        let n = event["payload"]["n"].as_i64().unwrap();
        assert!(last.insert(n % 3, n) < Some(n), "out of order: {event}");
    }
}

#[test]
fn down_asks_and_refuses_to_lose_events() {
    let place = Place::new();
    place.insert(5);
    place.db.psql(&format!(
        "UPDATE {TABLE} SET dead_at = now(), last_error = 'no' WHERE sequence = 1;
         UPDATE {TABLE} SET published_at = now() WHERE sequence = 2"
    ));
    let down = ["migrate", "down", "--table", TABLE];
    let done = place.run(&down);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("next: pass --yes"), "{done:?}");
    let done = place.run(&["migrate", "down", "--table", TABLE, "--yes"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(
        done.stderr.contains("error[OUTBOX_NOT_EMPTY]") && done.stderr.contains("--discard-unpublished"),
        "{done:?}"
    );
    assert_eq!(place.count("true"), 5);
    // A table of the environment is no explicit table.
    let mut command = place.command(&["migrate", "down", "--yes", "--discard-unpublished"]);
    command.env("OUTBOX_RELAY_TABLES", TABLE);
    let done = finish(command, "");
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("OUTBOX_NO_TABLES"), "{done:?}");
    let done = place.run(&["migrate", "down", "--table", TABLE, "--yes", "--discard-unpublished"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "removed public.org_outbox\n"), "{done:?}");
    let lost = "DROP TABLE public.org_outbox: 3 waiting, 1 dead, 1 published: for good\n5 rows in public.org_outbox @ ";
    assert!(done.stderr.contains(lost), "{done:?}");
    // Who has lost what is known when the table is not.
    let log = "SELECT who, action, tbl, what->>'waiting', what->>'dead', what->>'published', events FROM postbox_audit";
    assert_eq!(place.db.psql(log), "tester@testhost|migrate_down|public.org_outbox|3|1|1|5");
    assert_eq!(tables(&place), "postbox_audit postbox_relay");
    let done = place.run(&["migrate", "down", "--table", TABLE, "--yes"]);
    assert_eq!((done.code, done.stderr.contains("OUTBOX_TABLE_MISSING")), (1, true), "{done:?}");
}

#[test]
fn printed_sql_needs_no_database_and_goes_both_ways() {
    let place = Place::empty();
    let print = |more: &[&str]| {
        let args: Vec<&str> =
            ["migrate", "print", "--table", TABLE].into_iter().chain(more.iter().copied()).collect();
        let mut command = place.command(&args);
        command.env_remove("DATABASE_URL");
        let done = finish(command, "");
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout
    };
    // Tools wrap a file in a transaction, and run it again.
    let up = print(&[]);
    place.db.psql(&format!("BEGIN;\n{up}\nCOMMIT;"));
    place.db.psql(&up);
    assert_eq!(place.ok(&["migrate", "up", "--table", TABLE]), "public.org_outbox: nothing to do\n");
    place.insert(1);
    let down = print(&["--down"]);
    let refused = place.db.try_psql(&down).unwrap_err();
    assert!(refused.contains("OUTBOX_NOT_EMPTY"), "{refused}");
    place.db.psql(&format!("DELETE FROM {TABLE}"));
    place.db.psql(&down);
    assert_eq!(tables(&place), "postbox_audit postbox_relay");

    let goose = print(&["--format", "goose", "--grants", "viewer=ops"]);
    let (up, down) = goose.split_once("-- +goose Down").unwrap();
    assert!(
        up.starts_with("-- +goose Up\n") && up.contains("TO \"ops\"") && !down.contains("GRANT"),
        "{goose}"
    );
    assert_eq!(goose.matches("StatementBegin").count(), goose.matches("StatementEnd").count());
    assert!(!goose.contains("CONCURRENTLY"));
    let json: serde_json::Value = serde_json::from_str(&print(&["--json"])).unwrap();
    assert!(json["sql"].as_str().unwrap().contains("CREATE TABLE"));
    let both = place.run(&["migrate", "print", "--table", TABLE, "--format", "goose", "--down"]);
    assert_eq!((both.code, both.stderr.contains("next: leave out --down")), (2, true), "{both:?}");
}

/// Roles belong to the server: they must go before its next test.
struct Roles<'a>(&'a Place, [String; 3]);

impl Drop for Roles<'_> {
    fn drop(&mut self) {
        for role in &self.1 {
            self.0.db.try_psql(&format!("DROP OWNED BY \"{role}\"; DROP ROLE \"{role}\"")).ok();
        }
    }
}

#[test]
fn grants_are_enough_and_no_more() {
    let place = Place::empty();
    let roles = ["writer", "relay", "viewer"]
        .map(|kind| format!("{kind}_{}", place.db.name.len() + std::process::id() as usize));
    for role in &roles {
        place.db.psql(&format!("CREATE ROLE \"{role}\" LOGIN"));
    }
    let _cleanup = Roles(&place, roles.clone());
    let [writer, relay, viewer] = &roles;
    let grants = format!("writer={writer},relay={relay},viewer={viewer}");
    let up = place.ok(&["migrate", "up", "--table", TABLE, "--grants", &grants]);
    assert!(up.contains("grants given"), "{up}");
    let dry = place.ok(&["migrate", "up", "--dry-run", "--table", TABLE, "--grants", &grants]);
    assert_eq!(dry, format!("{TABLE}: + grants\n{TABLE}: nothing was changed\n"));
    // The printed form is the same and can be repeated.
    place.db.psql(&place.ok(&["migrate", "print", "--table", TABLE, "--grants", &grants]));

    let as_role = |role: &str, args: &[&str]| {
        let mut command = place.command(args);
        command.env("DATABASE_URL", url_as(&place.db.url, role));
        finish(command, "")
    };
    let enqueue = ["enqueue", "--table", TABLE, "--topic", TOPIC, "--payload", "{\"secret\":1}"];
    let done = as_role(writer, &enqueue);
    assert_eq!(done.code, 0, "{done:?}");
    place.db.psql(&format!(
        "SET ROLE \"{writer}\"; INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
         VALUES (gen_random_uuid(), '{TOPIC}', '{{}}', gen_random_uuid())"
    ));
    place
        .db
        .psql(&format!("SET ROLE \"{writer}\"; SELECT public.postbox_enqueue('{TABLE}', '{TOPIC}', '{{}}')"));
    let status = as_role(viewer, &["status", "--table", TABLE]);
    assert_eq!(status.code, 0, "{status:?}");
    assert!(status.stdout.contains("waiting 3"), "{status:?}");

    let url = url_as(&place.db.url, relay);
    let mut program = place.relay_with(
        &["--cleaner-interval", "100ms", "--cleaner-retention", "1ms"],
        &[("DATABASE_URL", &url)],
    );
    place.wait_for_delivered(3);
    eventually_blocking("the cleaner as the relay's role", LONG, || place.count("true") == 0);
    let paused = as_role(relay, &["pause", "--table", TABLE]);
    assert_eq!(paused.code, 0, "{paused:?}");
    program.sigterm();
    assert_eq!(program.wait(LONG).code(), Some(0));
    assert!(!program.stderr().contains("ERROR"), "{}", program.stderr());

    for (role, sql) in [
        (writer, "UPDATE public.org_outbox SET published_at = now()"),
        (
            writer,
            "INSERT INTO public.org_outbox (tenant_id, topic, payload, event_id, published_at) VALUES (gen_random_uuid(), 'a.b.c.v1', '1', gen_random_uuid(), now())",
        ),
        (writer, "SELECT payload FROM public.org_outbox"),
        (writer, "DELETE FROM public.org_outbox"),
        (writer, "UPDATE public.postbox_relay SET paused_at = now()"),
        (viewer, "SELECT payload FROM public.org_outbox"),
        (viewer, "SELECT metadata FROM public.org_outbox"),
        (viewer, "UPDATE public.org_outbox SET attempts = 0"),
        (viewer, "DELETE FROM public.org_outbox"),
        (viewer, "UPDATE public.postbox_relay SET paused_at = now()"),
        (relay, "UPDATE public.org_outbox SET payload = '1'"),
        (relay, "UPDATE public.org_outbox SET event_id = gen_random_uuid()"),
        (
            relay,
            "INSERT INTO public.org_outbox (tenant_id, topic, payload, event_id) VALUES (gen_random_uuid(), 'a.b.c.v1', '1', gen_random_uuid())",
        ),
        (relay, "DELETE FROM public.postbox_audit"),
        (relay, "DROP TABLE public.org_outbox"),
    ] {
        let refused = place.db.try_psql(&format!("SET ROLE \"{role}\"; {sql}"));
        let refused = refused.expect_err(sql);
        assert!(
            refused.contains("permission denied") || refused.contains("must be owner"),
            "{sql}: {refused}"
        );
    }
    // The program says so as well, with a next step.
    let refused = as_role(viewer, &enqueue);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused.stderr.contains("error[OUTBOX_DB_PERMISSION]") && refused.stderr.contains("--grants"),
        "{refused:?}"
    );
    let refused = as_role(viewer, &["pause", "--table", TABLE]);
    assert!(refused.stderr.contains("error[OUTBOX_DB_PERMISSION]"), "{refused:?}");
}

/// What has a column of the same name, such as a table of articles, is not an outbox and not ours to remove.
#[test]
fn only_an_outbox_is_removed() {
    let place = Place::empty();
    place.db.psql("CREATE TABLE articles (id uuid, published_at timestamptz); INSERT INTO articles SELECT gen_random_uuid(), now()");
    for more in [&[][..], &["--discard-unpublished"]] {
        let args = [&["migrate", "down", "--table", "public.articles", "--yes"], more].concat();
        let done = place.run(&args);
        assert!(done.code == 1 && done.stderr.contains("error[OUTBOX_TABLE_MISMATCH]"), "{done:?}");
    }
    assert_eq!(place.db.psql("SELECT count(*) FROM articles"), "1");
}
