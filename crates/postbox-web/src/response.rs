//! Answers on their way to the table and back.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{
    CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, LOCATION,
    SET_COOKIE,
};
use axum::http::response::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use postbox_core::idempotency::StoredResponse;

use crate::body::{Collected, collect};
use crate::builder::Settings;
use crate::problem::{Problem, ProblemKind};

/// Marks an answer that comes from the table.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What describes an answer, or where its result is. Everything else belongs to the moment in which it was given.
pub(crate) const KEPT: [HeaderName; 8] =
    [CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, LOCATION];

/// How long an answer may take to its end, to be kept. The call waits for it, its transaction is open, and on SQLite nobody else can write:
/// a stream would keep all that for as long as somebody listens.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers of this type go on and on.
const ENDLESS: &str = "text/event-stream";

/// An answer as it is stored, and as it is given: an answer that is too large to be kept, or has no end, is stored without its body. Done is
/// done: a repeat must not do it again for that.
pub(crate) async fn keep(answer: Response, settings: &Settings) -> (StoredResponse, Response) {
    let (parts, body) = answer.into_parts();
    let kind = parts.headers.get(CONTENT_TYPE).map_or(b"".as_slice(), HeaderValue::as_bytes);
    let endless = kind.get(..ENDLESS.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(ENDLESS.as_bytes()));
    let collected = if endless {
        Collected::Larger(body)
    } else {
        collect(body, settings.response_limit, Some(PATIENCE)).await
    };
    let (stored, body) = match collected {
        Collected::Whole(body) => (kept(&parts, Some(&body), settings), Body::from(body)),
        Collected::Larger(body) | Collected::Broken(body) => (kept(&parts, None, settings), body),
    };
    (stored, Response::from_parts(parts, body))
}

fn kept(parts: &Parts, body: Option<&Bytes>, settings: &Settings) -> StoredResponse {
    let stored = StoredResponse::new(parts.status.as_u16());
    let keeps = |name: &HeaderName| *name != SET_COOKIE && settings.keep.contains(name);
    let headers = parts.headers.iter().filter(|(name, _)| keeps(name));
    let stored = headers
        .fold(stored, |stored, (name, value)| stored.header(name.as_str().to_owned(), value.as_bytes()));
    match body {
        Some(body) => stored.body(body.to_vec()),
        None => stored,
    }
}

/// The answer of a repeat.
pub(crate) fn replay(stored: StoredResponse, settings: &Settings) -> Response {
    let header = |(name, value): &(String, Vec<u8>)| {
        Some((HeaderName::try_from(name.as_str()).ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    let mut headers = stored.headers.iter().filter_map(header);
    let mut response = if let Some(body) = stored.body {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::OK);
        response.headers_mut().extend(headers);
        response
    } else {
        let location = headers.find(|(name, _)| *name == LOCATION).map(|(_, value)| value);
        let detail = format!(
            "The request was processed and answered with status {}; the answer was larger than is kept, or a stream. Nothing was done now.",
            stored.status
        );
        let problem = Problem::new(ProblemKind::AnswerNotKept, detail).types(settings.types.as_ref());
        problem.original(stored.status, location).into_response()
    };
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
