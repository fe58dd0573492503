//! [`standard_headers`]: what every message says about its event.

use std::borrow::Cow;

use postbox_core::{Delivery, Payload};

use super::line::instant;

/// A header's name and value.
pub type Header<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The content type of a JSON payload.
pub(super) const JSON: &str = "application/json";

/// The headers of a delivery, as every broker gets them: first the standard ones, as far as there is something to say, then the
/// event's own, of which none can replace a standard one.
///
/// The standard ones, in this order: `event_id`, `tenant_id`, `topic`, `sequence`, `attempts`, `aggregate_type`,
/// `aggregate_id`, `occurred_at` (RFC 3339, UTC), `schema_id`, `schema_version`, `content_type`, `traceparent`,
/// `tracestate`.
///
/// ```
/// use postbox_core::testing::delivery;
/// use postbox_sinks::standard_headers;
///
/// let event = delivery("org.order.placed.v1", "{}");
/// let headers = standard_headers(&event);
/// assert!(headers.contains(&("topic".into(), "org.order.placed.v1".into())));
/// assert!(headers.contains(&("content_type".into(), "application/json".into())));
/// ```
pub fn standard_headers(delivery: &Delivery) -> Vec<Header<'_>> {
    headers(delivery, content_type(delivery))
}

/// The same, where the payload on its way has another content type than the event's.
pub(super) fn headers<'a>(delivery: &'a Delivery, content_type: &'a str) -> Vec<Header<'a>> {
    let meta = &delivery.meta;
    let aggregate = meta.aggregate.as_ref();
    let standard: [(&'static str, Option<Cow<'a, str>>); 13] = [
        ("event_id", Some(meta.event_id.to_string().into())),
        ("tenant_id", Some(meta.tenant_id.to_string().into())),
        ("topic", Some(meta.topic.as_str().into())),
        ("sequence", Some(meta.sequence.to_string().into())),
        ("attempts", Some(meta.attempts.to_string().into())),
        ("aggregate_type", aggregate.map(|aggregate| aggregate.kind.as_str().into())),
        ("aggregate_id", aggregate.map(|aggregate| aggregate.id.as_str().into())),
        ("occurred_at", Some(occurred_at(delivery).into())),
        ("schema_id", meta.schema_id.as_deref().map(Into::into)),
        ("schema_version", Some(meta.schema_version.to_string().into())),
        ("content_type", Some(content_type.into())),
        ("traceparent", meta.traceparent.as_deref().map(Into::into)),
        ("tracestate", meta.tracestate.as_deref().map(Into::into)),
    ];
    let mut headers: Vec<Header<'a>> = Vec::with_capacity(standard.len() + meta.headers.len());
    headers.extend(standard.into_iter().filter_map(|(name, value)| Some((name.into(), value?))));
    add_own(&mut headers, delivery);
    headers
}

/// Whether a header of a message is a standard one, by its name.
#[cfg(feature = "http")]
pub(crate) fn is_standard(name: &str) -> bool {
    const NAMES: [&str; 13] = [
        "event_id",
        "tenant_id",
        "topic",
        "sequence",
        "attempts",
        "aggregate_type",
        "aggregate_id",
        "occurred_at",
        "schema_id",
        "schema_version",
        "content_type",
        "traceparent",
        "tracestate",
    ];
    NAMES.contains(&name)
}

/// Adds the event's own headers. Some protocols do not tell capitals from small letters in names, so neither does this.
fn add_own<'a>(headers: &mut Vec<Header<'a>>, delivery: &'a Delivery) {
    let standard = headers.len();
    for (name, value) in &delivery.meta.headers {
        if !headers[..standard].iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
            headers.push((name.as_str().into(), value.as_str().into()));
        }
    }
}

/// The content type of an event's payload.
pub(super) fn content_type(delivery: &Delivery) -> &str {
    match &delivery.payload {
        Payload::Json(_) => JSON,
        Payload::Bytes { content_type, .. } => content_type,
    }
}

/// When it happened: RFC 3339, UTC.
pub(super) fn occurred_at(delivery: &Delivery) -> String {
    let mut out = Vec::with_capacity(32);
    instant(delivery.meta.occurred_at, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use postbox_core::testing::delivery;

    #[test]
    fn an_own_header_never_replaces_a_standard_one() {
        let mut event = delivery("a.b", "1");
        event.meta.headers =
            [("Event_ID", "forged"), ("mine", "1")].map(|(n, v)| (n.into(), v.into())).into();
        let headers = standard_headers(&event);
        let names: Vec<&str> = headers.iter().map(|(name, _)| &**name).collect();
        assert_eq!(
            names,
            [
                "event_id",
                "tenant_id",
                "topic",
                "sequence",
                "attempts",
                "occurred_at",
                "schema_version",
                "content_type",
                "mine"
            ]
        );
        assert_eq!(headers[0].1, event.meta.event_id.to_string());
    }

    #[test]
    #[cfg(feature = "http")]
    fn standard_headers_are_known_by_their_names() {
        let mut event = delivery("a.b", "1");
        event.meta.aggregate = Some(postbox_core::AggregateKey::new("order", 1));
        event.meta.schema_id = Some("s".into());
        event.meta.traceparent = Some("t".into());
        event.meta.tracestate = Some("t".into());
        let headers = standard_headers(&event);
        assert_eq!(headers.len(), 13);
        assert!(headers.iter().all(|(name, _)| is_standard(name)) && !is_standard("mine"));
    }
}
