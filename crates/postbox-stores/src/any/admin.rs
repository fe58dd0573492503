//! [`AnyAdmin`]: an operator's table in any of the databases.

use std::time::Duration;

use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept, Tidied};
use postbox_core::{
    AuditEntry, BlockedAggregate, Browse, DeadCause, DeadEvent, DeadFilter, DeadLetters, Diagnose,
    EventDetail, EventId, EventStatus, Examination, Finding, Flow, InboxAdmin, InboxFilter, InboxPage,
    InboxRequest, Inspect, Layout, ListRequest, Page, Published, Recent, StoreError, Survey, TableCounts,
    TableRelay,
};
use time::OffsetDateTime;

use crate::mysql::MySqlAdmin;
use crate::postgres::PgAdmin;
use crate::postgres::migrate::Ordered;
use crate::sqlite::SqliteAdmin;

/// An outbox table for people who look after it. Cheap to clone.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub enum AnyAdmin {
    Postgres(Box<PgAdmin>),
    Sqlite(SqliteAdmin),
    MySql(MySqlAdmin),
}

/// The same for every database.
macro_rules! each {
    // Boxed, or the largest of them would make all others large.
    ($self:ident, $admin:ident => async $answer:expr) => {
        match $self {
            Self::Postgres($admin) => $answer.await,
            Self::Sqlite($admin) => $answer.await,
            Self::MySql($admin) => Box::pin($answer).await,
        }
    };
    ($self:ident, $admin:ident => $answer:expr) => {
        match $self {
            Self::Postgres($admin) => $answer,
            Self::Sqlite($admin) => $answer,
            Self::MySql($admin) => $answer,
        }
    };
}

impl AnyAdmin {
    /// No statement takes longer than this on a server that can be told so in time: for dashboards, which must not hurt the
    /// table.
    #[must_use]
    pub fn statement_timeout(self, limit: Duration) -> Self {
        match self {
            Self::Postgres(admin) => Self::Postgres(Box::new(admin.statement_timeout(limit))),
            other @ (Self::Sqlite(_) | Self::MySql(_)) => other,
        }
    }

    /// Which columns the table has.
    ///
    /// # Errors
    /// When the table is missing or of another shape.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn layout(&self) -> Result<Layout, StoreError> {
        each!(self, admin => async admin.layout())
    }

    /// Whether the table has a history that published events can be moved to.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    ///
    /// # Cancel safety
    /// As [`layout`](Self::layout).
    pub async fn has_history(&self) -> Result<bool, StoreError> {
        each!(self, admin => async admin.has_history())
    }

    /// What the table has for delivery in order; none where every table has it, since there is one writer at a time.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    ///
    /// # Cancel safety
    /// As [`layout`](Self::layout).
    pub async fn ordered(&self) -> Result<Option<Ordered>, StoreError> {
        match self {
            Self::Postgres(admin) => admin.ordered().await.map(Some),
            Self::Sqlite(_) => Ok(None),
            Self::MySql(admin) => {
                let indexed = admin.ordered().await?;
                Ok(Some(if indexed { Ordered::Index } else { Ordered::AsItIs }))
            }
        }
    }

    /// Stops delivery of the table, in every relay, until [`resume`](Self::resume). Answers whether it was running.
    ///
    /// # Errors
    /// When the table is bare, or the database fails.
    ///
    /// # Cancel safety
    /// Dropped, both the change and its entry in the audit log are there, or neither is. It can be repeated.
    pub async fn pause(&self, who: &str, reason: &str) -> Result<bool, StoreError> {
        each!(self, admin => async admin.pause(who, reason))
    }

    /// Starts delivery again. Answers whether it was paused.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    /// As [`pause`](Self::pause).
    pub async fn resume(&self, who: &str) -> Result<bool, StoreError> {
        each!(self, admin => async admin.resume(who))
    }
}

impl Inspect for AnyAdmin {
    async fn counts(&self) -> Result<TableCounts, StoreError> {
        each!(self, admin => async admin.counts())
    }

    async fn relay(&self) -> Result<TableRelay, StoreError> {
        each!(self, admin => async admin.relay())
    }

    async fn oldest_transaction(&self) -> Result<Option<Duration>, StoreError> {
        each!(self, admin => async admin.oldest_transaction())
    }
}

impl Survey for AnyAdmin {
    async fn recent(&self, within: Duration, limit: u32) -> Result<Recent, StoreError> {
        each!(self, admin => async admin.recent(within, limit))
    }

    async fn blocked(&self, limit: u32) -> Result<Option<Vec<BlockedAggregate>>, StoreError> {
        each!(self, admin => async admin.blocked(limit))
    }

    async fn audit_log(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        each!(self, admin => async admin.audit_log(before, limit))
    }

    async fn note(&self, who: &str, action: &str, what: &serde_json::Value) -> Result<(), StoreError> {
        each!(self, admin => async admin.note(who, action, what))
    }
}

impl Sweep for AnyAdmin {
    fn table(&self) -> &str {
        match self {
            Self::Postgres(admin) => Sweep::table(admin.as_ref()),
            Self::Sqlite(admin) => Sweep::table(admin),
            Self::MySql(admin) => Sweep::table(admin),
        }
    }

    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        each!(self, admin => async admin.sweep(request))
    }

    async fn sweep_inbox(&self, retention: Duration, batch: u32) -> Result<Swept, StoreError> {
        each!(self, admin => async admin.sweep_inbox(retention, batch))
    }

    async fn tidy(&self) -> Result<Tidied, StoreError> {
        each!(self, admin => async admin.tidy())
    }
}

impl SweepCount for AnyAdmin {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        each!(self, admin => async admin.due(request))
    }
}

impl Diagnose for AnyAdmin {
    async fn diagnose(&self, examination: Examination) -> Vec<Finding> {
        each!(self, admin => async admin.diagnose(examination))
    }

    async fn flow(&self) -> Result<Flow, StoreError> {
        each!(self, admin => async admin.flow())
    }
}

impl InboxAdmin for AnyAdmin {
    async fn has_inbox(&self) -> Result<bool, StoreError> {
        each!(self, admin => async admin.has_inbox())
    }

    async fn inbox_list(&self, request: &InboxRequest) -> Result<InboxPage, StoreError> {
        each!(self, admin => async admin.inbox_list(request))
    }

    async fn inbox_count(&self, filter: &InboxFilter) -> Result<u64, StoreError> {
        each!(self, admin => async admin.inbox_count(filter))
    }

    async fn inbox_forget(&self, filter: &InboxFilter, who: &str) -> Result<u64, StoreError> {
        each!(self, admin => async admin.inbox_forget(filter, who))
    }
}

impl DeadLetters for AnyAdmin {
    async fn query(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadEvent>, StoreError> {
        each!(self, admin => async admin.query(filter, limit))
    }

    async fn count(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        each!(self, admin => async admin.count(filter))
    }

    async fn causes(&self, filter: &DeadFilter) -> Result<Vec<DeadCause>, StoreError> {
        each!(self, admin => async admin.causes(filter))
    }

    async fn replay(&self, event: EventId, who: &str) -> Result<bool, StoreError> {
        each!(self, admin => async admin.replay(event, who))
    }

    async fn replay_all(&self, filter: &DeadFilter, batch: u32, who: &str) -> Result<u64, StoreError> {
        each!(self, admin => async admin.replay_all(filter, batch, who))
    }

    async fn discard(&self, filter: &DeadFilter, who: &str) -> Result<u64, StoreError> {
        each!(self, admin => async admin.discard(filter, who))
    }
}

impl Browse for AnyAdmin {
    async fn now(&self) -> Result<OffsetDateTime, StoreError> {
        each!(self, admin => async admin.now())
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, StoreError> {
        each!(self, admin => async admin.list(request))
    }

    async fn show(&self, event: EventId, with_content: bool) -> Result<Option<EventDetail>, StoreError> {
        each!(self, admin => async admin.show(event, with_content))
    }

    async fn statuses(&self, events: &[EventId]) -> Result<Vec<(EventId, EventStatus)>, StoreError> {
        each!(self, admin => async admin.statuses(events))
    }

    async fn count_published(&self, which: &Published) -> Result<u64, StoreError> {
        each!(self, admin => async admin.count_published(which))
    }

    async fn replay_published(
        &self,
        which: &Published,
        limit: u32,
        who: &str,
    ) -> Result<Vec<EventId>, StoreError> {
        each!(self, admin => async admin.replay_published(which, limit, who))
    }

    async fn retry_now(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        each!(self, admin => async admin.retry_now(events, who))
    }

    async fn replay_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        each!(self, admin => async admin.replay_dead(events, who))
    }

    async fn discard_dead(&self, events: &[EventId], who: &str) -> Result<Vec<EventId>, StoreError> {
        each!(self, admin => async admin.discard_dead(events, who))
    }
}
