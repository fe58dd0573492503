//! [`PostboxBuilder`]: what a handle can be told.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::pool::{Needs, PostboxPool, StoreOptions};
use super::{Cleaning, Postbox};
use crate::cleaner::Cleaner;
use crate::dispatcher::Dispatcher;
use crate::event::{Limits, TenantId};
use crate::history::History;
use crate::hook::WriterHook;
use crate::hot::HotPath;
use crate::inbox::InboxRetention;
use crate::interceptor::EventInterceptor;
use crate::outbox::Outbox;
use crate::relay::{Relay, RelayBuilder, RelayError, RelayHealth, Settings};
use crate::store::{Order, Tenants};
use crate::table::TableName;
use crate::tx::Layout;

/// Builds a [`Postbox`]. Only a route is needed; everything else has the documented defaults.
///
/// ```
/// # use std::time::Duration;
/// # use postbox_core::{EventBus, HotPath, Postbox, testing::MemoryOutbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (pool, bus, audit) = (MemoryOutbox::new(), EventBus::new(), EventBus::new());
/// let postbox = Postbox::builder(&pool, "shop_outbox".parse()?)
///     .route("shop.audit.**", audit)
///     .route("shop.**", bus)
///     .hot(HotPath::new()) // handle right after the commit
///     .set(|settings| settings.max_attempts = 10)
///     .retention(Duration::from_hours(24))
///     .start()
///     .await?;
/// # postbox.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it is started"]
pub struct PostboxBuilder<D, P> {
    pool: P,
    driver: PhantomData<fn() -> D>,
    outbox: Outbox,
    relay: RelayBuilder<()>,
    options: StoreOptions,
    hot: Option<HotPath>,
    prefix: String,
    database: Option<String>,
    cleaner: Option<Cleanup>,
}

impl<D, P> fmt::Debug for PostboxBuilder<D, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostboxBuilder")
            .field("table", self.outbox.table())
            .field("relay", &self.relay)
            .field("hot", &self.hot)
            .field("cleaner", &self.cleaner)
            .finish_non_exhaustive()
    }
}

/// What the cleaner is told.
#[derive(Debug, Clone, Copy)]
struct Cleanup {
    retention: Duration,
    dead_retention: Duration,
    /// How long the inbox remembers, and for how long its source repeats.
    inbox: Option<(Duration, Duration)>,
    interval: Duration,
}

impl Default for Cleanup {
    fn default() -> Self {
        Self {
            retention: Duration::from_hours(7 * 24),
            dead_retention: Duration::ZERO,
            inbox: None,
            interval: Duration::from_mins(1),
        }
    }
}

impl<D, P: PostboxPool<D>> PostboxBuilder<D, P> {
    pub(super) fn new(pool: &P, table: TableName) -> Self {
        Self {
            pool: pool.clone(),
            driver: PhantomData,
            outbox: Outbox::new(table),
            relay: RelayBuilder::unbound(),
            options: StoreOptions { single_active: true, ..StoreOptions::default() },
            hot: None,
            prefix: "outbox".into(),
            database: None,
            cleaner: Some(Cleanup::default()),
        }
    }

    /// Sends topics that match to a dispatcher: an [`EventBus`](crate::EventBus) with handlers, or a sink. The first matching
    /// route wins.
    pub fn route(mut self, pattern: &str, dispatcher: impl Dispatcher) -> Self {
        self.relay = self.relay.route(pattern, dispatcher);
        self
    }

    /// Names a dispatcher that several routes can lead to.
    pub fn sink(mut self, name: impl Into<String>, dispatcher: impl Dispatcher) -> Self {
        self.relay = self.relay.sink(name, dispatcher);
        self
    }

    /// Sends topics that match to a named sink. The first matching route wins.
    pub fn route_to(mut self, pattern: &str, sink: impl Into<String>) -> Self {
        self.relay = self.relay.route_to(pattern, sink);
        self
    }

    /// Where at its sinks the events of the route that was added last go; see [`RelayBuilder::destination`].
    pub fn destination(mut self, template: impl Into<String>) -> Self {
        self.relay = self.relay.destination(template);
        self
    }

    /// Sends topics that match to each of several named sinks; see [`RelayBuilder::route_to_all`].
    pub fn route_to_all<N: Into<String>>(
        mut self,
        pattern: &str,
        sinks: impl IntoIterator<Item = N>,
    ) -> Self {
        self.relay = self.relay.route_to_all(pattern, sinks);
        self
    }

    /// Sends topics that match to each of several sinks of their own; see [`RelayBuilder::fan_out`].
    pub fn fan_out<N: Into<String>, T: Dispatcher>(
        mut self,
        pattern: &str,
        sinks: impl IntoIterator<Item = (N, T)>,
    ) -> Self {
        self.relay = self.relay.fan_out(pattern, sinks);
        self
    }

    /// Delivers dead events to this sink; see [`RelayBuilder::dead_letters`]. The cleaner keeps them until they have arrived.
    pub fn dead_letters(mut self, name: impl Into<String>, dispatcher: impl Dispatcher) -> Self {
        self.relay = self.relay.dead_letters(name, dispatcher);
        self
    }

    /// Sends everything to one dispatcher.
    pub fn dispatcher(self, dispatcher: impl Dispatcher) -> Self {
        self.route("**", dispatcher)
    }

    /// Looks at every event before and after its dispatch; see [`EventInterceptor`].
    pub fn interceptor(mut self, interceptor: impl EventInterceptor) -> Self {
        self.relay = self.relay.interceptor(interceptor);
        self
    }

    /// Adds a hook to [`Postbox::outbox`]; see [`WriterHook`].
    pub fn hook(mut self, hook: impl WriterHook) -> Self {
        self.outbox = self.outbox.hook(hook);
        self
    }

    /// The tenant of events that name none.
    pub fn default_tenant(mut self, tenant: impl Into<TenantId>) -> Self {
        self.outbox = self.outbox.default_tenant(tenant);
        self
    }

    /// Other limits of events than the usual ones.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.outbox = self.outbox.limits(limits);
        self
    }

    /// Has events handled right after their commit, in this process, without a way over the table. It is for events that are
    /// due at once, written with [`Postbox::outbox`] in transactions that [`Outbox::begin`] opened; see [`HotPath`].
    ///
    /// Without it, they are handled by the one relay of all processes that is active, at its next look at the table.
    pub fn hot(mut self, path: HotPath) -> Self {
        self.hot = Some(path);
        self
    }

    /// Whether only one relay of all processes works on the table at a time (the default). What is hot is handled where it
    /// was written in any case.
    pub fn single_active(mut self, single: bool) -> Self {
        self.options.single_active = single;
        self
    }

    /// Delivers the events of one aggregate one after another, by `sequence`; without this no order is promised. All relays of
    /// a table should be told the same. With order, [`hot`](Self::hot) has no effect: events go the way over the table, which
    /// alone knows what is before them.
    pub fn order(mut self, order: Order) -> Self {
        self.options.order = order;
        self
    }

    /// Whose events the relay is for, and whether tenants share it fairly; without this everybody's, as they come. Both need the
    /// index that `postbox migrate up --fair-tenants` adds; only some needs [`single_active`](Self::single_active)`(false)`.
    pub fn tenants(mut self, tenants: Tenants) -> Self {
        self.options.tenants = tenants;
        self
    }

    /// What becomes of the rows of events that were delivered: kept (the default), moved to `<table>_history`, or deleted. With
    /// the last two an `event_id` that is enqueued again after its event was published is a new event.
    pub fn history(mut self, history: History) -> Self {
        self.options.history = history;
        self
    }

    /// Replaces the settings of the relay.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.relay = self.relay.settings(settings);
        self
    }

    /// Changes single settings of the relay.
    pub fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        self.relay = self.relay.set(change);
        self
    }

    /// Keeps published events for so long (7 days).
    pub fn retention(mut self, retention: Duration) -> Self {
        self.cleaner.get_or_insert_default().retention = retention;
        self
    }

    /// Deletes dead events after so long; zero, the default, keeps them for ever.
    pub fn dead_retention(mut self, retention: Duration) -> Self {
        self.cleaner.get_or_insert_default().dead_retention = retention;
        self
    }

    /// Forgets after `keep` what the [inbox](Postbox::inbox) has seen; without this it remembers for ever. `source` is for how long
    /// messages can come again: see [`InboxRetention`]. A shorter `keep` is refused at the start.
    pub fn inbox_retention(mut self, keep: Duration, source: Duration) -> Self {
        self.cleaner.get_or_insert_default().inbox = Some((keep, source));
        self
    }

    /// Cleans so often (every minute).
    pub fn clean_every(mut self, interval: Duration) -> Self {
        self.cleaner.get_or_insert_default().interval = interval;
        self
    }

    /// Starts no cleaner: the table is cleaned elsewhere.
    pub fn without_cleaner(mut self) -> Self {
        self.cleaner = None;
        self
    }

    /// Metrics under another prefix than `outbox`.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Topics beyond this number share the label `other`.
    pub fn topic_labels(mut self, most: usize) -> Self {
        self.relay = self.relay.topic_labels(most);
        self
    }

    /// The name of the database, where the process works on several: a label of all metrics, and part of what is logged and of
    /// the [health](Postbox::health). [`Postboxes`](super::Postboxes) gives it to each of its own.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// Checks everything, then starts relay and cleaner in tasks of the current runtime. When it returns, the relay has reached
    /// its table.
    ///
    /// # Errors
    /// When a setting cannot work, a route is missing or leads nowhere, the table is missing or not an outbox table, the
    /// pool's user lacks a grant that is needed, commits are asynchronous although events are to be handled right after them,
    /// or the database does not answer. Nothing runs then.
    ///
    /// # Cancel safety
    /// Dropped before it returns, nothing has been started.
    pub async fn start(self) -> Result<Postbox, RelayError> {
        let prepared = self.prepare()?;
        let layout = prepared.look().await?;
        // Nothing is waited for from here on: whoever drops this call leaves nothing behind.
        Ok(prepared.run(layout))
    }

    /// Checks settings and routes: what is wrong with them, no database can mend.
    pub(super) fn prepare(self) -> Result<Prepared<D, P>, RelayError> {
        let settings = self.relay.current().clone();
        let dead_letters = self.relay.has_dead_letters();
        let table = self.outbox.table().clone();
        let cleanup = self.cleaner;
        if cleanup.is_some_and(|cleanup| cleanup.interval.is_zero()) {
            let problem = "clean_every is 0; use 1s or more, or without_cleaner()";
            return Err(RelayError::Settings(problem.into()));
        }
        let inbox = cleanup.and_then(|cleanup| cleanup.inbox);
        let inbox = inbox.map(|(keep, source)| InboxRetention::new(keep, source)).transpose();
        let inbox = inbox.map_err(|error| RelayError::Settings(error.message()))?;
        let (mut relay, mut outbox) =
            (self.relay.metrics_prefix(&self.prefix), self.outbox.metrics_prefix(&self.prefix));
        if let Some(path) = &self.hot {
            (relay, outbox) = (relay.hot(path), outbox.hot(path));
        }
        if let Some(name) = &self.database {
            (relay, outbox) = (relay.database(name), outbox.database(name));
        }
        let relay = relay.on(self.pool.store(&table, &settings, self.options)).build()?;
        let cleaner = cleanup.map(|cleanup| {
            let mut cleaner = Cleaner::new(self.pool.sweep(&table, &settings))
                .retention(cleanup.retention)
                .dead_retention(cleanup.dead_retention)
                .interval(cleanup.interval)
                .max_attempts(settings.max_attempts)
                .dead_letters(dead_letters)
                .metrics_prefix(&self.prefix);
            if let Some(retention) = inbox {
                cleaner = cleaner.inbox(retention);
            }
            match &self.database {
                Some(name) => cleaner.database(name),
                None => cleaner,
            }
        });
        let (pool, driver, name, hot) = (self.pool, self.driver, settings.name, self.hot);
        Ok(Prepared { pool, driver, outbox, relay, cleaner, hot, name })
    }
}

/// A handle that only waits for its database.
pub(super) struct Prepared<D, P: PostboxPool<D>> {
    pool: P,
    driver: PhantomData<fn() -> D>,
    outbox: Outbox,
    relay: Relay<P::Store>,
    cleaner: Option<Cleaner<P::Sweep>>,
    hot: Option<HotPath>,
    /// The relay's.
    name: Arc<str>,
}

impl<D, P: PostboxPool<D>> Prepared<D, P> {
    pub(super) fn health(&self) -> RelayHealth {
        self.relay.health()
    }

    /// Looks at the table, and makes sure that all can be done with it that is going to be. Nothing is started.
    pub(super) async fn look(&self) -> Result<Layout, RelayError> {
        let table = self.outbox.table();
        let needs = Needs {
            clean: self.cleaner.is_some(),
            hot: self.hot.is_some(),
            durable: self.hot.as_ref().is_some_and(|path| !path.allows_asynchronous()),
        };
        let layout = self.pool.examine(table, needs).await?;
        if self.hot.is_some() && layout == Layout::Bare {
            let problem = format!(
                "{table} has only the standard columns, and the hot path needs `locked_by`: run \
                 `postbox migrate up --table {table}`, or leave .hot(…) out"
            );
            return Err(RelayError::Settings(problem));
        }
        self.relay.reach().await?;
        Ok(layout)
    }

    /// Starts everything.
    pub(super) fn run(self, layout: Layout) -> Postbox {
        let (hot, outbox) = (self.hot, self.outbox.with(layout));
        let relay = self.relay.spawn();
        let cleaner = self.cleaner.map(Cleaning::start);
        let (table, database) = (outbox.table(), relay.health().database().map(str::to_owned));
        tracing::info!(database, %table, relay = &*self.name, hot = hot.is_some(), cleaner = cleaner.is_some(), "started");
        Postbox { outbox, hot, relay, cleaner }
    }
}
