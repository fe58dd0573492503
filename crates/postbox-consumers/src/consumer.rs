//! [`Consumer`]: a handler with an inbox before it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use postbox_core::inbox::InboxDriver;
use postbox_core::{Backoff, ConsumerName, Inbox, OutboxPool, OutboxTransaction};

use crate::handler::{AnyHandler, Handler};
use crate::identify::Identify;

type Beginning<D> =
    Pin<Box<dyn Future<Output = Result<OutboxTransaction<D>, <D as postbox_core::Driver>::Error>> + Send>>;

/// A handler of messages whose effects happen once: each runs in a transaction that also records the message in an inbox.
///
/// It knows no broker. [`run`](Self::run) gives it the messages of a [`Source`](crate::Source), a `Webhook` (feature `http`) those of requests. Cheap to
/// clone.
///
/// ```
/// use postbox_consumers::{Consumer, Message, Source, SourceError};
/// use postbox_core::{ConsumerName, HandlerResult, OutboxTransaction};
/// use postbox_stores::sqlite::SqlxSqlite;
///
/// async fn reduce(tx: &mut OutboxTransaction<SqlxSqlite>, message: &Message) -> HandlerResult {
///     let item: String = message.json()?;
///     sqlx::query("UPDATE stock SET pieces = pieces - 1 WHERE item = ?1").bind(item).execute(&mut ***tx).await?;
///     Ok(())
/// }
///
/// # async fn example(
/// #     pool: sqlx::SqlitePool, outbox: postbox_core::Outbox, source: impl Source, stop: impl Future<Output = ()> + Send,
/// # ) -> Result<(), SourceError> {
/// let consumer = Consumer::new(&pool, outbox.inbox(), ConsumerName::from_static("stock"), reduce).tries(10);
/// let report = consumer.run(source, stop).await?;
/// println!("{} new ones, {} that had come before", report.first, report.before);
/// # Ok(())
/// # }
/// ```
#[must_use = "a consumer does nothing until it runs"]
pub struct Consumer<D: InboxDriver> {
    pub(crate) name: ConsumerName,
    pub(crate) inbox: Inbox,
    pub(crate) begin: Arc<dyn Fn() -> Beginning<D> + Send + Sync>,
    pub(crate) handler: Arc<dyn AnyHandler<D>>,
    pub(crate) identify: Identify,
    pub(crate) tries: u32,
    pub(crate) backoff: Backoff,
    pub(crate) at_once: usize,
    pub(crate) timeout: Duration,
}

impl<D: InboxDriver> Consumer<D> {
    /// A consumer of this name, which has its effects in the database of this pool and its memory in this inbox of it.
    ///
    /// `Outbox::inbox` is the inbox of a module. The name is part of the key of what was seen: a consumer that is renamed has seen nothing, and
    /// all processes that share the work must have the same.
    pub fn new<P>(pool: &P, inbox: Inbox, name: ConsumerName, handler: impl Handler<D>) -> Self
    where
        P: Clone + Send + Sync + 'static,
        for<'a> &'a P: OutboxPool<D>,
    {
        let pool = pool.clone();
        let begin = move || -> Beginning<D> {
            let pool = pool.clone();
            Box::pin(async move { OutboxTransaction::begin(&pool).await })
        };
        Self {
            name,
            inbox,
            begin: Arc::new(begin),
            handler: Arc::new(handler),
            identify: Identify::standard(),
            tries: 5,
            backoff: Backoff::exponential(Duration::from_millis(200), Duration::from_secs(30)),
            at_once: 8,
            timeout: Duration::from_secs(30),
        }
    }

    /// By what messages are known; [`Identify::standard`] unless told otherwise.
    pub fn identify(mut self, identify: Identify) -> Self {
        self.identify = identify;
        self
    }

    /// After so many failed tries a message is a dead letter; 5, and at least 1. They are counted in this process: after a crash they begin anew.
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// How long to wait after a failed try: doubling from 200 ms to 30 s unless told otherwise.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// So many messages are worked on at once; 8, and at least 1. With 1, messages are worked on in the order in which the broker delivers them.
    /// Kafka keeps the order of each partition with any number.
    pub fn at_once(mut self, at_once: usize) -> Self {
        self.at_once = at_once.max(1);
        self
    }

    /// A handler that takes longer has failed, and its transaction is rolled back; 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Its name.
    pub fn name(&self) -> &ConsumerName {
        &self.name
    }
}

impl<D: InboxDriver> Clone for Consumer<D> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            inbox: self.inbox.clone(),
            begin: Arc::clone(&self.begin),
            handler: Arc::clone(&self.handler),
            identify: self.identify.clone(),
            tries: self.tries,
            backoff: self.backoff.clone(),
            at_once: self.at_once,
            timeout: self.timeout,
        }
    }
}

impl<D: InboxDriver> fmt::Debug for Consumer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.name)
            .field("inbox", &self.inbox.table().to_string())
            .field("identify", &self.identify)
            .field("tries", &self.tries)
            .field("backoff", &self.backoff)
            .field("at_once", &self.at_once)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
