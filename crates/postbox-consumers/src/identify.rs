//! [`Identify`]: by what a message is known when it comes again.

use std::fmt;
use std::num::ParseIntError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use postbox_core::{Code, DispatchError, MessageId, MessageIdError};
use uuid::Uuid;

use crate::message::Envelope;

/// The header by which every sink of Postbox names its event.
pub(crate) const EVENT_ID: &str = "event_id";
/// The headers by which an event is known without an id, in the order of [`MessageId::composite`].
const COMPOSITE: [&str; 4] = ["aggregate_type", "aggregate_id", "topic", "sequence"];

/// By what the messages of a consumer are known. [`standard`](Self::standard) unless told otherwise.
///
/// All messages of one consumer should be known in the same way: an event that is known by its `event_id` once and by its place in a topic the
/// other time is two messages to the inbox.
///
/// ```
/// use postbox_consumers::Identify;
/// use postbox_core::MessageId;
///
/// // Of a producer that numbers its requests; those without a number are known by their place at the broker.
/// let numbered = Identify::header("x-request-id").or_position();
/// // Anything else. What is empty is no id, and the message is a dead letter.
/// let own = Identify::by(|message| MessageId::new(message.key.clone().unwrap_or_default()));
/// ```
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
    Composite,
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
    #[error(
        "{}: the header sequence of the message is no number: have its producer send one, or choose another `Identify`",
        Code::MessageIdInvalid
    )]
    Unnumbered(#[source] ParseIntError),
    #[error("{}: the function of `Identify::by` panicked: {panic}", Code::MessageIdInvalid)]
    Panicked { panic: String },
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

    /// What the event is about and its number there: the headers `aggregate_type`, `aggregate_id`, `topic` and `sequence`, all four of them,
    /// which all sinks of Postbox send for events of an aggregate. The id is that of [`MessageId::composite`].
    ///
    /// For producers that number the events of their aggregates and have no other identity: where there is an `event_id`, take
    /// [`standard`](Self::standard), since a number may be given to another event after a crash with `synchronous_commit = off`. A message
    /// that lacks one of the four is refused: numbers of another aggregate would be taken for its own.
    pub fn composite() -> Self {
        Rule::Composite.into()
    }

    /// Its place at the broker: topic, partition and offset, or stream and number.
    ///
    /// It covers what the *broker* delivers again. What the *producer* sends again has another place, and its effect again: choose it where
    /// messages have no id of their own and the producer repeats nothing. RabbitMQ and HTTP have no such place.
    pub fn position() -> Self {
        Rule::Position.into()
    }

    /// Whatever the function makes of the message. An error, or a panic, makes it a dead letter.
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
            Rule::Composite => match COMPOSITE.map(|name| message.header(name)) {
                [Some(kind), Some(id), Some(topic), Some(sequence)] => {
                    let sequence = sequence.parse().map_err(Unknown::Unnumbered)?;
                    return Ok(MessageId::composite(kind, id, topic, sequence)?);
                }
                found => {
                    let lacking = COMPOSITE.iter().zip(found).filter(|(_, value)| value.is_none());
                    let names: Vec<String> = lacking.map(|(name, _)| format!("{name:?}")).collect();
                    format!("no header {}", names.join(", "))
                }
            },
            Rule::Position => "no place at its broker".to_owned(),
            // One message that it did not expect must not end the whole run, again and again.
            Rule::Custom(rule) => match catch_unwind(AssertUnwindSafe(|| rule(message))) {
                Ok(made) => return Ok(made?),
                Err(panic) => return Err(Unknown::Panicked { panic: postbox_core::panic::message(&*panic) }),
            },
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
            Rule::Composite => "composite",
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

    /// Of an event as sinks send it, which has an id of its own besides.
    const NUMBERED: [(&str, &str); 5] = [
        ("event_id", EVENT),
        ("Aggregate_Type", "order"),
        ("aggregate_id", "4|2"),
        ("topic", "shop.order.placed.v1"),
        ("sequence", "7"),
    ];

    #[test]
    fn an_event_is_known_by_its_aggregate_topic_and_number() {
        let composite = Identify::composite();
        let found = identify_all(&composite, &[NUMBERED]);
        assert_eq!(found, [MessageId::composite("order", "4|2", "shop.order.placed.v1", 7).unwrap()]);
        assert_eq!(found[0].as_str(), "order|4%7C2|shop.order.placed.v1|7");
        // Each of the four tells messages apart, and the number is one however it is written.
        let others = [(1, "cart"), (2, "42"), (3, "shop.order.paid.v1"), (4, "8")].map(|(at, value)| {
            let mut other = NUMBERED;
            other[at].1 = value;
            other
        });
        for other in identify_all(&composite, &others) {
            assert_ne!(other, found[0]);
        }
        let mut padded = NUMBERED;
        padded[4].1 = "+07";
        assert_eq!(identify_all(&composite, &[padded]), found);
    }

    #[test]
    fn half_of_a_composite_id_is_none() {
        for at in 1..NUMBERED.len() {
            let mut headers = NUMBERED.to_vec();
            let (name, _) = headers.remove(at);
            let error = id(&Identify::composite(), &headers).unwrap_err();
            let expected = format!(
                "OUTBOX_MESSAGE_ID_INVALID: the message has no header {:?}: have",
                name.to_lowercase()
            );
            assert!(error.starts_with(&expected), "{error}");
            assert_eq!(id(&Identify::composite().or_position(), &headers).unwrap(), "orders/0/42");
        }
        // What is there and wrong is not passed over for the place.
        for (at, wrong) in [(3, ""), (4, ""), (4, "seven"), (4, "9223372036854775808"), (2, "4\n2")] {
            let mut headers = NUMBERED;
            headers[at].1 = wrong;
            let error = id(&Identify::composite().or_position(), &headers).unwrap_err();
            assert!(error.starts_with("OUTBOX_MESSAGE_ID_INVALID: "), "{error}");
        }
    }

    #[test]
    fn a_function_that_panics_refuses_its_message_and_no_other() {
        let second = Identify::by(|message| MessageId::new(message.headers[1].1.as_str()));
        let error = id(&second, &[("ce_id", "7")]).unwrap_err();
        assert!(
            error.starts_with("OUTBOX_MESSAGE_ID_INVALID: the function of `Identify::by` panicked"),
            "{error}"
        );
        assert_eq!(id(&second, &[("a", "1"), ("ce_id", "7")]).unwrap(), "7");
    }

    fn identify_all(identify: &Identify, messages: &[[(&str, &str); 5]]) -> Vec<MessageId> {
        messages.iter().map(|headers| identify.of(&message(headers)).unwrap()).collect()
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
