//! Least privilege (hazard 48): each role can do its work, and nothing else. The suite runs under these grants too.

use std::time::Duration;

use postbox_core::{Code, Diagnose as _, Examination};
use postbox_stores::postgres::migrate::{Grants, print_grants};
use postbox_testkit::suite::{Subject as _, enqueue, events};
use sqlx::{ConnectOptions as _, Executor as _};

use crate::subject::{Shape, Table, role};

#[tokio::test]
async fn roles_cannot_do_what_they_should_not() {
    let table = Table::new(Shape::Grants).await;
    enqueue(&table, events(1)).await;
    for (kind, sql, allowed) in [
        (
            "writer",
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id) VALUES (gen_random_uuid(), 't', '{}', gen_random_uuid())",
            true,
        ),
        ("writer", "SELECT * FROM postbox_enqueue('org_outbox', 'org.a.b.v1', '{}')", true),
        (
            "writer",
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, published_at) VALUES (gen_random_uuid(), 't', '{}', gen_random_uuid(), now())",
            false,
        ),
        ("writer", "SELECT payload FROM org_outbox", false),
        ("writer", "UPDATE org_outbox SET published_at = now()", false),
        ("writer", "DELETE FROM org_outbox", false),
        ("writer", "UPDATE postbox_relay SET paused_at = now()", false),
        (
            "writer",
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id, locked_by) VALUES (gen_random_uuid(), 't', '{}', gen_random_uuid(), 'x')",
            false,
        ),
        ("viewer", "SELECT status FROM org_outbox_status", true),
        ("viewer", "SELECT last_error FROM org_outbox", true),
        ("viewer", "SELECT payload FROM org_outbox", false),
        ("viewer", "UPDATE org_outbox SET attempts = 0", false),
        ("relay", "SELECT payload FROM org_outbox", true),
        ("relay", "UPDATE org_outbox SET payload = '{}'", false),
        ("relay", "UPDATE org_outbox SET event_id = gen_random_uuid()", false),
        (
            "relay",
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id) VALUES (gen_random_uuid(), 't', '{}', gen_random_uuid())",
            false,
        ),
        ("relay", "DROP TABLE org_outbox", false),
        ("relay", "DELETE FROM postbox_audit", false),
    ] {
        let options = postbox_stores::postgres::connect_options(&table.db.url).unwrap();
        let mut connection = options.username(&role(&table.db, kind)).connect().await.unwrap();
        let result = connection.execute(sql).await;
        assert_eq!(result.is_ok(), allowed, "{kind}: {sql}: {result:?}");
        if let Err(error) = result {
            let state = error.as_database_error().and_then(|e| e.code().map(std::borrow::Cow::into_owned));
            assert_eq!(state.as_deref(), Some("42501"), "{kind}: {sql}: {error}");
        }
    }
}

/// Policies that hide rows hide events: the relay finds none and nothing fails, so somebody has to say it.
#[tokio::test]
async fn rows_that_policies_hide_are_told_of() {
    let table = Table::new(Shape::Grants).await;
    let told = async || {
        let examination = Examination { long_transaction: Duration::from_mins(1), connections: 0 };
        let findings = table.admin().diagnose(examination).await;
        let hidden = findings.iter().find(|finding| finding.check == "table" && finding.code.is_some());
        hidden.map(|finding| (finding.code, finding.what.clone()))
    };
    assert_eq!(told().await, None);
    table.db.psql("ALTER TABLE org_outbox ENABLE ROW LEVEL SECURITY");
    let (code, what) = told().await.expect("a finding");
    assert_eq!(code, Some(Code::DatabasePermission));
    assert!(what.contains("row-level security of public.org_outbox may hide rows"), "{what}");
    let relay = role(&table.db, "relay");
    table
        .db
        .psql(&format!("CREATE POLICY others ON org_outbox FOR SELECT TO \"{relay}\" USING (topic = 'a')"));
    assert!(told().await.is_some(), "some are hidden");
    table.db.psql(&format!("CREATE POLICY relays ON org_outbox TO \"{relay}\" USING (true)"));
    assert_eq!(told().await, None, "it sees all of them");
}

#[test]
fn hostile_role_names_never_reach_sql() {
    assert!("writer=a\" superuser; --".parse::<Grants>().is_err());
    let grants: Grants = "viewer=ops-team@corp".parse().unwrap();
    let sql = print_grants(&"s.t_outbox".parse().unwrap(), &grants);
    assert!(sql.contains("TO \"ops-team@corp\"") && sql.contains("GRANT USAGE ON SCHEMA \"s\""), "{sql}");
}
