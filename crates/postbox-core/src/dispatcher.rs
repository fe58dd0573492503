//! [`Dispatcher`]: the one boundary at which deliveries succeed or fail.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::Notify;

use crate::code::Code;
use crate::event::{AggregateKey, EventId, Headers, Payload, TenantId};
use crate::json::Json;
use crate::redact;
use crate::topic::Topic;

/// An event on its way to a destination.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Everything but the payload.
    pub meta: Meta,
    /// What it carries.
    pub payload: Payload,
    /// Where at the sink it goes, if its route says so; else the sink knows.
    pub destination: Option<Arc<str>>,
}

/// What is known of a delivery besides its payload.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names are the contract's; see the fields of a record")]
pub struct Meta {
    pub table: Arc<str>,
    pub event_id: EventId,
    pub tenant_id: TenantId,
    pub topic: Topic,
    pub sequence: i64,
    /// The number of this attempt, from 1.
    pub attempts: i32,
    pub aggregate: Option<AggregateKey>,
    pub headers: Headers,
    pub occurred_at: OffsetDateTime,
    pub created_at: OffsetDateTime,
    pub schema_id: Option<String>,
    pub schema_version: i32,
    pub routing_key: Option<String>,
    pub metadata: Option<Json>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}

impl Meta {
    /// The message key at brokers: routing key, else the aggregate's id, else the event id.
    pub fn message_key(&self) -> String {
        match (&self.routing_key, &self.aggregate) {
            (Some(key), _) => key.clone(),
            (None, Some(aggregate)) => aggregate.id.clone(),
            (None, None) => self.event_id.to_string(),
        }
    }
}

/// Delivers events somewhere: a handler in this process, a broker, a file.
///
/// ```
/// use postbox_core::{Delivery, DispatchError, Dispatcher};
///
/// struct Print;
///
/// impl Dispatcher for Print {
///     async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
///         println!("{} {}", delivery.meta.topic, delivery.meta.event_id);
///         Ok(())
///     }
/// }
/// ```
pub trait Dispatcher: Send + Sync + 'static {
    /// Delivers one event. `Ok` means that it arrived; the same event may come again, with the same `event_id`.
    ///
    /// # Errors
    /// [`DispatchError`] says what is to be done: retry, reject, or wait until the destination is back.
    ///
    /// # Cancel safety
    /// A relay drops it at `dispatch_timeout`, and when it stops: the event counts as not delivered, and comes again.
    fn dispatch(&self, delivery: &Delivery) -> impl Future<Output = Result<(), DispatchError>> + Send;

    /// Delivers several events at once, recording each one's outcome as soon as it is known, so that a timeout
    /// keeps what was confirmed.
    ///
    /// # Cancel safety
    /// As [`dispatch`](Self::dispatch), for those events whose outcome was not recorded.
    fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) -> impl Future<Output = ()> + Send {
        async move {
            for (index, delivery) in batch.iter().enumerate() {
                receipts.record(index, self.dispatch(delivery).await);
            }
        }
    }

    /// The most events that [`dispatch_batch`](Self::dispatch_batch) wants at once.
    fn batch_limit(&self) -> usize {
        1
    }

    /// What is wrong with how it was put together, if anything. Asked once, when a relay is built.
    ///
    /// # Errors
    /// In a sentence for whoever put it together.
    fn check(&self) -> Result<(), DispatchError> {
        Ok(())
    }
}

/// Why a delivery failed, classified where it failed.
///
/// ```
/// use std::io::{Error, ErrorKind};
/// use postbox_core::DispatchError;
///
/// fn classify(error: Error) -> DispatchError {
///     match error.kind() {
///         ErrorKind::ConnectionRefused => DispatchError::unavailable(error), // it is down: all its events wait, uncharged
///         ErrorKind::InvalidData => DispatchError::reject(error),            // it will never take this one: dead at once
///         _ => DispatchError::retry(error),                                  // it may work next time
///     }
/// }
/// assert_eq!(classify(ErrorKind::InvalidData.into()).to_string(), "OUTBOX_REJECTED: invalid data");
/// ```
#[derive(Debug, Clone)]
pub struct DispatchError {
    kind: DispatchErrorKind,
    code: Code,
    // Shared, so that several can look at one failure: the engine that settles it, the interceptors that watch.
    source: Arc<dyn Error + Send + Sync>,
}

/// What is to be done about a failed delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchErrorKind {
    /// Try again, after the given time or the usual backoff.
    Retry(Option<Duration>),
    /// Never try again: dead at once.
    Reject,
    /// The destination is down: no attempt is spent, and all its events wait.
    Unavailable,
}

impl DispatchError {
    /// It may work next time.
    pub fn retry(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(DispatchErrorKind::Retry(None), Code::DispatchFailed, source.into())
    }

    /// It may work after this time.
    pub fn retry_after(source: impl Into<Box<dyn Error + Send + Sync>>, after: Duration) -> Self {
        Self::new(DispatchErrorKind::Retry(Some(after)), Code::DispatchFailed, source.into())
    }

    /// It will never work: dead at once.
    pub fn reject(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(DispatchErrorKind::Reject, Code::Rejected, source.into())
    }

    /// The destination is down.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(DispatchErrorKind::Unavailable, Code::Unavailable, source.into())
    }

    fn new(kind: DispatchErrorKind, code: Code, source: Box<dyn Error + Send + Sync>) -> Self {
        Self { kind, code, source: source.into() }
    }

    /// The same with another stable code.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Self {
        self.code = code;
        self
    }

    /// What is to be done about it.
    pub fn kind(&self) -> DispatchErrorKind {
        self.kind
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.code
    }
}

impl fmt::Display for DispatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, redact::chain(&*self.source))
    }
}

impl Error for DispatchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The outcome of one event of a batch: its place in the batch, and what the dispatcher said.
pub(crate) type Outcome = (usize, Result<(), DispatchError>);

/// Where a dispatcher records what became of each event of a batch.
///
/// ```
/// use postbox_core::{Delivery, DispatchError, Dispatcher, Receipts};
///
/// /// Writes a whole batch at once.
/// struct Bulk;
///
/// impl Dispatcher for Bulk {
///     async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
///         Receipts::of_one(self, delivery).await
///     }
///
///     async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
///         // … one write …
///         receipts.all_delivered();
///     }
///
///     fn batch_limit(&self) -> usize {
///         1000
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Receipts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    recorded: Notify,
}

#[derive(Debug)]
struct State {
    known: Vec<bool>,
    fresh: VecDeque<Outcome>,
}

impl Receipts {
    /// Receipts for a batch of so many events, to test a dispatcher without a relay.
    pub fn new(len: usize) -> Self {
        let state = State { known: vec![false; len], fresh: VecDeque::with_capacity(len) };
        Self(Arc::new(Shared { state: Mutex::new(state), recorded: Notify::new() }))
    }

    /// Delivers one event as a batch of one: the [`dispatch`](Dispatcher::dispatch) of a dispatcher whose way of working is the batch.
    ///
    /// # Errors
    /// What was recorded for the event; a retry, if nothing was.
    ///
    /// # Cancel safety
    /// As its [`dispatch_batch`](Dispatcher::dispatch_batch).
    pub async fn of_one(dispatcher: &impl Dispatcher, delivery: &Delivery) -> Result<(), DispatchError> {
        let mut receipts = Self::new(1);
        dispatcher.dispatch_batch(std::slice::from_ref(delivery), &mut receipts).await;
        let outcome = receipts.take().pop().map(|(_, outcome)| outcome);
        outcome.unwrap_or_else(|| Err(DispatchError::retry("the dispatcher said nothing about this event")))
    }

    /// Records the outcome of the event at this place; only the first one counts.
    pub fn record(&mut self, index: usize, outcome: Result<(), DispatchError>) {
        let mut state = self.lock();
        match state.known.get_mut(index) {
            Some(known) if !*known => *known = true,
            _ => return,
        }
        state.fresh.push_back((index, outcome));
        drop(state);
        self.0.recorded.notify_one();
    }

    /// Records that all events arrived of which nothing else is known.
    pub fn all_delivered(&mut self) {
        self.rest(&Ok(()));
    }

    /// Records that all events failed in this way of which nothing else is known: the connection was lost, say.
    pub fn rest_failed(&mut self, error: DispatchError) {
        self.rest(&Err(error));
    }

    fn rest(&mut self, outcome: &Result<(), DispatchError>) {
        let mut state = self.lock();
        for index in 0..state.known.len() {
            if !std::mem::replace(&mut state.known[index], true) {
                state.fresh.push_back((index, outcome.clone()));
            }
        }
        drop(state);
        self.0.recorded.notify_one();
    }

    /// What was recorded since the last call, in the order in which it became known.
    pub fn take(&self) -> Vec<(usize, Result<(), DispatchError>)> {
        self.lock().fresh.drain(..).collect()
    }

    /// The places of which nothing is known yet.
    pub(crate) fn unknown(&self) -> Vec<usize> {
        let state = self.lock();
        (0..state.known.len()).filter(|index| !state.known[*index]).collect()
    }

    pub(crate) fn watch(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// Waits until something is recorded.
    pub(crate) async fn recorded(&self) {
        self.0.recorded.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state stays whole whatever panics beside it.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dispatcher of any type, so that routes can hold several.
#[derive(Clone)]
pub struct BoxDispatcher(Arc<dyn Erased>);

impl BoxDispatcher {
    /// Boxes a dispatcher.
    pub fn new(dispatcher: impl Dispatcher) -> Self {
        Self(Arc::new(dispatcher))
    }
}

impl fmt::Debug for BoxDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxDispatcher")
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The object-safe face of a dispatcher; other method names, or calls would be ambiguous.
trait Erased: Send + Sync {
    fn one<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Result<(), DispatchError>>;
    fn many<'a>(&'a self, batch: &'a [Delivery], receipts: &'a mut Receipts) -> BoxFuture<'a, ()>;
    fn most(&self) -> usize;
    fn sound(&self) -> Result<(), DispatchError>;
}

impl<D: Dispatcher> Erased for D {
    fn one<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a, Result<(), DispatchError>> {
        Box::pin(self.dispatch(delivery))
    }
    fn many<'a>(&'a self, batch: &'a [Delivery], receipts: &'a mut Receipts) -> BoxFuture<'a, ()> {
        Box::pin(self.dispatch_batch(batch, receipts))
    }
    fn most(&self) -> usize {
        self.batch_limit()
    }
    fn sound(&self) -> Result<(), DispatchError> {
        self.check()
    }
}

impl Dispatcher for BoxDispatcher {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        self.0.one(delivery).await
    }
    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        self.0.many(batch, receipts).await;
    }
    fn batch_limit(&self) -> usize {
        self.0.most()
    }
    fn check(&self) -> Result<(), DispatchError> {
        self.0.sound()
    }
}
