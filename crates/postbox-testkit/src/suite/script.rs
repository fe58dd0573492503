//! [`Scripted`]: a dispatcher that does what a test wants and remembers what it saw.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox_core::{Delivery, DispatchError, Dispatcher, EventId, Receipts};

/// What to do with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It arrives.
    Ok,
    /// It arrives after a while.
    Slow(Duration),
    /// It may work next time.
    Retry,
    /// It never will.
    Reject,
    /// The destination is down.
    Unavailable,
    /// A panic.
    Panic,
    /// No answer, ever.
    Hang,
    /// A thread that is blocked for so long.
    Block(Duration),
}

type Script = Arc<dyn Fn(&Delivery) -> Act + Send + Sync>;

/// A dispatcher with a script.
#[derive(Clone)]
pub struct Scripted {
    script: Script,
    seen: Arc<Mutex<Vec<Delivery>>>,
    arrived: Arc<Mutex<Vec<EventId>>>,
    running: Arc<AtomicUsize>,
    most_running: Arc<AtomicUsize>,
    batch: usize,
}

impl Scripted {
    /// Does what the script says.
    pub fn new(script: impl Fn(&Delivery) -> Act + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            seen: Arc::default(),
            arrived: Arc::default(),
            running: Arc::default(),
            most_running: Arc::default(),
            batch: 1,
        }
    }

    /// Everything arrives.
    pub fn ok() -> Self {
        Self::new(|_| Act::Ok)
    }

    /// Takes so many at once.
    #[must_use]
    pub fn in_batches(mut self, most: usize) -> Self {
        self.batch = most;
        self
    }

    /// Every delivery that was tried, in order.
    pub fn seen(&self) -> Vec<Delivery> {
        self.seen.lock().expect("unpoisoned").clone()
    }

    pub(super) fn note(&self, delivery: &Delivery) {
        self.seen.lock().expect("unpoisoned").push(delivery.clone());
    }

    pub(super) fn arrive(&self, delivery: &Delivery) {
        self.arrived.lock().expect("unpoisoned").push(delivery.meta.event_id);
    }

    /// How often an event was tried.
    pub fn tries(&self, event: EventId) -> usize {
        self.seen().iter().filter(|delivery| delivery.meta.event_id == event).count()
    }

    /// What arrived, in order, with repetitions.
    pub fn arrived(&self) -> Vec<EventId> {
        self.arrived.lock().expect("unpoisoned").clone()
    }

    /// The most dispatches that ran at the same time.
    pub fn most_running(&self) -> usize {
        self.most_running.load(Ordering::SeqCst)
    }
}

/// Counts a dispatch while it runs, also when it is dropped half-way.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Dispatcher for Scripted {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        let _running = Running(Arc::clone(&self.running));
        self.most_running.fetch_max(now, Ordering::SeqCst);
        self.note(delivery);
        match (self.script)(delivery) {
            Act::Ok => {}
            Act::Slow(time) => tokio::time::sleep(time).await,
            Act::Retry => return Err(DispatchError::retry("try again")),
            Act::Reject => return Err(DispatchError::reject("never")),
            Act::Unavailable => return Err(DispatchError::unavailable("down")),
            // Unlike `panic!`, without a trace on the console, which takes a debugger's work of half a minute to print.
            Act::Panic => resume_unwind(Box::new("a scripted panic")),
            Act::Hang => std::future::pending().await,
            Act::Block(time) => std::thread::sleep(time),
        }
        self.arrive(delivery);
        Ok(())
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        for (index, delivery) in batch.iter().enumerate() {
            receipts.record(index, self.dispatch(delivery).await);
        }
    }

    fn batch_limit(&self) -> usize {
        self.batch
    }
}
