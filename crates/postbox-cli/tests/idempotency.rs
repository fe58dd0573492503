//! Calls by idempotency key, as operators see them: made, cleaned and removed by the program, against a real PostgreSQL.

mod common;

use common::{LONG, Place, TABLE};
use postbox_testkit::eventually_blocking;

/// Calls that were begun so many hours ago: done, crashed, and still running.
fn calls(place: &Place, hours: u32) {
    for (state, lease) in [("done", "-1 hour"), ("running", "-1 hour"), ("running", "1 hour")] {
        place.db.psql(&format!(
            "INSERT INTO org_idempotency (principal, route, idempotency_key, fingerprint, state, token, lease_until, created_at)
             VALUES ('acme', 'POST /orders', gen_random_uuid(), '\\x00', '{state}', gen_random_uuid(), now() + interval '{lease}',
                     now() - make_interval(hours => {hours}))"
        ));
    }
}

fn left(place: &Place) -> String {
    place.db.psql("SELECT count(*) FROM org_idempotency")
}

#[test]
fn calls_are_forgotten_after_their_retention() {
    let place = Place::new();
    assert!(place.json(&["clean", "--table", TABLE])["tables"][0]["calls"].is_null(), "there are none");
    let up = place.ok(&["migrate", "up", "--idempotency", "--table", TABLE]);
    assert!(up.contains("+ table org_idempotency"), "{up}");
    assert_eq!(place.ok(&["migrate", "up", "--table", TABLE]), "public.org_outbox: nothing to do\n");
    calls(&place, 1);
    calls(&place, 25);
    let dry = place.ok(&["clean", "--dry-run", "--table", TABLE]);
    assert!(dry.contains("public.org_idempotency: would forget 2 calls; nothing was changed"), "{dry}");
    assert_eq!(left(&place), "6");
    let clean = place.ok(&["clean", "--table", TABLE]);
    assert!(clean.contains("public.org_idempotency: forgot 2 calls"), "{clean}");
    let short = ["clean", "--table", TABLE, "--cleaner-idempotency-retention", "30m"];
    assert_eq!(place.json(&short)["tables"][0]["calls"]["deleted"], 2);
    assert_eq!(left(&place), "2", "those that run");
}

#[test]
fn a_relay_cleans_calls_also_where_their_table_comes_later() {
    let place = Place::new();
    let _relay = place.relay(&["--cleaner-interval", "100ms"]);
    place.ok(&["migrate", "up", "--idempotency", "--table", TABLE]);
    calls(&place, 25);
    eventually_blocking("the calls to be forgotten", LONG, || left(&place) == "1");
}

#[test]
fn down_names_and_removes_the_calls() {
    let place = Place::new();
    place.ok(&["migrate", "up", "--idempotency", "--table", TABLE]);
    let done = place.run(&["migrate", "down", "--yes", "--table", TABLE]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains("org_idempotency (calls by idempotency key)"), "{done:?}");
    assert_eq!(place.db.psql("SELECT to_regclass('org_idempotency') IS NULL"), "t");
    let printed =
        place.ok(&["migrate", "print", "--idempotency", "--table", TABLE, "--grants", "writer=app"]);
    assert!(printed.contains("CREATE TABLE IF NOT EXISTS \"public\".\"org_idempotency\""), "{printed}");
    assert!(printed.contains("ON \"public\".\"org_idempotency\" TO \"app\""), "{printed}");
}
