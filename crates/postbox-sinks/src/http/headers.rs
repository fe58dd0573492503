//! Names and values of headers on an HTTP request.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// What stands before the standard fields of an event that no standard of HTTP has a name for.
pub(super) const PREFIX: &str = "postbox-";

/// Encoded in values: what a header cannot hold, and the sign of encoding itself, so that decoding is always right.
const VALUE: &AsciiSet = &CONTROLS.add(b'%');
/// Encoded in names: all that is no token.
const NAME: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'(')
    .add(b')')
    .add(b',')
    .add(b'/')
    .add(b':')
    .add(b';')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'?')
    .add(b'@')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'{')
    .add(b'}');

/// Headers that frame the request or are the sink's own: nobody else sets them.
const FRAMING: [&str; 13] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];
const FRAMING_STARTS: [&str; 3] = ["ce-", PREFIX, "webhook-"];
/// Headers that say who sends: the operator sets them, an event does not.
const SENDER: [&str; 9] = [
    "accept-encoding",
    "authorization",
    "cookie",
    "date",
    "forwarded",
    "range",
    "user-agent",
    "via",
    "x-real-ip",
];
const SENDER_STARTS: [&str; 3] = ["proxy-", "sec-", "x-forwarded-"];
/// What a dead letter says about itself is a header of the event's own.
const DEAD_LETTER: &str = "postbox-dead-";

/// A name as HTTP can have it: lower case, hyphens for underscores (many servers drop headers with underscores), and
/// anything else that is no token encoded as `%20`.
pub(super) fn name(text: &str) -> Option<HeaderName> {
    let text = text.replace('_', "-").to_ascii_lowercase();
    HeaderName::from_bytes(utf8_percent_encode(&text, NAME).to_string().as_bytes()).ok()
}

/// A value as HTTP can have it: control characters, all beyond ASCII, `%`, and spaces at the ends encoded as `%20`.
pub(super) fn value(text: &str) -> Option<HeaderValue> {
    let inner = text.trim_matches(' ');
    let (before, after) = match text.find(inner) {
        Some(at) => (at, text.len() - at - inner.len()),
        None => (0, 0),
    };
    let encoded =
        format!("{}{}{}", "%20".repeat(before), utf8_percent_encode(inner, VALUE), "%20".repeat(after));
    HeaderValue::from_str(&encoded).ok()
}

/// Whether no option can set this header.
pub(super) fn is_framing(name: &HeaderName) -> bool {
    let name = name.as_str();
    FRAMING.contains(&name) || FRAMING_STARTS.iter().any(|start| name.starts_with(start))
}

/// Whether an event's own header of this name is left out.
fn is_reserved(name: &HeaderName) -> bool {
    let text = name.as_str();
    let sender = SENDER.contains(&text) || SENDER_STARTS.iter().any(|start| text.starts_with(start));
    sender || (is_framing(name) && !text.starts_with(DEAD_LETTER))
}

/// Adds a header of the event's own, unless its name is taken or reserved.
pub(super) fn add_own(headers: &mut HeaderMap, own: &str, text: &str) {
    if let (Some(name), Some(value)) = (name(own), value(text))
        && !is_reserved(&name)
        && !headers.contains_key(&name)
    {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_tokens() {
        for (text, expected) in [
            ("tenant", "tenant"),
            ("X_Request_Id", "x-request-id"),
            ("my header", "my%20header"),
            ("ü:", "%C3%BC%3A"),
            ("a\r\nb", "a%0D%0Ab"),
        ] {
            // The case of what was encoded is lost, as that of all names.
            assert_eq!(name(text).unwrap().as_str(), expected.to_ascii_lowercase(), "{text}");
        }
        assert!(name("").is_none());
    }

    #[test]
    fn values_decode_to_what_they_were() {
        for (text, expected) in [
            ("plain, with \"signs\"; a=b", "plain, with \"signs\"; a=b"),
            ("Zoë 100%", "Zo%C3%AB 100%25"),
            ("a\r\nb", "a%0D%0Ab"),
            (" x ", "%20x%20"),
            ("  ", "%20%20"),
            ("", ""),
        ] {
            assert_eq!(value(text).unwrap().to_str().unwrap(), expected, "{text:?}");
            let back = percent_encoding::percent_decode_str(expected).decode_utf8().unwrap();
            assert_eq!(back, text);
        }
    }

    #[test]
    fn hazard_52_an_event_cannot_pose_as_somebody_else() {
        for own in [
            "Authorization",
            "HOST",
            "content_length",
            "Transfer-Encoding",
            "webhook-id",
            "ce_id",
            "postbox_topic",
        ] {
            let mut headers = HeaderMap::new();
            add_own(&mut headers, own, "x");
            assert!(headers.is_empty(), "{own}");
        }
        let mut headers = HeaderMap::new();
        add_own(&mut headers, "postbox-dead-reason", "why");
        add_own(&mut headers, "tenant", "acme");
        add_own(&mut headers, "Tenant", "other");
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["tenant"], "acme");
    }
}
