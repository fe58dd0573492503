//! [`Survey`]: what dashboards want to know of a table beyond its counts, and what operators did to it.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use crate::event::{EventId, TenantId};
use crate::json::Json;
use crate::store::StoreError;

/// What has gone through a table of late.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recent {
    /// How long the latest published events took, from due (created or available, the later) to published, the latest first.
    /// None where nothing is kept that was published, or where finding out would be dear.
    pub lags: Vec<Duration>,
    /// A number that rises by one with every event that is written, also with what is rolled back; unknown where it may not be
    /// read.
    pub written: Option<i64>,
}

/// An aggregate whose events wait behind a dead one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names are the contract's; see the fields of a record")]
pub struct BlockedAggregate {
    pub tenant_id: TenantId,
    pub aggregate_type: Option<String>,
    pub aggregate_id: Option<String>,
    /// How many of its events wait; counted up to [`MOST_WAITING`].
    pub waiting: u64,
    /// The dead event that they wait for.
    pub event_id: EventId,
    pub sequence: i64,
    pub topic: String,
    #[serde(with = "time::serde::rfc3339")]
    pub dead_at: OffsetDateTime,
    pub last_error: Option<String>,
}

/// What waits in one aggregate is counted up to here.
pub const MOST_WAITING: u32 = 1_000;

/// What somebody did to a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// Its number in the log.
    pub id: i64,
    /// When, by the database's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Who.
    pub who: String,
    /// What: `pause`, `replay`, `discard`, …
    pub action: String,
    /// To which events, or why, as JSON.
    pub what: Json,
    /// To how many.
    pub events: i64,
}

/// Looks at a table as a whole, and at its audit log.
///
/// # Errors
/// When the table is missing or the database fails; [`StoreError::kind`] tells whether the same again may work.
///
/// # Cancel safety
/// What only reads may be dropped at any time. A [`note`](Self::note) that is dropped was written or not.
pub trait Survey: Send + Sync {
    /// What was published within so long, at most `limit` events; bounded work whatever the table's size.
    fn recent(&self, within: Duration, limit: u32)
    -> impl Future<Output = Result<Recent, StoreError>> + Send;

    /// Aggregates with events that wait behind a dead one, the oldest first; none where the table has no order, so that
    /// nothing can wait for another.
    fn blocked(
        &self,
        limit: u32,
    ) -> impl Future<Output = Result<Option<Vec<BlockedAggregate>>, StoreError>> + Send;

    /// What was done to the table, the latest first, before the entry with this number.
    ///
    /// A bare table has no log: that is an error.
    fn audit_log(
        &self,
        before: Option<i64>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<AuditEntry>, StoreError>> + Send;

    /// Writes down what somebody did that changed no event. A bare table has no place for it: then the log has to do.
    fn note(
        &self,
        who: &str,
        action: &str,
        what: &serde_json::Value,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
