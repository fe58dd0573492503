//! ① Events: what a service enqueues.
//!
//! Three types keep three roles apart: [`Event`] is your own typed event, [`Record`](crate::Record) is the row that will be
//! written (immutable, checked, serialised once), and [`Delivery`](crate::Delivery) is the row that a relay claimed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::code::Code;
use crate::json::Json;
use crate::topic::{Topic, TopicError};

/// A typed event: a struct of yours with a topic.
///
/// Usually derived, with `#[derive(Event)] #[event(topic = "…", aggregate = "organization", id = "org_id")]`. By hand:
///
/// ```
/// use postbox_core::{AggregateKey, Event, Topic};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrganizationCreated {
///     org_id: u64,
///     name: String,
/// }
///
/// impl Event for OrganizationCreated {
///     const TOPIC: Topic = Topic::from_static("org.organization.created.v1");
///
///     fn aggregate(&self) -> Option<AggregateKey> {
///         Some(AggregateKey::new("organization", self.org_id))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    note = "derive it: `#[derive(postbox::Event, serde::Serialize)] #[event(topic = \"module.aggregate.event.v1\")]`",
    note = "or build one by hand with `Record::builder(topic)`"
)]
pub trait Event: Serialize {
    /// The topic; a new `vN` for every breaking change of the struct.
    const TOPIC: Topic;

    /// The aggregate that the event belongs to, if any.
    fn aggregate(&self) -> Option<AggregateKey> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<E: Event> Event for Box<E> {
    const TOPIC: Topic = E::TOPIC;

    fn aggregate(&self) -> Option<AggregateKey> {
        (**self).aggregate()
    }
}

/// The stable identity of an event; every delivery of it carries the same one. UUIDv7 unless you choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub Uuid);

impl EventId {
    /// A new id, larger than all that this process made before.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for EventId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Uuid> for EventId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

/// Whose event it is; nil where there is only one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub Uuid);

impl TenantId {
    /// The tenant of a system with only one.
    pub const NIL: Self = Self(Uuid::nil());

    /// The id of a tenant that is known by a name: its UUIDv5, the same in every process and language
    /// (namespace: the UUIDv5 of `tenant.postbox` in the DNS namespace).
    pub fn from_name(name: &str) -> Self {
        let namespace = Uuid::new_v5(&Uuid::NAMESPACE_DNS, b"tenant.postbox");
        Self(Uuid::new_v5(&namespace, name.as_bytes()))
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Uuid> for TenantId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

/// What an event is about: with the tenant, the unit of order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AggregateKey {
    /// The kind, such as `organization`.
    pub kind: String,
    /// Its id, as text.
    pub id: String,
}

impl AggregateKey {
    /// The type that is shown and looked up where an event belongs to no aggregate.
    pub const GLOBAL: &'static str = "__GLOBAL__";

    /// A key of the given kind and id.
    pub fn new(kind: impl Into<String>, id: impl fmt::Display) -> Self {
        Self { kind: kind.into(), id: id.to_string() }
    }
}

/// Headers: a small sorted map from text to text.
pub type Headers = BTreeMap<String, String>;

/// What an event carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A JSON value.
    Json(Json),
    /// Bytes with their content type.
    Bytes {
        /// The bytes, delivered as they are.
        bytes: Box<[u8]>,
        /// Their media type.
        content_type: String,
    },
}

impl Payload {
    /// Its size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Json(json) => json.as_str().len(),
            Payload::Bytes { bytes, .. } => bytes.len(),
        }
    }

    /// Whether it holds nothing (JSON never does).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// When an event may first be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Availability {
    /// At once, by the database's clock.
    #[default]
    Now,
    /// Not before this time.
    At(OffsetDateTime),
    /// Not before this long after the enqueue, by the database's clock.
    After(Duration),
}

/// What an outbox accepts. A breach is an error at build or enqueue, and nothing is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload in bytes (1 MiB).
    pub payload_bytes: usize,
    /// Deepest JSON nesting (128).
    pub json_depth: usize,
    /// Most headers (64).
    pub headers: usize,
    /// Most bytes of all header names and values together (8 KiB).
    pub headers_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes: 1 << 20, json_depth: 128, headers: 64, headers_bytes: 8 << 10 }
    }
}

/// What an outbox adds to events that do not say it themselves.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordDefaults {
    /// The limits to check.
    pub limits: Limits,
    /// The tenant of events without one (`OUTBOX_DEFAULT_TENANT_ID`).
    pub tenant_id: TenantId,
}

/// Why something is not an event that can be enqueued. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The topic is malformed.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The payload is too large.
    #[error("{}: the payload has {actual} bytes, the limit is {limit}", Code::PayloadTooLarge)]
    TooLarge {
        /// The limit.
        limit: usize,
        /// What it has.
        actual: usize,
    },
    /// The payload is not JSON, or not JSON that can be stored.
    #[error("{}: the payload: {problem}", Code::PayloadInvalid)]
    Payload {
        /// What is wrong with it.
        problem: String,
    },
    /// The headers break a limit.
    #[error("{}: {problem}", Code::HeadersInvalid)]
    Headers {
        /// What is wrong with them.
        problem: String,
    },
    /// The table has no column for a field.
    #[error("{}: {field}: the table has only the standard columns", Code::ColumnMissing)]
    NoColumn {
        /// The field.
        field: &'static str,
    },
    /// Another field holds what cannot be stored.
    #[error("{}: {field}: {problem}", Code::FieldInvalid)]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl EventError {
    pub(crate) fn payload(problem: impl fmt::Display) -> Self {
        Self::Payload { problem: problem.to_string() }
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Topic(error) => error.code(),
            Self::TooLarge { .. } => Code::PayloadTooLarge,
            Self::Payload { .. } => Code::PayloadInvalid,
            Self::Headers { .. } => Code::HeadersInvalid,
            Self::NoColumn { .. } => Code::ColumnMissing,
            Self::Field { .. } => Code::FieldInvalid,
        }
    }
}
