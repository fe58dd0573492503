//! Settings, and the class of each error.

use postbox_core::testing::delivery;
use postbox_core::{DispatchErrorKind, Dispatcher as _};
use pulsar::Error;
use pulsar::error::{ConnectionError, ProducerError, ServiceDiscoveryError};
use pulsar::proto::ServerError;
use serde_json::json;

use super::PulsarSink;
use super::config::{Config, partition};
use super::error::classify;
use crate::Options;

#[test]
fn what_cannot_work_is_told_at_the_start() {
    let config = |url: &str, options| Config::new(url, options).map_err(|error| error.to_string());
    for (url, options, part) in [
        ("pulsar://token@broker", json!({ "token": "Zq9" }), "a login in the URL too"),
        (
            "pulsar://broker",
            json!({ "token": "Zq9", "user": "me", "password": "Zq9" }),
            "keep one of the two",
        ),
        ("pulsar://broker", json!({ "user": "me" }), "give both, or a token"),
        ("pulsar://broker", json!({ "compression": "rar" }), "use one of none, lz4, zstd"),
        ("pulsar://broker", json!({ "tls_ca": "Cargo.toml" }), "without certificates"),
        ("pulsar://broker", json!({ "namespace": "x" }), "it has no option namespace; there is destination,"),
    ] {
        let options = options.as_object().unwrap().clone().into_iter().collect();
        let text = config(url, options).unwrap_err();
        assert!(text.contains(part) && !text.contains("Zq9"), "{part}\n{text}");
    }
    let sink = PulsarSink::new("pulsar+ssl://me:secret@a,b:6652/t/n/{topic}", Options::new()).unwrap();
    assert_eq!(sink.to_string(), "pulsar+ssl://a,b:6652/t/n/{topic}");
    assert!(!format!("{sink:?}").contains("secret"));
    for url in ["pulsar://Zq9@broker", "pulsar://me:Zq9@broker"] {
        let sink = PulsarSink::new(url, Options::new()).unwrap();
        assert!(!format!("{sink} {sink:?}").contains("Zq9"), "{sink:?}");
    }
}

#[test]
fn partitions_follow_the_hash_of_javas_strings() {
    // "hello".hashCode() is 99162322, "Aa" and "BB" have the same, and "polygenelubricants" has the smallest integer.
    assert_eq!(partition("hello", 1_000_000_000), 99_162_322);
    assert_eq!(partition("Aa", 7), partition("BB", 7));
    assert_eq!(partition("polygenelubricants", 7), 0);
    assert_eq!(partition("", 4), 0);
}

#[test]
fn every_error_has_a_class() {
    use DispatchErrorKind::{Reject, Retry, Unavailable};
    let said = |kind| Error::Connection(ConnectionError::PulsarError(Some(kind), Some("words".into())));
    let mut event = delivery("a.b", "1");
    for (error, kind, connection) in [
        (said(ServerError::AuthenticationError), Unavailable, true),
        (said(ServerError::AuthorizationError), Unavailable, false),
        (said(ServerError::ServiceNotReady), Unavailable, false),
        (said(ServerError::ProducerBlockedQuotaExceededError), Unavailable, false),
        (said(ServerError::InvalidTopicName), Reject, false),
        (said(ServerError::TopicTerminatedError), Reject, false),
        (said(ServerError::TopicNotFound), Retry(None), false),
        (said(ServerError::ChecksumError), Retry(None), false),
        (Error::Connection(ConnectionError::Disconnected), Unavailable, true),
        (Error::Producer(ProducerError::Connection(ConnectionError::SlowDown)), Unavailable, true),
        (Error::Producer(ProducerError::Fenced), Unavailable, false),
        (Error::Producer(ProducerError::Closed), Unavailable, false),
        (Error::ServiceDiscovery(ServiceDiscoveryError::DnsLookupError), Unavailable, true),
        (
            Error::ServiceDiscovery(ServiceDiscoveryError::Query(Some(ServerError::MetadataError), None)),
            Unavailable,
            false,
        ),
    ] {
        let verdict = classify(&error, "a.b", &event);
        assert_eq!((verdict.error.kind(), verdict.connection), (kind, connection), "{error}");
    }
    event.meta.attempts = 3;
    assert_eq!(classify(&said(ServerError::TopicNotFound), "a.b", &event).error.kind(), Reject);
}

#[tokio::test]
async fn what_no_broker_takes_is_rejected_here() {
    let sink = PulsarSink::new("pulsar://127.0.0.1:1", Options::new().set("max_message", "1000")).unwrap();
    let large = delivery("a.b", &format!("\"{}\"", "x".repeat(1000)));
    let mut chatty = delivery("a.b", "1");
    chatty.meta.headers = [("note".into(), "x".repeat(9000))].into();
    for (event, part) in [(large, "more than max_message, 1000"), (chatty, "8 KiB is the most")] {
        let error = sink.dispatch(&event).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Reject);
        assert!(error.to_string().contains(part), "{error}");
    }
}
