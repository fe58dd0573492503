//! [`MessageId`]: how a message is known when it comes again.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

use crate::code::Code;
use crate::event::EventId;

/// By what a message is known when it comes again: 1 to 1024 bytes without control characters.
///
/// Whatever its producer promises never to give to another message:
///
/// ```
/// use postbox_core::{EventId, MessageId};
///
/// // Of an outbox of Postbox: the event id, in the header `event_id` of every broker.
/// let id = MessageId::from(EventId::new());
/// // Of CloudEvents: source and id together are unique, each alone is not.
/// let id = MessageId::cloud_event("/shop/orders", "42")?;
/// assert_eq!(id.as_str(), "/shop/orders|42");
/// // Of producers that number the events of their aggregates.
/// let id = MessageId::composite("order", "42", "shop.order.placed.v1", 7)?;
/// assert_eq!(id.as_str(), "order|42|shop.order.placed.v1|7");
/// // Of anybody else: what identifies it there.
/// let id = MessageId::new("payments/2026-11-15/000017")?;
/// # Ok::<(), postbox_core::MessageIdError>(())
/// ```
///
/// What is made of several parts has them with `|` between, after `%` in a part has become `%25` and `|` has become `%7C`: different parts
/// are different ids, and any language can write them. Let all messages of one consumer be known in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

/// Why something cannot be the id of a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", Code::MessageIdInvalid)]
pub struct MessageIdError {
    problem: String,
}

impl MessageId {
    /// The longest id, in bytes: what fits into an index of every database.
    pub const LIMIT: usize = 1024;

    /// An id as its producer writes it.
    ///
    /// # Errors
    /// When it is empty, longer than [`LIMIT`](Self::LIMIT), or holds a control character.
    pub fn new(text: impl AsRef<str> + Into<Arc<str>>) -> Result<Self, MessageIdError> {
        check("the id of a message", text.as_ref())?;
        Ok(Self(text.into()))
    }

    /// The id of a CloudEvents message: `source` and `id`, which are unique together.
    ///
    /// # Errors
    /// When one of them is empty, holds a control character, or both together are too long.
    pub fn cloud_event(source: &str, id: &str) -> Result<Self, MessageIdError> {
        for (name, part) in [("source", source), ("id", id)] {
            if part.is_empty() {
                return Err(MessageIdError::new(format!("the {name} of a CloudEvents message is empty")));
            }
        }
        Self::joined("source and id of a CloudEvents message", &[source, id])
    }

    /// The id of an event by what it is about and its number there.
    ///
    /// For producers that have no other identity. Where there is an `event_id`, take that one: after a crash with
    /// `synchronous_commit = off`, a number that was lost is given to another event.
    ///
    /// # Errors
    /// When the topic is empty, a part holds a control character, or all of them together are too long.
    pub fn composite(
        aggregate_type: &str,
        aggregate_id: &str,
        topic: &str,
        sequence: i64,
    ) -> Result<Self, MessageIdError> {
        if topic.is_empty() {
            return Err(MessageIdError::new("the topic of a message is empty".to_owned()));
        }
        let parts = [aggregate_type, aggregate_id, topic, &sequence.to_string()];
        Self::joined("aggregate, topic and sequence of a message", &parts)
    }

    fn joined(what: &str, parts: &[&str]) -> Result<Self, MessageIdError> {
        let mut text = String::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                text.push('|');
            }
            for c in part.chars() {
                match c {
                    '%' => text.push_str("%25"),
                    '|' => text.push_str("%7C"),
                    c => text.push(c),
                }
            }
        }
        check(what, &text)?;
        Ok(Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check(what: &str, text: &str) -> Result<(), MessageIdError> {
    let problem = if text.is_empty() {
        format!("{what} is empty")
    } else if text.len() > MessageId::LIMIT {
        format!("{what}: {} bytes, the limit is {}", text.len(), MessageId::LIMIT)
    } else if let Some(at) = text.find(char::is_control) {
        format!("{what} holds a control character at byte {at}")
    } else {
        return Ok(());
    };
    Err(MessageIdError::new(problem))
}

impl MessageIdError {
    fn new(problem: String) -> Self {
        Self { problem }
    }

    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::MessageIdInvalid
    }
}

impl From<EventId> for MessageId {
    fn from(event: EventId) -> Self {
        Self::from(event.0)
    }
}

impl From<Uuid> for MessageId {
    fn from(id: Uuid) -> Self {
        let mut text = String::with_capacity(36);
        // Writing to a text does not fail.
        let _ = write!(text, "{}", id.hyphenated());
        Self(text.into())
    }
}

impl From<&Self> for MessageId {
    fn from(id: &Self) -> Self {
        id.clone()
    }
}

impl FromStr for MessageId {
    type Err = MessageIdError;

    fn from_str(text: &str) -> Result<Self, MessageIdError> {
        Self::new(text)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(id: &MessageId) -> Vec<String> {
        id.as_str().split('|').map(|part| part.replace("%7C", "|").replace("%25", "%")).collect()
    }

    #[test]
    fn limits_are_kept_and_told() {
        assert!(MessageId::new("a".repeat(1024)).is_ok());
        let error = MessageId::new("a".repeat(1025)).unwrap_err().to_string();
        let expected = "OUTBOX_MESSAGE_ID_INVALID: the id of a message: 1025 bytes, the limit is 1024";
        assert_eq!(error, expected);
        for wrong in [
            MessageId::new(""),
            MessageId::new("a\nb"),
            MessageId::new("a\0"),
            MessageId::cloud_event("", "1"),
            MessageId::cloud_event("/a", ""),
            MessageId::cloud_event("/a", "b\u{7}"),
            MessageId::cloud_event(&"|".repeat(400), "1"),
            MessageId::composite("a", "b", "", 1),
        ] {
            assert_eq!(wrong.unwrap_err().code(), Code::MessageIdInvalid);
        }
        let id = Uuid::from_u128(0x0190_b0c0_0000_7000_8000_0000_0000_000f);
        assert_eq!(MessageId::from(EventId(id)).as_str(), "0190b0c0-0000-7000-8000-00000000000f");
        assert_eq!(MessageId::composite("", "", "t", -1).unwrap().as_str(), "||t|-1");
    }

    proptest! {
        #[test]
        fn different_parts_are_different_ids(
            a in "[a|%257C]{1,6}", b in "[a|%257C]{1,6}", c in "[a|%257C]{1,6}", sequence: i64,
        ) {
            prop_assert_eq!(parts(&MessageId::cloud_event(&a, &b).unwrap()), [a.clone(), b.clone()]);
            let id = MessageId::composite(&a, &b, &c, sequence).unwrap();
            prop_assert_eq!(parts(&id), [a, b, c, sequence.to_string()]);
        }
    }
}
