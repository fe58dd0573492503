//! [`Journal`]: what a transaction has written, kept until it is known how the transaction ended.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tracing::Instrument as _;

use crate::event::EventId;
use crate::hook::{After, Hooks, Written};
use crate::hot::{Born, HotPath};
use crate::transaction::Guarded;
use crate::tx::OutboxTable;

/// What an open transaction has written and somebody wants to be told of when it ends. Enqueue notes it here; the
/// transaction that [`Outbox::begin`](crate::Outbox::begin) opened reads it.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Mutex<Vec<Batch>>>);

/// Rows of one table, by event and sequence.
pub(crate) type Rows = (Arc<OutboxTable>, Vec<(EventId, i64)>);

/// What one outbox wrote in one transaction.
#[derive(Debug)]
pub(crate) struct Batch {
    table: Arc<OutboxTable>,
    hooks: Hooks,
    events: Vec<Written>,
    hot: Hot,
}

/// What was born leased: its places on the hot path are free again when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    pub(crate) path: Option<HotPath>,
    pub(crate) born: HashMap<EventId, Born>,
}

impl Journal {
    /// Notes what an outbox has written. Several calls of one outbox are one batch.
    pub(crate) fn note(&self, table: &Arc<OutboxTable>, hooks: &Hooks, events: Vec<Written>, hot: Hot) {
        let mut batches = self.lock();
        let same =
            |batch: &&mut Batch| batch.hooks.same(hooks) && batch.table == *table && batch.hot.fits(&hot);
        match batches.iter_mut().find(same) {
            Some(batch) => {
                batch.events.extend(events);
                batch.hot.path = batch.hot.path.take().or(hot.path);
                batch.hot.born.extend(hot.born);
            }
            None => batches.push(Batch { table: Arc::clone(table), hooks: hooks.clone(), events, hot }),
        }
    }

    /// An event that is written again had been taken back before (`ROLLBACK TO SAVEPOINT`): the row that was born for it then is gone,
    /// though the new one may have its number.
    pub(crate) fn written_again(&self, table: &OutboxTable, events: &[Written]) {
        let mut batches = self.lock();
        for batch in batches.iter_mut().filter(|batch| *batch.table == *table && !batch.hot.born.is_empty()) {
            for event in events {
                batch.hot.born.remove(&event.record.event_id);
            }
        }
    }

    /// The rows to look for before the commit, by table.
    pub(crate) fn rows(&self) -> Vec<Rows> {
        let mut batches = self.lock();
        batches.iter_mut().for_each(Batch::forget_repeated);
        batches.iter().map(|batch| (Arc::clone(&batch.table), batch.rows())).collect()
    }

    /// Takes everything out.
    pub(crate) fn take(&self) -> Batches {
        let mut batches = std::mem::take(&mut *self.lock());
        batches.iter_mut().for_each(Batch::forget_repeated);
        Batches(batches)
    }

    /// Takes everything out: what is still there, and what is missing, as found for each of [`rows`](Self::rows).
    pub(crate) fn split(&self, guarded: &[Guarded]) -> (Batches, Batches) {
        let mut there = self.take();
        let gone = there.0.iter_mut().zip(guarded).filter_map(|(batch, guarded)| batch.split_off(guarded));
        let gone = Batches(gone.collect());
        (there, gone)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Batch>> {
        // The list stays whole whatever panics beside it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    /// An event that was written twice was taken back in between: only the last row can be there.
    fn forget_repeated(&mut self) {
        let last: HashMap<EventId, i64> =
            self.events.iter().map(|event| (event.record.event_id, event.sequence)).collect();
        if last.len() < self.events.len() {
            let mut seen = HashSet::new();
            self.events.retain(|event| {
                last[&event.record.event_id] == event.sequence && seen.insert(event.record.event_id)
            });
        }
    }

    fn rows(&self) -> Vec<(EventId, i64)> {
        self.events.iter().map(|event| (event.record.event_id, event.sequence)).collect()
    }

    /// Takes out the events that are not there any more.
    fn split_off(&mut self, guarded: &Guarded) -> Option<Self> {
        self.hot.check(guarded.durable);
        if guarded.missing.is_empty() {
            return None;
        }
        let missing: HashSet<EventId> = guarded.missing.iter().copied().collect();
        self.hot.born.retain(|event, _| !missing.contains(event));
        let (gone, there) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|event| missing.contains(&event.record.event_id));
        self.events = there;
        let (table, hooks, hot) = (Arc::clone(&self.table), self.hooks.clone(), Hot::default());
        Some(Self { table, hooks, events: gone, hot })
    }

    /// It is committed: what was born leased goes to its handlers.
    fn admit(&mut self) {
        let Hot { path: Some(path), mut born } = std::mem::take(&mut self.hot) else { return };
        let mut admit = |event: Written| {
            born.remove(&event.record.event_id).map(|born| (born, event.record, event.sequence))
        };
        if self.hooks.is_empty() {
            path.admit(std::mem::take(&mut self.events).into_iter().filter_map(admit));
        } else {
            // Hooks want to see them too.
            path.admit(self.events.iter().filter_map(|event| admit(event.clone())));
        }
    }
}

impl Hot {
    /// Whether both take the same path, as far as they take one: a row is born for the relay at its end.
    fn fits(&self, other: &Self) -> bool {
        match (&self.path, &other.path) {
            (Some(path), Some(other)) => path.same(other),
            _ => true,
        }
    }

    /// What a crash of the server may take back must not be handled before (hazard 33).
    fn check(&mut self, durable: bool) {
        let durable = durable || self.path.as_ref().is_none_or(HotPath::allows_asynchronous);
        for born in self.born.values_mut() {
            born.durable = durable;
        }
    }
}

/// What was written in a transaction that is about to end.
#[derive(Debug, Default)]
pub(crate) struct Batches(Vec<Batch>);

impl Batches {
    /// Whether nobody waits to be told.
    fn is_empty(&self) -> bool {
        self.0.iter().all(|batch| batch.hooks.is_empty())
    }

    /// Tells the hooks, and waits for them.
    pub(crate) async fn tell(self, stage: After) {
        if !self.is_empty() {
            to_the_end(self.run(stage)).await;
        }
    }

    /// Tells the hooks without waiting for them.
    fn tell_later(self, stage: After) {
        if self.is_empty() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            let table = &self.0[0].table.name;
            tracing::warn!(%table, "a transaction was dropped outside of a runtime: nothing can run its hooks");
            return;
        };
        runtime.spawn(self.run(stage).in_current_span());
    }

    async fn run(self, stage: After) {
        for batch in self.0.into_iter().filter(|batch| !batch.events.is_empty() && !batch.hooks.is_empty()) {
            batch.hooks.after(stage, &batch.table.name.to_string(), &batch.events).await;
        }
    }
}

/// Runs hooks in a task of their own: whoever waits for them may stop waiting, but what was begun runs to its end.
async fn to_the_end(hooks: impl Future<Output = ()> + Send + 'static) {
    match Handle::try_current() {
        // It ends early only with its runtime.
        Ok(runtime) => drop(runtime.spawn(hooks.in_current_span()).await),
        Err(_) => hooks.await,
    }
}

/// What was written in a transaction that nobody has ended yet. Dropped, it was rolled back.
#[derive(Debug, Default)]
pub(crate) struct Open(pub(crate) Journal);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.take().tell_later(After::Rollback);
    }
}

/// What was written in a transaction whose commit is under way. Dropped, its result is unknown, and nobody is told
/// anything (hazard 30), except of what had been taken back before: that exists in no case.
#[derive(Debug)]
pub(crate) struct InDoubt {
    there: Batches,
    gone: Batches,
}

impl InDoubt {
    pub(crate) fn new((there, gone): (Batches, Batches)) -> Self {
        Self { there, gone }
    }

    /// The answer has come: what was written ended like this.
    pub(crate) async fn known(mut self, stage: After) {
        let (mut there, gone) = (std::mem::take(&mut self.there), std::mem::take(&mut self.gone));
        if stage == After::Commit {
            there.0.iter_mut().for_each(Batch::admit);
        }
        if there.is_empty() && gone.is_empty() {
            return;
        }
        to_the_end(async move {
            there.run(stage).await;
            gone.run(After::Rollback).await;
        })
        .await;
    }
}

impl Drop for InDoubt {
    fn drop(&mut self) {
        for batch in self.there.0.iter().filter(|batch| !batch.hooks.is_empty()) {
            tracing::error!(
                table = %batch.table.name, events = batch.events.len(),
                "the result of a commit is unknown: after_commit and after_rollback do not run"
            );
        }
        std::mem::take(&mut self.gone).tell_later(After::Rollback);
    }
}
