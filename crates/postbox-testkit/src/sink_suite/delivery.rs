//! Events arrive: all of them, once, whole, and in order.

use std::collections::BTreeMap;
use std::time::Duration;

use postbox_core::{AggregateKey, Delivery, DispatchErrorKind, Dispatcher as _, Json, Payload};

use super::{Broker, assert_complete, deliver, event, events, fresh, of, send};
use crate::skip;

/// A batch of several hundred is confirmed as one goes, and each event is there once.
pub async fn every_event_arrives_once<B: Broker>(broker: &B) {
    let topic = fresh("once");
    broker.prepare(&topic).await;
    let sink = broker.sink(&[]);
    assert!(sink.batch_limit() >= broker.abilities().batch, "a batch limit of {}", sink.batch_limit());
    let all = events(&topic, 1200);
    deliver(&sink, &all, broker.abilities().patience).await;
    // One at a time is another way through most sinks.
    let single = event(&topic, 1200);
    sink.dispatch(&single).await.expect("a delivery");
    let received = broker.read(&topic).await;
    let all: Vec<Delivery> = all.into_iter().chain([single]).collect();
    assert_eq!(assert_complete(&all, &received), 0, "some are there twice");
    for event in &all {
        let Payload::Json(json) = &event.payload else { unreachable!("JSON") };
        assert_eq!(of(&received, event.meta.event_id).payload, json.as_str().as_bytes());
    }
}

/// Bytes are the bytes, JSON is digit for digit what was written.
pub async fn payloads_of_every_kind_arrive<B: Broker>(broker: &B) {
    let topic = fresh("payloads");
    broker.prepare(&topic).await;
    let bytes =
        |bytes: &[u8]| Payload::Bytes { bytes: bytes.into(), content_type: "application/x-test".into() };
    let json = |text: &str| Payload::Json(Json::from_text(text).unwrap());
    let every_byte: Vec<u8> = (0..=255).collect();
    let payloads = [
        bytes(b""),
        bytes(&every_byte),
        bytes(b"\r\n\0\r\n"),
        json("{ \"price\": 12345678901234567890.50, \"n\": [ -0, 1E+2 ] }"),
        json("{\"name\":\"Zoë 東京 🦀\"}"),
        json("null"),
    ];
    let all: Vec<Delivery> = payloads
        .into_iter()
        .enumerate()
        .map(|(n, payload)| Delivery { payload, ..event(&topic, n) })
        .collect();
    deliver(&broker.sink(&[]), &all, broker.abilities().patience).await;
    let received = broker.read(&topic).await;
    assert_eq!(assert_complete(&all, &received), 0);
    for event in &all {
        let expected = match &event.payload {
            Payload::Json(json) => json.as_str().as_bytes(),
            Payload::Bytes { bytes, .. } => bytes,
        };
        assert_eq!(of(&received, event.meta.event_id).payload, expected);
    }
}

/// The largest that the broker is said to take.
pub async fn a_large_payload_arrives<B: Broker>(broker: &B) {
    let topic = fresh("large");
    broker.prepare(&topic).await;
    let large = sized(&topic, broker.abilities().large);
    deliver(&broker.sink(&[]), std::slice::from_ref(&large), broker.abilities().patience).await;
    let received = broker.read(&topic).await;
    let Payload::Bytes { bytes, .. } = &large.payload else { unreachable!("bytes") };
    assert!(of(&received, large.meta.event_id).payload == **bytes, "the payload is another one");
}

/// An event that never fits is dead at once, and takes nobody with it.
pub async fn what_is_too_large_is_rejected_and_the_rest_arrives<B: Broker>(broker: &B) {
    let Some(too_large) = broker.abilities().too_large else {
        skip!("the broker takes payloads of any size")
    };
    let topic = fresh("too-large");
    broker.prepare(&topic).await;
    let sink = broker.sink(&[]);
    let mut all = events(&topic, 20);
    all[10] = sized(&topic, too_large);
    let outcomes = send(&sink, &all).await;
    match &outcomes[10] {
        Some(Err(error)) => assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}"),
        other => panic!("too large, and yet {other:?}"),
    }
    let rest: Vec<Delivery> = all.into_iter().enumerate().filter(|(n, _)| *n != 10).map(|(_, e)| e).collect();
    // Those beside it may have to be sent again, if the broker closed the connection over it.
    deliver(&sink, &rest, broker.abilities().patience).await;
    assert_complete(&rest, &broker.read(&topic).await);
}

/// Several hundred are in flight at a time, and none of a key overtakes another.
pub async fn hundreds_in_flight_keep_the_order_of_a_key<B: Broker>(broker: &B) {
    if !broker.abilities().order {
        skip!("the broker keeps no order");
    }
    let topic = fresh("order");
    broker.prepare(&topic).await;
    let sink = broker.sink(&[]);
    let mut all = events(&topic, 1000);
    for (n, event) in all.iter_mut().enumerate() {
        event.meta.aggregate = Some(AggregateKey::new("thing", format!("key-{}", n % 7)));
    }
    for batch in all.chunks(sink.batch_limit().min(500)) {
        for outcome in send(&sink, batch).await {
            outcome.expect("an outcome").expect("a delivery");
        }
    }
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for message in broker.read(&topic).await {
        let sequence: i64 = message.headers["sequence"].parse().unwrap();
        let before = last.insert(message.key.clone().expect("a key"), sequence);
        assert!(before.is_none_or(|before| before < sequence), "{before:?} is before {sequence}");
    }
    assert_eq!(last.len(), 7);
}

/// What a relay sends again because it never heard of its arrival does not arrive twice, where the broker sees to that.
pub async fn an_event_sent_again_is_there_once<B: Broker>(broker: &B) {
    if !broker.abilities().deduplicates {
        skip!("the broker does not know events again");
    }
    let topic = fresh("again");
    broker.prepare(&topic).await;
    let all = events(&topic, 50);
    for _ in 0..2 {
        // Another connection, as after a crash.
        deliver(&broker.sink(&[]), &all, broker.abilities().patience).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(assert_complete(&all, &broker.read(&topic).await), 0, "some are there twice");
}

fn sized(topic: &str, bytes: usize) -> Delivery {
    let bytes = (0..bytes).map(|n| b"0123456789abcdef"[n % 16]).collect::<Vec<u8>>().into();
    Delivery { payload: Payload::Bytes { bytes, content_type: "text/plain".into() }, ..event(topic, 7) }
}
