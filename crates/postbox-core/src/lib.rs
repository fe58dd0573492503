//! The Postbox engine: events that commit with your data and arrive at least once, or are set aside where you see them.
//!
//! This crate knows no database and no broker. Users take the `postbox` crate; implementors of a store or a sink
//! need only this one.
//!
//! An event's way, in reading order:
//!
//! 1. [`event`] and [`record`] – what a service enqueues: [`Event`], [`Record`], limits.
//! 2. [`outbox`] – [`Outbox::enqueue`] writes it in the caller's transaction.
//! 3. `relay/run.rs` – the loop that waits, claims, dispatches and settles.
//! 4. `relay/claim.rs` and `relay/accept.rs` – rows are asked for and taken in; as SQL in the store's `claim.rs` (in `postbox-stores`).
//! 5. `relay/dispatch.rs` – they are sent, one `relay/unit.rs` at a time.
//! 6. `relay/settle.rs` – outcomes become verdicts; as SQL in the store's own file.
//!
//! Around it, in the caller's process: [`hook`], [`transaction`] and [`uow`] where events are written, [`bus`] and
//! [`interceptor`] where they arrive, [`inbox`] where they must not arrive twice, [`embed`] to start and stop it all with the application, [`testing`] in tests.

#![warn(clippy::missing_errors_doc)]

pub mod browse;
pub mod bus;
pub mod cleaner;
pub mod code;
pub mod dead;
pub mod diagnose;
pub mod dispatcher;
pub mod embed;
pub mod event;
mod failpoint;
#[doc(hidden)]
pub mod hash;
pub mod history;
pub mod hook;
pub mod hot;
pub mod idempotency;
pub mod inbox;
pub mod inspect;
pub mod interceptor;
pub mod journal;
pub mod json;
pub mod letter;
#[doc(hidden)]
pub mod notation;
pub mod outbox;
#[doc(hidden)]
pub mod panic;
pub mod receive;
pub mod record;
pub mod redact;
pub mod relay;
pub mod route;
pub mod store;
pub mod survey;
pub mod table;
pub mod telemetry;
pub mod template;
pub mod testing;
pub mod topic;
mod trace;
pub mod transaction;
pub mod tx;
#[cfg(test)]
mod until;
pub mod uow;

pub use browse::{
    Browse, Content, Direction, EventDetail, EventFilter, EventStatus, EventSummary, ListRequest, Page,
    Published,
};
pub use bus::{EventBus, HandlerError, HandlerResult};
pub use cleaner::Cleaner;
pub use code::Code;
pub use dead::{DeadCause, DeadEvent, DeadFilter, DeadLetters};
pub use diagnose::{Diagnose, Examination, Finding, Flow, Level};
pub use dispatcher::{BoxDispatcher, Delivery, DispatchError, DispatchErrorKind, Dispatcher, Meta, Receipts};
pub use embed::{Postbox, PostboxBuilder, PostboxPool, Postboxes, PostboxesBuilder};
pub use event::{
    AggregateKey, Availability, Event, EventError, EventId, Headers, Limits, Payload, RecordDefaults,
    TenantId,
};
pub use history::History;
pub use hook::{HookError, HookResult, WriterHook, Written};
pub use hot::HotPath;
pub use idempotency::{IdempotencyStore, StoredResponse, Ticket};
pub use inbox::{
    ConsumerName, ConsumerNameError, Inbox, InboxAdmin, InboxDriver, InboxEntry, InboxFilter, InboxKey,
    InboxPage, InboxRequest, InboxRetention, InboxRetentionError, InboxTable, InboxTrouble, InboxTx,
    MessageId, MessageIdError, RecordError, Recording, Seen,
};
pub use inspect::{Inspect, TableCounts, TableRelay};
pub use interceptor::EventInterceptor;
pub use json::Json;
pub use outbox::{EnqueueError, Outbox};
pub use receive::{Receive, ReceiveError};
pub use record::{Fields, IntoRecord, Record, RecordBuilder};
pub use relay::{Backoff, Relay, RelayBuilder, RelayError, RelayHandle, RelayHealth, RunReport, Settings};
pub use route::{Pattern, PatternError};
pub use store::{OnDead, Order, Store, StoreError, StoreErrorKind, Tenants};
pub use survey::{AuditEntry, BlockedAggregate, Recent, Survey};
pub use table::{TableName, TableNameError};
pub use template::{MissingValue, Template, TemplateError};
pub use topic::{Topic, TopicError};
pub use transaction::{CommitError, Driver, Guarded, OutboxPool, OutboxTransaction};
pub use tx::{Birth, Enqueued, Inserted, Insertion, Layout, OutboxTable, OutboxTx, Receipt};
pub use uow::{Aggregate, PendingEvents, UnitOfWork, UnitOfWorkError};
