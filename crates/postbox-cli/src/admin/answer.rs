//! What the API answers: JSON, and errors in one form with the codes of the rest of Postbox.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use postbox_core::redact::Summary;
use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use serde_json::{Value, json};

use crate::report::{Failure, Problem};

/// The longest message.
const MESSAGE_BYTES: usize = 2048;

/// What a handler answers with.
pub(super) type Answer = Result<Response, Refusal>;

/// A request that was not done.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    status: StatusCode,
    code: Code,
    message: String,
    next: String,
}

impl Refusal {
    /// With the code's own next step.
    pub(super) fn new(status: StatusCode, code: Code, message: impl AsRef<str>) -> Self {
        let message = Summary::new(message.as_ref(), MESSAGE_BYTES).as_str().to_owned();
        Self { status, code, message, next: code.next_step().to_owned() }
    }

    /// The same with a better next step.
    pub(super) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = next.into();
        self
    }

    /// Something in the request is wrong.
    pub(super) fn request(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Code::AdminRequest, message)
    }

    /// There is no such thing.
    pub(super) fn not_found(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::NOT_FOUND, Code::AdminNotFound, message)
    }

    /// It is not as the request says.
    pub(super) fn conflict(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::CONFLICT, Code::AdminConflict, message)
    }

    /// Enough is going on.
    pub(super) fn busy(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, Code::AdminBusy, message)
    }

    /// The event is not there.
    pub(super) fn no_event(table: &TableName, event: impl std::fmt::Display) -> Self {
        let message = format!("{table} has no event {event}");
        Self::new(StatusCode::NOT_FOUND, Code::EventMissing, message)
    }

    /// The database took too long.
    pub(super) fn too_late(table: &TableName) -> Self {
        let message = format!(
            "no answer about {table} in time: the database is overloaded or away, or this looks at too much"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::DatabaseUnreachable, message).next(
            "narrow the filter, or look with the command line; postbox doctor names what holds a database up",
        )
    }

    /// What a database says about a table.
    pub(super) fn store(table: &TableName, error: &StoreError) -> Self {
        let problem = Problem::about(table, error);
        let status = match (error.code(), error.kind()) {
            (Code::EventMissing, _) => StatusCode::NOT_FOUND,
            // The table, or the user that the relay has, cannot do it: asking again does not help.
            (
                Code::TableMissing
                | Code::TableMismatch
                | Code::TableNameInvalid
                | Code::ColumnMissing
                | Code::HistoryMissing
                | Code::InboxMissing
                | Code::DatabasePermission
                | Code::DatabaseReadOnly
                | Code::DatabaseVersion
                | Code::OrderUnsupported,
                _,
            )
            | (_, StoreErrorKind::Refused) => StatusCode::CONFLICT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let (message, next) = problem.parts();
        Self::new(status, error.code(), message).next(next)
    }

    /// What a command of the program would have said.
    pub(super) fn failure(failure: &Failure) -> Self {
        let (message, next) = failure.first();
        let code = failure.code().unwrap_or(Code::DatabaseUnreachable);
        let status = match code {
            Code::DatabaseUnreachable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::CONFLICT,
        };
        Self::new(status, code, message).next(next)
    }

    /// As part of another answer.
    pub(super) fn to_json(&self) -> Value {
        json!({ "code": self.code.as_str(), "message": self.message, "next": self.next })
    }

    /// What went wrong.
    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        with_status(self.status, &json!({ "error": self.to_json() }))
    }
}

/// A result.
pub(super) fn ok(value: &Value) -> Response {
    with_status(StatusCode::OK, value)
}

/// A result with another status.
pub(super) fn with_status(status: StatusCode, value: &Value) -> Response {
    json_text(status, value.to_string())
}

/// JSON that is text already.
pub(super) fn json_text(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A time as every answer has it.
pub(super) fn time(at: time::OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    at.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// A sequence, exact in every language.
pub(super) fn exact(mut value: Value) -> Value {
    if let Some(sequence) = value.get_mut("sequence") {
        *sequence = Value::from(sequence.to_string());
    }
    value
}
