//! Settings, and the class of each error.

use std::sync::Arc;

use postbox_core::testing::delivery;
use postbox_core::{DispatchErrorKind, Dispatcher as _};
use pulsar::Error;
use pulsar::error::{AuthenticationError, ConnectionError, ProducerError, ServiceDiscoveryError};
use pulsar::proto::ServerError;
use serde_json::json;

use super::PulsarSink;
use super::config::{Config, partition};
use super::error::{classify, has_reason};
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
fn every_word_of_a_broker_has_a_class() {
    use DispatchErrorKind::{Reject, Retry, Unavailable};
    let mut event = delivery("a.b", "1");
    let known: Vec<ServerError> = (0..100).filter_map(|number| ServerError::try_from(number).ok()).collect();
    assert!(known.len() >= 26, "{known:?}: these are not all");
    // How often the event was tried, and whether its topic has been missing for long.
    for (attempts, lasts) in [(1, true), (2, true), (3, false), (50, false), (3, true)] {
        event.meta.attempts = attempts;
        for kind in &known {
            let (class, connection) = match kind {
                ServerError::AuthenticationError => (Unavailable, true),
                ServerError::AuthorizationError
                | ServerError::ServiceNotReady
                | ServerError::MetadataError
                | ServerError::PersistenceError
                | ServerError::TooManyRequests
                | ServerError::ProducerBusy
                | ServerError::ProducerFenced
                | ServerError::ProducerBlockedQuotaExceededError
                | ServerError::ProducerBlockedQuotaExceededException => (Unavailable, false),
                ServerError::InvalidTopicName
                | ServerError::TopicTerminatedError
                | ServerError::IncompatibleSchema
                | ServerError::NotAllowedError => (Reject, false),
                ServerError::TopicNotFound if attempts == 3 && lasts => (Reject, false),
                ServerError::TopicNotFound
                | ServerError::UnknownError
                | ServerError::ChecksumError
                | ServerError::UnsupportedVersionError
                | ServerError::ConsumerBusy
                | ServerError::ConsumerNotFound
                | ServerError::ConsumerAssignError
                | ServerError::SubscriptionNotFound
                | ServerError::TransactionCoordinatorNotFound
                | ServerError::InvalidTxnStatus
                | ServerError::TransactionConflict
                | ServerError::TransactionNotFound => (Retry(None), false),
            };
            // Whoever it is told to, the connection, a lookup or a producer, it means the same.
            let told = || ConnectionError::PulsarError(Some(*kind), Some("words".into()));
            for error in [
                Error::Connection(told()),
                Error::Producer(ProducerError::Connection(told())),
                Error::Producer(ProducerError::Batch(Arc::new(Error::Connection(told())))),
                Error::ServiceDiscovery(ServiceDiscoveryError::Connection(told())),
                Error::ServiceDiscovery(ServiceDiscoveryError::Query(Some(*kind), None)),
            ] {
                let verdict = classify(&error, "a.b", &event, |_| lasts);
                let found = (verdict.error.kind(), verdict.connection);
                assert_eq!(found, (class, connection), "{kind:?}, attempt {attempts}, {lasts}: {error:?}");
                assert!(has_reason(&error), "{error:?}");
            }
        }
    }
}

#[test]
fn every_trouble_of_the_client_has_a_class() {
    use DispatchErrorKind::{Retry, Unavailable};
    let event = delivery("a.b", "1");
    let io = || std::io::Error::other("no route");
    for (error, kind, connection) in [
        (Error::Connection(ConnectionError::Io(io())), Unavailable, true),
        (Error::Connection(ConnectionError::Disconnected), Unavailable, true),
        (Error::Connection(ConnectionError::Canceled), Unavailable, true),
        (Error::Connection(ConnectionError::Shutdown), Unavailable, true),
        (Error::Connection(ConnectionError::NotFound), Unavailable, true),
        (
            Error::Connection(ConnectionError::Authentication(AuthenticationError::Custom("no".into()))),
            Unavailable,
            true,
        ),
        (Error::Connection(ConnectionError::UnexpectedResponse("what?".into())), Unavailable, true),
        (Error::Authentication(AuthenticationError::Custom("no".into())), Unavailable, true),
        (Error::Executor, Unavailable, true),
        (Error::Producer(ProducerError::Connection(ConnectionError::SlowDown)), Unavailable, true),
        (Error::ServiceDiscovery(ServiceDiscoveryError::DnsLookupError), Unavailable, true),
        (Error::ServiceDiscovery(ServiceDiscoveryError::NotFound), Unavailable, true),
        // The producer's own: other topics may fare better.
        (Error::Producer(ProducerError::Fenced), Unavailable, false),
        (Error::Producer(ProducerError::Closed), Unavailable, false),
        (Error::Producer(ProducerError::Custom("words".into())), Unavailable, false),
        (Error::Producer(ProducerError::Batch(Arc::new(Error::Executor))), Unavailable, true),
        // The message's, or nobody knows whose.
        (Error::Producer(ProducerError::Io(io())), Retry(None), false),
        (Error::Connection(ConnectionError::Encoding("bytes".into())), Retry(None), false),
        (Error::Connection(ConnectionError::PulsarError(None, Some("words".into()))), Retry(None), false),
        (Error::ServiceDiscovery(ServiceDiscoveryError::Query(None, None)), Retry(None), false),
        (Error::Custom("words".into()), Retry(None), false),
    ] {
        let verdict = classify(&error, "a.b", &event, |_| true);
        assert_eq!((verdict.error.kind(), verdict.connection), (kind, connection), "{error:?}");
        assert!(!has_reason(&error), "{error:?}");
    }
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
