//! Relays that tenants share, and those that are for some of them only, by the built program.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{LONG, Place, TABLE};
use postbox_core::TenantId;

/// Events of a tenant, by SQL alone.
fn insert(place: &Place, tenant: &str, events: usize) {
    let tenant = TenantId::from_name(tenant);
    place.db.psql(&format!(
        "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
         SELECT '{tenant}', 'org.thing.happened.v1', jsonb_build_object('n', n), gen_random_uuid()
         FROM generate_series(1, {events}) n"
    ));
}

#[test]
fn a_table_gets_the_index_that_tenants_need_and_keeps_it() {
    let place = Place::new();
    let sink = ["--sink", "file:out.jsonl"];
    let fair: Vec<&str> = ["relay", "--table", TABLE, "--fair-tenants"].into_iter().chain(sink).collect();
    let refused = place.run(&fair);
    assert_ne!(refused.code, 0);
    let says = |text: &str| assert!(refused.stderr.contains(text), "{}", refused.stderr);
    says("OUTBOX_TENANTS_UNSUPPORTED");
    says("postbox migrate up --fair-tenants --table public.org_outbox");
    let printed = place.ok(&["migrate", "print", "--table", TABLE, "--fair-tenants"]);
    assert!(printed.contains("org_outbox_tenants_waiting"), "{printed}");
    let made = place.ok(&["migrate", "up", "--table", TABLE, "--fair-tenants"]);
    assert!(made.contains("org_outbox_tenants_waiting"), "{made}");
    place.db.psql("DROP INDEX org_outbox_tenants_waiting");
    let made = place.ok(&["migrate", "up", "--table", TABLE, "--tenants", "acme"]);
    assert!(made.contains("org_outbox_tenants_waiting"), "{made}");
    let kept = place.ok(&["migrate", "up", "--table", TABLE]);
    assert!(!kept.contains("tenants_waiting"), "nothing is left to do: {kept}");

    let refused = place.run(&["relay", "--table", TABLE, "--tenants", "acme", "--sink", "null:"]);
    assert!(refused.code != 0 && refused.stderr.contains("single_active = false"), "{}", refused.stderr);
    let owner: Vec<&str> = fair.iter().copied().chain(["--claim", "owner"]).collect();
    let refused = place.run(&owner);
    assert!(refused.code != 0 && refused.stderr.contains("fair_tenants"), "{}", refused.stderr);
}

#[test]
fn a_relay_serves_its_tenants_and_no_other() {
    let place = Place::new();
    place.ok(&["migrate", "up", "--table", TABLE, "--fair-tenants"]);
    insert(&place, "acme", 20);
    insert(&place, "globex", 20);
    insert(&place, "initech", 20);
    let globex = TenantId::from_name("globex").to_string();
    let names = format!("acme,{globex}");
    let mut some = place.relay(&["--tenants", &names, "--single-active=false"]);
    place.wait_for_delivered(40);
    some.stop(LONG);
    let initech = TenantId::from_name("initech");
    assert_eq!(place.count("published_at IS NOT NULL"), 40);
    assert_eq!(
        place.count(&format!("tenant_id = '{initech}' AND published_at IS NULL AND attempts = 0")),
        20
    );
    let mut all = place.relay(&["--fair-tenants"]);
    place.wait_for_delivered(60);
    all.stop(LONG);
    assert_eq!(place.delivered().len(), 60);
}
