//! What each error of Kafka's means for an event.
//!
//! | error | class |
//! | --- | --- |
//! | no confirmation in time, no broker reached, TLS or SASL failed, a topic or the cluster not allowed | unavailable |
//! | no leader, an election, too few replicas in sync, storage, throttled, queue of the client full | unavailable |
//! | a producer that lost its place (fatal): the next batch has a new one | unavailable |
//! | larger than `max_message`; a topic's name that Kafka cannot have; a policy or an interceptor refuses | reject |
//! | too large, invalid or ill-timed for the broker: the batch is sent again one by one, and who is refused alone is meant | reject |
//! | the topic is not there and nobody makes it: at the third attempt, when it is so for 10 s | reject, before that retry |
//! | anything else | retry |

use std::time::Duration;

use postbox_core::{Delivery, DispatchError};
use rdkafka::error::RDKafkaErrorCode as Code;

/// A topic that is not there is looked for so many times for each event, with the relay's waits between: the client may not have heard yet
/// that somebody has made it.
const LOOKS: i32 = 3;

/// A failed delivery.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nothing heard.
    #[error("Kafka did not confirm within {within:?}{}", because(.trouble.as_ref()))]
    Silence { within: Duration, trouble: Option<String> },
    /// An error of the client or a broker.
    #[error("Kafka, topic {topic:?}: {code}{}", because(.trouble.as_ref()))]
    Code { topic: String, code: Code, trouble: Option<String> },
    /// The producer is broken.
    #[error("Kafka: the producer cannot go on and is replaced: {0}")]
    Fatal(String),
    /// No producer.
    #[error("Kafka: the client cannot be made")]
    Client(#[source] rdkafka::error::KafkaError),
    /// Never fits.
    #[error(
        "Kafka, topic {topic:?}: the message is larger than max_message, {limit} bytes: raise it with the limits of broker and \
         topic, and replay the event"
    )]
    TooLarge { topic: String, limit: usize },
    /// Never fits the broker.
    #[error(
        "Kafka, topic {topic:?}: the message is too large for the broker (message.max.bytes) or the topic \
         (max.message.bytes): raise that, and replay the event"
    )]
    TooLargeForBroker { topic: String },
    /// Not there.
    #[error(
        "Kafka has no topic {topic:?}, and its brokers do not make it: create it and replay the event, or correct the \
         destination"
    )]
    NoTopic { topic: String },
    /// No such name can be.
    #[error(
        "Kafka cannot have a topic {topic:?}: a name is 1 to 249 letters, digits, dots, underscores or hyphens, and \
         neither . nor .."
    )]
    TopicName { topic: String },
}

fn because(trouble: Option<&String>) -> String {
    trouble.map(|trouble| format!("; the last trouble: {trouble}")).unwrap_or_default()
}

/// Whether Kafka can have a topic of this name.
pub(super) fn is_topic_name(name: &str) -> bool {
    (1..=249).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Whether a broker said it of a whole batch: those beside a bad message get it too, so each is asked again alone.
pub(super) fn is_of_the_batch(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidTimestamp
            | Code::InvalidRecord
            | Code::InvalidDifferentRecord
            | Code::PolicyViolation
            | Code::UnsupportedForMessageFormat
    )
}

/// Whether it is remembered of the topic, until a broker says otherwise.
pub(super) fn is_of_the_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopicId
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
    )
}

/// What is to be done about an event with this error; `lasts` says of a topic that is not there whether that has been so for long.
pub(super) fn classify(
    code: Code,
    topic: &str,
    delivery: &Delivery,
    lasts: impl FnOnce(&str) -> bool,
    within: Duration,
    trouble: Option<String>,
) -> DispatchError {
    let topic = topic.to_owned();
    match code {
        Code::MessageTimedOut | Code::OperationTimedOut | Code::RequestTimedOut | Code::TimedOutQueue => {
            DispatchError::unavailable(Failure::Silence { within, trouble })
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownTopicId => {
            // Both: attempts may have been spent on something else, and the topic may have been made since others looked for it.
            let reject = lasts(&topic) && delivery.meta.attempts >= LOOKS;
            let failure = Failure::NoTopic { topic };
            if reject { DispatchError::reject(failure) } else { DispatchError::retry(failure) }
        }
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            DispatchError::reject(Failure::TooLargeForBroker { topic })
        }
        Code::InvalidTopic => DispatchError::reject(Failure::TopicName { topic }),
        Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat => {
            DispatchError::reject(Failure::Code { topic, code, trouble: None })
        }
        _ if is_outage(code) => DispatchError::unavailable(Failure::Code { topic, code, trouble }),
        _ => DispatchError::retry(Failure::Code { topic, code, trouble }),
    }
}

/// Whether the cluster is what is wrong, not the event.
fn is_outage(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::SSL
            | Code::Authentication
            | Code::QueueFull
            | Code::ISRInsufficient
            | Code::NodeUpdate
            | Code::DestroyBroker
            | Code::BrokerDestroy
            | Code::PurgeQueue
            | Code::PurgeInflight
            | Code::Fatal
            | Code::Fenced
            | Code::GaplessGuarantee
            | Code::CriticalSystemResource
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::BrokerNotAvailable
            | Code::ReplicaNotAvailable
            | Code::NetworkException
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::KafkaStorageError
            | Code::LogDirNotFound
            | Code::ListenerNotFound
            | Code::ThrottlingQuotaExceeded
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::IllegalSASLState
            | Code::SecurityDisabled
            | Code::OutOfOrderSequenceNumber
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::UnknownProducerId
            | Code::ProducerFenced
    )
}
