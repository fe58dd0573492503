//! The limits of a record: a breach names the limit and the actual value.

use super::Fields;
use crate::event::{EventError, Headers, Limits, Payload};
use crate::json;

/// Longest text field besides payload and headers: far beyond any real id, short enough for every index.
const TEXT_LIMIT: usize = 1024;

pub(super) fn check(fields: &Fields, limits: &Limits) -> Result<(), EventError> {
    let actual = fields.payload.len();
    if actual > limits.payload_bytes {
        return Err(EventError::TooLarge { limit: limits.payload_bytes, actual });
    }
    if let Payload::Json(json) = &fields.payload {
        json::check(json.as_str(), limits.json_depth, limits.payload_bytes).map_err(EventError::payload)?;
    }
    check_headers(&fields.headers, limits)?;
    if let Some(metadata) = &fields.metadata {
        let problem = |problem| EventError::Field { field: "metadata", problem };
        if metadata.as_str().len() > limits.payload_bytes {
            return Err(problem(format!(
                "it has {} bytes, the limit is {}",
                metadata.as_str().len(),
                limits.payload_bytes
            )));
        }
        json::check(metadata.as_str(), limits.json_depth, limits.payload_bytes)
            .map_err(|e| problem(e.to_string()))?;
    }
    let content_type = match &fields.payload {
        Payload::Bytes { content_type, .. } => Some(content_type),
        Payload::Json(_) => None,
    };
    let texts = [
        ("aggregate_type", fields.aggregate.as_ref().map(|a| &a.kind)),
        ("aggregate_id", fields.aggregate.as_ref().map(|a| &a.id)),
        ("schema_id", fields.schema_id.as_ref()),
        ("routing_key", fields.routing_key.as_ref()),
        ("traceparent", fields.traceparent.as_ref()),
        ("tracestate", fields.tracestate.as_ref()),
        ("content_type", content_type),
    ];
    for (field, text) in texts.into_iter().filter_map(|(field, text)| Some((field, text?))) {
        if text.len() > TEXT_LIMIT {
            let problem = format!("it has {} bytes, the limit is {TEXT_LIMIT}", text.len());
            return Err(EventError::Field { field, problem });
        }
        if text.chars().any(char::is_control) {
            return Err(EventError::Field { field, problem: "it holds a control character".into() });
        }
    }
    Ok(())
}

fn check_headers(headers: &Headers, limits: &Limits) -> Result<(), EventError> {
    let fail = |problem| Err(EventError::Headers { problem });
    if headers.len() > limits.headers {
        return fail(format!("there are {} headers, the limit is {}", headers.len(), limits.headers));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits.headers_bytes {
        return fail(format!("the headers have {bytes} bytes, the limit is {}", limits.headers_bytes));
    }
    if headers.keys().any(String::is_empty) {
        return fail("a header has an empty name".into());
    }
    if headers.iter().any(|(name, value)| name.chars().chain(value.chars()).any(char::is_control)) {
        return fail("a header holds a control character".into());
    }
    Ok(())
}
