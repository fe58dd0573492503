//! [`Watch`]: stands before a dispatcher, sees whether two of one aggregate are under way, and holds events back on request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use postbox_core::{Delivery, DispatchError, Dispatcher, EventId, Receipts};
use tokio::sync::Semaphore;

use super::script::Scripted;

/// A dispatcher that watches another.
#[derive(Clone)]
pub struct Watch {
    sink: Scripted,
    at_work: Arc<Mutex<HashMap<String, usize>>>,
    overlaps: Arc<Mutex<Vec<i64>>>,
    gate: Arc<Semaphore>,
    gated: Arc<[EventId]>,
}

impl Watch {
    /// Watches this one.
    pub fn new(sink: &Scripted) -> Self {
        Self {
            sink: sink.clone(),
            at_work: Arc::default(),
            overlaps: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            gated: Arc::from([]),
        }
    }

    /// Holds these events back; [`open`](Self::open) lets them pass.
    #[must_use]
    pub fn gated(mut self, events: &[EventId]) -> Self {
        self.gated = events.into();
        self
    }

    /// Lets so many of those that are held back pass.
    pub fn open(&self, events: usize) {
        self.gate.add_permits(events);
    }

    /// The sequences of events that were handed over while another of their aggregate was under way.
    pub fn overlaps(&self) -> Vec<i64> {
        self.overlaps.lock().expect("unpoisoned").clone()
    }

    fn begin(&self, delivery: &Delivery) -> AtWork {
        let aggregate = delivery.meta.aggregate.as_ref().map(|aggregate| aggregate.id.clone());
        if let Some(aggregate) = &aggregate {
            let mut at_work = self.at_work.lock().expect("unpoisoned");
            let others = at_work.entry(aggregate.clone()).or_default();
            if *others > 0 {
                self.overlaps.lock().expect("unpoisoned").push(delivery.meta.sequence);
            }
            *others += 1;
        }
        AtWork(aggregate, Arc::clone(&self.at_work))
    }

    async fn pass(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        if self.gated.contains(&delivery.meta.event_id) {
            self.sink.note(delivery);
            self.gate.acquire().await.expect("an open gate").forget();
            self.sink.arrive(delivery);
            return Ok(());
        }
        self.sink.dispatch(delivery).await
    }
}

/// Under way, also when it is dropped half-way.
struct AtWork(Option<String>, Arc<Mutex<HashMap<String, usize>>>);

impl Drop for AtWork {
    fn drop(&mut self) {
        if let (Some(aggregate), Ok(mut at_work)) = (self.0.take(), self.1.lock())
            && let Some(number) = at_work.get_mut(&aggregate)
        {
            *number -= 1;
        }
    }
}

impl Dispatcher for Watch {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let _at_work = self.begin(delivery);
        self.pass(delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let at_work: Vec<AtWork> = batch.iter().map(|delivery| self.begin(delivery)).collect();
        for (index, (delivery, at_work)) in batch.iter().zip(at_work).enumerate() {
            let outcome = self.pass(delivery).await;
            // As soon as this is known, the next of the aggregate may begin.
            drop(at_work);
            receipts.record(index, outcome);
        }
    }

    fn batch_limit(&self) -> usize {
        self.sink.batch_limit()
    }
}
