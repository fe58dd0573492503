//! What becomes of failures at RabbitMQ.
//!
//! | what happened | class | why |
//! | --- | --- | --- |
//! | no connection, TLS, DNS, login or virtual host refused, connection lost or closed by the broker (320) | unavailable | the broker is down, or somebody has to mend the login |
//! | the exchange is not there (404), or may not be written to (403) | unavailable | all events go there; somebody has to declare it, or give leave |
//! | the broker blocks publishers: memory or disk alarm | unavailable | somebody has to make room |
//! | no confirmation in time, of any event, or the broker does not answer at all | unavailable | it is down, or its queues have no quorum just now |
//! | no confirmation in time, but others of the batch were confirmed | retry | it is that queue |
//! | the broker says no (`basic.nack`): the queue is full and rejects, or lost its leader | retry | there may be room next time |
//! | no queue takes it (`mandatory`, 312) | reject | this event is led to nowhere; others are not |
//! | too large, or something in it that the broker refuses (406, 311) | reject | it will never fit |
//! | no leave to write to this topic (403, topic permissions) | retry | of this event only; leave may be given |
//! | routing key, header name or content type over 255 bytes, headers larger than a frame | reject | AMQP cannot carry it |
//! | anything else that closes a channel or connection when the event is sent alone | retry | it may be better next time |

use std::fmt;

use lapin::ErrorKind;
use lapin::message::BasicReturnMessage;
use postbox_core::DispatchError;

/// Whom the end of a channel or connection concerns.
#[derive(Debug)]
pub(super) enum Concerns {
    /// All events of the sink.
    All(DispatchError),
    /// One of those that were on their way, with what becomes of it.
    One(DispatchError),
}

/// Why there is no connection.
pub(super) fn of_connect(host: &str, error: &dyn fmt::Display) -> DispatchError {
    DispatchError::unavailable(format!("cannot connect to RabbitMQ at {host}: {error}"))
}

/// Why a channel or connection ended.
pub(super) fn of_end(error: &lapin::Error) -> Concerns {
    let ErrorKind::ProtocolError(said) = error.kind() else {
        return Concerns::All(DispatchError::unavailable(format!(
            "the connection to RabbitMQ was lost: {error}"
        )));
    };
    let (code, words) = (said.get_id(), said.get_message().as_str());
    let text = format!("RabbitMQ closed the channel: {code} {words}");
    match code {
        311 | 406 => Concerns::One(DispatchError::reject(text)),
        // The exchange is the same for all; with topic permissions it depends on the routing key.
        403 if words.contains("access to topic") => Concerns::One(DispatchError::retry(text)),
        320 | 402 | 403 | 404 | 506 | 530 | 541 => Concerns::All(DispatchError::unavailable(text)),
        _ => Concerns::One(DispatchError::retry(text)),
    }
}

/// The largest message that the broker takes, if that is what it complains of.
pub(super) fn size_limit(error: &lapin::Error) -> Option<usize> {
    let ErrorKind::ProtocolError(said) = error.kind() else { return None };
    let (_, limit) = said.get_message().as_str().rsplit_once("larger than configured max size ")?;
    limit.trim().parse().ok()
}

/// The broker's words about a message that it returned.
pub(super) fn words(returned: &BasicReturnMessage) -> String {
    format!("{} {}", returned.reply_code, returned.reply_text)
}

/// A message that came back.
pub(super) fn returned(exchange: &str, words: &str) -> DispatchError {
    let place = if exchange.is_empty() {
        "there is no queue of that name".to_owned()
    } else {
        format!("no queue is bound to exchange {exchange:?} by that routing key")
    };
    DispatchError::reject(format!("RabbitMQ returned it: {words}: {place}; mend that, then replay the event"))
}

/// A message that the broker did not want.
pub(super) fn refused() -> DispatchError {
    DispatchError::retry(
        "RabbitMQ did not take it (basic.nack): its queue is full, or has no leader just now",
    )
}
