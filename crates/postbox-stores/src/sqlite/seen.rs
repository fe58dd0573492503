//! [`Seen`]: what a look at the table says of a row, where order is kept; topics and aggregates become numbers.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::lease::Candidate;

/// A row that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) sequence: i64,
    pub(super) available_at: i64,
    pub(super) attempts: i64,
    /// Its lease ran out.
    pub(super) expired: bool,
    pub(super) bytes: usize,
    /// A number for its topic.
    pub(super) topic: u64,
    /// The number of its strand; one without an aggregate has a strand of its own.
    pub(super) strand: i64,
    /// Whether it has an aggregate.
    pub(super) bound: bool,
}

/// What a look at the table says of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) row: Row,
    /// Somebody has it.
    pub(super) locked: bool,
    /// It does not wait, but may hold back those that do.
    pub(super) dead: bool,
}

/// A number for some text, the same in every claim.
pub(super) fn number(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The number of a topic, as the table tells it.
pub(super) fn topic_number(topic: &str) -> u64 {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(topic.len() * 2);
    for byte in topic.bytes() {
        let _ = write!(hex, "{byte:02X}");
    }
    number(&hex)
}

impl Row {
    /// The same for those who lease it.
    pub(super) fn candidate(&self, suspect: bool) -> Candidate {
        let Self { sequence, available_at, attempts, bytes, .. } = *self;
        Candidate { sequence, available_at, attempts, suspect, bytes }
    }
}

impl Seen {
    /// Reads the answer of `ahead.sql`.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let mut next = || parts.next()?.parse::<i64>().ok();
        let (sequence, available_at, attempts) = (next()?, next()?, next()?);
        let (lock, bytes, dead) = (next()?, usize::try_from(next()?).ok()?, next()? != 0);
        let (topic, aggregate) = (parts.next()?, parts.next()?);
        let bound = aggregate != "-";
        // Two strands with one number are only slower; those of single rows are below zero.
        let strand = if bound { (number(aggregate) >> 1).cast_signed() } else { sequence.saturating_neg() };
        let (expired, topic) = (lock == 1, number(topic));
        let row = Row { sequence, available_at, attempts, expired, bytes, topic, strand, bound };
        Some(Self { row, locked: lock == 2, dead })
    }
}
