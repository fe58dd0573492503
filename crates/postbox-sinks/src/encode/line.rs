//! [`encode_line`]: an event as one line of JSON, for files and pipes.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_core::{Delivery, Headers, Payload};
use time::{OffsetDateTime, UtcOffset};

/// Appends a delivery to `out` as one JSON object and a newline, ready for `jq` or any reader of JSON lines.
///
/// The fields, always all of them and in this order: `event_id`, `tenant_id`, `topic`, `sequence`, `attempts`,
/// `aggregate_type`, `aggregate_id`, `headers`, `traceparent`, `tracestate`, `occurred_at` (RFC 3339, UTC) and
/// `payload`; `null` where there is nothing. A JSON payload is copied digit for digit, only the white space between
/// its tokens is left out. Bytes are a base64 string, followed by `content_type` and `payload_encoding`.
///
/// ```
/// use postbox_core::testing::delivery;
/// use postbox_sinks::encode_line;
///
/// let mut out = Vec::new();
/// encode_line(&delivery("org.price.set.v1", "{ \"price\": 12345678901234567890.50 }"), &mut out);
/// assert!(out.ends_with(b"\"payload\":{\"price\":12345678901234567890.50}}\n"));
/// ```
pub fn encode_line(delivery: &Delivery, out: &mut Vec<u8>) {
    let meta = &delivery.meta;
    let (kind, id) = meta.aggregate.as_ref().map(|a| (a.kind.as_str(), a.id.as_str())).unzip();
    // Written by hand rather than through serde: the payload must not be parsed again, and nothing here can fail
    // (a write to a Vec never does).
    let _ = write!(out, r#"{LINE_START}"{}","tenant_id":"{}","topic":"#, meta.event_id, meta.tenant_id);
    string(meta.topic.as_str(), out);
    let _ = write!(out, r#","sequence":{},"attempts":{}"#, meta.sequence, meta.attempts);
    optional("aggregate_type", kind, out);
    optional("aggregate_id", id, out);
    headers(&meta.headers, out);
    optional("traceparent", meta.traceparent.as_deref(), out);
    optional("tracestate", meta.tracestate.as_deref(), out);
    out.extend_from_slice(b",\"occurred_at\":\"");
    instant(meta.occurred_at, out);
    out.push(b'"');
    out.extend_from_slice(b",\"payload\":");
    match &delivery.payload {
        Payload::Json(json) => compact(json.as_str(), out),
        Payload::Bytes { bytes, content_type } => {
            let _ = write!(out, r#""{}","content_type":"#, STANDARD.encode(bytes));
            string(content_type, out);
            out.extend_from_slice(br#","payload_encoding":"base64""#);
        }
    }
    out.extend_from_slice(b"}\n");
}

/// How every line begins; by it a torn line is told from a line of somebody else.
pub(crate) const LINE_START: &str = r#"{"event_id":"#;

fn headers(headers: &Headers, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"headers\":{");
    for (index, (name, value)) in headers.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        string(name, out);
        out.push(b':');
        string(value, out);
    }
    out.push(b'}');
}

fn optional(name: &str, value: Option<&str>, out: &mut Vec<u8>) {
    let _ = write!(out, r#","{name}":"#);
    match value {
        Some(value) => string(value, out),
        None => out.extend_from_slice(b"null"),
    }
}

/// RFC 3339, UTC. By hand, because `time` refuses years before 0, which a database may well hold.
pub(super) fn instant(at: OffsetDateTime, out: &mut Vec<u8>) {
    let at = at.checked_to_offset(UtcOffset::UTC).unwrap_or(at.replace_offset(UtcOffset::UTC));
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let width = if year < 0 { 5 } else { 4 };
    let _ = write!(out, "{year:0width$}-{month:02}-{day:02}T");
    let _ = write!(out, "{:02}:{:02}:{:02}", at.hour(), at.minute(), at.second());
    match (at.nanosecond(), at.microsecond()) {
        (0, _) => {}
        (nanos, micros) if nanos == micros * 1000 => drop(write!(out, ".{micros:06}")),
        (nanos, _) => drop(write!(out, ".{nanos:09}")),
    }
    out.push(b'Z');
}

/// A text as a JSON string.
pub(super) fn string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut from = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(byte, b'"' | b'\\' | 0..=0x1f) {
            out.extend_from_slice(&bytes[from..at]);
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
                control => escape(*control, out),
            }
            from = at + 1;
        }
    }
    out.extend_from_slice(&bytes[from..]);
    out.push(b'"');
}

fn escape(control: u8, out: &mut Vec<u8>) {
    let _ = write!(out, "\\u{control:04x}");
}

/// Copies JSON text without the white space between tokens, so that it stays on one line.
pub(super) fn compact(json: &str, out: &mut Vec<u8>) {
    let (bytes, start) = (json.as_bytes(), out.len());
    let (mut at, mut from, mut quoted) = (0, 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => quoted = !quoted,
            // The escaped character may be a quote.
            b'\\' if quoted && bytes.get(at + 1).is_some_and(|next| *next >= 0x20) => at += 1,
            0..=0x1f | b' ' if !quoted => {
                out.extend_from_slice(&bytes[from..at]);
                from = at + 1;
            }
            // Not valid in JSON, but text that a store trusted must not be able to break a line either.
            control @ 0..=0x1f => {
                out.extend_from_slice(&bytes[from..at]);
                escape(control, out);
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    out.extend_from_slice(&bytes[from..]);
    if out.len() == start {
        out.extend_from_slice(b"null");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postbox_core::testing::delivery;
    use postbox_core::{AggregateKey, EventId, Json, TenantId, Topic};
    use time::macros::datetime;
    use uuid::Uuid;

    fn line(delivery: &Delivery) -> String {
        let mut out = Vec::new();
        encode_line(delivery, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn known(json: &str) -> Delivery {
        let mut delivery = delivery("org.thing.created.v1", json);
        delivery.meta.event_id = EventId(Uuid::nil());
        delivery.meta.sequence = 42;
        delivery.meta.attempts = 3;
        delivery.meta.occurred_at = datetime!(2026-02-03 04:05:06.000007 +01:00);
        delivery
    }

    #[test]
    fn all_fields_in_their_order() {
        let mut event = known(r#"{"n":1}"#);
        assert_eq!(
            line(&event),
            concat!(
                r#"{"event_id":"00000000-0000-0000-0000-000000000000","tenant_id":"00000000-0000-0000-0000-000000000000","#,
                r#""topic":"org.thing.created.v1","sequence":42,"attempts":3,"aggregate_type":null,"aggregate_id":null,"#,
                r#""headers":{},"traceparent":null,"tracestate":null,"occurred_at":"2026-02-03T03:05:06.000007Z","#,
                r#""payload":{"n":1}}"#,
                "\n"
            )
        );
        event.meta.tenant_id = TenantId::from_name("acme");
        event.meta.topic = Topic::lenient("odd \"topic\" \\ ü").unwrap();
        event.meta.aggregate = Some(AggregateKey::new("thing", "a\nb"));
        event.meta.headers = [("b", "2"), ("a", "\u{1}\t\"")].map(|(n, v)| (n.into(), v.into())).into();
        event.meta.traceparent = Some("00-a-b-01".into());
        event.meta.tracestate = Some("x=y".into());
        let text = line(&event);
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["topic"], "odd \"topic\" \\ ü");
        assert_eq!(value["tenant_id"], TenantId::from_name("acme").to_string());
        assert_eq!((&value["aggregate_type"], &value["aggregate_id"]), (&"thing".into(), &"a\nb".into()));
        assert_eq!(value["headers"], serde_json::json!({"a": "\u{1}\t\"", "b": "2"}));
        assert_eq!((&value["traceparent"], &value["tracestate"]), (&"00-a-b-01".into(), &"x=y".into()));
    }

    #[test]
    fn a_payload_stays_digit_for_digit_and_on_one_line() {
        let raw = "\r\n{ \"n\" :\t[ 12345678901234567890.50, -0, 1E+2 ],\n\"s\": \"a  b\\\" { \\\\\" , \"é\": \"\\n\" }\n";
        let tidy = r#"{"n":[12345678901234567890.50,-0,1E+2],"s":"a  b\" { \\","é":"\n"}"#;
        assert!(line(&known(raw)).ends_with(&format!(",\"payload\":{tidy}}}\n")), "{}", line(&known(raw)));
    }

    #[test]
    fn text_that_was_trusted_wrongly_cannot_break_a_line() {
        for broken in ["", " \n", "{\"a\":\"\n\"}", "{\"a\":\"\\\n\"}", "\"\\", "{\n\"a\n"] {
            let mut event = known("1");
            event.payload = Payload::Json(Json::trusted(broken));
            let text = line(&event);
            assert_eq!(text.find('\n'), Some(text.len() - 1), "{text:?}");
        }
    }

    #[test]
    fn bytes_are_base64_with_their_content_type() {
        let mut event = known("1");
        event.payload = Payload::Bytes { bytes: [0, 255, 10].into(), content_type: "image/\"x\"".into() };
        let end = r#","payload":"AP8K","content_type":"image/\"x\"","payload_encoding":"base64"}"#;
        assert!(line(&event).ends_with(&format!("{end}\n")), "{}", line(&event));
    }

    #[test]
    fn times_are_utc_and_as_exact_as_they_are() {
        for (at, text) in [
            (datetime!(2026-12-31 23:59:59 UTC), "2026-12-31T23:59:59Z"),
            (datetime!(2026-12-31 23:59:59.123456789 -01:00), "2027-01-01T00:59:59.123456789Z"),
            (datetime!(0033-04-03 12:00:00.5 UTC), "0033-04-03T12:00:00.500000Z"),
            (datetime!(-0044-03-15 12:00 UTC), "-0044-03-15T12:00:00Z"),
        ] {
            let mut event = known("1");
            event.meta.occurred_at = at;
            assert!(line(&event).contains(&format!("\"occurred_at\":\"{text}\"")), "{}", line(&event));
        }
    }
}
