//! CloudEvents 1.0: an event's attributes, in the headers of a message (binary) or around its payload (structured).

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_core::{Delivery, Payload};

use super::headers::{content_type, occurred_at};
use super::line::{compact, string};

/// How an event is put into a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudEvents {
    /// The attributes are headers, the payload is the event's own.
    Binary,
    /// The payload is a JSON object that holds attributes and data.
    Structured,
}

/// How a protocol's binding writes attributes into headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// What stands before an attribute's name.
    pub prefix: &'static str,
    /// The header for the content type, where it is one.
    pub content_type: Option<&'static str>,
    /// Whether a binary message has its content type as an attribute like any other: then a content type of its own tells
    /// that a message is a structured one.
    pub type_is_attribute: bool,
    /// Whether values are percent-encoded, because headers are ASCII.
    pub ascii: bool,
}

impl Binding {
    /// Kafka's headers.
    pub const KAFKA: Self =
        Self { prefix: "ce_", content_type: Some("content-type"), type_is_attribute: false, ascii: false };
    /// The headers of NATS.
    pub const NATS: Self =
        Self { prefix: "ce-", content_type: Some("content-type"), type_is_attribute: true, ascii: true };
    /// The headers of HTTP, whose content type is set with the body.
    pub const HTTP: Self = Self { prefix: "ce-", content_type: None, type_is_attribute: false, ascii: true };
    /// The application properties of AMQP, whose content type is a property of its own.
    pub const AMQP: Self =
        Self { prefix: "cloudEvents:", content_type: None, type_is_attribute: false, ascii: false };
    /// The fields of a Redis stream; there is no binding of the standard's own, so it is Kafka's.
    pub const REDIS: Self = Self::KAFKA;
    /// The properties of Pulsar; as with Redis.
    pub const PULSAR: Self = Self::KAFKA;

    /// A value as a header of this protocol holds it.
    pub(super) fn value<'a>(&self, value: Cow<'a, str>) -> Cow<'a, str> {
        let plain = |c: char| matches!(c, '\x21'..='\x7e') && c != '"' && c != '%';
        if !self.ascii || value.chars().all(plain) {
            return value;
        }
        let mut out = String::with_capacity(value.len() + 16);
        for c in value.chars() {
            if plain(c) {
                out.push(c);
            } else {
                escape(c, &mut out);
            }
        }
        out.into()
    }
}

fn escape(c: char, out: &mut String) {
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        let _ = write!(out, "%{byte:02X}");
    }
}

/// The content type of a structured message.
pub(super) const STRUCTURED: &str = "application/cloudevents+json; charset=UTF-8";

/// The attributes of an event, but for its content type.
pub(super) fn attributes<'a>(
    delivery: &'a Delivery,
    key: &'a str,
    source: Option<&'a str>,
) -> Vec<(&'static str, Cow<'a, str>)> {
    let meta = &delivery.meta;
    let subject = meta.aggregate.as_ref().map(|aggregate| aggregate.id.as_str());
    let all: [(&'static str, Option<Cow<'a, str>>); 11] = [
        ("specversion", Some("1.0".into())),
        ("id", Some(meta.event_id.to_string().into())),
        ("source", Some(source.map_or_else(|| default_source(&meta.table).into(), Into::into))),
        ("type", Some(meta.topic.as_str().into())),
        ("subject", subject.map(Into::into)),
        ("time", Some(occurred_at(delivery).into())),
        ("partitionkey", Some(key.into())),
        ("tenantid", Some(meta.tenant_id.to_string().into())),
        ("sequence", Some(meta.sequence.to_string().into())),
        ("traceparent", meta.traceparent.as_deref().map(Into::into)),
        ("tracestate", meta.tracestate.as_deref().map(Into::into)),
    ];
    // An attribute that is empty is not allowed to be there.
    let given = all.into_iter().filter_map(|(name, value)| Some((name, value?)));
    given.filter(|(_, value)| !value.is_empty()).collect()
}

/// `/postbox/<table>`, as a reference that every parser of URIs takes.
fn default_source(table: &str) -> String {
    let mut out = String::from("/postbox/");
    for c in table.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~') {
            out.push(c);
        } else {
            escape(c, &mut out);
        }
    }
    out
}

/// An event as one JSON object.
pub(super) fn structured(delivery: &Delivery, attributes: &[(&'static str, Cow<'_, str>)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(delivery.payload.len() + 512);
    out.push(b'{');
    for (name, value) in attributes {
        string(name, &mut out);
        out.push(b':');
        string(value, &mut out);
        out.push(b',');
    }
    out.extend_from_slice(b"\"datacontenttype\":");
    string(content_type(delivery), &mut out);
    match &delivery.payload {
        Payload::Json(json) => {
            out.extend_from_slice(b",\"data\":");
            compact(json.as_str(), &mut out);
        }
        Payload::Bytes { bytes, .. } => {
            out.extend_from_slice(b",\"data_base64\":");
            string(&STANDARD.encode(bytes), &mut out);
        }
    }
    out.push(b'}');
    out
}
