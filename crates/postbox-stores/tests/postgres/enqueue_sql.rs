//! Enqueue from SQL: any language can write the table.

use postbox_core::Topic;
use postbox_testkit::suite::{Subject as _, TOPIC, claim, event, events};

use crate::subject::{Shape, Table};

const ID: &str = "0190b0c0-0000-7000-8000-000000000001";

#[tokio::test]
async fn four_columns_are_a_valid_event() {
    for shape in [Shape::Migrated, Shape::Bare] {
        let table = Table::new(shape).await;
        table.db.psql(&format!(
            "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
             VALUES ('00000000-0000-0000-0000-000000000000', 'Some.Foreign/Topic', '{{\"a\": 1.50}}', '{ID}')"
        ));
        let claim = claim(&table.store(false), 10).await;
        let delivery = &claim.rows[0].delivery;
        assert_eq!(delivery.meta.topic, Topic::lenient("Some.Foreign/Topic").unwrap());
        assert_eq!(delivery.meta.event_id.to_string(), ID);
        assert_eq!(delivery.meta.schema_version, 1);
    }
}

#[tokio::test]
async fn the_sql_function_enqueues_validates_and_deduplicates() {
    let table = Table::new(Shape::Migrated).await;
    let call = |rest: &str| format!("SELECT * FROM postbox_enqueue('org_outbox', {rest})");
    let first = table.db.psql(&call(&format!(
        "'org.a.b.v1', '{{\"x\": 1}}', event_id => '{ID}', headers => '{{\"h\": \"v\"}}'"
    )));
    assert_eq!(first, format!("{ID}|1|f"));
    let again = table.db.psql(&call(&format!("'org.a.b.v1', '{{}}', event_id => '{ID}'")));
    assert_eq!(again, format!("{ID}|1|t"));
    for (bad, code) in [
        ("'Nope', '{}'", "OUTBOX_TOPIC_INVALID"),
        ("'org.a.b.v0', '{}'", "OUTBOX_TOPIC_INVALID"),
        ("NULL, '{}'", "OUTBOX_TOPIC_INVALID"),
        ("'org.a.b.v1', NULL", "OUTBOX_PAYLOAD_INVALID"),
        ("'org.a.b.v1', to_jsonb(repeat('x', 1048575))", "OUTBOX_PAYLOAD_TOO_LARGE"),
        ("'org.a.b.v1', '{}', headers => '[1]'", "OUTBOX_HEADERS_INVALID"),
        ("'org.a.b.v1', '{}', headers => '{\"a\": 1}'", "OUTBOX_HEADERS_INVALID"),
        (
            "'org.a.b.v1', '{}', headers => jsonb_build_object('a', repeat('x', 8192))",
            "OUTBOX_HEADERS_INVALID",
        ),
        ("'org.a.b.v1', '{\"a\": \"\\u0000\"}'", "u0000"),
    ] {
        let error = table.db.try_psql(&call(bad)).unwrap_err();
        assert!(error.contains(code), "{bad}: {error}");
    }
    assert_eq!(table.rows().await, 1, "nothing else was written");
    let claim = claim(&table.store(false), 10).await;
    assert_eq!(claim.rows[0].delivery.meta.headers["h"], "v");
}

/// Whatever keeps a row out without a word: who enqueues hears of it.
#[tokio::test]
async fn what_was_not_written_is_an_error() {
    let table = Table::new(Shape::Migrated).await;
    table.db.psql(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER swallow BEFORE INSERT ON org_outbox FOR EACH ROW EXECUTE FUNCTION swallow()",
    );
    let error =
        table.db.try_psql("SELECT * FROM postbox_enqueue('org_outbox', 'org.a.b.v1', '{}')").unwrap_err();
    assert!(error.contains("OUTBOX_DB_ERROR: the event was not written"), "{error}");
    let mut tx = table.owner.begin().await.unwrap();
    table.outbox().enqueue(&mut tx, event(TOPIC, 1)).await.unwrap_err();
    table.outbox().enqueue_all(&mut tx, events(2)).await.unwrap_err();
}

#[tokio::test]
async fn a_field_without_a_column_is_refused_on_a_bare_table() {
    let table = Table::new(Shape::Bare).await;
    let mut tx = table.owner.begin().await.unwrap();
    let error = table.outbox().enqueue(&mut tx, event(TOPIC, 1).header("a", "b")).await.unwrap_err();
    assert!(error.to_string().contains("OUTBOX_COLUMN_MISSING"), "{error}");
    table.outbox().enqueue_all(&mut tx, events(2)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(table.rows().await, 2, "the transaction was not touched by the refusal");
}
