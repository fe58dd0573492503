//! What an answer means for its event.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use postbox_core::testing::delivery;
use postbox_core::{DispatchError, DispatchErrorKind, Dispatcher as _};
use serde_json::json;

use crate::receiver::Receiver;
use crate::sink;

async fn verdict<R: IntoResponse>(
    answer: impl Fn() -> R + Send + Sync + 'static,
) -> Result<(), DispatchError> {
    let receiver = Receiver::answering(answer);
    let outcome = sink(&receiver.url("/"), json!({})).dispatch(&delivery("a.b.c.v1", "{}")).await;
    receiver.only();
    outcome
}

#[tokio::test]
async fn statuses_become_verdicts() {
    for status in [200, 201, 202, 204, 299] {
        verdict(move || StatusCode::from_u16(status).unwrap()).await.unwrap();
    }
    for (status, kind) in [
        (400, DispatchErrorKind::Reject),
        (401, DispatchErrorKind::Unavailable),
        (403, DispatchErrorKind::Unavailable),
        (404, DispatchErrorKind::Reject),
        (407, DispatchErrorKind::Unavailable),
        (408, DispatchErrorKind::Retry(None)),
        (410, DispatchErrorKind::Reject),
        (413, DispatchErrorKind::Reject),
        (422, DispatchErrorKind::Reject),
        (425, DispatchErrorKind::Retry(None)),
        (429, DispatchErrorKind::Retry(None)),
        (500, DispatchErrorKind::Retry(None)),
        (503, DispatchErrorKind::Retry(None)),
    ] {
        let error = verdict(move || StatusCode::from_u16(status).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status}: {error}");
        assert!(error.to_string().contains(&format!("answered {status}")), "{error}");
    }
}

#[tokio::test]
async fn a_receiver_says_when_to_come_again() {
    for (wait, seconds) in [("120", 120), ("86400", 3600), ("Fri, 31 Dec 2100 23:59:59 GMT", 3600)] {
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
            let error = verdict(move || (status, [("retry-after", wait)])).await.unwrap_err();
            assert_eq!(error.kind(), DispatchErrorKind::Retry(Some(Duration::from_secs(seconds))), "{wait}");
        }
    }
}

#[tokio::test]
async fn hazard_52_redirects_are_not_followed() {
    let elsewhere = Receiver::willing();
    let to = elsewhere.url("/");
    for status in [301, 302, 303, 307, 308] {
        let to = to.clone();
        let answer = move || (StatusCode::from_u16(status).unwrap(), [("location", to.clone())]);
        let error = verdict(answer).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
        assert!(error.to_string().contains("redirects are not followed"), "{error}");
    }
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn hazard_49_errors_quote_an_answer_and_no_secrets() {
    let receiver = Receiver::answering(|| {
        (StatusCode::BAD_REQUEST, format!("no\u{1b}[31m\r\n such field {}", "x".repeat(9999)))
    });
    let url = receiver.url("/secret-path?token=hunter2").replace("http://", "http://app:hunter2@");
    let error = sink(&url, json!({})).dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap_err().to_string();
    assert!(error.contains("answered 400 Bad Request: no"), "{error}");
    assert!(!error.contains("secret-path") && !error.contains("hunter2"), "{error}");
    assert!(error.chars().count() < 300 && !error.chars().any(char::is_control), "{error}");
}
