//! What becomes of failures at NATS.
//!
//! | what happened | class | why |
//! | --- | --- | --- |
//! | no connection, TLS, DNS, credentials refused, connection lost | unavailable | the server is down, or somebody has to mend the login |
//! | permission for the subject refused | unavailable | likewise; the message has the server's words |
//! | no confirmation in time | unavailable | the stream has no leader or quorum just now |
//! | no stream answers, and there is none at all, or none can be asked for | unavailable | JetStream is not set up yet, or restarts |
//! | no stream answers, but one takes the subject | unavailable | its leader is being elected |
//! | no stream answers, and none of those that there are takes the subject | reject | this event is led to nowhere; others are not |
//! | too large for the server (`max_payload`) or the stream (`max_msg_size`) | reject | it will never fit |
//! | a subject or header that NATS cannot carry | reject | it never will |
//! | the stream says 429: too many at once | unavailable | it has more than it can take in just now |
//! | the account has no more room, or no limits of its own (said as 400) | unavailable | somebody has to make room; it is no message's fault |
//! | the stream says another 4xx: sealed, not the expected one | reject | as the server says: this message is wrong |
//! | the stream says 5xx: full, no space, no resources | unavailable | somebody has to make room |
//! | anything else | retry | it may be better next time |

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectError, ConnectErrorKind};
use postbox_core::DispatchError;

/// Why there is no connection.
pub(super) fn of_connect(error: &ConnectError) -> DispatchError {
    // Its sources may hold what was sent; what kind it is and what the system says is enough.
    let detail = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            "the server refuses the credentials".to_owned()
        }
        kind => match std::error::Error::source(error) {
            Some(source) => format!("{kind}: {source}"),
            None => kind.to_string(),
        },
    };
    DispatchError::unavailable(format!("cannot connect to NATS: {detail}"))
}

/// Why a message was not confirmed; `None` when nobody answered, which needs a closer look.
pub(super) fn of_publish(error: &PublishError) -> Option<DispatchError> {
    let said = || match std::error::Error::source(error) {
        Some(source) => format!("NATS did not take it: {source}"),
        None => format!("NATS did not take it: {}", error.kind()),
    };
    Some(match error.kind() {
        PublishErrorKind::StreamNotFound => return None,
        PublishErrorKind::MaxPayloadExceeded => DispatchError::reject(said()),
        PublishErrorKind::TimedOut => {
            DispatchError::unavailable("NATS did not confirm in time: the stream has no leader or quorum")
        }
        PublishErrorKind::BrokenPipe => DispatchError::unavailable("the connection to NATS was lost"),
        PublishErrorKind::MaxAckPending => DispatchError::retry(said()),
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => {
            DispatchError::reject(said())
        }
        PublishErrorKind::Other => match jetstream_error(error) {
            Some(answer) => by_answer(answer, said()),
            None => DispatchError::retry(said()),
        },
    })
}

/// Whether there was no answer at all.
pub(super) fn is_silence(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::TimedOut
}

/// What the stream answered.
fn jetstream_error(error: &PublishError) -> Option<&jetstream::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

fn by_answer(answer: &jetstream::Error, said: String) -> DispatchError {
    // The server says 400 of these two, as of a message that is wrong.
    if matches!(answer.error_code(), ErrorCode::ACCOUNT_RESOURCES_EXCEEDED | ErrorCode::NO_LIMITS) {
        return DispatchError::unavailable(said);
    }
    match answer.code() {
        // 429 and the like: it has more than it can take in just now.
        408 | 425 | 429 | 500.. => DispatchError::unavailable(said),
        400..500 => DispatchError::reject(said),
        _ => DispatchError::retry(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postbox_core::DispatchErrorKind::{Reject, Retry, Unavailable};

    #[test]
    fn every_kind_has_its_class() {
        for (kind, class) in [
            (PublishErrorKind::MaxPayloadExceeded, Reject),
            (PublishErrorKind::TimedOut, Unavailable),
            (PublishErrorKind::BrokenPipe, Unavailable),
            (PublishErrorKind::MaxAckPending, Retry(None)),
            (PublishErrorKind::WrongLastSequence, Reject),
            (PublishErrorKind::WrongLastMessageId, Reject),
            (PublishErrorKind::Other, Retry(None)),
        ] {
            assert_eq!(of_publish(&PublishError::new(kind)).unwrap().kind(), class, "{kind:?}");
        }
        assert!(of_publish(&PublishError::new(PublishErrorKind::StreamNotFound)).is_none());
    }

    #[test]
    fn the_stream_answers_with_a_status() {
        for (answer, class) in [
            (r#"{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}"#, Reject),
            (
                r#"{"code":400,"err_code":10002,"description":"resource limits exceeded for account"}"#,
                Unavailable,
            ),
            (
                r#"{"code":400,"err_code":10120,"description":"no JetStream default or applicable tiered limit present"}"#,
                Unavailable,
            ),
            (r#"{"code":429,"err_code":10167,"description":"too many requests"}"#, Unavailable),
            (r#"{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}"#, Unavailable),
            (r#"{"code":500,"err_code":10047,"description":"insufficient storage resources"}"#, Unavailable),
        ] {
            let source: jetstream::Error = serde_json::from_str(answer).unwrap();
            let error = PublishError::with_source(PublishErrorKind::Other, source);
            let class_of = of_publish(&error).unwrap();
            assert_eq!(class_of.kind(), class, "{answer}");
        }
    }
}
