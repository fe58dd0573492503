//! [`Message`]: what a handler gets, whatever broker it came from. [`Envelope`]: the same before its id is known.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_core::redact::json_problem;
use postbox_core::{Code, DispatchError, MessageId};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// The content type of a CloudEvents message that is one JSON object.
const STRUCTURED: &str = "application/cloudevents+json";
/// What the bindings of CloudEvents put before the names of attributes: NATS and HTTP, Kafka and Redis, AMQP in both its forms.
const PREFIXES: [&str; 4] = ["ce-", "ce_", "cloudEvents:", "cloudEvents_"];

/// A message as a broker delivered it.
#[derive(Clone, Default)]
pub struct Envelope {
    /// Where it came from: topic, subject, queue, stream or path.
    pub source: String,
    /// Its place there, such as `orders/0/42`; none where the broker numbers nothing. A message that is sent again has another one.
    pub position: Option<String>,
    /// The message key, where it has one.
    pub key: Option<String>,
    /// Headers, properties or fields, as far as they are text.
    pub headers: Vec<(String, String)>,
    /// What the payload is, where that is not a header.
    pub content_type: Option<String>,
    /// The payload, as it came: with the envelope of structured CloudEvents around it. [`data`](Self::data) is without.
    pub payload: Vec<u8>,
}

/// A message with its id, in the hands of a handler. It derefs to its [`Envelope`].
#[derive(Debug, Clone)]
pub struct Message {
    pub(crate) id: MessageId,
    pub(crate) tries: u32,
    pub(crate) envelope: Envelope,
}

impl Message {
    /// By what the inbox knows it.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// How often this process has tried it before: 0 at the first time.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

impl Deref for Message {
    type Target = Envelope;

    fn deref(&self) -> &Envelope {
        &self.envelope
    }
}

impl Envelope {
    /// The value of a header; capitals and small letters are the same, as some brokers have it.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The topic of an event of Postbox: the header `topic`, else the type of a CloudEvents message.
    pub fn topic(&self) -> Option<Cow<'_, str>> {
        self.header("topic").map(Cow::Borrowed).or_else(|| self.attribute("type"))
    }

    /// What the payload is, without parameters such as a charset.
    pub fn content_type(&self) -> Option<&str> {
        let given = self.content_type.as_deref().or_else(|| self.header("content-type"));
        let given = given.or_else(|| self.header("content_type"))?;
        Some(given.split(';').next().unwrap_or(given).trim())
    }

    /// An attribute of a CloudEvents message, in its headers or in its payload.
    pub fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
        for prefix in PREFIXES {
            if let Some(value) = self.header(&format!("{prefix}{name}")) {
                return Some(if prefix == "ce-" { decoded(value) } else { value.into() });
            }
        }
        let text = self.structured()?.remove(name)?;
        serde_json::from_str::<String>(text.get()).ok().map(Cow::Owned)
    }

    /// The business payload: what stands in the envelope of a structured CloudEvents message, and the whole of any other.
    pub fn data(&self) -> Cow<'_, [u8]> {
        let Some(mut object) = self.structured() else {
            return Cow::Borrowed(&self.payload);
        };
        if let Some(data) = object.remove("data") {
            return data.get().as_bytes().to_vec().into();
        }
        let encoded = object.remove("data_base64").and_then(|text| serde_json::from_str(text.get()).ok());
        encoded.and_then(|text: String| STANDARD.decode(text).ok()).unwrap_or_default().into()
    }

    /// Reads the business payload as JSON.
    ///
    /// # Errors
    /// A reject, when it has another shape: trying again would not change it, so the message is a dead letter at once. It names the place of
    /// the mistake, never a value.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, DispatchError> {
        serde_json::from_slice(&self.data()).map_err(|error| {
            let text = format!("the payload is not what the handler expects: {}", json_problem(&error));
            DispatchError::reject(text).with_code(Code::PayloadUndecodable)
        })
    }

    /// The object of a structured CloudEvents message; values stay as they were written, digit for digit.
    fn structured(&self) -> Option<BTreeMap<String, Box<RawValue>>> {
        if !self.content_type()?.eq_ignore_ascii_case(STRUCTURED) {
            return None;
        }
        serde_json::from_slice(&self.payload).ok()
    }
}

/// Without its payload and the values of its headers, which are nothing for logs.
impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("source", &self.source)
            .field("position", &self.position)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// A value whose `%20` are what they stand for. What is not encoded rightly is left as it is.
pub(crate) fn decoded(value: &str) -> Cow<'_, str> {
    if !value.contains('%') {
        return value.into();
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let digit = |at: usize| tail.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        if let (b'%', Some(high), Some(low)) = (first, digit(0), digit(1)) {
            bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).map_or_else(|_| value.into(), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(headers: &[(&str, &str)], payload: &str) -> Envelope {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Envelope { headers, payload: payload.into(), ..Envelope::default() }
    }

    #[test]
    fn attributes_are_found_in_every_binding() {
        for prefix in PREFIXES {
            let message = envelope(&[(&format!("{prefix}source"), "/shop")], "{}");
            assert_eq!(message.attribute("source").unwrap(), "/shop");
        }
        let message = envelope(&[("ce-source", "/%C3%BCber%2")], "");
        assert_eq!(message.attribute("source").unwrap(), "/über%2");
        assert_eq!(message.attribute("id"), None);
    }

    #[test]
    fn the_envelope_of_a_structured_message_is_taken_off() {
        let text = r#"{"id":"7","source":"/a","type":"t.v1","data":{"price":12345678901234567890.50}}"#;
        let mut message = envelope(&[("content_type", "application/cloudevents+json; charset=utf-8")], text);
        assert_eq!((message.attribute("id").unwrap(), message.topic().unwrap()), ("7".into(), "t.v1".into()));
        assert_eq!(&*message.data(), br#"{"price":12345678901234567890.50}"#);
        message.payload = br#"{"id":"7","data_base64":"AP8="}"#.to_vec();
        assert_eq!(&*message.data(), [0, 255]);
        message.headers.clear();
        assert_eq!(&*message.data(), &*message.payload);
    }

    #[test]
    fn what_cannot_be_read_is_rejected_and_not_shown() {
        let error = envelope(&[], r#"{"card":"4111"}"#).json::<Vec<u8>>().unwrap_err();
        assert_eq!(error.kind(), postbox_core::DispatchErrorKind::Reject);
        assert!(!error.to_string().contains("4111"), "{error}");
        assert!(!format!("{:?}", envelope(&[("a", "4111")], "4111")).contains("4111"));
    }
}
