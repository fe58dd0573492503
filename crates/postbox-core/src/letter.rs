//! What the engine asks of a store about dead events: to deliver them to the dead-letter route, and to try them again.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use crate::dispatcher::Delivery;
use crate::redact::Summary;
use crate::store::Lease;

/// What a relay is going to ask of its store beyond delivery to one sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Requirements {
    /// Remembers which of several sinks have confirmed an event (`sinks_done`).
    pub fan_out: bool,
    /// Delivers dead events to the dead-letter route (`dlq_at`).
    pub dead_letters: bool,
    /// Replays dead events by itself (`redrives`).
    pub redrive: bool,
}

impl Requirements {
    /// The first thing that is wanted, in words.
    pub fn first(self) -> Option<&'static str> {
        [
            (self.fan_out, "fan-out, a route to several sinks"),
            (self.dead_letters, "a dead-letter route"),
            (self.redrive, "redrive_after"),
        ]
        .into_iter()
        .find_map(|(wanted, what)| wanted.then_some(what))
    }
}

/// Which dead events to lease for the dead-letter route.
#[derive(Debug, Clone)]
pub struct LetterRequest {
    /// At most so many.
    pub limit: usize,
    /// At most so many bytes of payload, except that one is always allowed.
    pub max_bytes: usize,
    /// How long a lease lasts. One that ran out is leased again, alone, and first put off by as long as its event has been
    /// dead (a minute at least, an hour at most): should it kill every relay that sends it, it does so ever more seldom.
    pub lock_ttl: Duration,
}

/// A dead event that is leased for the dead-letter route.
#[derive(Debug)]
pub struct Letter {
    /// The fence for its settlement.
    pub lease: Lease,
    /// What to deliver, as it was written; none if the row cannot be read as an event.
    pub delivery: Option<Delivery>,
    /// When it died.
    pub dead_at: OffsetDateTime,
    /// For how long it has been dead, by the database's clock.
    pub dead_for: Duration,
    /// Why.
    pub last_error: Option<String>,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LetterVerdict {
    /// It arrived: `dlq_at`.
    Sent,
    /// It is sent again after so long. Nothing else about the row changes.
    Later(Duration),
}

/// Which dead events are replayed by themselves.
#[derive(Debug, Clone)]
pub struct Redrive {
    /// Dead for so long.
    pub after: Duration,
    /// Replayed in this way fewer times than this.
    pub most: i32,
    /// A lease that a dead-letter delivery has on them runs out after this: those that are under way are left alone.
    pub lock_ttl: Duration,
    /// Who does it, for the audit log.
    pub who: Arc<str>,
}

/// Why an event died, as headers of its message to the dead-letter route.
pub(crate) fn explain(delivery: &mut Delivery, reason: Option<&str>, dead_at: OffsetDateTime) {
    let at = dead_at.to_offset(time::UtcOffset::UTC);
    let at = at.format(&time::format_description::well_known::Rfc3339).unwrap_or_default();
    let attempts = delivery.meta.attempts.to_string();
    let reason = reason.map(|reason| Summary::new(reason, REASON_MAX_BYTES).to_string());
    let headers = &mut delivery.meta.headers;
    headers.insert(REASON.to_owned(), reason.unwrap_or_default());
    headers.insert(ATTEMPTS.to_owned(), attempts);
    headers.insert(DEAD_AT.to_owned(), at);
    headers.insert(TABLE.to_owned(), delivery.meta.table.to_string());
}

/// The header with the last error.
pub const REASON: &str = "postbox-dead-reason";
/// The header with the number of attempts that it had.
pub const ATTEMPTS: &str = "postbox-dead-attempts";
/// The header with the time of its death, RFC 3339 in UTC.
pub const DEAD_AT: &str = "postbox-dead-at";
/// The header with the table that it is in.
pub const TABLE: &str = "postbox-dead-table";

/// Headers are to stay small, whatever `last_error_max_bytes` allows.
const REASON_MAX_BYTES: usize = 1024;
