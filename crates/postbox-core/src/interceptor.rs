//! [`EventInterceptor`]: code of yours around every dispatch, whatever its destination.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;

use tracing::Instrument as _;

use crate::bus::{HandlerError, HandlerResult};
use crate::code::Code;
use crate::dispatcher::{BoxDispatcher, Delivery, DispatchError, Dispatcher, Receipts};
use crate::panic::catch;
use crate::redact;

/// Looks at every event before its dispatch, and at the outcome after it: for audits, logs, metrics, guards.
///
/// Registered with [`RelayBuilder::interceptor`](crate::RelayBuilder::interceptor). Several are nested: `before_dispatch`
/// runs in the order of registration, `after_dispatch` in the reverse order. Closures will do, too: [`before`] and [`after`].
///
/// ```
/// use postbox_core::interceptor::{EventInterceptor, after, before};
/// use postbox_core::{Delivery, DispatchError, HandlerResult, Relay, RelayError, Store};
///
/// struct Audit;
///
/// impl EventInterceptor for Audit {
///     async fn after_dispatch(&self, delivery: &Delivery, outcome: &Result<(), DispatchError>) -> HandlerResult {
///         println!("{}: {}", delivery.meta.event_id, if outcome.is_ok() { "arrived" } else { "failed" });
///         Ok(())
///     }
/// }
/// # fn relay(store: impl Store, sink: impl postbox_core::Dispatcher) -> Result<(), RelayError> {
/// let relay = Relay::builder(store)
///     .interceptor(Audit)
///     .interceptor(before(|delivery| {
///         let forbidden = delivery.meta.headers.contains_key("internal");
///         if forbidden { Err(DispatchError::reject("internal events stay here").into()) } else { Ok(()) }
///     }))
///     .interceptor(after(|delivery, outcome| println!("{} {outcome:?}", delivery.meta.topic)))
///     .route("**", sink)
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// They run per event, also where a sink takes a batch, and are part of the dispatch: its timeout covers them.
///
/// # Cancel safety
/// Both are dropped with their dispatch, at its timeout or at the relay's end. Those that have let the event pass and heard no outcome
/// are then told in a task of its own.
pub trait EventInterceptor: Send + Sync + 'static {
    /// Before the dispatch. An error ends it here: the destination does not see the event, which is tried again, dead
    /// or put off as the error says (any error is a retry, a [`DispatchError`] says more). A panic is a retry.
    ///
    /// # Errors
    /// What is to become of the event instead.
    fn before_dispatch(&self, delivery: &Delivery) -> impl Future<Output = HandlerResult> + Send {
        let _ = delivery;
        std::future::ready(Ok(()))
    }

    /// After the dispatch, exactly once for every `before_dispatch` that let the event pass. The outcome is decided and cannot
    /// be changed any more. A dispatch that was cut off (its timeout, or the relay's end) is an error with the code
    /// `OUTBOX_TIMEOUT`.
    ///
    /// # Errors
    /// An error or a panic is logged and changes nothing.
    fn after_dispatch(
        &self,
        delivery: &Delivery,
        outcome: &Result<(), DispatchError>,
    ) -> impl Future<Output = HandlerResult> + Send {
        let _ = (delivery, outcome);
        std::future::ready(Ok(()))
    }
}

/// An interceptor that looks at events before their dispatch, and may end it there.
#[must_use = "an interceptor is given to a relay's builder"]
pub fn before<F>(look: F) -> impl EventInterceptor
where
    F: Fn(&Delivery) -> HandlerResult + Send + Sync + 'static,
{
    Before(look)
}

/// An interceptor that looks at the outcome of dispatches.
#[must_use = "an interceptor is given to a relay's builder"]
pub fn after<F>(look: F) -> impl EventInterceptor
where
    F: Fn(&Delivery, &Result<(), DispatchError>) + Send + Sync + 'static,
{
    After(look)
}

struct Before<F>(F);

impl<F: Fn(&Delivery) -> HandlerResult + Send + Sync + 'static> EventInterceptor for Before<F> {
    async fn before_dispatch(&self, delivery: &Delivery) -> HandlerResult {
        (self.0)(delivery)
    }
}

struct After<F>(F);

impl<F: Fn(&Delivery, &Result<(), DispatchError>) + Send + Sync + 'static> EventInterceptor for After<F> {
    async fn after_dispatch(
        &self,
        delivery: &Delivery,
        outcome: &Result<(), DispatchError>,
    ) -> HandlerResult {
        (self.0)(delivery, outcome);
        Ok(())
    }
}

type BoxFuture<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// The object-safe face of an interceptor; other method names, or calls would be ambiguous.
trait Erased: Send + Sync {
    fn enter<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a>;
    fn leave<'a>(&'a self, delivery: &'a Delivery, outcome: &'a Result<(), DispatchError>) -> BoxFuture<'a>;
}

impl<I: EventInterceptor> Erased for I {
    fn enter<'a>(&'a self, delivery: &'a Delivery) -> BoxFuture<'a> {
        Box::pin(self.before_dispatch(delivery))
    }
    fn leave<'a>(&'a self, delivery: &'a Delivery, outcome: &'a Result<(), DispatchError>) -> BoxFuture<'a> {
        Box::pin(self.after_dispatch(delivery, outcome))
    }
}

/// The interceptors of a relay, in the order of their registration.
#[derive(Clone, Default)]
pub(crate) struct Interceptors(Arc<Vec<Arc<dyn Erased>>>);

impl Interceptors {
    pub(crate) fn add(&mut self, interceptor: impl EventInterceptor) {
        Arc::make_mut(&mut self.0).push(Arc::new(interceptor));
    }

    /// The dispatcher with these around it; itself, if there are none.
    pub(crate) fn around(&self, sink: BoxDispatcher) -> BoxDispatcher {
        if self.0.is_empty() {
            return sink;
        }
        BoxDispatcher::new(Intercepted { interceptors: self.clone(), sink })
    }

    /// Runs `before_dispatch` of all, counting those that have let the event pass; they hear of the error of another.
    async fn enter(&self, delivery: &Delivery, passed: &mut usize) -> Result<(), DispatchError> {
        for interceptor in self.0.iter() {
            // It may panic before it gives a future as well as inside of it.
            let run = catch(AssertUnwindSafe(async { interceptor.enter(delivery).await })).await;
            let panicked = |panic| {
                DispatchError::retry(format!("an interceptor panicked: {panic}")).with_code(Code::Panicked)
            };
            let result = run
                .unwrap_or_else(|panic| Err(panicked(panic).into()))
                .map_err(HandlerError::into_dispatch_error);
            if result.is_err() {
                self.leave(std::mem::take(passed), delivery, &result).await;
                return result;
            }
            *passed += 1;
        }
        Ok(())
    }

    /// Runs `after_dispatch` of the first `entered`, in reverse.
    async fn leave(&self, entered: usize, delivery: &Delivery, outcome: &Result<(), DispatchError>) {
        for interceptor in self.0[..entered].iter().rev() {
            let run = catch(AssertUnwindSafe(async { interceptor.leave(delivery, outcome).await })).await;
            let problem = match run {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.into_dispatch_error().to_string(),
                Err(panic) => format!("it panicked: {panic}"),
            };
            let problem =
                redact::Summary::without_payload(&problem, &delivery.payload, redact::LAST_ERROR_MAX_BYTES);
            let meta = &delivery.meta;
            tracing::error!(
                table = &*meta.table, topic = %meta.topic, event_id = %meta.event_id, %problem,
                "an interceptor failed after a dispatch"
            );
        }
    }

    async fn leave_all(&self, delivery: &Delivery, outcome: &Result<(), DispatchError>) {
        self.leave(self.0.len(), delivery, outcome).await;
    }
}

impl fmt::Debug for Interceptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} interceptors", self.0.len())
    }
}

/// A dispatcher with interceptors around it.
struct Intercepted {
    interceptors: Interceptors,
    sink: BoxDispatcher,
}

impl Dispatcher for Intercepted {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        Receipts::of_one(self, delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let mut entered =
            Entered { interceptors: &self.interceptors, batch, entering: (0, 0), places: Vec::new() };
        for (place, delivery) in batch.iter().enumerate() {
            entered.entering = (place, 0);
            match self.interceptors.enter(delivery, &mut entered.entering.1).await {
                Ok(()) => entered.places.push(Some(place)),
                // It leaves the batch here; what became of it is known.
                Err(error) => receipts.record(place, Err(error)),
            }
            entered.entering.1 = 0;
        }
        let passed: Vec<usize> = entered.places.iter().copied().flatten().collect();
        if passed.len() == batch.len() {
            self.run(batch, &mut entered, receipts).await;
        } else if !passed.is_empty() {
            let rest: Vec<Delivery> = passed.iter().map(|place| batch[*place].clone()).collect();
            self.run(&rest, &mut entered, receipts).await;
        }
    }

    fn batch_limit(&self) -> usize {
        self.sink.batch_limit()
    }

    fn check(&self) -> Result<(), DispatchError> {
        self.sink.check()
    }
}

impl Intercepted {
    /// Dispatches what has entered, and hands each outcome on as soon as it is known.
    async fn run(&self, batch: &[Delivery], entered: &mut Entered<'_>, receipts: &mut Receipts) {
        let mut inner = Receipts::new(batch.len());
        let known = inner.watch();
        let mut dispatch =
            pin!(catch(AssertUnwindSafe(async { self.sink.dispatch_batch(batch, &mut inner).await })));
        let panicked = loop {
            tokio::select! {
                biased;
                ended = &mut dispatch => break ended.err(),
                () = known.recorded() => entered.leave(known.take(), receipts).await,
            }
        };
        entered.leave(known.take(), receipts).await;
        let Some(panic) = panicked else {
            let silent = || DispatchError::retry("the dispatcher said nothing about this event");
            return entered.leave_rest(&Err(silent())).await;
        };
        // The engine decides what a panic means for whom; interceptors only hear of it.
        let error = DispatchError::retry(format!("dispatcher panicked: {panic}")).with_code(Code::Panicked);
        entered.leave_rest(&Err(error)).await;
        resume_unwind(Box::new(panic));
    }
}

/// The events that interceptors have let pass and whose outcome they have not heard yet. Dropped, the dispatch was
/// cut off.
struct Entered<'a> {
    interceptors: &'a Interceptors,
    batch: &'a [Delivery],
    /// The event that is on its way in, and how many have let it pass.
    entering: (usize, usize),
    /// The places in the batch of those that are in, by their place in what was dispatched.
    places: Vec<Option<usize>>,
}

impl Entered<'_> {
    async fn leave(&mut self, outcomes: Vec<(usize, Result<(), DispatchError>)>, receipts: &mut Receipts) {
        // All of them are recorded first: an interceptor that hangs must not cost what has arrived.
        let mut heard = Vec::with_capacity(outcomes.len());
        for (index, outcome) in outcomes {
            if let Some(place) = self.places.get_mut(index).and_then(Option::take) {
                receipts.record(place, outcome.clone());
                heard.push((place, outcome));
            }
        }
        for (place, outcome) in heard {
            self.interceptors.leave_all(&self.batch[place], &outcome).await;
        }
    }

    async fn leave_rest(&mut self, outcome: &Result<(), DispatchError>) {
        for place in std::mem::take(&mut self.places).into_iter().flatten() {
            self.interceptors.leave_all(&self.batch[place], outcome).await;
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let (all, (place, some)) = (self.interceptors.0.len(), self.entering);
        let places = std::mem::take(&mut self.places).into_iter().flatten().map(|place| (place, all));
        let places = places.chain((some > 0).then_some((place, some)));
        let cut: Vec<(Delivery, usize)> =
            places.map(|(place, entered)| (self.batch[place].clone(), entered)).collect();
        if cut.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let interceptors = self.interceptors.clone();
        let tell = async move {
            let error = DispatchError::retry("the dispatch was cut off").with_code(Code::Timeout);
            let outcome = Err(error);
            for (delivery, entered) in &cut {
                interceptors.leave(*entered, delivery, &outcome).await;
            }
        };
        runtime.spawn(tell.in_current_span());
    }
}

#[cfg(test)]
mod tests;
