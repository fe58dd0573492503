//! [`Identify`]: by what a message is known when it comes again.

use std::fmt;
use std::sync::Arc;

use postbox_core::{Code, DispatchError, MessageId, MessageIdError};
use uuid::Uuid;

use crate::message::Envelope;

/// The header by which every sink of Postbox names its event.
pub const EVENT_ID: &str = "event_id";

/// By what the messages of a consumer are known. [`standard`](Self::standard) unless told otherwise.
///
/// All messages of one consumer should be known in the same way: an event that is known by its `event_id` once and by its place in a topic the
/// other time is two messages to the inbox.
#[derive(Clone)]
pub struct Identify {
    rule: Rule,
    or_position: bool,
}

type Custom = Arc<dyn Fn(&Envelope) -> Result<MessageId, MessageIdError> + Send + Sync>;

#[derive(Clone)]
enum Rule {
    Standard,
    Header(Arc<str>),
    CloudEvent,
    Position,
    Custom(Custom),
}

/// A message that cannot be known again. It is a dead letter at once: without an id its effect could not be kept to once.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unknown {
    #[error(
        "{}: the message has {missing}: have its producer send one, or choose another `Identify`",
        Code::MessageIdInvalid
    )]
    Missing { missing: String },
    #[error(transparent)]
    Invalid(#[from] MessageIdError),
}

impl From<Unknown> for DispatchError {
    fn from(error: Unknown) -> Self {
        Self::reject(error).with_code(Code::MessageIdInvalid)
    }
}

impl Identify {
    /// The header `event_id`, which all sinks of Postbox send; else source and id of a CloudEvents message, in its headers or its payload;
    /// else the message is refused.
    pub fn standard() -> Self {
        Rule::Standard.into()
    }

    /// This header alone.
    pub fn header(name: impl Into<Arc<str>>) -> Self {
        Rule::Header(name.into()).into()
    }

    /// Source and id of CloudEvents alone, also of events of Postbox: for consumers of several producers, all of which send CloudEvents.
    pub fn cloud_event() -> Self {
        Rule::CloudEvent.into()
    }

    /// Its place at the broker: topic, partition and offset, or stream and number.
    ///
    /// It covers what the *broker* delivers again. What the *producer* sends again has another place, and its effect again: choose it where
    /// messages have no id of their own and the producer repeats nothing. RabbitMQ and HTTP have no such place.
    pub fn position() -> Self {
        Rule::Position.into()
    }

    /// Whatever the function makes of the message.
    pub fn by(rule: impl Fn(&Envelope) -> Result<MessageId, MessageIdError> + Send + Sync + 'static) -> Self {
        Rule::Custom(Arc::new(rule)).into()
    }

    /// Messages that have no id are known by their [`position`](Self::position) instead of being refused.
    #[must_use]
    pub fn or_position(mut self) -> Self {
        self.or_position = true;
        self
    }

    pub(crate) fn of(&self, message: &Envelope) -> Result<MessageId, Unknown> {
        let missing = match &self.rule {
            Rule::Standard => {
                let found = message.header(EVENT_ID).map(named).or_else(|| cloud_event(message));
                match found {
                    Some(found) => return Ok(found?),
                    None => "neither the header event_id nor source and id of CloudEvents".to_owned(),
                }
            }
            Rule::Header(name) => match message.header(name) {
                Some(text) => return Ok(named(text)?),
                None => format!("no header {name:?}"),
            },
            Rule::CloudEvent => match cloud_event(message) {
                Some(found) => return Ok(found?),
                None => "no source and id of CloudEvents".to_owned(),
            },
            Rule::Position => "no place at its broker".to_owned(),
            Rule::Custom(rule) => return Ok(rule(message)?),
        };
        match &message.position {
            Some(position) if self.or_position => Ok(MessageId::new(position.as_str())?),
            Some(_) | None => Err(Unknown::Missing { missing }),
        }
    }
}

/// UUIDs are one id in whatever form they are written.
fn named(text: &str) -> Result<MessageId, MessageIdError> {
    match Uuid::try_parse(text) {
        Ok(id) => Ok(id.into()),
        Err(_) => MessageId::new(text),
    }
}

fn cloud_event(message: &Envelope) -> Option<Result<MessageId, MessageIdError>> {
    let (source, id) = (message.attribute("source")?, message.attribute("id")?);
    Some(MessageId::cloud_event(&source, &id))
}

impl From<Rule> for Identify {
    fn from(rule: Rule) -> Self {
        let or_position = matches!(rule, Rule::Position);
        Self { rule, or_position }
    }
}

impl Default for Identify {
    fn default() -> Self {
        Self::standard()
    }
}

impl fmt::Debug for Identify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.rule {
            Rule::Standard => "standard",
            Rule::Header(name) => name,
            Rule::CloudEvent => "cloud_event",
            Rule::Position => "position",
            Rule::Custom(_) => "custom",
        };
        f.debug_struct("Identify").field("by", &name).field("or_position", &self.or_position).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = "0190b0c0-0000-7000-8000-00000000000f";

    fn message(headers: &[(&str, &str)]) -> Envelope {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Envelope { headers, position: Some("orders/0/42".to_owned()), ..Envelope::default() }
    }

    fn id(identify: &Identify, headers: &[(&str, &str)]) -> Result<String, String> {
        identify.of(&message(headers)).map(|id| id.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_event_id_comes_first_and_then_cloudevents() {
        let standard = Identify::standard();
        let ce = [("ce_source", "/shop"), ("ce_id", "7")];
        let both = [("Event_Id", "0190B0C0-0000-7000-8000-00000000000F"), ce[0], ce[1]];
        assert_eq!(id(&standard, &both).unwrap(), EVENT);
        assert_eq!(id(&standard, &ce).unwrap(), "/shop|7");
        assert_eq!(id(&Identify::cloud_event(), &both).unwrap(), "/shop|7");
        assert_eq!(id(&Identify::header("ce_id"), &both).unwrap(), "7");
        assert_eq!(id(&Identify::position(), &both).unwrap(), "orders/0/42");
        assert_eq!(
            id(&Identify::by(|message| MessageId::new(message.headers[1].1.as_str())), &both).unwrap(),
            "/shop"
        );
    }

    #[test]
    fn without_an_id_a_message_is_refused_unless_its_place_will_do() {
        for refused in [Identify::standard(), Identify::header("x"), Identify::cloud_event()] {
            let error = id(&refused, &[("ce_id", "7")]).unwrap_err();
            assert!(error.starts_with("OUTBOX_MESSAGE_ID_INVALID: the message has n"), "{error}");
            assert_eq!(id(&refused.or_position(), &[]).unwrap(), "orders/0/42");
        }
        assert!(
            id(&Identify::standard().or_position(), &[("event_id", "")]).is_err(),
            "a broken id is no missing one"
        );
    }
}
