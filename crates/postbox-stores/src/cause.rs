//! What dead events died of, where the database has no regular expressions to tell.

use std::collections::HashMap;

use postbox_core::{DeadCause, DeadFilter};
use time::OffsetDateTime;

/// An error without what differs from event to event: UUIDs and numbers.
fn cause_of(error: &str) -> String {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    let is_uuid = |bytes: &[u8]| {
        let right = |(place, byte): (usize, &u8)| {
            if HYPHENS.contains(&place) { *byte == b'-' } else { byte.is_ascii_hexdigit() }
        };
        bytes.len() == 36 && bytes.iter().enumerate().all(right)
    };
    let mut cause = String::with_capacity(error.len());
    let mut rest = error;
    while let Some(first) = rest.chars().next() {
        let bytes = rest.as_bytes();
        let skip = if bytes.get(..36).is_some_and(is_uuid) {
            36
        } else {
            bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
        };
        if skip > 0 {
            cause.push('#');
            rest = &rest[skip..];
        } else {
            cause.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    cause
}

/// Whether an error is of the cause that is asked for.
pub(crate) fn has_cause(filter: &DeadFilter, error: Option<&str>) -> bool {
    filter.cause.as_ref().is_none_or(|cause| *cause == cause_of(error.unwrap_or_default()))
}

/// So many causes are told of.
const MOST: usize = 1000;

/// What dead events died of, as they are walked over, the oldest first.
#[derive(Default)]
pub(crate) struct Causes(HashMap<(String, String), DeadCause>);

impl Causes {
    /// Takes in one more event.
    pub(crate) fn add(&mut self, topic: &str, error: &str, at: OffsetDateTime) {
        let cause = cause_of(error);
        let new = || DeadCause {
            cause: cause.clone(),
            example: error.to_owned(),
            topic: topic.to_owned(),
            events: 0,
            first: at,
            last: at,
        };
        let known = self.0.entry((cause.clone(), topic.to_owned())).or_insert_with(new);
        known.events += 1;
        known.last = at;
    }

    /// The most frequent first.
    pub(crate) fn ranked(self) -> Vec<DeadCause> {
        let mut causes: Vec<DeadCause> = self.0.into_values().collect();
        causes.sort_unstable_by(|a, b| {
            b.events.cmp(&a.events).then_with(|| (&a.cause, &a.topic).cmp(&(&b.cause, &b.topic)))
        });
        causes.truncate(MOST);
        causes
    }
}

#[cfg(test)]
mod tests {
    use super::cause_of;

    #[test]
    fn a_cause_is_an_error_without_numbers_and_ids() {
        for (error, cause) in [
            ("", ""),
            ("HTTP 503 after 12ms", "HTTP # after #ms"),
            ("order 0190b0c0-0000-7000-8000-00000000000F is gone", "order # is gone"),
            ("ax0190b0c0-0000-7000-8000-000000000001", "ax#"),
            ("Zoë 1ü2", "Zoë #ü#"),
            ("0190b0c0-0000", "#b#c#-#"),
        ] {
            assert_eq!(cause_of(error), cause);
        }
    }
}
