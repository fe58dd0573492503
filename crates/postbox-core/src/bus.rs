//! [`EventBus`]: typed handlers in this process.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use crate::code::Code;
use crate::dispatcher::{Delivery, DispatchError, DispatchErrorKind, Dispatcher, Meta};
use crate::event::{AggregateKey, Payload};
use crate::panic::catch;
use crate::receive::{Receive, ReceiveError};
use crate::topic::Topic;

/// The result of a handler. Its error is a retry unless it is a [`DispatchError`] that says otherwise.
pub type HandlerResult = Result<(), HandlerError>;

/// What a handler fails with: any error (a retry), or a [`DispatchError`].
#[derive(Debug)]
pub struct HandlerError(DispatchError);

impl HandlerError {
    /// What is to be done about it, for whoever calls handlers of its own.
    pub fn into_dispatch_error(self) -> DispatchError {
        self.0
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        match boxed.downcast::<DispatchError>() {
            Ok(error) => Self(*error),
            Err(other) => Self(DispatchError::retry(other)),
        }
    }
}

type Future_ = Pin<Box<dyn Future<Output = Result<(), DispatchError>> + Send>>;
type Handler = Arc<dyn Fn(&Delivery) -> Future_ + Send + Sync>;

/// A registry of handlers in this process, by topic.
///
/// - [`on`](Self::on) broadcasts: *all* handlers of a topic run; if any fails, the event is tried again, and all of them
///   see it again. Handlers deduplicate by `meta.event_id`.
/// - [`only`](Self::only) is exclusive: *exactly one* handler per aggregate type and topic. A second one is refused when the
///   relay is built.
///
/// A handler fails with any error, which is a retry; a [`DispatchError`] says more, and texts go through it too:
///
/// ```
/// use postbox_core::{Delivery, DispatchError, Event, EventBus, Meta, Receive, Topic};
/// # fn bus<Created: Receive, Paid: Receive>() -> EventBus {
/// EventBus::new()
///     .on(|meta: Meta, event: Created| async move {
///         let number: u32 = meta.headers.get("number").map_or("0", String::as_str).parse()?;
///         if number > 7 { Err(DispatchError::reject("too many").into()) } else { Ok(()) }
///     })
///     .only(|meta: Meta, event: Paid| async { Ok(()) })
///     .on_topic(Topic::from_static("org.thing.removed.v1"), |delivery: Delivery| async move {
///         println!("{}", delivery.meta.event_id);
///         Ok(())
///     })
/// # }
/// ```
///
/// An event that nobody handles: where handlers broadcast, they may be registered later, so it is tried again
/// (`EVENTBUS_NO_SUBSCRIBERS`); where all handlers are exclusive, or the topic has exclusive ones for other aggregate
/// types alone, there is none for it, and it is dead at once (`OUTBOX_UNROUTABLE`). A payload that does not decode into the
/// handler's type is dead at once, too.
#[derive(Clone, Default)]
#[must_use = "a bus does nothing until a relay has it"]
pub struct EventBus {
    topics: HashMap<Topic, Handlers>,
    /// What contradicts itself, in words.
    conflicts: Vec<String>,
}

/// The handlers of one topic: those that all run, or one per aggregate type.
#[derive(Clone)]
enum Handlers {
    All(Vec<Handler>),
    Only(HashMap<String, Handler>),
}

impl EventBus {
    /// A bus without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler for a typed event, or for an enum of events, beside others. A payload that does not decode into
    /// the type is a reject.
    pub fn on<E, F, Fut>(mut self, handler: F) -> Self
    where
        E: Receive,
        F: Fn(Meta, E) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        let handler = typed(handler);
        for topic in E::TOPICS {
            self.add(topic.clone(), Arc::clone(&handler));
        }
        self
    }

    /// Adds a handler for a topic without a type, beside others.
    pub fn on_topic<F, Fut>(mut self, topic: Topic, handler: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.add(topic, untyped(handler));
        self
    }

    /// Sets the one handler for a typed event, or for an enum of events, of all aggregate types that have no handler
    /// of their own.
    pub fn only<E, F, Fut>(self, handler: F) -> Self
    where
        E: Receive,
        F: Fn(Meta, E) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.only_for(AggregateKey::GLOBAL, handler)
    }

    /// Sets the one handler for a typed event, or for an enum of events, of one aggregate type. It comes before the one
    /// for all types.
    pub fn only_for<E, F, Fut>(mut self, aggregate_type: &str, handler: F) -> Self
    where
        E: Receive,
        F: Fn(Meta, E) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        let handler = typed(handler);
        for topic in E::TOPICS {
            self.set(topic.clone(), aggregate_type, Arc::clone(&handler));
        }
        self
    }

    /// Sets the one handler for a topic without a type, of one aggregate type or, with
    /// [`AggregateKey::GLOBAL`], of all that have no handler of their own.
    pub fn only_topic<F, Fut>(mut self, aggregate_type: &str, topic: Topic, handler: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.set(topic, aggregate_type, untyped(handler));
        self
    }

    fn add(&mut self, topic: Topic, handler: Handler) {
        if let Some(Handlers::Only(_)) = self.topics.get(&topic) {
            return self.mixed(&topic);
        }
        if let Handlers::All(handlers) = self.topics.entry(topic).or_insert(Handlers::All(Vec::new())) {
            handlers.push(handler);
        }
    }

    fn set(&mut self, topic: Topic, aggregate_type: &str, handler: Handler) {
        match self.topics.get(&topic) {
            Some(Handlers::All(_)) => return self.mixed(&topic),
            Some(Handlers::Only(handlers)) if handlers.contains_key(aggregate_type) => {
                return self.conflicts.push(format!(
                    "two handlers are registered with `only` for the topic {topic} and the aggregate type \
                     {aggregate_type}, and only one can have its events: remove one of them, or register both with `on` to \
                     run both"
                ));
            }
            Some(Handlers::Only(_)) | None => {}
        }
        if let Handlers::Only(handlers) = self.topics.entry(topic).or_insert(Handlers::Only(HashMap::new())) {
            handlers.insert(aggregate_type.to_owned(), handler);
        }
    }

    fn mixed(&mut self, topic: &Topic) {
        self.conflicts.push(format!(
            "the topic {topic} has a handler registered with `only`, which means that it alone gets the events, and \
             another one registered with `on`: use one of the two for all handlers of a topic"
        ));
    }

    /// Those that are to run.
    fn handlers(&self, meta: &Meta) -> Result<&[Handler], DispatchError> {
        let topic = &meta.topic;
        let kind = meta.aggregate.as_ref().map_or(AggregateKey::GLOBAL, |aggregate| aggregate.kind.as_str());
        match self.topics.get(topic) {
            Some(Handlers::All(handlers)) => Ok(handlers),
            Some(Handlers::Only(handlers)) => {
                let one = handlers.get(kind).or_else(|| handlers.get(AggregateKey::GLOBAL));
                one.map(std::slice::from_ref).ok_or_else(|| {
                    let nobody = format!("no handler for {topic} of the aggregate type {kind}");
                    DispatchError::reject(nobody).with_code(Code::Unroutable)
                })
            }
            None => {
                let nobody = format!("no handler for {topic}");
                let exclusive = |handlers: &Handlers| matches!(handlers, Handlers::Only(_));
                Err(if !self.topics.is_empty() && self.topics.values().all(exclusive) {
                    DispatchError::reject(nobody).with_code(Code::Unroutable)
                } else {
                    DispatchError::retry(nobody).with_code(Code::NoSubscribers)
                })
            }
        }
    }
}

fn typed<E, F, Fut>(handler: F) -> Handler
where
    E: Receive,
    F: Fn(Meta, E) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    Arc::new(move |delivery| {
        let event = match &delivery.payload {
            Payload::Json(json) => E::receive(&delivery.meta.topic, json),
            Payload::Bytes { .. } => Err(ReceiveError::bytes(&delivery.meta.topic)),
        };
        match event {
            Ok(event) => {
                let run = handler(delivery.meta.clone(), event);
                Box::pin(async move { run.await.map_err(HandlerError::into_dispatch_error) })
            }
            Err(error) => {
                let error = DispatchError::reject(error).with_code(Code::PayloadUndecodable);
                Box::pin(std::future::ready(Err(error)))
            }
        }
    })
}

fn untyped<F, Fut>(handler: F) -> Handler
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    Arc::new(move |delivery| {
        let run = handler(delivery.clone());
        Box::pin(async move { run.await.map_err(HandlerError::into_dispatch_error) })
    })
}

impl Dispatcher for EventBus {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        self.check()?;
        let mut errors = Vec::new();
        for handler in self.handlers(&delivery.meta)? {
            // The handler may panic before it gives a future as well as inside of it.
            let run = catch(AssertUnwindSafe(async { handler(delivery).await })).await;
            let panicked =
                |text| DispatchError::retry(format!("handler panicked: {text}")).with_code(Code::Panicked);
            if let Err(error) = run.unwrap_or_else(|text| Err(panicked(text))) {
                errors.push(error);
            }
        }
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(join(&errors)),
        }
    }

    fn check(&self) -> Result<(), DispatchError> {
        match self.conflicts.first() {
            None => Ok(()),
            // A bus that nobody has checked keeps its events until it is mended.
            Some(conflict) => Err(DispatchError::retry(conflict.clone()).with_code(Code::DuplicateHandler)),
        }
    }
}

/// One error for several handlers: it is tried again if any of them may work, since a reject would rob that one of
/// its event; the longest wait counts.
fn join(errors: &[DispatchError]) -> DispatchError {
    let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let rank = |error: &&DispatchError| match error.kind() {
        DispatchErrorKind::Reject => (0, None),
        DispatchErrorKind::Retry(after) => (1, after),
        DispatchErrorKind::Unavailable => (2, None),
    };
    let joined = match errors.iter().max_by_key(rank).map(DispatchError::kind) {
        Some(DispatchErrorKind::Reject) => DispatchError::reject(text),
        Some(DispatchErrorKind::Unavailable) => DispatchError::unavailable(text),
        Some(DispatchErrorKind::Retry(Some(after))) => DispatchError::retry_after(text, after),
        Some(DispatchErrorKind::Retry(None)) | None => DispatchError::retry(text),
    };
    joined.with_code(Code::HandlerFailed)
}

impl std::fmt::Debug for EventBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.topics.keys()).finish()
    }
}

#[cfg(test)]
mod tests;
