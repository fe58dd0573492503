//! What lists have to stand here beyond the suite: large tables, and rows that no other database would hold.

use std::time::{Duration, Instant};

use postbox_core::{
    Browse as _, DeadFilter, DeadLetters as _, EventFilter, EventStatus, Inspect as _, ListRequest,
    Published, TenantId,
};
use postbox_testkit::suite::{Subject as _, enqueue, events};

use crate::subject::Table;

/// Very many published events, a few of other kinds at the far end.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_table_is_looked_at_within_bounds() {
    let table = Table::new().await;
    let old = enqueue(&table, events(3)).await;
    table
        .sql(
            "UPDATE org_outbox SET dead_at = 1, last_error = 'HTTP 410' WHERE sequence = 1;
             UPDATE org_outbox SET tenant_id = x'00000000000000000000000000000001', attempts = 1 WHERE sequence = 2;
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 300000)
             INSERT INTO org_outbox (tenant_id, topic, payload, event_id, published_at)
             SELECT zeroblob(16), 'org.thing.happened.v1', '{}', randomblob(16), 1700000000000000 + n FROM n",
        )
        .await
        .unwrap();
    let admin = table.admin();
    let started = Instant::now();
    let list = async |filter: EventFilter| {
        let page = admin.list(&ListRequest { filter, ..ListRequest::default() }).await.unwrap();
        (page.events.iter().map(|event| event.sequence).collect::<Vec<_>>(), page.bounded)
    };
    let none = EventFilter::default();
    let (newest, bounded) = list(none.clone()).await;
    assert_eq!((newest.len(), newest[0], bounded), (50, 300_003, false));
    let of = |status| EventFilter { status: Some(status), ..EventFilter::default() };
    assert_eq!(list(of(EventStatus::Dead)).await, (vec![1], false));
    assert_eq!(list(of(EventStatus::Failed)).await, (vec![2], false));
    assert_eq!(list(of(EventStatus::New)).await, (vec![3], false));
    let rare = EventFilter { tenant_id: Some(TenantId(uuid::Uuid::from_u128(1))), ..none.clone() };
    assert_eq!(list(rare).await, (vec![2], false));
    let error = EventFilter { error: Some("410".into()), ..none.clone() };
    assert_eq!(list(error).await, (vec![1], true), "found, but there may be others");
    let nothing = EventFilter { topic: Some("no.such.topic.v1".into()), ..none };
    assert_eq!(list(nothing).await, (vec![], true));
    let all = Published::Between {
        since: time::OffsetDateTime::UNIX_EPOCH,
        until: admin.now().await.unwrap(),
        topic: None,
    };
    assert_eq!(admin.count_published(&all).await.unwrap(), 300_000);
    assert_eq!(admin.replay_published(&all, 500, "tester").await.unwrap().len(), 500);
    assert_eq!(admin.statuses(&old).await.unwrap().len(), 3);
    println!("{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

/// Checks can be turned off, text can hold any bytes, and a column that should be JSON anything.
#[tokio::test]
async fn rows_that_are_no_events_hide_nobody() {
    let table = Table::new().await;
    let ids = enqueue(&table, events(4)).await;
    table
        .sql(
            "PRAGMA ignore_check_constraints = 1;
             UPDATE org_outbox SET topic = CAST(x'ff41' AS TEXT), last_error = CAST(x'ff' AS TEXT),
                 created_at = -9000000000000000000, attempts = 9999999999 WHERE sequence = 1;
             UPDATE org_outbox SET payload = '{nope', headers = 'nope', attempts_log = '[', sinks_done = '7',
                 metadata = CAST(x'ff' AS TEXT), schema_version = -9999999999 WHERE sequence = 2;
             UPDATE org_outbox SET event_id = x'00', tenant_id = x'', available_at = 9000000000000000000
                 WHERE sequence = 3;
             PRAGMA ignore_check_constraints = 0",
        )
        .await
        .unwrap();
    let admin = table.admin();
    let page = admin.list(&ListRequest::default()).await.unwrap();
    let sequences: Vec<i64> = page.events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [4, 3, 2, 1]);
    assert_eq!((page.events[3].topic.as_str(), page.events[3].attempts), ("\u{fffd}A", i32::MAX));
    let shown = admin.show(ids[1], true).await.unwrap().unwrap();
    let json = serde_json::to_string(&shown).unwrap();
    let value: serde_json::Value =
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!((&value["payload"], &value["headers"]), (&"{nope".into(), &"nope".into()));
    assert!(value["sinks_done"].is_null() && value["schema_version"] == i32::MIN, "{value}");
}

/// The same for dead events, which are what somebody has to look at.
#[tokio::test]
async fn dead_rows_that_are_no_events_hide_nobody() {
    let table = Table::new().await;
    let ids = enqueue(&table, events(4)).await;
    table
        .sql(
            "PRAGMA ignore_check_constraints = 1;
             UPDATE org_outbox SET dead_at = sequence, last_error = 'HTTP 410';
             UPDATE org_outbox SET topic = CAST(x'ff41' AS TEXT), last_error = CAST(x'ff' AS TEXT),
                 attempts = 9999999999, aggregate_type = CAST(x'ff' AS TEXT) WHERE sequence = 1;
             UPDATE org_outbox SET event_id = x'00', tenant_id = x'' WHERE sequence = 2;
             -- Twelve centuries before the first year that RFC 3339 can write.
             UPDATE org_outbox SET dead_at = -99999999999999999, created_at = -99999999999999999 WHERE sequence = 3;
             PRAGMA ignore_check_constraints = 0",
        )
        .await
        .unwrap();
    let admin = table.admin();
    let dead = admin.query(&DeadFilter::default(), 10).await.unwrap();
    let sequences: Vec<i64> = dead.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [3, 1, 2, 4]);
    serde_json::to_string(&dead).expect("times that JSON can hold");
    let causes = admin.causes(&DeadFilter::default()).await.unwrap();
    assert_eq!(causes.iter().map(|cause| cause.events).sum::<u64>(), 4);
    serde_json::to_string(&causes).expect("times that JSON can hold");
    assert_eq!(admin.replay_dead(&ids, "tester").await.unwrap().len(), 3, "all that have an id");
    assert_eq!(admin.discard(&DeadFilter::default(), "tester").await.unwrap(), 1, "and the other one");
}

/// Times at the limits of what a column holds: the age of an event is then more than it can hold.
#[tokio::test]
async fn a_made_up_time_does_not_keep_a_table_from_being_counted() {
    let table = Table::new().await;
    enqueue(&table, events(3)).await;
    table
        .sql(
            "UPDATE org_outbox SET created_at = -9223372036854775808, available_at = -9223372036854775808 WHERE sequence = 1;
             UPDATE org_outbox SET created_at = 9223372036854775807 WHERE sequence = 2",
        )
        .await
        .unwrap();
    assert_eq!(table.admin().counts().await.unwrap().pending, 3);
}
