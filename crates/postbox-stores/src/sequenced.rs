//! What stores have in common whose rows are found by their sequence.

#[cfg(feature = "sqlite")]
use std::fmt::Write as _;
use std::time::Duration;

use postbox_core::EventId;
use postbox_core::dispatcher::Delivery;
use postbox_core::redact::Summary;
use postbox_core::store::{Claim, Claimed, Lease, Settlement, Token, Undecodable, Verdict};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::clock::{from_micros, span};

/// A thousand years: added to a time, it is still one.
pub(crate) const MAX_WAIT: i64 = 1000 * 366 * 86_400 * 1_000_000;

/// Where a batch has more claims than this, all rows are settled by one statement that names each of them.
const FEW: usize = 4;

/// A row's key as leases carry it: rows are found by their sequence, so `id` needs no index.
pub(crate) fn key_of(sequence: i64) -> Uuid {
    Uuid::from_u128(u128::from(sequence.cast_unsigned()))
}

/// And back.
pub(crate) fn sequence_of(key: Uuid) -> i64 {
    key.as_u64_pair().1.cast_signed()
}

/// The proof that a row was claimed.
pub(crate) fn lease(sequence: i64, token: &Token, at: i64, attempts: i64) -> Lease {
    let attempts = i32::try_from(attempts).unwrap_or(i32::MAX);
    Lease { row: key_of(sequence), attempts, token: token.clone(), since: from_micros(at) }
}

/// Numbers as a JSON array, for SQL.
#[cfg(feature = "sqlite")]
pub(crate) fn array(numbers: impl Iterator<Item = i64>) -> String {
    let mut text = String::from("[");
    for number in numbers {
        let _ = write!(text, "{}{number}", if text.len() > 1 { "," } else { "" });
    }
    text.push(']');
    text
}

/// What a row carries, before it is leased.
pub(crate) struct Content {
    pub(crate) sequence: i64,
    /// Since when it could have been delivered.
    pub(crate) due: i64,
    pub(crate) what: Result<Delivery, Unreadable>,
    pub(crate) sinks_done: Vec<String>,
}

/// What can be said of a row that is no event.
pub(crate) struct Unreadable {
    pub(crate) topic: String,
    pub(crate) event_id: EventId,
    pub(crate) reason: String,
}

impl Content {
    /// Hands the row over once it is leased.
    pub(crate) fn leased(
        self,
        token: &Token,
        at: i64,
        attempts: i64,
        strand: Option<i64>,
        claim: &mut Claim,
    ) {
        let lease = lease(self.sequence, token, at, attempts);
        let attempts = lease.attempts;
        match self.what {
            Ok(mut delivery) => {
                delivery.meta.attempts = attempts;
                let age = Duration::from_micros(u64::try_from(at.saturating_sub(self.due)).unwrap_or(0));
                let sinks_done = self.sinks_done;
                claim.rows.push(Claimed { lease, delivery: Box::new(delivery), age, strand, sinks_done });
            }
            Err(Unreadable { topic, event_id, reason }) => {
                claim.undecodable.push(Undecodable { lease, topic, event_id, reason });
            }
        }
    }

    /// The row as a letter once it is leased.
    pub(crate) fn letter(self, token: &Token, at: i64, attempts: i64) -> (Lease, Option<Delivery>) {
        let lease = lease(self.sequence, token, at, attempts);
        let delivery = self.what.ok().map(|mut delivery| {
            delivery.meta.attempts = lease.attempts;
            delivery
        });
        (lease, delivery)
    }
}

/// The rows of each claim, if everything arrived and the claims are few: a lease of each, and the sequences.
pub(crate) fn claims_of(settlements: &[Settlement]) -> Option<Vec<(&Lease, Vec<i64>)>> {
    let mut claims: Vec<(&Lease, Vec<i64>)> = Vec::new();
    for Settlement { lease, verdict, .. } in settlements {
        if *verdict != Verdict::Delivered {
            return None;
        }
        let same =
            |(other, _): &(&Lease, Vec<i64>)| other.attempts == lease.attempts && other.token == lease.token;
        // The latest is the likeliest.
        match claims.iter().rposition(same) {
            Some(place) => claims[place].1.push(sequence_of(lease.row)),
            None if claims.len() == FEW => return None,
            None => claims.push((lease, vec![sequence_of(lease.row)])),
        }
    }
    Some(claims)
}

/// Leases for SQL: `[sequence, token, attempts]` each.
pub(crate) fn fence<'a>(leases: impl Iterator<Item = &'a Lease>) -> String {
    let one = |lease: &Lease| json!([sequence_of(lease.row), &*lease.token, lease.attempts]);
    leases.map(one).collect::<Value>().to_string()
}

/// A settlement for SQL: `[sequence, token, attempts, verdict, microseconds to wait, last_error, failure, sinks]`, verdicts
/// 0 delivered, 1 retry, 2 release, 3 dead. A failure, which is JSON text, is of this time.
pub(crate) fn verdict(settlement: &Settlement, at: OffsetDateTime) -> Value {
    let (number, wait, error) = match &settlement.verdict {
        Verdict::Delivered => (0, None, None),
        Verdict::Retry { after, reason } => (1, Some(*after), Some(reason.as_str())),
        Verdict::Release { after, reason } => (2, *after, reason.as_ref().map(Summary::as_str)),
        Verdict::Dead { reason } => (3, None, Some(reason.as_str())),
    };
    let failure =
        settlement.failure.as_ref().and_then(|failure| serde_json::to_value(failure).ok()).map(|line| {
            let mut line = line;
            line["at"] = at.format(&Rfc3339).unwrap_or_default().into();
            line.to_string()
        });
    let lease = &settlement.lease;
    let names: Vec<&str> = settlement.sinks_done.iter().map(|name| &**name).collect();
    json!([
        sequence_of(lease.row),
        &*lease.token,
        lease.attempts,
        number,
        wait.map(|wait| span(wait).min(MAX_WAIT)),
        error,
        failure,
        (!settlement.sinks_done.is_empty()).then(|| json!(names).to_string())
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sequences_are_one() {
        for sequence in [0, 1, 7_000_000_000, i64::MAX, -1] {
            assert_eq!(sequence_of(key_of(sequence)), sequence);
        }
    }
}
