//! [`Source`] and [`Incoming`]: what the loop asks of a broker. [`DeadLetter`]: what becomes of a message that cannot be handled.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use postbox_core::ConsumerName;
use postbox_core::letter::{ATTEMPTS, DEAD_AT, REASON};
use postbox_core::redact::Summary;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::message::Envelope;

/// The header of a dead letter with where it came from.
const SOURCE: &str = "postbox-dead-source";
/// The header of a dead letter with the consumer that gave it up.
const CONSUMER: &str = "postbox-dead-consumer";
/// Headers are to stay small.
const REASON_MAX_BYTES: usize = 1024;

/// Where messages come from: the broker's own client, as the loop of a [`Consumer`](crate::Consumer) sees it. For a broker that is not here,
/// implement it.
///
/// # Cancel safety
/// [`next`](Self::next) is dropped whenever something else happens, and [`halt`](Self::halt) when the broker does not answer; all of it
/// when the run is dropped. What was not acknowledged must then be delivered again.
pub trait Source: Send {
    /// A message of it.
    type Incoming: Incoming;

    /// Begins. So many messages are worked on at once; to hold more than that would keep them from other consumers.
    ///
    /// # Errors
    /// When there are no messages to be had: the run ends with it before it has begun.
    fn open(&mut self, at_once: usize) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// The next message; none when there will never be another one.
    ///
    /// # Errors
    /// One ends the run: what the client mends by itself is none.
    ///
    /// # Cancel safety
    /// Must be cancel safe: dropped and called again, it loses no message.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Incoming>, SourceError>> + Send;

    /// Asks the broker for nothing more, and gives back what was not handed out yet.
    fn halt(&mut self) -> impl Future<Output = ()> + Send;

    /// All that was handed out is settled.
    fn finish(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// How many more messages than are worked on may be in hand, where messages have [lanes](Incoming::lane).
    fn read_ahead(&self) -> usize {
        0
    }
}

/// A message in hand, and all that can be done about it.
///
/// # Errors
/// They are logged. A message that could not be acknowledged is delivered again and known by the inbox; one that could not be
/// [buried](Self::bury) is buried again until it is, or given back where the error says that it is [lost](SourceError::lost).
///
/// # Cancel safety
/// [`renew`](Self::renew) is dropped when the message is settled; [`acknowledge`](Self::acknowledge) and [`give_back`](Self::give_back) when
/// they have no end for long after a stop; all of it when the run is dropped.
pub trait Incoming: Send + Sync {
    /// The message. Asked for once.
    fn envelope(&mut self) -> Envelope;

    /// Messages of one lane are worked on one after the other, in the order in which they came.
    fn lane(&self) -> Option<String> {
        None
    }

    /// Its effect is committed, or it is at the dead letters: it is not to be delivered again.
    fn acknowledge(&mut self) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// It was not dealt with: it is to be delivered again, best at once and to somebody else.
    fn give_back(&mut self) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// How often the broker wants to hear that it is still worked on.
    fn renew_every(&self) -> Option<Duration> {
        None
    }

    /// Tells the broker that it is still worked on.
    fn renew(&self) -> impl Future<Output = Result<(), SourceError>> + Send {
        async { Ok(()) }
    }

    /// Whether there is a place for dead letters. Without one a message is tried for ever.
    fn has_dead_letters(&self) -> bool;

    /// Puts it to the dead letters; done when the broker has confirmed it.
    ///
    /// # Cancel safety
    /// Dropped when it goes on for long after a stop: the message is given back then, and may be at the dead letters all the same.
    fn bury(&self, letter: &DeadLetter<'_>) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// A message that is given up, and why.
#[derive(Debug, Clone)]
pub struct DeadLetter<'a> {
    /// The message.
    pub envelope: &'a Envelope,
    /// What it says about itself in headers, beside those that it had.
    pub headers: Vec<(&'static str, String)>,
}

impl<'a> DeadLetter<'a> {
    pub(crate) fn new(envelope: &'a Envelope, consumer: &ConsumerName, tries: u32, reason: &str) -> Self {
        let at = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let source = envelope.position.as_deref().unwrap_or(&envelope.source);
        let headers = vec![
            (REASON, Summary::new(reason, REASON_MAX_BYTES).to_string()),
            (ATTEMPTS, tries.to_string()),
            (DEAD_AT, at),
            (SOURCE, Summary::new(source, REASON_MAX_BYTES).to_string()),
            (CONSUMER, consumer.to_string()),
        ];
        Self { envelope, headers }
    }

    /// Whether it brings a header of this name: one that the message had before, of an earlier death, gives way.
    pub fn replaces(&self, name: &str) -> bool {
        self.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name))
    }
}

/// What a broker or its client refused.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SourceError {
    what: String,
    #[source]
    cause: Option<Box<dyn Error + Send + Sync>>,
    lost: bool,
}

impl SourceError {
    /// What could not be done, and why.
    pub fn new(what: impl Into<String>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { what: what.into(), cause: Some(cause.into()), lost: false }
    }

    /// What is wrong, where no other error is behind it.
    pub fn of(what: impl Into<String>) -> Self {
        Self { what: what.into(), cause: None, lost: false }
    }

    /// What could not be done since the connection or channel of this message is gone, so that to try again with it is in vain: the message has
    /// to be delivered again, by another. Those behind it in its [lane](Incoming::lane) go on: it is nothing for a source whose
    /// acknowledgements stand for all that came before.
    pub fn lost(what: impl Into<String>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { what: what.into(), cause: Some(cause.into()), lost: true }
    }

    /// Whether it is of no use to try again with the same message.
    pub fn is_lost(&self) -> bool {
        self.lost
    }
}
