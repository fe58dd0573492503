//! A transactional outbox: events commit with your data and arrive at least once, or are set aside where you see them.
//!
//! A service that saves an order and then tells the world about it can crash in between, and nobody ever hears of
//! the order. With an outbox it writes the event into a table, *in the same transaction* as the order; a relay reads
//! the table and delivers, again and again until it worked. What was committed is delivered at least once; what was
//! rolled back never existed.
//!
//! # A tour
//!
//! ```no_run
//! use postbox::sinks::FileSink;
//! use postbox::{Event, EventBus, Meta, Postbox};
//! use serde::{Deserialize, Serialize};
//!
//! // 1. An event is a struct with a topic. A breaking change gets a new struct and a new `vN`.
//! #[derive(Event, Serialize, Deserialize)]
//! #[event(topic = "shop.order.placed.v1", aggregate = "order", id = "order_id")]
//! struct OrderPlaced {
//!     order_id: i64,
//!     total: String,
//! }
//!
//! # async fn tour() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = sqlx::PgPool::connect("postgres://localhost/shop").await?;
//!
//! // 2. Say where events go: to handlers in this process, and to sinks outside of it.
//! let bus = EventBus::new().on(|meta: Meta, order: OrderPlaced| async move {
//!     // An event may come again; `meta.event_id` is then the same.
//!     println!("{}: order {} over {}", meta.event_id, order.order_id, order.total);
//!     Ok(())
//! });
//! let postbox = Postbox::builder(&pool, "public.shop_outbox".parse()?)
//!     .route("shop.order.*.*", bus)
//!     .route("**", FileSink::open("events.jsonl"))
//!     .start()
//!     .await?;
//!
//! // 3. Enqueue in the transaction that writes your data: both happen, or neither.
//! let outbox = postbox.outbox();
//! let mut tx = outbox.begin(&pool).await?;
//! sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(7_i64).execute(&mut **tx).await?;
//! outbox.enqueue(&mut tx, OrderPlaced { order_id: 7, total: "9.90".into() }).await?;
//! tx.commit().await?;
//!
//! postbox.shutdown().await?; // finishes what runs, gives back the rest
//! # Ok(())
//! # }
//! ```
//!
//! - Handled right after the commit, by the process that wrote it: [`HotPath`]. A process that only writes: [`Outbox`]. A relay
//!   with a store of your own: [`Relay`].
//! - Several databases in one process, one of which may be away: [`Postboxes`].
//! - More than a struct: [`Record::of`] adds headers, a tenant or a delay, [`Record::builder`] takes raw JSON or bytes.
//! - Several events in one place: an enum of them, with the same derive. One handler and no other: [`EventBus::only`].
//! - Your own code around it: a [`WriterHook`] where events are written and committed ([`Outbox::begin`]), an
//!   [`EventInterceptor`] around every dispatch. Aggregates that collect their events: [`UnitOfWork`].
//! - What arrives twice has its effect once: [`Inbox`]; with the feature `consumers`, for messages of Kafka, NATS, RabbitMQ and
//!   Redis and for webhooks, which are acknowledged after the commit.
//! - Tests of your own: [`testing`] has an outbox in memory.
//! - Commands that clients repeat: with the feature `web`, a layer for axum runs each `Idempotency-Key` once, in one transaction
//!   with its events.
//! - What failed for good is kept, never dropped: [`DeadLetters`]. What was published is removed after a while by the
//!   [`Cleaner`].
//! - A destination of your own: implement [`Dispatcher`]. Its [`DispatchError`] says what is to be done: retry, reject,
//!   or wait until it is back.
//! - Every error has a stable [`Code`], and each code says what to do next.
//!
//! # Reading the source
//!
//! An event's way, in six steps: ① `event.rs`, what is enqueued · ② `outbox.rs`, written in the caller's transaction ·
//! ③ `relay/run.rs`, the loop · ④ `relay/claim.rs` and `relay/accept.rs`, rows are asked for and taken in · ⑤ `relay/dispatch.rs`, they
//! are sent · ⑥ `relay/settle.rs`, outcomes become verdicts. All of them are in `postbox-core`; ②, ④ and ⑥ are SQL in a
//! database's folder of `postbox-stores`.
//!
//! # Features
//!
//! `derive` (`#[derive(Event)]`), `postgres` (the PostgreSQL store), `mysql` (the MySQL and MariaDB store), `sqlite` (the
//! SQLite store, SQLite built in), `sinks` (file, stdout, null), all on by default; `http` (webhooks), `kafka`, `kafka-tls` (TLS and SCRAM,
//! by OpenSSL), `nats`, `pulsar`, `rabbitmq` and `redis` (a sink each); `tokio-postgres`, `deadpool-postgres`,
//! `diesel-postgres`, `diesel-mysql`, `diesel-sqlite` and `sea-orm` (enqueue and inbox in the transactions of these drivers); `web` (the
//! `Idempotency-Key` layer for tower and axum); `consumers` (messages through an inbox, from webhooks and each broker whose feature is on, but
//! Pulsar); `otel` (events carry the trace context of the current span).

// Writing events.
pub use postbox_core::{
    Aggregate, AggregateKey, Availability, Birth, CommitError, Driver, EnqueueError, Enqueued, Event,
    EventError, EventId, Guarded, Headers, HookError, HookResult, Inserted, Insertion, IntoRecord, Json,
    Layout, Limits, Outbox, OutboxPool, OutboxTable, OutboxTransaction, OutboxTx, Payload, PendingEvents,
    Receipt, Record, RecordBuilder, TableName, TableNameError, TenantId, Topic, TopicError, UnitOfWork,
    UnitOfWorkError, WriterHook, Written,
};
#[cfg(feature = "derive")]
pub use postbox_derive::Event;

// Receiving them, and having their effect once.
pub use postbox_core::{
    BoxDispatcher, Delivery, DispatchError, DispatchErrorKind, Dispatcher, EventBus, EventInterceptor,
    HandlerError, HandlerResult, Meta, Receipts, Receive, ReceiveError, interceptor,
};
pub use postbox_core::{
    ConsumerName, ConsumerNameError, Inbox, InboxAdmin, InboxDriver, InboxEntry, InboxFilter, InboxKey,
    InboxPage, InboxRequest, InboxRetention, InboxRetentionError, InboxTable, InboxTrouble, InboxTx,
    MessageId, MessageIdError, RecordError, Recording, Seen,
};

// All of it in one process, started and stopped with it.
pub use postbox_core::{
    History, HotPath, Postbox, PostboxBuilder, PostboxPool, Postboxes, PostboxesBuilder, embed,
};

// Running a relay, and looking after its table.
pub use postbox_core::{
    Backoff, Cleaner, Code, DeadCause, DeadEvent, DeadFilter, DeadLetters, Inspect, OnDead, Order, Pattern,
    PatternError, Relay, RelayBuilder, RelayError, RelayHandle, RelayHealth, RunReport, Settings, Store,
    StoreError, StoreErrorKind, TableCounts, TableRelay, Tenants,
};

// For tests, metrics, and whoever implements a store or a sink.
pub use postbox_core::{cleaner, redact, relay, store, telemetry, testing};

// Calls by idempotency key, without a web framework.
pub use postbox_core::{IdempotencyStore, idempotency};

#[cfg(feature = "sinks")]
pub use postbox_sinks as sinks;

/// `Idempotency-Key` for tower and axum. See [`IdempotencyLayer`](web::IdempotencyLayer).
#[cfg(feature = "web")]
pub mod web {
    pub use postbox_web::*;
}

/// Messages of brokers and webhooks through an inbox. See [`Consumer`](consumers::Consumer).
#[cfg(feature = "consumers")]
pub mod consumers {
    pub use postbox_consumers::*;
}

/// PostgreSQL: the store, operators' work on it, and migrations. See [`PgStore`](postgres::PgStore).
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use postbox_stores::postgres::*;
}

/// MySQL and MariaDB: the store, operators' work on it, and migrations. See [`MySqlStore`](mysql::MySqlStore).
#[cfg(feature = "mysql")]
pub mod mysql {
    pub use postbox_stores::mysql::*;
}

/// SQLite: the store, operators' work on it, and migrations. See [`SqliteStore`](sqlite::SqliteStore).
///
/// ```no_run
/// use postbox::sinks::FileSink;
/// use postbox::sqlite::{self, SqliteStore, migrate};
/// use postbox::{Outbox, Record, Relay, Topic};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let options = sqlite::connect_options("sqlite:shop.db")?.create_if_missing(true);
/// let pool = sqlx::SqlitePool::connect_with(options).await?;
/// let table: postbox::TableName = "shop_outbox".parse()?;
/// migrate::up(&mut *pool.acquire().await?, &table, |_| {}).await?;
///
/// // Begin with the write lock: see the note on `begin` in [`sqlite`].
/// let mut tx = sqlite::begin(&pool).await?;
/// let event = Record::builder("shop.order.placed.v1".parse::<Topic>()?).json(&7);
/// Outbox::new(table.clone()).enqueue(&mut tx, event).await?;
/// tx.commit().await?;
///
/// let relay = Relay::builder(SqliteStore::new(&pool, table)).route("**", FileSink::open("events.jsonl"));
/// relay.build()?.spawn().shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use postbox_stores::sqlite::*;
}

/// Markers of drivers, by which their transactions are told apart. Nobody has to name them: pass the transaction to
/// [`Outbox::enqueue`] or [`Inbox::record`].
#[cfg(any(
    feature = "tokio-postgres",
    feature = "diesel-postgres",
    feature = "diesel-mysql",
    feature = "diesel-sqlite",
    all(feature = "sea-orm", any(feature = "postgres", feature = "sqlite", feature = "mysql"))
))]
pub mod tx {
    pub use postbox_stores::tx::*;
}

/// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
