//! Settings, and errors that a real broker does not make on demand: the client's own mock of a cluster does.

use std::time::Duration;

use postbox_core::testing::delivery;
use postbox_core::{DispatchError, DispatchErrorKind, Dispatcher as _};
use postbox_testkit::eventually;
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::Producer as _;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use serde_json::json;

use super::KafkaSink;
use super::config::Config;
use super::error::{classify, is_of_the_batch, is_of_the_topic, is_topic_name};
use crate::Options;

fn config(url: &str, options: Options) -> Result<Config, String> {
    Config::new(url, options).map_err(|error| error.to_string())
}

fn property(config: &Config, name: &str) -> String {
    config.client.get(name).unwrap_or_default().to_owned()
}

#[test]
fn what_a_url_and_options_make() {
    let plain = config("kafka://one,two:9093/shop.{topic}", Options::new()).unwrap();
    for (name, value) in [
        ("bootstrap.servers", "one:9092,two:9093"),
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("partitioner", "murmur2_random"),
        ("message.timeout.ms", "20000"),
        ("socket.connection.setup.timeout.ms", "10000"),
        ("security.protocol", "plaintext"),
        ("compression.type", "none"),
        ("linger.ms", "1"),
    ] {
        assert_eq!(property(&plain, name), value, "{name}");
    }
    assert_eq!(plain.destination.of(&delivery("a.b", "1")).unwrap(), "shop.a.b");
    let options = Options::new()
        .set("timeout", "5s")
        .set("connect_timeout", "2s")
        .set("linger", "0")
        .set("compression", "zstd")
        .set("max_message", "2MiB")
        .set("properties", json!({ "client.rack": "eu-1", "partitioner": "consistent_random" }));
    let told = config("kafka://me:s%40cret@broker?timestamp=sent", options).unwrap();
    for (name, value) in [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "me"),
        ("sasl.password", "s@cret"),
        ("message.timeout.ms", "5000"),
        ("socket.connection.setup.timeout.ms", "2000"),
        ("message.max.bytes", "2097152"),
        ("compression.type", "zstd"),
        ("linger.ms", "0"),
        ("client.rack", "eu-1"),
        ("partitioner", "consistent_random"),
    ] {
        assert_eq!(property(&told, name), value, "{name}");
    }
    let sink = KafkaSink::new("kafka://me:secret@broker", Options::new()).unwrap();
    assert_eq!(sink.to_string(), "kafka://broker");
    assert!(!format!("{sink:?}").contains("secret"));
}

#[test]
fn what_cannot_work_is_told_at_the_start() {
    for (options, part) in [
        (json!({ "properties": { "acks": "1" } }), "must not have acks: it is always all"),
        (json!({ "properties": { "sasl.password": "Zq9" } }), "use the option password"),
        (json!({ "properties": { "compresion.level": 3 } }), "compresion.level"),
        (json!({ "properties": { "batch.num.messages": "many" } }), "batch.num.messages"),
        // Only all settings together show it.
        (json!({ "properties": { "max.in.flight": 100 } }), "the Kafka client refuses it"),
        (json!({ "user": "me" }), "option password is missing"),
        (json!({ "password": "Zq9" }), "option user is missing"),
        (json!({ "sasl": "plain" }), "without user and password"),
        (json!({ "sasl": "kerberos" }), "use one of plain, scram-sha-256, scram-sha-512"),
        (json!({ "compression": "rar" }), "use one of none, gzip, snappy, lz4, zstd"),
        (json!({ "timeout": "1ms" }), "option timeout"),
        (json!({ "connect_timeout": "999ms" }), "option connect_timeout"),
        (json!({ "connect_timeout": "301s" }), "option connect_timeout"),
        (
            json!({ "properties": { "socket.connection.setup.timeout.ms": 1 } }),
            "use the option connect_timeout",
        ),
        (json!({ "tls_ca": "Cargo.toml" }), "without TLS: write kafka+ssl://"),
        (json!({ "tls_cert": "Cargo.toml" }), "tls_key belong together"),
        (
            json!({ "tls_key_password": "Zq9" }),
            "option tls_key_password is given for a connection without TLS",
        ),
        (json!({ "topic": "x" }), "it has no option topic; there is destination,"),
    ] {
        let options = options.as_object().unwrap().clone().into_iter().collect();
        let text = config("kafka://broker", options).unwrap_err();
        assert!(text.contains(part) && !text.contains("Zq9"), "{part}\n{text}");
    }
    let text = config("kafka://me:Zq9@broker", Options::new().set("password", "Zq9")).unwrap_err();
    assert!(text.contains("in the URL too") && !text.contains("Zq9"), "{text}");
}

#[tokio::test]
async fn a_connection_that_is_not_answered_is_given_up_and_made_again() {
    // It takes connections, and says nothing to those who make them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let url = format!("kafka://{}", silent.local_addr().unwrap());
    let options = Options::new().set("connect_timeout", "1s").set("timeout", "6s");
    let error = fail(&KafkaSink::new(&url, options).unwrap()).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    let made = std::iter::from_fn(|| silent.accept().ok()).count();
    assert!(made > 1, "{made} connections: {error}");
}

#[test]
fn tls_and_scram_say_what_they_need() {
    let scram = || Options::new().set("sasl", "scram-sha-512");
    let outcomes = [
        config("kafka+ssl://broker", Options::new()).map(|made| property(&made, "security.protocol")),
        config("kafka://me:secret@broker", scram()).map(|made| property(&made, "sasl.mechanism")),
    ];
    let has_tls = cfg!(feature = "kafka-tls");
    for (outcome, made) in outcomes.into_iter().zip(["ssl", "SCRAM-SHA-512"]) {
        assert_eq!(outcome.is_ok(), has_tls, "{outcome:?}");
        match outcome {
            Ok(outcome) => assert_eq!(outcome, made),
            Err(text) => {
                assert!(
                    text.contains("cargo build --features kafka-tls") && !text.contains("secret"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn names_of_topics() {
    let longest = "x".repeat(249);
    for name in ["a", "A.b_c-1", "...", &longest] {
        assert!(is_topic_name(name), "{name}");
    }
    let too_long = "x".repeat(250);
    for name in ["", ".", "..", "a b", "a/b", "ü", "a\0", &too_long] {
        assert!(!is_topic_name(name), "{name}");
    }
}

/// Every code that the client knows, from the first to the last.
fn codes() -> impl Iterator<Item = Code> {
    (-200..=200).filter_map(|number| RDKafkaRespErr::try_from(number).ok()).map(Code::from)
}

#[test]
fn every_error_has_a_class() {
    use DispatchErrorKind::{Reject, Retry, Unavailable};
    let silence =
        [Code::MessageTimedOut, Code::OperationTimedOut, Code::RequestTimedOut, Code::TimedOutQueue];
    let outages = [
        // No way to a broker, or none for us.
        Code::BrokerTransportFailure,
        Code::AllBrokersDown,
        Code::Resolve,
        Code::NetworkException,
        Code::BrokerNotAvailable,
        Code::ListenerNotFound,
        Code::DestroyBroker,
        Code::BrokerDestroy,
        Code::NodeUpdate,
        Code::SSL,
        Code::Authentication,
        Code::SaslAuthenticationFailed,
        Code::UnsupportedSASLMechanism,
        Code::IllegalSASLState,
        Code::SecurityDisabled,
        Code::TopicAuthorizationFailed,
        Code::ClusterAuthorizationFailed,
        Code::TransactionalIdAuthorizationFailed,
        // An election, replicas that are away, storage, quotas.
        Code::LeaderNotAvailable,
        Code::NotLeaderForPartition,
        Code::FencedLeaderEpoch,
        Code::UnknownLeaderEpoch,
        Code::ReplicaNotAvailable,
        Code::ISRInsufficient,
        Code::NotEnoughReplicas,
        Code::NotEnoughReplicasAfterAppend,
        Code::CoordinatorLoadInProgress,
        Code::CoordinatorNotAvailable,
        Code::NotCoordinator,
        Code::KafkaStorageError,
        Code::LogDirNotFound,
        Code::ThrottlingQuotaExceeded,
        // The client itself, or the place that its producer had.
        Code::QueueFull,
        Code::CriticalSystemResource,
        Code::PurgeQueue,
        Code::PurgeInflight,
        Code::Fatal,
        Code::Fenced,
        Code::GaplessGuarantee,
        Code::OutOfOrderSequenceNumber,
        Code::InvalidProducerEpoch,
        Code::InvalidProducerIdMapping,
        Code::UnknownProducerId,
        Code::ProducerFenced,
    ];
    let too_large = [Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidMessageSize];
    let refused = [
        Code::InvalidTopic,
        Code::InvalidTimestamp,
        Code::InvalidRecord,
        Code::PolicyViolation,
        Code::UnsupportedForMessageFormat,
    ];
    let no_topic = [Code::UnknownTopic, Code::UnknownTopicOrPartition, Code::UnknownTopicId];
    let (mut event, mut seen) = (delivery("a.b", "1"), 0);
    // How often the event was tried, and whether its topic has been missing for long.
    for (attempts, lasts) in [(1, true), (2, true), (3, false), (50, false), (3, true)] {
        event.meta.attempts = attempts;
        for code in codes() {
            let (class, words) = if silence.contains(&code) {
                (Unavailable, "did not confirm within 1s; the last trouble: rain")
            } else if outages.contains(&code) {
                (Unavailable, "; the last trouble: rain")
            } else if too_large.contains(&code) {
                (Reject, "too large for the broker")
            } else if refused.contains(&code) {
                (Reject, "topic \"a.b\"")
            } else if no_topic.contains(&code) {
                (if attempts == 3 && lasts { Reject } else { Retry(None) }, "has no topic \"a.b\"")
            } else {
                (Retry(None), "topic \"a.b\"")
            };
            let (within, trouble) = (Duration::from_secs(1), Some("rain".to_owned()));
            let error = classify(code, "a.b", &event, |_| lasts, within, trouble);
            assert_eq!(error.kind(), class, "{code:?}, attempt {attempts}, {lasts}");
            assert!(error.to_string().contains(words), "{code:?}: {error}");
            seen += 1;
        }
    }
    assert!(seen > 5 * 150, "{seen}: these are not all");
}

#[test]
fn whose_an_error_is() {
    // Those beside the message that is meant are told the same: each is asked again alone.
    let of_the_batch = [
        Code::MessageSizeTooLarge,
        Code::MessageBatchTooLarge,
        Code::InvalidMessageSize,
        Code::InvalidTimestamp,
        Code::InvalidRecord,
        Code::InvalidDifferentRecord,
        Code::PolicyViolation,
        Code::UnsupportedForMessageFormat,
    ];
    // The client remembers it for minutes, and has to be told to look again.
    let of_the_topic = [
        Code::UnknownTopic,
        Code::UnknownTopicOrPartition,
        Code::UnknownTopicId,
        Code::UnknownPartition,
        Code::TopicAuthorizationFailed,
    ];
    for code in codes() {
        assert_eq!(is_of_the_batch(code), of_the_batch.contains(&code), "{code:?}");
        assert_eq!(is_of_the_topic(code), of_the_topic.contains(&code), "{code:?}");
    }
}

/// A sink to a cluster that the client itself plays.
fn mocked() -> KafkaSink {
    let options =
        Options::new().set("timeout", "3s").set("properties", json!({ "test.mock.num.brokers": 1 }));
    KafkaSink::new("kafka://mock", options).unwrap()
}

async fn fail(sink: &KafkaSink) -> DispatchError {
    sink.dispatch(&delivery("a.b", "1")).await.expect_err("it was delivered")
}

#[tokio::test]
async fn errors_of_brokers_are_outages() {
    // What the client does not send again by itself is said once, what it does for as long as it tries.
    for (code, times) in [
        (RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, 1),
        (RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, 1000),
        (RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, 1000),
    ] {
        let sink = mocked();
        sink.dispatch(&delivery("a.b", "1")).await.unwrap();
        let producer = sink.producer();
        let mock = producer.inner().client().mock_cluster().unwrap();
        mock.request_errors(RDKafkaApiKey::Produce, &vec![code; times]);
        let error = fail(&sink).await;
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{code:?}: {error}");
        if times == 1 {
            let again = async || sink.dispatch(&delivery("a.b", "1")).await.is_ok();
            eventually("an event to be delivered again", Duration::from_secs(10), again).await;
        }
    }
}

#[tokio::test]
async fn a_producer_that_cannot_go_on_is_replaced() {
    let sink = mocked();
    let broken = sink.producer();
    let mock = broken.inner().client().mock_cluster().unwrap();
    // To an idempotent producer that is the end.
    let refusals = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 100];
    mock.request_errors(RDKafkaApiKey::InitProducerId, &refusals);
    let error = fail(&sink).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(broken.fatal().is_some(), "{error}");
    sink.dispatch(&delivery("a.b", "1")).await.unwrap();
    assert!(sink.producer().fatal().is_none());
}
