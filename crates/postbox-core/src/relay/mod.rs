//! The relay: wait → claim → dispatch → settle, one engine for every store.
//!
//! To be read in this order: `engine.rs` has the state, `run.rs` the loop, `claim.rs` asks for rows and `accept.rs` takes them in,
//! `dispatch.rs` sends them, a `unit.rs` at a time, `settle.rs` writes what became of them. The other files hold one idea each.

mod accept;
mod after_death;
mod backoff;
mod builder;
mod circuit;
mod claim;
mod dead_letter;
mod deliveries;
mod dispatch;
mod engine;
mod error;
mod fan;
mod health;
mod hot;
mod lane;
mod lease;
mod order;
mod queue;
mod run;
mod settings;
mod settle;
mod shares;
mod stop;
mod suspect;
#[cfg(test)]
mod tests;
mod tracker;
mod unit;

use std::future::Future;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

pub use backoff::Backoff;
pub use builder::RelayBuilder;
pub use deliveries::Deliveries;
pub use error::RelayError;
pub use health::{Health, RelayHealth, SinkHealth};
pub use settings::Settings;

use crate::store::{Store, StoreError};
use engine::Engine;

/// Delivers the events of one table.
///
/// ```
/// # use postbox_core::{Dispatcher, EventBus, Relay, RelayError, Store};
/// # async fn run(store: impl Store, sink: impl Dispatcher, signal: impl Future<Output = ()> + Send) -> Result<(), RelayError> {
/// let bus = EventBus::new();
/// Relay::builder(store).route("org.**", sink).route("**", bus).build()?.with_graceful_shutdown(signal).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a relay does nothing until it runs"]
pub struct Relay<S: Store> {
    engine: Engine<S>,
    closed: bool,
}

/// What one [`run_once`](Relay::run_once) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunReport {
    /// Rows claimed.
    pub claimed: usize,
    /// Events that arrived.
    pub delivered: usize,
    /// Events that will be tried again.
    pub retried: usize,
    /// Events that became dead.
    pub dead: usize,
    /// Events that went back uncharged.
    pub released: usize,
    /// Rows that another relay had taken.
    pub lost: usize,
    /// Dead events that arrived at the dead-letter route.
    pub dead_lettered: usize,
    /// Dead events that were replayed by themselves (`redrive_after`).
    pub redriven: usize,
}

impl<S: Store> Relay<S> {
    /// Starts to build a relay for a store.
    pub fn builder(store: S) -> RelayBuilder<S> {
        RelayBuilder::new(store)
    }

    /// What the relay is doing, to be read while it runs.
    pub fn health(&self) -> RelayHealth {
        self.engine.health()
    }

    /// Looks at the table once, as [`run`](Self::run) does at its start; but a database that is away is not waited for.
    pub(crate) async fn reach(&self) -> Result<(), RelayError> {
        Ok(self.engine.open_store().await?)
    }

    /// Claims one batch, delivers it, settles it; then what other relays left behind, one by one; then a batch of dead
    /// events for the dead-letter route, and what is due to be tried again. Before all this, one event for each sink that was down,
    /// when it is time to find out whether it is back.
    ///
    /// # Errors
    /// When the relay was closed or the store fails.
    ///
    /// # Cancel safety
    /// Dropped, what was claimed stays with the relay: the next call goes on with it, unless its leases have run out by then. Dead
    /// events that were on their way are sent again then.
    pub async fn run_once(&mut self) -> Result<RunReport, RelayError> {
        if self.closed {
            return Err(RelayError::Closed);
        }
        self.engine.run_once().await
    }

    /// Gives up the table; nothing runs on this relay any more. What a dropped run has left ends first, for which it has
    /// `drain_timeout`; the rest goes back.
    ///
    /// # Cancel safety
    /// Dropped half-way, no other run begins. Call it again, or drop the relay, whose place another one takes then as after a crash.
    pub async fn close(&mut self) {
        self.closed = true;
        if self.engine.is_at_work() {
            self.engine.drain().await;
        }
        self.engine.close().await;
    }

    /// Runs until the process ends.
    ///
    /// # Errors
    /// When the relay was closed or the store refuses the table at the start. Later failures are logged and tried
    /// again for ever.
    ///
    /// # Cancel safety
    /// Dropped, it ends as a crash would end it: dispatches are cut off, and what was claimed waits until its lease has run out.
    /// [`with_graceful_shutdown`](Self::with_graceful_shutdown) ends it in good order.
    pub async fn run(self) -> Result<(), RelayError> {
        self.with_graceful_shutdown(std::future::pending()).await
    }

    /// Runs until the signal; then stops claiming, finishes what runs within `drain_timeout`, settles it, releases
    /// the rest uncharged and gives up the table.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run): to stop it, end the signal.
    pub async fn with_graceful_shutdown(
        mut self,
        signal: impl Future<Output = ()> + Send,
    ) -> Result<(), RelayError> {
        if self.closed {
            return Err(RelayError::Closed);
        }
        let span = self.engine.telemetry.span();
        self.engine.run(signal).instrument(span).await
    }

    /// Runs in a task of its own, until [`RelayHandle::shutdown`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn spawn(self) -> RelayHandle {
        let (stop, mut stopped) = watch::channel(false);
        let health = self.health();
        let mut ending = Ending { health: health.clone(), ended: watch::Sender::new(()), told: false };
        let ended = ending.ended.subscribe();
        let task = tokio::spawn(async move {
            let result = self
                .with_graceful_shutdown(async move {
                    // A dropped handle is no wish to stop: the relay then runs as long as its runtime.
                    if stopped.wait_for(|stop| *stop).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                })
                .await;
            ending.returned(&result);
            result
        });
        RelayHandle { stop, task, health, ended }
    }
}

impl<S: Store> Engine<S> {
    /// Opens the store and makes sure that it can do what is asked for.
    async fn open_store(&self) -> Result<(), StoreError> {
        self.store.open().await?;
        self.store.require(self.needs).await
    }
}

/// Tells of the end of a relay's task, however it ends.
struct Ending {
    health: RelayHealth,
    /// Whoever waits sees it closed.
    ended: watch::Sender<()>,
    told: bool,
}

impl Ending {
    fn returned(&mut self, result: &Result<(), RelayError>) {
        self.told = true;
        if let Err(error) = result {
            tracing::error!(database = self.health.database(), table = self.health.table(), %error, "the relay has ended");
            self.note(error);
        }
    }

    fn note(&self, why: &dyn std::fmt::Display) {
        self.health.update(|health| health.error = Some(format!("it has ended: {why}")));
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                database = self.health.database(),
                table = self.health.table(),
                "the relay has ended: it panicked"
            );
            self.note(&"it panicked");
        } else if !self.told {
            // Killed, or gone with its runtime: somebody wanted that.
            self.note(&"its task was dropped");
        }
    }
}

/// A relay that runs in a task. Dropped, it runs on, as long as the runtime does.
#[derive(Debug)]
#[must_use = "keep it, and call `shutdown` when the application ends"]
pub struct RelayHandle {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), RelayError>>,
    health: RelayHealth,
    ended: watch::Receiver<()>,
}

impl RelayHandle {
    /// What the relay is doing.
    pub fn health(&self) -> RelayHealth {
        self.health.clone()
    }

    /// Ends when the relay has ended, for whatever reason; [`join`](Self::join) says which.
    ///
    /// # Cancel safety
    /// Only waits; it can be dropped and called again.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    /// Drains and stops it.
    ///
    /// # Errors
    /// When the relay could not start, or its task panicked.
    ///
    /// # Cancel safety
    /// Dropped, the stop goes on by itself, without anybody waiting for it.
    pub async fn shutdown(self) -> Result<(), RelayError> {
        self.stop.send_replace(true);
        self.join().await
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropped, the relay runs on, and nobody can stop it any more.
    pub async fn join(self) -> Result<(), RelayError> {
        match self.task.await {
            Ok(result) => result,
            Err(error) => Err(RelayError::Panicked(error.to_string())),
        }
    }

    /// Ends it at once, as a crash would: for tests of what happens then.
    pub fn kill(self) {
        self.task.abort();
    }
}
