//! [`Postbox`]: everything of an outbox that runs in an application, started and stopped with it.

mod builder;
mod pool;
mod several;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

pub use builder::PostboxBuilder;
pub use pool::{Needs, PostboxPool, StoreOptions};
pub use several::{Postboxes, PostboxesBuilder};

use crate::cleaner::{Cleaner, Sweep};
use crate::hot::HotPath;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::relay::{RelayError, RelayHandle, RelayHealth};
use crate::table::TableName;

/// How long a stop waits for the batch that a cleaner is deleting. What is cut off is rolled back.
const CLEANER_LIMIT: Duration = Duration::from_secs(2);

/// One outbox table at work in this process: a relay, a cleaner and, if asked for, handlers that run right after the
/// commit. It is started with the application and stopped with it.
///
/// ```
/// # use postbox_core::{Event, EventBus, Meta, Outbox, Postbox, Topic};
/// # use postbox_core::testing::MemoryOutbox;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { order_id: i64 }
/// # impl Event for OrderPlaced { const TOPIC: Topic = Topic::from_static("shop.order.placed.v1"); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = MemoryOutbox::new();
/// let bus = EventBus::new().on(|_: Meta, placed: OrderPlaced| async move {
///     println!("order {}", placed.order_id);
///     Ok(())
/// });
/// // `pool` is a `PgPool`, a `MySqlPool` or a `SqlitePool` of sqlx.
/// let postbox = Postbox::builder(&pool, "shop_outbox".parse()?).route("shop.**", bus).start().await?;
///
/// let outbox: Outbox = postbox.outbox();
/// let mut tx = outbox.begin(&pool).await?;
/// // … your own writes …
/// outbox.enqueue(&mut tx, OrderPlaced { order_id: 7 }).await?;
/// tx.commit().await?;
///
/// postbox.shutdown().await?; // finishes what runs, gives back the rest
/// # Ok(())
/// # }
/// ```
///
/// Several tables are several handles, or [`start_each`](Self::start_each); several databases are [`Postboxes`]. A process that only writes needs none:
/// [`Outbox::new`] is enough, and any relay delivers.
///
/// # When it goes wrong later
///
/// A database that is away is waited for, and [`health`](Self::health) says so. A relay that ends by itself (its table was
/// dropped before it could start, or its own code panicked) logs an error, [`failed`](Self::failed) comes to an end, and
/// [`shutdown`](Self::shutdown) returns the error. Events are safe meanwhile: they wait in the table.
///
/// # Dropping it
///
/// Dropped without [`shutdown`](Self::shutdown), everything runs on, as long as the runtime does. When that ends, it is as
/// after a crash: what was being handled waits until its lease has run out, and is then handled again. Nothing is lost,
/// but call `shutdown` and restarts will repeat nothing.
#[must_use = "keep it, and call `shutdown` when the application ends"]
pub struct Postbox {
    outbox: Outbox,
    hot: Option<HotPath>,
    relay: RelayHandle,
    cleaner: Option<Cleaning>,
}

impl Postbox {
    /// Starts to build a handle for a table of the database that a pool connects to. The relay makes connections of its own from
    /// the pool's options, up to five by database; the cleaner borrows one of the pool's now and then.
    ///
    /// Behind a transaction pooler such as `PgBouncer`, give it a pool that leads to the database itself; transactions may be
    /// begun on the other.
    pub fn builder<D, P: PostboxPool<D>>(pool: &P, table: TableName) -> PostboxBuilder<D, P> {
        PostboxBuilder::new(pool, table)
    }

    /// Starts one handle for each table, all built alike. Without tables nothing is started, and the log says so.
    ///
    /// ```
    /// # use postbox_core::{EventBus, Postbox, TableName, testing::MemoryOutbox};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (pool, bus) = (MemoryOutbox::new(), EventBus::new());
    /// let tables: Vec<TableName> = vec!["shop_outbox".parse()?, "billing_outbox".parse()?];
    /// let postboxes = Postbox::start_each(&pool, tables, |builder| builder.dispatcher(bus.clone())).await?;
    /// for postbox in postboxes {
    ///     postbox.shutdown().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`PostboxBuilder::start`]; those that were started already are shut down.
    ///
    /// # Cancel safety
    /// Dropped half-way, those that were started run on.
    pub async fn start_each<D, P: PostboxPool<D>>(
        pool: &P,
        tables: impl IntoIterator<Item = TableName>,
        build: impl Fn(PostboxBuilder<D, P>) -> PostboxBuilder<D, P>,
    ) -> Result<Vec<Self>, RelayError> {
        let mut started: Vec<Self> = Vec::new();
        for table in tables {
            match build(Self::builder(pool, table)).start().await {
                Ok(postbox) => started.push(postbox),
                Err(error) => {
                    for postbox in started {
                        // The first error is the one to mend.
                        let _ = postbox.shutdown().await;
                    }
                    return Err(error);
                }
            }
        }
        if started.is_empty() {
            tracing::info!("no outbox table is named: no relay is started");
        }
        Ok(started)
    }

    /// The writing side: with the table's columns, the hooks and limits of the builder, and the hot path if there is one.
    /// Clones are cheap; give one to whoever writes.
    pub fn outbox(&self) -> Outbox {
        self.outbox.clone()
    }

    /// The receiving side's memory, in the same database: `<module>_inbox`, which `postbox migrate up --inbox` makes.
    pub fn inbox(&self) -> Inbox {
        self.outbox.inbox()
    }

    /// The hot path, to ask how much room it has.
    pub fn hot(&self) -> Option<&HotPath> {
        self.hot.as_ref()
    }

    /// What the relay is doing: for readiness checks, from any task.
    pub fn health(&self) -> RelayHealth {
        self.relay.health()
    }

    /// Ends when the relay has ended by itself: an application that cannot do without it should stop then. What went wrong
    /// is in the log, and is what [`shutdown`](Self::shutdown) returns.
    ///
    /// ```
    /// # use postbox_core::{Postbox, RelayError};
    /// # async fn wait(postbox: Postbox, signal: impl Future<Output = ()>) -> Result<(), RelayError> {
    /// tokio::select! {
    ///     () = signal => {}
    ///     () = postbox.failed() => {}
    /// }
    /// postbox.shutdown().await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Only waits; it can be dropped and called again, any number of times.
    pub fn failed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.relay.ended()
    }

    /// Stops in good order. No more rows are born leased, and claims stop; what runs gets `drain_timeout`; what was done is
    /// settled, the rest given back uncharged; the table is left to the next relay; the cleaner stops after the batch at hand.
    ///
    /// Call it when nobody writes any more, after the web server has ended: events that are written later go the ordinary way.
    ///
    /// # Errors
    /// When the relay had ended by itself before; the cleaner has stopped all the same.
    ///
    /// # Cancel safety
    /// Dropped, the stop goes on by itself, without anybody waiting for it.
    pub async fn shutdown(self) -> Result<(), RelayError> {
        if let Some(cleaner) = &self.cleaner {
            (cleaner.close)();
        }
        let result = self.relay.shutdown().await;
        if let Some(Cleaning { mut task, .. }) = self.cleaner
            && tokio::time::timeout(CLEANER_LIMIT, &mut task).await.is_err()
        {
            task.abort();
        }
        result
    }

    /// Runs until the signal, or until the relay has ended by itself; then [`shutdown`](Self::shutdown).
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// As dropping the handle: everything runs on.
    pub async fn with_graceful_shutdown(
        self,
        signal: impl Future<Output = ()> + Send,
    ) -> Result<(), RelayError> {
        tokio::select! {
            () = signal => {}
            () = self.failed() => {}
        }
        self.shutdown().await
    }
}

impl fmt::Debug for Postbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postbox")
            .field("table", self.outbox.table())
            .field("hot", &self.hot)
            .field("cleaner", &self.cleaner.is_some())
            .finish_non_exhaustive()
    }
}

/// A cleaner that runs in a task.
struct Cleaning {
    close: Box<dyn Fn() + Send + Sync>,
    task: JoinHandle<()>,
}

impl Cleaning {
    fn start<S: Sweep>(cleaner: Cleaner<S>) -> Self {
        let cleaner = Arc::new(cleaner);
        let running = Arc::clone(&cleaner);
        Self {
            close: Box::new(move || cleaner.close()),
            task: tokio::spawn(async move { running.run().await }),
        }
    }
}
