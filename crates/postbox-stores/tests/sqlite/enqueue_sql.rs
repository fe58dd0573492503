//! Enqueue from SQL and under races: any language can write the table.

use std::process::Command;

use postbox_core::{Payload, Record, Relay, Topic};
use postbox_stores::sqlite::begin;
use postbox_testkit::suite::relay::arrived;
use postbox_testkit::suite::script::Scripted;
use postbox_testkit::suite::{
    OpenTransaction as _, Subject as _, TOPIC, claim, enqueue, event, events, quick, state,
};

use crate::subject::Table;

const ID: &str = "0190b0c0-0000-7000-8000-000000000001";

/// Four columns; `number` makes the id.
fn insert(number: u8, payload: &str) -> String {
    format!(
        "INSERT INTO org_outbox (tenant_id, topic, payload, event_id)
         VALUES (zeroblob(16), 'Some.Foreign/Topic', '{payload}', x'0190b0c000007000800000000000{number:04x}')"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn four_columns_are_a_valid_event_and_are_relayed() {
    let table = Table::new().await;
    table.sql(&insert(1, r#"{"a": 1.50, "big": 12345678901234567890.50}"#)).await.unwrap();
    // The system's own SQLite, where there is one: older, and without any of our settings.
    let shell = Command::new("sqlite3").arg(table.file()).arg(insert(2, "null")).status();
    let rows = if shell.is_ok_and(|status| status.success()) { 2 } else { 1 };
    let sink = Scripted::ok();
    let relay = Relay::builder(table.store(true)).dispatcher(sink.clone()).settings(quick());
    let relay = relay.build().unwrap().spawn();
    arrived(&sink, &[ID.parse::<uuid::Uuid>().unwrap().into()]).await;
    postbox_testkit::eventually("all of them", postbox_testkit::suite::PATIENCE, async || {
        sink.arrived().len() == rows
    })
    .await;
    relay.shutdown().await.unwrap();
    let seen = sink.seen();
    let delivery = seen.iter().find(|delivery| delivery.meta.event_id.to_string() == ID).unwrap();
    assert_eq!(delivery.meta.topic, Topic::lenient("Some.Foreign/Topic").unwrap());
    assert_eq!((delivery.meta.schema_version, delivery.meta.tenant_id.0), (1, uuid::Uuid::nil()));
    let Payload::Json(json) = &delivery.payload else { panic!("not JSON") };
    assert_eq!(json.as_str(), r#"{"a": 1.50, "big": 12345678901234567890.50}"#, "to the letter");
    let age = time::OffsetDateTime::now_utc() - delivery.meta.created_at;
    assert!(age.is_positive() && age < time::Duration::minutes(1), "the default is the time of writing");
}

#[tokio::test]
async fn what_is_no_event_is_refused_when_it_is_written() {
    let table = Table::new().await;
    for (bad, why) in [
        (insert(1, "{nope"), "org_outbox_payload_is_json"),
        (insert(1, "{}").replace("zeroblob(16)", "zeroblob(15)"), "org_outbox_tenant_id_is_a_uuid"),
        (insert(1, "{}").replace("x'0190", "x'"), "org_outbox_event_id_is_a_uuid"),
        (insert(1, "{}").replace("zeroblob(16)", "'0190b0c0-0000-7000-8000-000000000001'"), "BLOB"),
    ] {
        let error = table.sql(&bad).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(table.rows().await, 0);
}

/// Checks can be turned off, and text can hold any bytes.
#[tokio::test]
async fn rows_that_are_no_events_after_all_do_not_fail_their_batch() {
    let table = Table::new().await;
    let ids = enqueue(&table, events(6)).await;
    let mut connection = table.pool.acquire().await.unwrap();
    for (sql, id) in [
        ("UPDATE org_outbox SET topic = CAST(x'ff' AS TEXT) WHERE event_id = ?1", ids[0]),
        ("UPDATE org_outbox SET payload = '{nope' WHERE event_id = ?1", ids[1]),
        (
            "UPDATE org_outbox SET available_at = -9000000000000000000, created_at = 5 WHERE event_id = ?1",
            ids[2],
        ),
        ("UPDATE org_outbox SET event_id = x'00' WHERE event_id = ?1", ids[3]),
        ("UPDATE org_outbox SET attempts = -5 WHERE event_id = ?1", ids[4]),
    ] {
        sqlx::query("PRAGMA ignore_check_constraints = 1").execute(&mut *connection).await.unwrap();
        sqlx::query(sql).bind(id.0).execute(&mut *connection).await.unwrap();
    }
    let claim = claim(&table.store(false), 10).await;
    assert_eq!((claim.rows.len(), claim.undecodable.len()), (3, 3));
    assert!(
        claim.undecodable.iter().all(|row| !row.reason.contains("nope")),
        "nothing of the payload is shown"
    );
}

#[tokio::test]
async fn every_digit_and_blank_of_the_payload_is_kept() {
    let table = Table::new().await;
    let text = "{ \"b\":1e400,\"a\" : -0.0,  \"a\":12345678901234567890.1234567890,\"s\":\"\\u00e9é\\n😀\" }";
    let record = Record::builder(TOPIC).raw_json(text).build().unwrap();
    enqueue(&table, vec![record]).await;
    let claim = claim(&table.store(false), 1).await;
    let Payload::Json(json) = &claim.rows[0].delivery.payload else { panic!("not JSON") };
    assert_eq!(json.as_str(), text);
}

/// A transaction that did not say that it would write, and read first.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_42_a_deferred_transaction_fails_at_once_and_an_immediate_one_waits() {
    let table = Table::new().await;
    let outbox = table.outbox();

    let mut deferred = table.pool.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM org_outbox").fetch_one(&mut *deferred).await.unwrap();
    enqueue(&table, events(1)).await;
    let asked = std::time::Instant::now();
    let error = outbox.enqueue(&mut deferred, event(TOPIC, 1)).await.unwrap_err();
    assert!(asked.elapsed().as_secs() < 2, "it does not wait for the busy_timeout of 5 s");
    assert!(format!("{error:?}").contains("code: 517"), "{error:?}");
    deferred.rollback().await.unwrap();

    for begin_by_hand in [true, false] {
        let other = table.begin(events(1)).await;
        let writer = async {
            let tx = if begin_by_hand {
                table.pool.begin_with("BEGIN IMMEDIATE").await
            } else {
                begin(&table.pool).await
            };
            let mut tx = tx.unwrap();
            sqlx::query("SELECT count(*) FROM org_outbox").fetch_one(&mut *tx).await.unwrap();
            let receipt = outbox.enqueue(&mut tx, event(TOPIC, 2)).await.unwrap();
            tx.commit().await.unwrap();
            receipt.event_id
        };
        let end_other = async {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            other.commit().await;
        };
        let (id, ()) = tokio::join!(writer, end_other);
        assert!(state(&table, id).await.due);
    }

    // The outbox's own transactions hold the lock from the start, too.
    let mut tx = outbox.begin(&table.pool).await.unwrap();
    sqlx::query("SELECT count(*) FROM org_outbox").fetch_one(&mut **tx).await.unwrap();
    let second = sqlx::raw_sql("PRAGMA busy_timeout = 0; BEGIN IMMEDIATE").execute(&table.pool).await;
    assert!(second.unwrap_err().to_string().contains("locked"));
    outbox.enqueue(&mut tx, event(TOPIC, 3)).await.unwrap();
    tx.commit().await.unwrap();
}
