//! Draining: handlers run over what was enqueued, once, by the engine itself.

use std::time::Duration;

use super::memory::MemoryOutbox;
use super::store::MemoryStore;
use crate::dispatcher::Dispatcher;
use crate::event::EventId;
use crate::relay::{Backoff, Relay, RelayBuilder};
use crate::store::Verdict;
use crate::topic::Topic;

impl MemoryOutbox {
    /// The table as a relay sees it, for a relay of your own.
    pub fn store(&self) -> MemoryStore {
        MemoryStore(self.table.clone())
    }

    /// A relay for [`drain_with`](Self::drain_with), to add routes and interceptors to. It dispatches one event at a time, in
    /// order, gives each a second, and waits after failures as the default does, without jitter.
    pub fn relay(&self) -> RelayBuilder<MemoryStore> {
        Relay::builder(self.store()).set(|settings| {
            settings.concurrency = 1;
            settings.dispatch_timeout = Duration::from_secs(1);
            settings.backoff = Backoff::default().with_random(|| 0.0);
            settings.circuit = Backoff::fixed(Duration::from_secs(1));
        })
    }

    /// Dispatches every event that is due, once each and in order, and says what became of them. What handlers enqueue
    /// meanwhile is drained too. What failed is due again later: [`clock`](Self::clock)`.advance(…)`, then drain again.
    ///
    /// # Panics
    /// When the dispatcher is not put together right.
    ///
    /// # Cancel safety
    /// Dropped half-way, events stay leased until the clock has moved on by a minute.
    pub async fn drain(&self, dispatcher: impl Dispatcher) -> Drained {
        self.drain_with(self.relay().dispatcher(dispatcher)).await
    }

    /// As [`drain`](Self::drain), by a relay with your own routes, interceptors and settings.
    ///
    /// # Panics
    /// When the relay cannot be built.
    ///
    /// # Cancel safety
    /// As [`drain`](Self::drain).
    pub async fn drain_with(&self, relay: RelayBuilder<MemoryStore>) -> Drained {
        let mut relay = relay.build().unwrap_or_else(|error| panic!("{error}"));
        let draining = Draining::begin(self);
        loop {
            let report = relay.run_once().await.unwrap_or_else(|error| panic!("{error}"));
            if report.claimed == 0 {
                break;
            }
        }
        drop(draining);
        Drained(std::mem::take(&mut self.table.lock().tried))
    }
}

/// A drain under way; other relays are not bound by its rule.
struct Draining<'a>(&'a MemoryOutbox);

impl<'a> Draining<'a> {
    fn begin(memory: &'a MemoryOutbox) -> Self {
        let mut content = memory.table.lock();
        content.drains += 1;
        content.drain = Some(content.drains);
        content.tried.clear();
        Self(memory)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.table.lock().drain = None;
    }
}

/// What became of the events of a drain, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained(pub Vec<Tried>);

/// One dispatch of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The event.
    pub event_id: EventId,
    /// Its topic.
    pub topic: Topic,
    /// Which attempt it was, from 1.
    pub attempts: i32,
    /// What became of it.
    pub verdict: Verdict,
}

impl Drained {
    fn count(&self, which: impl Fn(&Verdict) -> bool) -> usize {
        self.0.iter().filter(|tried| which(&tried.verdict)).count()
    }

    /// How many arrived.
    pub fn delivered(&self) -> usize {
        self.count(|verdict| *verdict == Verdict::Delivered)
    }

    /// How many will be tried again.
    pub fn retried(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Retry { .. }))
    }

    /// How many wait, uncharged, for a destination that is down.
    pub fn released(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Release { .. }))
    }

    /// How many are dead.
    pub fn dead(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Dead { .. }))
    }

    /// The reasons of what did not arrive, in order.
    pub fn errors(&self) -> Vec<&str> {
        let failed = self.0.iter().filter_map(|tried| match &tried.verdict {
            Verdict::Retry { reason, .. } | Verdict::Dead { reason } => Some(reason.as_str()),
            Verdict::Delivered | Verdict::Release { .. } => None,
        });
        failed.collect()
    }
}
