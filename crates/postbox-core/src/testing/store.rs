//! [`MemoryStore`]: the table of a memory outbox as a relay sees it.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::drain::Tried;
use super::memory::{Memory, MemoryOutbox, Row, State, Table};
use super::order::Lines;
use crate::cleaner::{Sweep, SweepRequest, Swept};
use crate::code::Code;
use crate::dispatcher::{Delivery, Meta};
use crate::embed::{Needs, PostboxPool, StoreOptions};
use crate::letter::Requirements;
use crate::relay::Settings;
use crate::store::{
    Buried, Claim, ClaimMode, ClaimRequest, Claimed, Lease, Order, Renewed, Settled, Settlement, Standing,
    Store, StoreError, StoreErrorKind, Token, Verdict,
};
use crate::table::TableName;
use crate::tx::Layout;

/// What an event is settled with that waited behind another of its aggregate.
const HELD_BACK: Verdict = Verdict::Release { after: None, reason: None };

/// The store of a [`MemoryOutbox`](super::MemoryOutbox), for a relay of your own in a test. Any number of relays may share it.
#[derive(Debug, Clone)]
pub struct MemoryStore(pub(super) Table);

impl Row {
    fn due(&self, now: OffsetDateTime, drain: Option<u64>) -> bool {
        let tried = drain.is_some() && self.drained_in == drain;
        self.state == State::Waits && self.available_at <= now && !tried
    }

    fn delivery(&self, table: &Arc<str>) -> Delivery {
        let record = &self.record;
        let meta = Meta {
            table: Arc::clone(table),
            event_id: record.event_id,
            tenant_id: record.tenant_id,
            topic: record.topic.clone(),
            sequence: self.sequence,
            attempts: self.attempts,
            aggregate: record.aggregate.clone(),
            headers: record.headers.clone(),
            occurred_at: record.occurred_at,
            created_at: self.created_at,
            schema_id: record.schema_id.clone(),
            schema_version: record.schema_version,
            routing_key: record.routing_key.clone(),
            metadata: record.metadata.clone(),
            traceparent: record.traceparent.clone(),
            tracestate: record.tracestate.clone(),
        };
        Delivery { meta, payload: record.payload.clone(), destination: None }
    }

    fn is(&self, lease: &Lease) -> bool {
        let token = self.lock.as_ref().is_some_and(|(token, _)| *token == lease.token);
        self.id == lease.row && token && self.attempts == lease.attempts
    }
}

impl Store for MemoryStore {
    fn table(&self) -> &str {
        &self.0.name
    }

    fn order(&self) -> Order {
        self.0.order
    }

    async fn open(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Dead events stay where a test can see them.
    async fn require(&self, wanted: Requirements) -> Result<(), StoreError> {
        if wanted.dead_letters || wanted.redrive {
            let message = "an outbox in memory has no dead-letter route and no redrive_after: leave them out";
            return Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, message));
        }
        Ok(())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, StoreError> {
        let (now, token) = (self.0.clock.now(), Token::from(Uuid::now_v7().to_string()));
        let mut rows = self.0.lock();
        let drain = rows.drain;
        let mut claim = Claim { standing: Standing::Active, ..Claim::default() };
        let mut lines = Lines::new(self.0.order);
        let mut bytes = 0;
        for index in lines.sort(&rows) {
            let row = &mut rows.rows[index];
            let strand = lines.strand(row);
            if lines.is_closed(strand, &row.state) {
                continue;
            }
            let expired = row.lock.as_ref().is_some_and(|(_, at)| *at + request.lock_ttl < now);
            let of_topic = match &request.mode {
                ClaimMode::Probe(topics) => topics.contains(&row.record.topic),
                ClaimMode::Waiting | ClaimMode::Suspect => !request.exclude.contains(&row.record.topic),
            };
            let spent = request.spent.iter().any(|spent| {
                let done = |sink: &Arc<str>| row.sinks_done.iter().any(|name| **name == **sink);
                spent.topic == row.record.topic && spent.sinks.iter().all(done)
            });
            let only = &self.0.tenants;
            let foreign = !only.is_empty() && !only.contains(&row.record.tenant_id);
            if !row.due(now, drain) || !of_topic || spent || foreign || (row.lock.is_some() && !expired) {
                lines.close(strand, &row.state);
                continue;
            }
            if expired != (request.mode == ClaimMode::Suspect) {
                claim.suspects |= expired;
                lines.close(strand, &row.state);
                continue;
            }
            let size = row.record.payload.len();
            let full = !claim.rows.is_empty() && bytes + size > request.max_bytes;
            if claim.rows.len() >= request.limit || full {
                claim.more = request.limit > 0;
                break;
            }
            if row.attempts >= request.max_attempts {
                row.state = State::Dead(crate::redact::Summary::new("OUTBOX_EXHAUSTED", 64));
                claim.buried.push(Buried {
                    topic: row.record.topic.to_string(),
                    event_id: row.record.event_id,
                    sequence: row.sequence,
                });
                lines.is_closed(strand, &row.state);
                continue;
            }
            bytes += size;
            row.attempts += 1;
            row.lock = Some((token.clone(), now));
            let lease = Lease { row: row.id, attempts: row.attempts, token: token.clone(), since: now };
            let age = Duration::try_from(now - row.available_at.max(row.created_at)).unwrap_or_default();
            let (delivery, sinks_done) = (Box::new(row.delivery(&self.0.name)), row.sinks_done.clone());
            claim.rows.push(Claimed { lease, delivery, age, strand, sinks_done });
        }
        Ok(claim)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let now = self.0.clock.now();
        let mut rows = self.0.lock();
        let drain = rows.drain;
        let mut settled = Settled::default();
        for Settlement { lease, verdict, sinks_done, .. } in settlements {
            let Some(row) = rows.rows.iter_mut().find(|row| row.is(lease)) else {
                settled.lost.push(lease.row);
                continue;
            };
            row.lock = None;
            // Not tried, only held back by another of its aggregate.
            let held_back = self.0.order != Order::None && *verdict == HELD_BACK;
            if !held_back {
                row.drained_in = drain;
            }
            row.sinks_done.extend(sinks_done.iter().map(ToString::to_string));
            let tried = Tried {
                event_id: row.record.event_id,
                topic: row.record.topic.clone(),
                attempts: row.attempts,
                verdict: verdict.clone(),
            };
            match verdict {
                Verdict::Delivered => row.state = State::Published,
                Verdict::Retry { after, .. } => row.available_at = now + *after,
                Verdict::Release { after, .. } => {
                    row.attempts -= 1;
                    row.available_at = row.available_at.max(now + after.unwrap_or_default());
                }
                Verdict::Dead { reason } => row.state = State::Dead(reason.clone()),
            }
            if drain.is_some() && !held_back {
                rows.tried.push(tried);
            }
        }
        Ok(settled)
    }

    async fn extend(&self, leases: Vec<Lease>) -> Result<Renewed, StoreError> {
        let now = self.0.clock.now();
        let mut rows = self.0.lock();
        let mut lost = Vec::new();
        for lease in leases {
            match rows.rows.iter_mut().find(|row| row.is(&lease)) {
                Some(row) => row.lock = Some((lease.token, now)),
                None => lost.push(lease),
            }
        }
        Ok(Renewed { lost, ..Renewed::default() })
    }

    async fn wait(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.0.changed.notified()).await;
    }

    async fn close(&self) {}
}

#[diagnostic::do_not_recommend]
impl PostboxPool<Memory> for MemoryOutbox {
    type Store = MemoryStore;
    type Sweep = MemoryStore;

    /// Whoever looks at this table wants to see all of it: everything is kept.
    fn store(&self, _: &TableName, _: &Settings, options: StoreOptions) -> MemoryStore {
        let mut store = MemoryOutbox::store(self);
        store.0.order = options.order;
        // Nothing here is scarce: whose turn it is makes no difference.
        store.0.tenants = options.tenants.only;
        store
    }

    fn sweep(&self, _: &TableName, _: &Settings) -> MemoryStore {
        MemoryOutbox::store(self)
    }

    async fn examine(&self, _: &TableName, _: Needs) -> Result<Layout, StoreError> {
        Ok(Layout::Full)
    }
}

impl Sweep for MemoryStore {
    fn table(&self) -> &str {
        &self.0.name
    }

    /// Deletes nothing: whoever looks at this table wants to see all of it.
    async fn sweep(&self, _: &SweepRequest) -> Result<Swept, StoreError> {
        Ok(Swept::Deleted(0))
    }
}
