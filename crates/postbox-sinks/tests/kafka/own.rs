//! What only Kafka has: partitions, timestamps, compression, limits of brokers, topics that are not there.

use std::sync::OnceLock;
use std::time::Duration;

use postbox_core::{Delivery, DispatchErrorKind, Dispatcher as _, Payload};
use postbox_sinks::{KafkaSink, Options};
use postbox_testkit::sink_suite::{assert_complete, deliver, event, events, fresh, of, send};
use postbox_testkit::{KafkaServer, ServerOptions, broker_or_skip, eventually};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use serde_json::json;
use time::OffsetDateTime;

use crate::reader::{Found, Reader, installed};

const PATIENCE: Duration = Duration::from_mins(1);

/// What the broker takes at most.
const LIMIT: usize = 100_000;

/// A broker of six partitions to a topic and a low limit; nobody stops it.
fn server() -> Result<&'static KafkaServer, String> {
    static SERVER: OnceLock<Result<KafkaServer, String>> = OnceLock::new();
    let start = || {
        installed()?;
        KafkaServer::try_with(&ServerOptions::new().max_message(LIMIT).setting("num.partitions=6"))
    };
    SERVER.get_or_init(start).as_ref().map_err(Clone::clone)
}

fn sink(server: &KafkaServer, options: Options) -> KafkaSink {
    KafkaSink::new(server.url(), options).unwrap()
}

/// All that is there, by the event's id.
fn read(server: &KafkaServer, topic: &str) -> Vec<Found> {
    Reader::new(server.bootstrap()).read(topic)
}

fn find(found: &[Found], event: &Delivery) -> Found {
    let id = event.meta.event_id.to_string();
    found.iter().find(|message| message.received.event_id() == id).expect("it arrived").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_the_partition_that_it_has_with_javas_clients() {
    let server = broker_or_skip!(server());
    let topic = fresh("partitions");
    // As Utils.toPositive(Utils.murmur2(key)) % 6 of Kafka's own library has them.
    let keys = [
        ("o-1", 0),
        ("o-2", 3),
        ("o-3", 4),
        ("customer-17", 4),
        ("Zoë 東京", 5),
        ("ab", 2),
        ("abc", 3),
        ("abcd", 2),
    ];
    let mut all = events(&topic, keys.len());
    for (event, (key, _)) in all.iter_mut().zip(keys) {
        event.meta.routing_key = Some(key.to_owned());
    }
    deliver(&sink(server, Options::new()), &all, PATIENCE).await;
    let found = read(server, &topic);
    for (event, (key, partition)) in all.iter().zip(keys) {
        assert_eq!(find(&found, event).partition, partition, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_the_time_of_its_event_but_none_to_come() {
    let server = broker_or_skip!(server());
    let topic = fresh("times");
    let millis = |at: OffsetDateTime| i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap();
    let now = OffsetDateTime::now_utc();
    let mut all = events(&topic, 3);
    all[0].meta.occurred_at = now - time::Duration::days(2);
    all[1].meta.occurred_at = now + time::Duration::days(2);
    all[2].meta.occurred_at = OffsetDateTime::UNIX_EPOCH - time::Duration::days(1);
    deliver(&sink(server, Options::new()), &all, PATIENCE).await;
    let mut sent = event(&topic, 9);
    sent.meta.occurred_at = now - time::Duration::days(2);
    let by_sending = sink(server, Options::new().set("timestamp", "sent"));
    deliver(&by_sending, std::slice::from_ref(&sent), PATIENCE).await;
    let found = read(server, &topic);
    let after = millis(OffsetDateTime::now_utc());
    assert_eq!(find(&found, &all[0]).timestamp, millis(all[0].meta.occurred_at));
    for event in [&all[1], &all[2], &sent] {
        let at = find(&found, event).timestamp;
        assert!((millis(now)..=after).contains(&at), "{at} is not between {} and {after}", millis(now));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_payload_is_no_tombstone() {
    let server = broker_or_skip!(server());
    let topic = fresh("empty");
    let empty = Payload::Bytes { bytes: [].into(), content_type: "text/plain".into() };
    let event = Delivery { payload: empty, ..event(&topic, 1) };
    deliver(&sink(server, Options::new()), std::slice::from_ref(&event), PATIENCE).await;
    let found = find(&read(server, &topic), &event);
    // A compacted topic would delete the key for a message without a payload.
    assert!(found.has_payload && found.received.payload.is_empty(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_arrives() {
    let server = broker_or_skip!(server());
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = fresh(compression);
        let all = events(&topic, 200);
        deliver(&sink(server, Options::new().set("compression", compression)), &all, PATIENCE).await;
        let received: Vec<_> = read(server, &topic).into_iter().map(|found| found.received).collect();
        assert_eq!(assert_complete(&all, &received), 0, "{compression}");
        assert_eq!(of(&received, all[7].meta.event_id).payload, b"{\"n\":7}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_finds_too_large_takes_nobody_with_it() {
    let server = broker_or_skip!(server());
    let topic = fresh("broker-limit");
    // One key, one partition, one batch of the client's: the broker refuses all of it.
    let mut all = events(&topic, 30);
    for event in &mut all {
        event.meta.routing_key = Some("one".to_owned());
    }
    let bytes: Vec<u8> = (0..LIMIT + 1000).map(|_| fastrand_byte()).collect();
    all[10].payload = Payload::Bytes { bytes: bytes.into(), content_type: "x/y".into() };
    let sink = sink(server, Options::new().set("linger", "100ms"));
    deliver(&sink, &events(&topic, 1), PATIENCE).await;
    for (index, outcome) in send(&sink, &all).await.into_iter().enumerate() {
        match (index, outcome.expect("an outcome")) {
            (10, Err(error)) => {
                assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
                assert!(error.to_string().contains("too large for the broker"), "{error}");
            }
            (10, Ok(())) => panic!("too large, and yet delivered"),
            (_, outcome) => outcome.expect("a delivery"),
        }
    }
    let received = read(server, &topic);
    assert_eq!(received.len(), 30);
}

fn fastrand_byte() -> u8 {
    // Nothing that could be made smaller.
    *uuid::Uuid::new_v4().as_bytes().first().unwrap_or(&0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_room_is_waited_for() {
    let server = broker_or_skip!(server());
    let topic = fresh("room");
    let sink = sink(server, Options::new().set("properties", json!({ "queue.buffering.max.messages": 7 })));
    let all = events(&topic, 500);
    for outcome in send(&sink, &all).await {
        outcome.expect("an outcome").expect("a delivery");
    }
    let received: Vec<_> = read(server, &topic).into_iter().map(|found| found.received).collect();
    assert_eq!(assert_complete(&all, &received), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_no_topic_can_have_are_rejected() {
    let server = broker_or_skip!(server());
    let sink = sink(server, Options::new().set("destination", "events.{aggregate_id}"));
    let mut event = event("some.topic", 1);
    event.meta.aggregate = Some(postbox_core::AggregateKey::new("order", "a b/ü"));
    let error = sink.dispatch(&event).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Reject);
    assert!(error.to_string().contains("cannot have a topic \"events.a b/ü\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_nobody_makes_is_looked_for_and_then_rejected() {
    let options = ServerOptions::new().setting("auto.create.topics.enable=false");
    let server = broker_or_skip!(KafkaServer::try_with(&options));
    let sink = sink(&server, Options::new().set("timeout", "10s"));
    let mut event = event(&fresh("missing"), 1);
    // Also one that has been tried often, while Kafka was away: it is the first look for the topic that counts.
    for attempts in [50, 3] {
        event.meta.attempts = attempts;
        let error = sink.dispatch(&event).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Retry(None), "{error}");
        assert!(error.to_string().contains("Kafka has no topic \"suite.missing."), "{error}");
    }
    eventually("that it is rejected", PATIENCE, async || {
        let error = sink.dispatch(&event).await.unwrap_err();
        assert!(error.to_string().contains("Kafka has no topic \"suite.missing."), "{error}");
        error.kind() == DispatchErrorKind::Reject
    })
    .await;
    // Somebody makes it: the sink finds it, though the client remembers that it was not there.
    make(&server, event.meta.topic.as_str()).await;
    event.meta.attempts = 1;
    deliver(&sink, std::slice::from_ref(&event), Duration::from_secs(20)).await;
}

async fn make(server: &KafkaServer, topic: &str) {
    let config = ClientConfig::new().set("bootstrap.servers", server.bootstrap()).clone();
    let admin: AdminClient<_> = config.create().unwrap();
    let new = NewTopic::new(topic, 1, TopicReplication::Fixed(1));
    let made = admin.create_topics([&new], &AdminOptions::new()).await.unwrap();
    assert!(made[0].is_ok(), "{made:?}");
}
