//! Dead events on their way to the dead-letter route, and those that are tried again by themselves: what stores have in common that
//! read by sequence.

use std::time::Duration;

use postbox_core::letter::{LetterRequest, LetterVerdict, Redrive};
use postbox_core::store::Lease;
use serde_json::{Value, json};

use crate::clock::span;
use crate::sequenced::{MAX_WAIT, sequence_of};

/// So many dead rows are looked at by one statement.
pub(crate) const PAGE: i64 = 500;

/// What may have killed its relay waits for so long at least.
pub(crate) const SUSPECT_WAIT: Duration = Duration::from_mins(1);

/// Which letters to lease of those that were found, which are a sequence, whether its lease ran out, and its bytes: one whose lease
/// ran out alone, else as many as were asked for.
pub(crate) fn chosen(found: &[(i64, bool, i64)], request: &LetterRequest) -> Vec<i64> {
    if let Some((sequence, true, _)) = found.first() {
        return vec![*sequence];
    }
    let (mut chosen, mut bytes) = (Vec::new(), 0_usize);
    for (sequence, _, size) in found.iter().filter(|(_, suspect, _)| !suspect) {
        if chosen.len() >= request.limit || (!chosen.is_empty() && bytes >= request.max_bytes) {
            break;
        }
        bytes = bytes.saturating_add(usize::try_from(*size).unwrap_or(usize::MAX));
        chosen.push(*sequence);
    }
    chosen
}

/// What became of letters, for SQL: `[sequence, token, microseconds to wait]` each, none for one that was sent.
pub(crate) fn verdicts<'a>(letters: impl IntoIterator<Item = &'a (Lease, LetterVerdict)>) -> String {
    let one = |(lease, verdict): &(Lease, LetterVerdict)| {
        let wait = match verdict {
            LetterVerdict::Sent => None,
            LetterVerdict::Later(after) => Some(span(*after).min(MAX_WAIT)),
        };
        json!([sequence_of(lease.row), &*lease.token, wait])
    };
    letters.into_iter().map(one).collect::<Value>().to_string()
}

/// What the audit log says of a redrive.
pub(crate) fn described(request: &Redrive) -> String {
    json!({ "dead_for_seconds": request.after.as_secs_f64(), "at_most": request.most }).to_string()
}
