//! What a caller is told when his call does not run: problem details as in RFC 9457.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

macro_rules! kinds {
    ($($variant:ident = $status:ident, $slug:literal, $code:literal, $title:literal;)*) => {
        /// Why a call does not run, or has no answer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $(#[doc = $title] $variant,)*
        }

        impl ProblemKind {
            /// The status of the answer.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// The end of its type, such as `key-missing`.
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$variant => $slug,)* }
            }

            /// Its stable code, the member `code` of the answer.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// What it is, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

kinds! {
    KeyMissing = BAD_REQUEST, "key-missing", "IDEMPOTENCY_KEY_MISSING", "An idempotency key is required.";
    KeyInvalid = BAD_REQUEST, "key-invalid", "IDEMPOTENCY_KEY_INVALID", "The idempotency key is not one.";
    BodyUnreadable = BAD_REQUEST, "body-unreadable", "IDEMPOTENCY_BODY_UNREADABLE", "The request's body ended early.";
    PrincipalUnknown = UNAUTHORIZED, "principal-unknown", "IDEMPOTENCY_PRINCIPAL_UNKNOWN", "It is not known who calls.";
    BodyTooLarge = PAYLOAD_TOO_LARGE, "body-too-large", "IDEMPOTENCY_BODY_TOO_LARGE", "The request's body is too large.";
    KeyReused = UNPROCESSABLE_ENTITY, "key-reused", "IDEMPOTENCY_KEY_REUSED", "The idempotency key was used for another request.";
    StillRunning = CONFLICT, "still-running", "IDEMPOTENCY_STILL_RUNNING", "A request with this idempotency key is being processed.";
    TakenOver = CONFLICT, "taken-over", "IDEMPOTENCY_TAKEN_OVER", "The request took too long, and a repeat of it took over.";
    AnswerNotKept = GONE, "answer-not-kept", "IDEMPOTENCY_ANSWER_NOT_KEPT", "The request was processed, and its answer was too large to be kept.";
    StoreUnavailable = SERVICE_UNAVAILABLE, "store-unavailable", "IDEMPOTENCY_STORE_UNAVAILABLE", "It cannot be known whether the request was processed before.";
    NotCommitted = INTERNAL_SERVER_ERROR, "not-committed", "IDEMPOTENCY_NOT_COMMITTED", "The request was not processed.";
    NoLayer = INTERNAL_SERVER_ERROR, "no-layer", "IDEMPOTENCY_NO_LAYER", "The server cannot process the request.";
}

/// A problem as `application/problem+json`.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: ProblemKind,
    detail: String,
    retry_after: Option<u64>,
    types: Option<Arc<str>>,
    original: Option<u16>,
    location: Option<HeaderValue>,
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), retry_after: None, types: None, original: None, location: None }
    }

    /// When to ask again: in whole seconds, at least one.
    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time.as_secs() + u64::from(time.subsec_nanos() > 0));
        self
    }

    /// Where its types are explained.
    pub(crate) fn types(mut self, base: Option<&Arc<str>>) -> Self {
        self.types = base.cloned();
        self
    }

    /// What the answer was that is not there.
    pub(crate) fn original(mut self, status: u16, location: Option<HeaderValue>) -> Self {
        (self.original, self.location) = (Some(status), location);
        self
    }

    /// What it is about.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// What happened, in a sentence.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.kind.status();
        let (kind, title) = match &self.types {
            Some(base) => (format!("{base}{}", self.kind.slug()), self.kind.title()),
            // Nobody explains it: then the title is that of the status.
            None => ("about:blank".to_owned(), status.canonical_reason().unwrap_or_default()),
        };
        let mut members = Map::new();
        members.insert("type".into(), kind.into());
        members.insert("title".into(), title.into());
        members.insert("status".into(), status.as_u16().into());
        members.insert("detail".into(), self.detail.into());
        members.insert("code".into(), self.kind.code().into());
        if let Some(original) = self.original {
            members.insert("original_status".into(), original.into());
        }
        let body = Value::Object(members).to_string();
        let mut response = (status, [(CONTENT_TYPE, "application/problem+json")], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.max(1).into());
        }
        if let Some(location) = self.location {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }
}
