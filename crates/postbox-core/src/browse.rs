//! [`Browse`]: the events of one table for people: listed, shown, watched, sent again.

use std::fmt;
use std::future::Future;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::event::{EventId, TenantId};
use crate::json::Json;
use crate::store::StoreError;

/// What has become of an event so far, as the status view derives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventStatus {
    /// Written and never tried.
    New,
    /// In flight.
    Publishing,
    /// Failed, and will be tried again.
    Failed,
    /// Delivered.
    Sent,
    /// Failed for good, until someone replays it.
    Dead,
}

impl EventStatus {
    /// Every status there is.
    pub const ALL: [Self; 5] = [Self::New, Self::Publishing, Self::Failed, Self::Sent, Self::Dead];

    /// The status as users see it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Publishing => "PUBLISHING",
            Self::Failed => "FAILED",
            Self::Sent => "SENT",
            Self::Dead => "DEAD",
        }
    }
}

impl fmt::Display for EventStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for EventStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        Self::ALL.into_iter().find(|status| status.as_str().eq_ignore_ascii_case(text)).ok_or(UnknownStatus)
    }
}

/// A text that is no status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is none of new, publishing, failed, sent, dead")]
pub struct UnknownStatus;

/// Which events: all conditions that are given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EventFilter {
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this tenant.
    pub tenant_id: Option<TenantId>,
    /// Of this aggregate type.
    pub aggregate_type: Option<String>,
    /// Of this aggregate.
    pub aggregate_id: Option<String>,
    /// In this status.
    pub status: Option<EventStatus>,
    /// Whose last error contains this text.
    pub error: Option<String>,
    /// Created at this time or later, by the database's clock.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
}

/// Which way a list goes; always by `sequence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Highest sequence first.
    #[default]
    NewestFirst,
    /// Lowest sequence first.
    OldestFirst,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRequest {
    /// Which events.
    pub filter: EventFilter,
    /// Which way.
    pub direction: Direction,
    /// Go on behind the event with this sequence.
    pub after: Option<i64>,
    /// At most so many.
    pub limit: u32,
    /// Look at no more than about so many events of each kind (waiting, published, dead), from the end that is asked
    /// for; none looks through the whole table. A store that has an index by sequence needs no bound.
    pub depth: Option<u32>,
}

impl Default for ListRequest {
    fn default() -> Self {
        Self {
            filter: EventFilter::default(),
            direction: Direction::default(),
            after: None,
            limit: 50,
            depth: Some(100_000),
        }
    }
}

/// What a list found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Page {
    /// The events, in the order that was asked for.
    pub events: Vec<EventSummary>,
    /// Where the next page starts; none at the end.
    pub next: Option<i64>,
    /// Whether the bound of the search was met: there may be matches that it did not see.
    pub bounded: bool,
}

/// An event without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names are the contract's; see the fields of a record")]
pub struct EventSummary {
    pub event_id: EventId,
    pub sequence: i64,
    pub tenant_id: TenantId,
    pub topic: String,
    pub aggregate_type: Option<String>,
    pub aggregate_id: Option<String>,
    pub status: EventStatus,
    pub attempts: i32,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub available_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub published_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub dead_at: Option<OffsetDateTime>,
    pub last_error: Option<String>,
}

/// Everything that is known of an event.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the names are the contract's; see the fields of a record")]
pub struct EventDetail {
    #[serde(flatten)]
    pub summary: EventSummary,
    /// As the table has them, also where they are no map from text to text.
    pub headers: Option<Json>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub occurred_at: Option<OffsetDateTime>,
    pub schema_id: Option<String>,
    pub schema_version: Option<i32>,
    pub routing_key: Option<String>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub locked_at: Option<OffsetDateTime>,
    pub locked_by: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub dlq_at: Option<OffsetDateTime>,
    pub content_type: Option<String>,
    /// The last failures: time, relay, duration, outcome, error.
    pub attempts_log: Option<Json>,
    pub sinks_done: Option<Vec<String>>,
    /// Only where it was asked for: it may hold what not everybody shall see.
    #[serde(flatten)]
    pub content: Option<Content>,
}

/// What an event carries, as the table has it.
#[derive(Debug, Clone, Serialize)]
pub struct Content {
    /// The payload; `null` where it is bytes.
    pub payload: Json,
    /// The payload where it is bytes, in hexadecimal digits for JSON.
    #[serde(serialize_with = "hex", skip_serializing_if = "Option::is_none")]
    pub payload_raw: Option<Vec<u8>>,
    /// Free JSON of the writer.
    pub metadata: Option<Json>,
}

#[allow(clippy::ref_option, reason = "serde calls it with a reference to the field")]
fn hex<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    use std::fmt::Write as _;
    let digits = bytes.iter().flatten().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    serializer.serialize_str(&digits)
}

/// Published events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Published {
    /// These.
    Events {
        /// Their ids.
        event_ids: Vec<EventId>,
    },
    /// Those that were published in this time, by the database's clock.
    Between {
        /// At this time or later.
        #[serde(with = "time::serde::rfc3339")]
        since: OffsetDateTime,
        /// Before this time.
        #[serde(with = "time::serde::rfc3339")]
        until: OffsetDateTime,
        /// Of this topic.
        #[serde(skip_serializing_if = "Option::is_none")]
        topic: Option<String>,
    },
}

/// The events of one table. Every change is written to the audit log with the name of who made it.
///
/// # Errors
/// When the table is missing or the database fails; [`StoreError::kind`] tells whether the same again may work.
///
/// # Cancel safety
/// What only reads may be dropped at any time. A change that is dropped was made as a whole, or not at all.
pub trait Browse: Send + Sync {
    /// The time by the database's clock, which all times of events are taken from.
    fn now(&self) -> impl Future<Output = Result<OffsetDateTime, StoreError>> + Send;

    /// A page of events, in the order of their sequence.
    fn list(&self, request: &ListRequest) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Everything about an event; its content only on request.
    fn show(
        &self,
        event: EventId,
        with_content: bool,
    ) -> impl Future<Output = Result<Option<EventDetail>, StoreError>> + Send;

    /// What has become of these events; those that are gone are left out. At most some thousands at a time.
    fn statuses(
        &self,
        events: &[EventId],
    ) -> impl Future<Output = Result<Vec<(EventId, EventStatus)>, StoreError>> + Send;

    /// How many published events are meant.
    fn count_published(&self, which: &Published) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Has published events delivered once more, oldest first, at most `limit` of them in one transaction; answers
    /// which. They keep their `event_id` and `sequence`. Call it again until it answers none.
    fn replay_published(
        &self,
        which: &Published,
        limit: u32,
        who: &str,
    ) -> impl Future<Output = Result<Vec<EventId>, StoreError>> + Send;

    /// Has these events tried at once that have failed and wait for their next attempt, in one transaction; answers which
    /// did. They keep the attempts that they have used, and what a relay has in hand is left alone.
    fn retry_now(
        &self,
        events: &[EventId],
        who: &str,
    ) -> impl Future<Output = Result<Vec<EventId>, StoreError>> + Send;

    /// Gives these dead events all their attempts again, in one transaction; answers which were dead.
    fn replay_dead(
        &self,
        events: &[EventId],
        who: &str,
    ) -> impl Future<Output = Result<Vec<EventId>, StoreError>> + Send;

    /// Deletes these dead events, for good, in one transaction; answers which were dead. On PostgreSQL those that somebody has
    /// locked are left alone.
    fn discard_dead(
        &self,
        events: &[EventId],
        who: &str,
    ) -> impl Future<Output = Result<Vec<EventId>, StoreError>> + Send;
}

#[cfg(test)]
mod tests {
    use super::EventStatus;

    #[test]
    fn a_status_is_read_as_it_is_written_in_any_case() {
        for status in EventStatus::ALL {
            assert_eq!(status.as_str().to_lowercase().parse(), Ok(status));
            assert_eq!(serde_json::to_string(&status).unwrap(), format!("\"{status}\""));
        }
        assert!("lost".parse::<EventStatus>().is_err());
    }
}
