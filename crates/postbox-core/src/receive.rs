//! [`Receive`]: events as a typed handler gets them.

use serde::de::DeserializeOwned;

use crate::event::Event;
use crate::json::Json;
use crate::redact::json_problem;
use crate::topic::Topic;

/// What a typed handler can receive: an [`Event`] that is `Deserialize`, or an enum of such events.
///
/// Every `Event` that can be deserialised is one already, and `#[derive(Event)]` makes an enum one whose variants each
/// hold an event: `enum OrderEvent { Placed(OrderPlaced), Paid(OrderPaid) }`.
#[diagnostic::on_unimplemented(
    message = "a handler cannot receive `{Self}`",
    label = "not an event that can be read back from its payload",
    note = "a handler takes a struct that derives `postbox::Event`, `serde::Serialize` and `serde::Deserialize`",
    note = "or an enum that derives `postbox::Event`, each of whose variants holds such a struct"
)]
pub trait Receive: Sized + Send + 'static {
    /// The topics that it is made from.
    const TOPICS: &'static [Topic];

    /// Reads the payload of an event of one of these topics.
    ///
    /// # Errors
    /// When the topic is none of these, or the payload does not have the type's shape.
    fn receive(topic: &Topic, payload: &Json) -> Result<Self, ReceiveError>;
}

impl<E: Event + DeserializeOwned + Send + 'static> Receive for E {
    const TOPICS: &'static [Topic] = &[E::TOPIC];

    fn receive(topic: &Topic, payload: &Json) -> Result<Self, ReceiveError> {
        if *topic != E::TOPIC {
            return Err(ReceiveError::topic(topic));
        }
        payload.decode().map_err(|error| ReceiveError::shape(topic, &error))
    }
}

/// Why an event is not what a handler expects. Names the place and the kind of the mistake, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReceiveError(String);

impl ReceiveError {
    /// The topic is none of those that the type is made from.
    pub fn topic(topic: &Topic) -> Self {
        Self(format!("the handler's type knows no topic {topic}"))
    }

    /// The payload is bytes.
    pub(crate) fn bytes(topic: &Topic) -> Self {
        Self(format!("the payload of {topic} is bytes, not JSON"))
    }

    fn shape(topic: &Topic, error: &serde_json::Error) -> Self {
        let problem = json_problem(error);
        Self(format!("the payload of {topic} is not what the handler expects: {problem}"))
    }
}
