//! [`Inspect`]: what a table holds, counted without hurting it.

use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;

use crate::store::StoreError;

/// What a table holds. Counts are exact up to a bound and estimates beyond it.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct TableCounts {
    /// Events that wait for delivery: due, or backing off after a failure.
    pub pending: u64,
    /// Of these, in flight.
    pub locked: u64,
    /// Dead events.
    pub dead: u64,
    /// Events scheduled for later and never tried.
    pub scheduled: u64,
    /// Aggregates that wait behind a dead event.
    pub blocked: u64,
    /// How long the oldest pending event has been due.
    #[serde(serialize_with = "as_seconds", rename = "oldest_pending_age_seconds")]
    pub oldest_pending_age: Duration,
    /// How many events were published per second, of late; none where finding out would be dear.
    pub published_per_second: Option<f64>,
    /// Whether a count reached its bound and is an estimate.
    pub estimated: bool,
}

fn as_seconds<S: serde::Serializer>(duration: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64(duration.as_secs_f64())
}

/// Who works on a table, and whether it is paused.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableRelay {
    /// The active relay, if one lives.
    pub leader: Option<String>,
    /// How often the active relay has changed.
    pub epoch: i64,
    /// The claim strategy in use.
    pub strategy: Option<String>,
    /// Since when the table is paused.
    #[serde(with = "time::serde::rfc3339::option")]
    pub paused_at: Option<OffsetDateTime>,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// Why.
    pub paused_reason: Option<String>,
}

/// Reads the state of a table.
///
/// # Errors
/// When the table is missing or the database fails; [`StoreError::kind`] tells whether the same again may work.
///
/// # Cancel safety
/// Only reads; may be dropped at any time.
pub trait Inspect: Send + Sync {
    /// Counts what the table holds; bounded work whatever its size.
    fn counts(&self) -> impl Future<Output = Result<TableCounts, StoreError>> + Send;

    /// Who works on it.
    fn relay(&self) -> impl Future<Output = Result<TableRelay, StoreError>> + Send;

    /// How long the oldest transaction has been open that keeps the database from cleaning up behind the relay, as far as its user may see;
    /// none where no transaction does so, or the database does not tell. Zero when none is open.
    fn oldest_transaction(&self) -> impl Future<Output = Result<Option<Duration>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }
}
