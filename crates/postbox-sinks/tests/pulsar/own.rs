//! What only Pulsar has: partitions, event times, namespaces, topics that are not there, brokers that hang up.

use std::sync::OnceLock;
use std::time::Duration;

use postbox_core::{Delivery, DispatchErrorKind, Dispatcher as _, Payload};
use postbox_sinks::{Options, PulsarSink};
use postbox_testkit::sink_suite::{assert_complete, deliver, event, events, fresh, send};
use postbox_testkit::{PulsarServer, ServerOptions, broker_or_skip, eventually};
use time::OffsetDateTime;

use crate::reader::{Found, read};

const PATIENCE: Duration = Duration::from_mins(1);

/// What the broker takes at most.
const LIMIT: usize = 200_000;

/// A broker that makes topics of four partitions and has a low limit; nobody stops it.
fn server() -> Result<&'static PulsarServer, String> {
    static SERVER: OnceLock<Result<PulsarServer, String>> = OnceLock::new();
    let options = ServerOptions::new()
        .max_message(LIMIT)
        .setting("allowAutoTopicCreationType=partitioned")
        .setting("defaultNumPartitions=4");
    SERVER.get_or_init(|| PulsarServer::try_with(&options)).as_ref().map_err(Clone::clone)
}

fn sink(server: &PulsarServer, options: Options) -> PulsarSink {
    PulsarSink::new(server.url(), options).unwrap()
}

fn find(found: &[Found], event: &Delivery) -> Found {
    let id = event.meta.event_id.to_string();
    found.iter().find(|message| message.received.event_id() == id).expect("it arrived").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_have_the_partitions_of_javas_clients_and_events_their_times() {
    let server = broker_or_skip!(server());
    let topic = fresh("partitions");
    // As String.hashCode() & Integer.MAX_VALUE has them, modulo four.
    let keys = [("o-1", 3), ("o-2", 0), ("o-3", 1), ("customer-17", 1), ("Zoë 東京", 1), ("", 0)];
    let mut all = events(&topic, keys.len());
    for (event, (key, _)) in all.iter_mut().zip(keys) {
        event.meta.routing_key = Some(key.to_owned());
    }
    all[0].meta.occurred_at = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
    for compression in ["none", "lz4", "zstd"] {
        deliver(&sink(server, Options::new().set("compression", compression)), &all, PATIENCE).await;
    }
    let found = read(server, None, &topic);
    assert_eq!(found.len(), 3 * all.len());
    for (event, (key, partition)) in all.iter().zip(keys) {
        let topic = find(&found, event).topic;
        assert!(topic.ends_with(&format!("-partition-{partition}")), "{key:?} is in {topic}");
    }
    assert_eq!(find(&found, &all[0]).event_time, 1_700_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_may_name_tenant_and_namespace() {
    let server = broker_or_skip!(server());
    let topic = fresh("named");
    let url = format!("{}/public/default/{{topic}}", server.url());
    let sink = PulsarSink::new(&url, Options::new()).unwrap();
    let all = events(&topic, 3);
    deliver(&sink, &all, PATIENCE).await;
    let full = format!("persistent://public/default/{topic}");
    let received: Vec<_> = read(server, None, &full).into_iter().map(|found| found.received).collect();
    assert_eq!(assert_complete(&all, &received), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_which_the_broker_hangs_up_is_no_outage() {
    let server = broker_or_skip!(server());
    let topic = fresh("hangs-up");
    let sink = sink(server, Options::new().set("timeout", "3s"));
    deliver(&sink, &events(&topic, 1), PATIENCE).await;
    let mut all = events(&topic, 10);
    let bytes = vec![7; 2 * LIMIT];
    all[5].payload = Payload::Bytes { bytes: bytes.into(), content_type: "x/y".into() };
    let outcomes = send(&sink, &all).await;
    let error = outcomes[5].clone().expect("an outcome").expect_err("too large");
    assert_eq!(error.kind(), DispatchErrorKind::Retry(None), "{error}");
    assert!(error.to_string().contains("maxMessageSize"), "{error}");
    all.remove(5);
    deliver(&sink, &all, PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_nobody_makes_is_looked_for_and_then_rejected() {
    let options = ServerOptions::new().setting("allowAutoTopicCreation=false").login("relay", "s3cret");
    let server = broker_or_skip!(PulsarServer::try_with(&options));
    let sink = sink(&server, Options::new());
    let mut event = event(&fresh("missing"), 1);
    // Also one that has been tried often, while Pulsar was away: it is the first look for the topic that counts.
    for attempts in [50, 3] {
        event.meta.attempts = attempts;
        let error = sink.dispatch(&event).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Retry(None), "{error}");
        assert!(error.to_string().contains("Pulsar has no topic"), "{error}");
    }
    eventually("that it is rejected", PATIENCE, async || {
        let error = sink.dispatch(&event).await.unwrap_err();
        assert!(error.to_string().contains("Pulsar has no topic"), "{error}");
        error.kind() == DispatchErrorKind::Reject
    })
    .await;
    let stranger = PulsarSink::new(&server.url().replace("s3cret", "guess"), Options::new()).unwrap();
    let error = stranger.dispatch(&event).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
}
