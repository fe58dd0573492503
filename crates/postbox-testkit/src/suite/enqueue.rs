//! What is promised of enqueue (P1, P3).

use std::time::{Duration, Instant};

use postbox_core::store::ClaimMode;
use postbox_core::{AggregateKey, Enqueued, Payload, Record, Store as _, TenantId};

use super::script::Scripted;
use super::{OpenTransaction, Subject, TOPIC, claim, enqueue, event, events, quick, request, state};
use crate::skipped;
use postbox_core::Relay;

/// P1.
pub async fn an_event_exists_only_if_its_transaction_committed<S: Subject>(subject: &S) {
    let rolled_back = subject.begin(events(3)).await;
    let ids: Vec<_> = rolled_back.receipts().iter().map(|receipt| receipt.event_id).collect();
    rolled_back.roll_back().await;
    for id in ids {
        assert_eq!(subject.row(id).await, None);
    }
    let open = subject.begin(events(1)).await;
    let id = open.receipts()[0].event_id;
    assert!(claim(&subject.store(false), 10).await.rows.is_empty(), "not before the commit");
    open.commit().await;
    assert!(subject.row(id).await.is_some());
}

/// Duplicates write nothing, not even a row version.
pub async fn a_repeated_event_id_writes_nothing<S: Subject>(subject: &S) {
    let record = event(TOPIC, 1).build().unwrap();
    let first = subject.begin(vec![record.clone()]).await;
    let receipt = first.receipts()[0];
    let Enqueued::Written(sequence) = receipt.enqueued else { panic!("{receipt:?}") };
    first.commit().await;
    let before = state(subject, receipt.event_id).await;
    let again = subject.begin(vec![record]).await;
    assert_eq!(again.receipts()[0].enqueued, Enqueued::Duplicate(sequence));
    again.commit().await;
    assert_eq!(state(subject, receipt.event_id).await, before);
    assert_eq!(subject.rows().await, 1);
}

/// Whoever is second waits for the first, and is told what became of it.
pub async fn of_two_transactions_with_one_event_id_one_writes<S: Subject>(subject: &S) {
    for first_commits in [true, false] {
        let record = event(TOPIC, 1).build().unwrap();
        let first = subject.begin(vec![record.clone()]).await;
        let sequence = first.receipts()[0].sequence().unwrap();
        let second = async {
            let open = subject.begin(vec![record.clone()]).await;
            let receipt = open.receipts()[0];
            open.commit().await;
            receipt.enqueued
        };
        let end_first = async {
            subject.somebody_waits().await;
            if first_commits { first.commit().await } else { first.roll_back().await }
        };
        let (enqueued, ()) = tokio::join!(second, end_first);
        if first_commits {
            assert_eq!(enqueued, Enqueued::Duplicate(sequence));
        } else {
            assert!(matches!(enqueued, Enqueued::Written(_)), "{enqueued:?}");
        }
    }
    assert_eq!(subject.rows().await, 2);
}

/// `enqueue_all`, across chunks, with duplicates inside.
pub async fn many_events_get_their_receipts_in_order<S: Subject>(subject: &S) {
    let mut records = events(2_500);
    records.push(records[7].clone());
    let open = subject.begin(records.clone()).await;
    let receipts = open.receipts().to_vec();
    open.commit().await;
    assert_eq!(receipts.len(), 2_501);
    for (record, receipt) in records.iter().zip(&receipts) {
        assert_eq!(record.event_id, receipt.event_id);
    }
    let sequences: Vec<i64> = receipts.iter().filter_map(postbox_core::Receipt::sequence).collect();
    assert!(sequences[..2_500].windows(2).all(|pair| pair[0] < pair[1]), "in the order of the call");
    assert_eq!(receipts[2_500].enqueued, Enqueued::Duplicate(sequences[7]));
    assert_eq!(subject.rows().await, 2_500);
}

/// Numbers are never floating point.
pub async fn json_arrives_digit_for_digit<S: Subject>(subject: &S) {
    let text =
        r#"{"big": 12345678901234567890.5, "text": "Zoë \"x\" 😀 \\u0041", "list": [1, null, true, 0.1000]}"#;
    enqueue(subject, vec![Record::builder(TOPIC).raw_json(text).build().unwrap()]).await;
    let claim = claim(&subject.store(false), 1).await;
    let Payload::Json(json) = &claim.rows[0].delivery.payload else { panic!("not JSON") };
    assert!(json.as_str().contains("12345678901234567890.5"), "{json:?}");
    assert!(json.as_str().contains("0.1000"), "{json:?}");
    let arrived: serde_json::Value = json.decode().unwrap();
    assert_eq!(arrived["text"], "Zoë \"x\" 😀 \\u0041");
}

/// Everything that an event can carry.
pub async fn bytes_and_every_field_arrive<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table has no columns for these");
    }
    let at = time::OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
    let record = Record::builder(TOPIC)
        .bytes([0_u8, 159, 146, 150], "application/x-test")
        .tenant_name("acme")
        .aggregate("thing", 42)
        .header("k", "v")
        .occurred_at(at)
        .schema("s", 3)
        .routing_key("key")
        .metadata(&serde_json::json!({"m": 1}))
        .trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("a=b".into()))
        .build()
        .unwrap();
    enqueue(subject, vec![record.clone()]).await;
    let claim = claim(&subject.store(false), 1).await;
    let delivery = &claim.rows[0].delivery;
    let meta = &delivery.meta;
    assert_eq!(delivery.payload, record.payload);
    assert_eq!(
        (meta.event_id, meta.tenant_id, &meta.topic),
        (record.event_id, TenantId::from_name("acme"), &TOPIC)
    );
    assert_eq!(meta.aggregate, Some(AggregateKey::new("thing", 42)));
    assert_eq!(meta.headers, record.headers);
    assert_eq!((meta.occurred_at, meta.schema_version, meta.attempts), (at, 3, 1));
    assert_eq!((meta.schema_id.as_deref(), meta.routing_key.as_deref()), (Some("s"), Some("key")));
    assert_eq!(
        (meta.traceparent.clone(), meta.tracestate.clone()),
        (record.traceparent.clone(), Some("a=b".into()))
    );
    assert!(meta.metadata.is_some());
    assert_eq!(meta.message_key(), "key");
}

/// `available_at`, by the database's clock.
pub async fn a_delayed_event_waits<S: Subject>(subject: &S) {
    let (delayed, delay) =
        (event(TOPIC, 1).delay(Duration::from_hours(1)).build().unwrap(), Duration::from_millis(300));
    enqueue(subject, vec![delayed]).await;
    let store = subject.store(false);
    assert!(store.claim(request(ClaimMode::Waiting, 10)).await.unwrap().rows.is_empty());
    let began = Instant::now();
    let soon = enqueue(subject, vec![event(TOPIC, 2).delay(delay).build().unwrap()]).await;
    let sink = Scripted::ok();
    let relay = Relay::builder(store).dispatcher(sink.clone()).settings(quick()).build().unwrap().spawn();
    super::published(subject, soon[0]).await;
    assert!(began.elapsed() >= delay, "not before its time");
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived(), soon);
}
