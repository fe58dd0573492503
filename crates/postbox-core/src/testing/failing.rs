//! [`FailingDispatcher`]: a destination that fails on purpose.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dispatcher::{Delivery, DispatchError, Dispatcher};
use crate::event::EventId;

/// Fails each event so often as it was told, then lets it arrive; and remembers what it saw. Clones share the memory.
///
/// ```
/// # use postbox_core::Dispatcher;
/// # use postbox_core::testing::{FailingDispatcher, delivery};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let sink = FailingDispatcher::times(1);
/// let event = delivery("shop.order.placed.v1", "{}");
/// assert!(sink.dispatch(&event).await.is_err());
/// assert!(sink.dispatch(&event).await.is_ok());
/// assert_eq!((sink.seen().len(), sink.delivered().len()), (2, 1));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FailingDispatcher {
    how: How,
    times: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Copy)]
enum How {
    Retry,
    Reject,
    Unavailable,
    Panic,
    Hang,
}

#[derive(Debug, Default)]
struct State {
    tries: HashMap<EventId, usize>,
    seen: Vec<Delivery>,
    delivered: Vec<EventId>,
}

impl FailingDispatcher {
    fn new(how: How, times: usize) -> Self {
        Self { how, times, state: Arc::default() }
    }

    /// Fails each event so many times, as any error would; 0 never fails.
    pub fn times(times: usize) -> Self {
        Self::new(How::Retry, times)
    }

    /// Rejects every event: each is dead at once.
    pub fn rejecting() -> Self {
        Self::new(How::Reject, usize::MAX)
    }

    /// Is down for the first so many tries of each event.
    pub fn unavailable(times: usize) -> Self {
        Self::new(How::Unavailable, times)
    }

    /// Panics at the first so many tries of each event.
    pub fn panicking(times: usize) -> Self {
        Self::new(How::Panic, times)
    }

    /// Does not answer the first so many tries of each event: their dispatch times out.
    pub fn hanging(times: usize) -> Self {
        Self::new(How::Hang, times)
    }

    /// Every delivery that was tried, in order.
    pub fn seen(&self) -> Vec<Delivery> {
        self.lock().seen.clone()
    }

    /// What arrived, in order.
    pub fn delivered(&self) -> Vec<EventId> {
        self.lock().delivered.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a try; answers whether it is to fail.
    fn note(&self, delivery: &Delivery) -> bool {
        let mut state = self.lock();
        state.seen.push(delivery.clone());
        let tries = state.tries.entry(delivery.meta.event_id).or_default();
        *tries += 1;
        let fails = *tries <= self.times;
        if !fails {
            state.delivered.push(delivery.meta.event_id);
        }
        fails
    }
}

impl Dispatcher for FailingDispatcher {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        if !self.note(delivery) {
            return Ok(());
        }
        match self.how {
            How::Retry => Err(DispatchError::retry("it fails on purpose")),
            How::Reject => Err(DispatchError::reject("it rejects on purpose")),
            How::Unavailable => Err(DispatchError::unavailable("it is down on purpose")),
            How::Panic => panic!("it panics on purpose"),
            How::Hang => std::future::pending().await,
        }
    }
}
