//! What each error of Pulsar's means for an event.
//!
//! | error | class |
//! | --- | --- |
//! | no receipt in time, no connection, TLS or login failed, not authorized | unavailable |
//! | service not ready, metadata or bookies in trouble, too many requests, backlog quota reached | unavailable |
//! | the producer was fenced or closed: the next batch has a new one | unavailable |
//! | larger than `max_message`; a topic's name that Pulsar cannot have; a topic that was terminated; not allowed; another schema | reject |
//! | the topic or namespace is not there and nobody makes it: at the third attempt, when it is so for 10 s | reject, before that retry |
//! | a large message after which the connection is gone, though the broker can be reached | retry |
//! | anything else | retry |

use std::time::Duration;

use postbox_core::{Delivery, DispatchError};
use pulsar::Error;
use pulsar::error::{ConnectionError, ProducerError, ServiceDiscoveryError};
use pulsar::proto::ServerError;

/// A topic that is not there is looked for so many times for each event, with the relay's waits between: somebody may be making it.
const LOOKS: i32 = 3;

/// A failed delivery.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nothing heard.
    #[error("Pulsar sent no receipt within {0:?}")]
    Silence(Duration),
    /// An error of the client or a broker.
    #[error("Pulsar, topic {topic:?}: {reason}")]
    Said { topic: String, reason: String },
    /// Never fits.
    #[error(
        "Pulsar, topic {topic:?}: the message has {size} bytes, more than max_message, {limit}: raise it with the broker's \
         maxMessageSize, and replay the event"
    )]
    TooLarge { topic: String, size: usize, limit: usize },
    /// Properties that no broker takes.
    #[error(
        "Pulsar, topic {topic:?}: key and properties have {size} bytes, and 8 KiB is the most that brokers take for sure"
    )]
    TooMuchAround { topic: String, size: usize },
    /// The broker answers, but not to this message.
    #[error(
        "Pulsar, topic {topic:?}: the broker is there but hangs up over this message of {size} bytes: is its maxMessageSize \
         smaller? Set max_message to the same"
    )]
    HangsUp { topic: String, size: usize },
    /// Not there.
    #[error(
        "Pulsar has no topic {topic:?}, and does not make it: create it and replay the event, or correct the destination"
    )]
    NoTopic { topic: String },
}

/// A failure and whose it is.
pub(super) struct Verdict {
    pub(super) error: DispatchError,
    /// Whether it is the connection's, so that no other topic can fare better.
    pub(super) connection: bool,
}

/// What is to be done about an event with this error; `lasts` says of a topic that is not there whether that has been so for long.
pub(super) fn classify(
    error: &Error,
    topic: &str,
    delivery: &Delivery,
    lasts: impl FnOnce(&str) -> bool,
) -> Verdict {
    let said = || Failure::Said { topic: topic.to_owned(), reason: error.to_string() };
    let unavailable = |connection| Verdict { error: DispatchError::unavailable(said()), connection };
    let of_event = |error| Verdict { error, connection: false };
    match server_error(error) {
        Server::Said(Some(kind)) => match kind {
            ServerError::TopicNotFound => {
                let missing = Failure::NoTopic { topic: topic.to_owned() };
                // Both: attempts may have been spent on something else, and the topic may have been made since others looked for it.
                let reject = lasts(topic) && delivery.meta.attempts >= LOOKS;
                of_event(if reject { DispatchError::reject(missing) } else { DispatchError::retry(missing) })
            }
            ServerError::InvalidTopicName
            | ServerError::TopicTerminatedError
            | ServerError::IncompatibleSchema
            | ServerError::NotAllowedError => of_event(DispatchError::reject(said())),
            ServerError::AuthenticationError => unavailable(true),
            ServerError::AuthorizationError
            | ServerError::ServiceNotReady
            | ServerError::MetadataError
            | ServerError::PersistenceError
            | ServerError::TooManyRequests
            | ServerError::ProducerBusy
            | ServerError::ProducerFenced
            | ServerError::ProducerBlockedQuotaExceededError
            | ServerError::ProducerBlockedQuotaExceededException => unavailable(false),
            _ => of_event(DispatchError::retry(said())),
        },
        Server::Connection => unavailable(true),
        Server::Producer => unavailable(false),
        Server::Said(None) | Server::Message => of_event(DispatchError::retry(said())),
    }
}

/// Whether the broker itself gave a reason.
pub(super) fn has_reason(error: &Error) -> bool {
    matches!(server_error(error), Server::Said(Some(_)))
}

/// Where an error comes from.
enum Server {
    Said(Option<ServerError>),
    Connection,
    Producer,
    Message,
}

fn server_error(error: &Error) -> Server {
    match error {
        Error::Connection(error)
        | Error::Producer(ProducerError::Connection(error))
        | Error::ServiceDiscovery(ServiceDiscoveryError::Connection(error)) => connection_error(error),
        Error::ServiceDiscovery(ServiceDiscoveryError::Query(kind, _)) => Server::Said(*kind),
        Error::Producer(ProducerError::Batch(error)) => server_error(error),
        Error::Producer(ProducerError::Io(_)) | Error::Consumer(_) | Error::Custom(_) => Server::Message,
        Error::Producer(_) => Server::Producer,
        _ => Server::Connection,
    }
}

fn connection_error(error: &ConnectionError) -> Server {
    match error {
        ConnectionError::PulsarError(kind, _) => Server::Said(*kind),
        ConnectionError::Encoding(_) => Server::Message,
        _ => Server::Connection,
    }
}
