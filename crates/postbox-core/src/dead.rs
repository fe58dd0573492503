//! [`DeadLetters`]: what died, why, and how it comes back.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use crate::event::{EventId, TenantId};
use crate::store::StoreError;

/// Which dead events: all conditions that are given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeadFilter {
    /// Of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Of this aggregate type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_type: Option<String>,
    /// Of the aggregate with this id, of whatever type if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<String>,
    /// Of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<TenantId>,
    /// Dead for at least so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than: Option<Duration>,
    /// Dead for at most so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newer_than: Option<Duration>,
    /// Whose last error contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of this cause (see [`DeadLetters::causes`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A dead event, without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names are the contract's; see the fields of a record")]
pub struct DeadEvent {
    pub event_id: EventId,
    pub tenant_id: TenantId,
    pub topic: String,
    pub aggregate_type: Option<String>,
    pub aggregate_id: Option<String>,
    pub sequence: i64,
    pub attempts: i32,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub dead_at: OffsetDateTime,
    pub last_error: Option<String>,
}

/// Dead events that died of the same thing: their errors differ only in numbers and ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadCause {
    /// The error with numbers and ids replaced; usable in [`DeadFilter::cause`].
    pub cause: String,
    /// The error of one of them, as it is.
    pub example: String,
    /// The topic.
    pub topic: String,
    /// How many.
    pub events: u64,
    /// When the first of them died.
    #[serde(with = "time::serde::rfc3339")]
    pub first: OffsetDateTime,
    /// When the last of them died.
    #[serde(with = "time::serde::rfc3339")]
    pub last: OffsetDateTime,
}

/// The dead events of one table. Every change is written to the audit log with the name of who made it.
///
/// # Errors
/// When the table is missing or the database fails; [`StoreError::kind`] tells whether the same again may work.
///
/// # Cancel safety
/// What only reads may be dropped at any time. Of a change that is dropped, each transaction was committed as a whole, or not at all;
/// those before it stay.
pub trait DeadLetters: Send + Sync {
    /// Dead events that match, oldest first.
    fn query(
        &self,
        filter: &DeadFilter,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<DeadEvent>, StoreError>> + Send;

    /// How many match.
    fn count(&self, filter: &DeadFilter) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Dead events by cause, the most frequent first.
    fn causes(&self, filter: &DeadFilter) -> impl Future<Output = Result<Vec<DeadCause>, StoreError>> + Send;

    /// Gives one dead event all its attempts again; answers whether there was one.
    fn replay(&self, event: EventId, who: &str) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Replays what matches, `batch` rows per transaction, oldest first; answers how many.
    fn replay_all(
        &self,
        filter: &DeadFilter,
        batch: u32,
        who: &str,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes what matches, for good; answers how many.
    fn discard(&self, filter: &DeadFilter, who: &str)
    -> impl Future<Output = Result<u64, StoreError>> + Send;
}
