//! What becomes of failures at Redis.
//!
//! | what happened | class | why |
//! | --- | --- | --- |
//! | no connection, TLS, DNS, connection lost, no reply in time | unavailable | the server is down or not to be reached |
//! | `WRONGPASS`, `NOAUTH`, `NOPERM` | unavailable | somebody has to mend login or permissions |
//! | `LOADING`, `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `MOVED`, `ASK`, `BUSY` | unavailable | it starts, fails over or is busy |
//! | `OOM`, `MISCONF`, `NOREPLICAS` | unavailable | no memory, no disk, no replicas: it takes no writes just now |
//! | fewer replicas than `wait_replicas` have it | unavailable | they are down or behind; the entry is there, and comes again |
//! | too large (`proto-max-bulk-len`, or the option `max_payload`) | reject | it will never fit; found before it is sent, as Redis would close the connection |
//! | `WRONGTYPE` | reject | the destination is a key of another type: this event is led to the wrong place |
//! | any other error of the server | retry | it may be better next time |

use postbox_core::DispatchError;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why there is no connection.
pub(super) fn of_connect(error: &RedisError) -> DispatchError {
    let detail = match error.kind() {
        ErrorKind::AuthenticationFailed => "the server refuses the credentials".to_owned(),
        _ => said(error),
    };
    DispatchError::unavailable(format!("cannot connect to Redis: {detail}"))
}

/// Why an entry was not added.
pub(super) fn of_command(error: &RedisError) -> DispatchError {
    let said = format!("Redis did not take it: {}", said(error));
    match error.kind() {
        ErrorKind::Io | ErrorKind::AuthenticationFailed | ErrorKind::Parse => {
            DispatchError::unavailable(said)
        }
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::NoPerm,
        ) => DispatchError::unavailable(said),
        _ => match error.code() {
            Some("WRONGPASS" | "NOAUTH" | "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY") => {
                DispatchError::unavailable(said)
            }
            Some("WRONGTYPE") => DispatchError::reject(said),
            _ => DispatchError::retry(said),
        },
    }
}

/// Whether the connection is of no use after it.
pub(super) fn breaks_connection(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::AuthenticationFailed | ErrorKind::Parse)
        || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::Moved))
        || error.is_unrecoverable_error()
}

fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postbox_core::DispatchErrorKind::{Reject, Retry, Unavailable};

    /// An error as the server writes it.
    fn answer(line: &str) -> RedisError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(said)) => said.into(),
            other => panic!("{line} is no error: {other:?}"),
        }
    }

    #[test]
    fn every_answer_has_its_class() {
        for (code, class, breaks) in [
            // Somebody has to mend the login.
            ("WRONGPASS", Unavailable, false),
            ("NOAUTH", Unavailable, false),
            ("NOPERM", Unavailable, false),
            // It starts, fails over, or is another's now: a new connection may lead to the right one.
            ("LOADING", Unavailable, false),
            ("READONLY", Unavailable, true),
            ("MASTERDOWN", Unavailable, false),
            ("CLUSTERDOWN", Unavailable, false),
            ("TRYAGAIN", Unavailable, false),
            ("MOVED", Unavailable, true),
            ("ASK", Unavailable, false),
            // It takes no writes just now.
            ("OOM", Unavailable, false),
            ("MISCONF", Unavailable, false),
            ("NOREPLICAS", Unavailable, false),
            ("BUSY", Unavailable, false),
            // This event is led to the wrong place.
            ("WRONGTYPE", Reject, false),
            // Anything else.
            ("ERR", Retry(None), false),
            ("EXECABORT", Retry(None), false),
            ("CROSSSLOT", Retry(None), false),
            ("SOMETHING", Retry(None), false),
        ] {
            let error = answer(&format!("{code} some words"));
            let class_of = of_command(&error);
            assert_eq!(class_of.kind(), class, "{class_of}");
            assert!(class_of.to_string().contains(&format!("{code} some words")), "{class_of}");
            assert_eq!(breaks_connection(&error), breaks, "{code}");
        }
    }

    #[test]
    fn every_trouble_of_the_client_has_its_class() {
        for (kind, class, breaks) in [
            (ErrorKind::Io, Unavailable, true),
            (ErrorKind::AuthenticationFailed, Unavailable, true),
            (ErrorKind::Parse, Unavailable, true),
            (ErrorKind::UnexpectedReturnType, Retry(None), false),
            (ErrorKind::Client, Retry(None), false),
        ] {
            let error = RedisError::from((kind, "words"));
            assert_eq!(of_command(&error).kind(), class, "{kind:?}");
            assert_eq!(breaks_connection(&error), breaks, "{kind:?}");
            // Without a connection there is nothing that an event could be blamed for.
            assert_eq!(of_connect(&error).kind(), Unavailable, "{kind:?}");
        }
    }
}
