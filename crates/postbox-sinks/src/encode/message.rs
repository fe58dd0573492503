//! [`Encoding`]: a delivery as a message with key, headers and payload.

use std::borrow::Cow;

use postbox_core::{Delivery, Payload};

use super::cloudevents::{Binding, CloudEvents, STRUCTURED, attributes, structured};
use super::headers::{Header, content_type, headers};
use crate::options::Reader;

/// An event as brokers and webhooks take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message key: routing key, else the aggregate's id, else the event id.
    pub key: String,
    /// Standard headers, those of CloudEvents, and the event's own.
    pub headers: Vec<Header<'a>>,
    /// The bytes.
    pub payload: Cow<'a, [u8]>,
    /// What they are.
    pub content_type: &'a str,
}

/// How a sink makes messages of events.
#[derive(Debug, Clone)]
pub struct Encoding {
    binding: Binding,
    cloudevents: Option<CloudEvents>,
    source: Option<String>,
}

impl Encoding {
    /// Plain messages: the business payload with the standard headers.
    pub fn plain(binding: Binding) -> Self {
        Self { binding, cloudevents: None, source: None }
    }

    /// As the options `cloudevents` and `cloudevents_source` say.
    pub fn from_options(binding: Binding, options: &mut Reader) -> Self {
        let words = [("binary", CloudEvents::Binary), ("structured", CloudEvents::Structured)];
        let cloudevents = options.choice("cloudevents", &words);
        let source = options.text("cloudevents_source");
        if source.is_some() && cloudevents.is_none() {
            options.problem(
                "cloudevents_source",
                "is given without cloudevents",
                "add cloudevents, or remove it",
            );
        }
        Self { binding, cloudevents, source }
    }

    /// Whether messages are CloudEvents.
    #[cfg(feature = "http")]
    pub(crate) fn is_cloudevents(&self) -> bool {
        self.cloudevents.is_some()
    }

    /// The message of a delivery.
    pub fn message<'a>(&'a self, delivery: &'a Delivery) -> Message<'a> {
        let key = delivery.meta.message_key();
        let payload = || match &delivery.payload {
            Payload::Json(json) => Cow::Borrowed(json.as_str().as_bytes()),
            Payload::Bytes { bytes, .. } => Cow::Borrowed(&**bytes),
        };
        let plain_type = content_type(delivery);
        let Some(mode) = self.cloudevents else {
            let headers = headers(delivery, plain_type);
            return Message { key, headers, payload: payload(), content_type: plain_type };
        };
        let attributes: Vec<(&'static str, Cow<'a, str>)> =
            attributes(delivery, &key, self.source.as_deref())
                .into_iter()
                .map(|(name, value)| (name, value.into_owned().into()))
                .collect();
        match mode {
            CloudEvents::Structured => {
                let payload = structured(delivery, &attributes).into();
                let mut headers = headers(delivery, STRUCTURED);
                self.announce(&mut headers, STRUCTURED, Vec::new());
                Message { key, headers, payload, content_type: STRUCTURED }
            }
            CloudEvents::Binary => {
                let mut headers = headers(delivery, plain_type);
                let mut attributes = attributes;
                if self.binding.type_is_attribute {
                    attributes.push(("datacontenttype", plain_type.into()));
                }
                self.announce(&mut headers, plain_type, attributes);
                Message { key, headers, payload: payload(), content_type: plain_type }
            }
        }
    }

    /// Adds the headers of CloudEvents; one of the event's own of such a name gives way.
    fn announce<'a>(
        &self,
        headers: &mut Vec<Header<'a>>,
        content_type: &'a str,
        attributes: Vec<(&'static str, Cow<'a, str>)>,
    ) {
        let Binding { prefix, content_type: name, .. } = self.binding;
        let taken = |own: &str| {
            let own = own.to_ascii_lowercase();
            own.starts_with(&prefix.to_ascii_lowercase()) || Some(own.as_str()) == name
        };
        headers.retain(|(own, _)| !taken(own));
        let structured = attributes.is_empty();
        let name = name.filter(|_| structured || !self.binding.type_is_attribute);
        headers.extend(name.map(|name| (name.into(), content_type.into())));
        headers.extend(
            attributes
                .into_iter()
                .map(|(name, value)| (format!("{prefix}{name}").into(), self.binding.value(value))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use postbox_core::AggregateKey;
    use postbox_core::testing::delivery;

    fn encoding(binding: Binding, options: &[(&str, &str)]) -> Encoding {
        let given = options.iter().fold(Options::new(), |given, (name, value)| given.set(*name, *value));
        let mut reader = Reader::new("test:", given);
        let encoding = Encoding::from_options(binding, &mut reader);
        reader.finish().unwrap();
        encoding
    }

    fn event() -> Delivery {
        let mut event = delivery("org.order.placed.v1", "{ \"price\": 12345678901234567890.50 }");
        event.meta.aggregate = Some(AggregateKey::new("order", "über 1"));
        event.meta.headers = [("ce-id", "forged"), ("ce_id", "forged"), ("mine", "ü")]
            .map(|(n, v)| (n.into(), v.into()))
            .into();
        event
    }

    fn of<'a>(message: &'a Message<'_>, name: &str) -> Vec<&'a str> {
        message.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| &**value).collect()
    }

    #[test]
    fn plain_messages_carry_the_payload_as_it_is() {
        let event = event();
        let encoding = Encoding::plain(Binding::NATS);
        let message = encoding.message(&event);
        assert_eq!(&*message.payload, b"{ \"price\": 12345678901234567890.50 }");
        assert_eq!((message.key.as_str(), message.content_type), ("über 1", "application/json"));
        assert_eq!(of(&message, "ce-id"), ["forged"]);
        assert_eq!(of(&message, "mine"), ["ü"]);
    }

    #[test]
    fn binary_cloudevents_are_headers() {
        let event = event();
        for (binding, name, subject) in [
            (Binding::NATS, "ce-", "%C3%BCber%201"),
            (Binding::KAFKA, "ce_", "über 1"),
            (Binding::AMQP, "cloudEvents:", "über 1"),
        ] {
            let encoding = encoding(binding, &[("cloudevents", "binary"), ("cloudevents_source", "//shop")]);
            let message = encoding.message(&event);
            let header = |attribute: &str| of(&message, &format!("{name}{attribute}"));
            assert_eq!(header("id"), [event.meta.event_id.to_string()]);
            assert_eq!(header("source"), ["//shop"]);
            assert_eq!(header("type"), ["org.order.placed.v1"]);
            assert_eq!(header("subject"), [subject]);
            assert_eq!(header("specversion"), ["1.0"]);
            assert_eq!(header("sequence"), ["1"]);
            assert_eq!(&*message.payload, b"{ \"price\": 12345678901234567890.50 }");
            assert_eq!(of(&message, "topic"), ["org.order.placed.v1"]);
            let expected: &[&str] = if binding == Binding::KAFKA { &["application/json"] } else { &[] };
            assert_eq!(of(&message, "content-type"), expected);
            let expected: &[&str] = if binding == Binding::NATS { &["application/json"] } else { &[] };
            assert_eq!(header("datacontenttype"), expected);
        }
    }

    #[test]
    fn structured_cloudevents_are_one_object() {
        let mut event = event();
        event.meta.table = "public.my outbox".into();
        let encoding = encoding(Binding::KAFKA, &[("cloudevents", "structured")]);
        let message = encoding.message(&event);
        assert_eq!(message.content_type, STRUCTURED);
        assert_eq!(of(&message, "content-type"), [STRUCTURED]);
        let text = std::str::from_utf8(&message.payload).unwrap();
        assert!(text.contains(r#""data":{"price":12345678901234567890.50}"#), "{text}");
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["id"], event.meta.event_id.to_string());
        assert_eq!(value["source"], "/postbox/public.my%20outbox");
        assert_eq!(value["subject"], "über 1");
        assert_eq!(value["datacontenttype"], "application/json");
        event.payload = Payload::Bytes { bytes: [0, 255].into(), content_type: "image/x".into() };
        let message = encoding.message(&event);
        let value: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!((&value["data_base64"], &value["datacontenttype"]), (&"AP8=".into(), &"image/x".into()));
    }

    #[test]
    fn a_source_alone_is_a_mistake() {
        let mut reader = Reader::new("test:", Options::new().set("cloudevents_source", "x"));
        Encoding::from_options(Binding::HTTP, &mut reader);
        assert!(reader.finish().unwrap_err().to_string().contains("without cloudevents"));
    }
}
