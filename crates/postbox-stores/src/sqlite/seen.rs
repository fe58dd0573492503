//! What a look at the table answers, which is one text: each row of an answer costs more than to find it.

use crate::left_out::Lane;
use crate::seen::{Candidate, Row, Seen, names, number, strand};

/// The number of a topic, as the table tells it.
pub(super) fn topic_number(topic: &str) -> u64 {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(topic.len() * 2);
    for byte in topic.bytes() {
        let _ = write!(hex, "{byte:02X}");
    }
    number(hex.as_str())
}

/// Reads a row of the answer of `pick.sql`.
pub(super) fn candidate(text: &str) -> Option<Candidate> {
    let mut numbers = text.split(' ').map(str::parse::<i64>);
    let mut next = || numbers.next()?.ok();
    let (sequence, available_at, attempts) = (next()?, next()?, next()?);
    let (suspect, bytes) = (next()? != 0, usize::try_from(next()?).ok()?);
    Some(Candidate { sequence, available_at, attempts, suspect, bytes })
}

/// Reads a row of the answer of `ahead.sql`.
pub(super) fn seen(text: &str) -> Option<Seen> {
    let mut parts = text.split(' ');
    let mut next = || parts.next()?.parse::<i64>().ok();
    let (sequence, available_at, attempts) = (next()?, next()?, next()?);
    let (lock, bytes, dead) = (next()?, usize::try_from(next()?).ok()?, next()? != 0);
    let (topic, aggregate, done) = (parts.next()?, parts.next()?, parts.next()?);
    let bound = aggregate != "-";
    let strand = strand(bound.then(|| number(aggregate)), sequence);
    let (expired, lane) = (lock == 1, Lane { topic: number(topic), done: 0 });
    let row = Row { sequence, available_at, attempts, expired, bytes, lane, strand, bound };
    let done = if done == "-" { Vec::new() } else { names(&text_of(done).unwrap_or_default()) };
    Some(Seen { row, locked: lock == 2, dead, done })
}

/// The text of its bytes in hex.
fn text_of(hex: &str) -> Option<String> {
    let byte = |place| u8::from_str_radix(hex.get(place..place + 2)?, 16).ok();
    String::from_utf8((0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?).ok()
}
