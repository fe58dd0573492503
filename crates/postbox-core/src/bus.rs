//! [`EventBus`]: typed handlers in this process.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::code::Code;
use crate::dispatcher::{Delivery, DispatchError, DispatchErrorKind, Dispatcher, Meta};
use crate::event::{Event, Payload};
use crate::panic::catch;
use crate::topic::Topic;

/// The result of a handler. Its error is a retry unless it is a [`DispatchError`] that says otherwise.
pub type HandlerResult = Result<(), HandlerError>;

/// What a handler fails with: any error (a retry), or a [`DispatchError`].
#[derive(Debug)]
pub struct HandlerError(DispatchError);

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

/// A registry of handlers by topic. All handlers of a topic run; if any fails, the event is tried again, and all of
/// them see it again: handlers deduplicate by `meta.event_id`.
///
/// A handler fails with any error, which is a retry; a [`DispatchError`] says more, and texts go through it too:
///
/// ```
/// use postbox_core::{Delivery, DispatchError, Event, EventBus, Meta, Topic};
/// # fn bus<Created: Event + serde::de::DeserializeOwned + Send + 'static>() -> EventBus {
/// EventBus::new()
///     .on(|meta: Meta, event: Created| async move {
///         let number: u32 = meta.headers.get("number").map_or("0", String::as_str).parse()?;
///         if number > 7 { Err(DispatchError::reject("too many").into()) } else { Ok(()) }
///     })
///     .on_topic(Topic::from_static("org.thing.removed.v1"), |delivery: Delivery| async move {
///         println!("{}", delivery.meta.event_id);
///         Ok(())
///     })
/// # }
/// ```
#[derive(Clone, Default)]
pub struct EventBus {
    handlers: HashMap<Topic, Vec<Handler>>,
}

impl EventBus {
    /// A bus without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler for a typed event. A payload that does not decode into the type is a reject.
    #[must_use]
    pub fn on<E, F, Fut>(self, handler: F) -> Self
    where
        E: Event + DeserializeOwned + Send + 'static,
        F: Fn(Meta, E) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.add(E::TOPIC, move |delivery| match decode::<E>(delivery) {
            Ok(event) => {
                let run = handler(delivery.meta.clone(), event);
                Box::pin(async move { run.await.map_err(|e| e.0) })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        })
    }

    /// Adds a handler for a topic without a type.
    #[must_use]
    pub fn on_topic<F, Fut>(self, topic: Topic, handler: F) -> Self
    where
        F: Fn(Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.add(topic, move |delivery| {
            let run = handler(delivery.clone());
            Box::pin(async move { run.await.map_err(|e| e.0) })
        })
    }

    fn add(mut self, topic: Topic, handler: impl Fn(&Delivery) -> Future_ + Send + Sync + 'static) -> Self {
        self.handlers.entry(topic).or_default().push(Arc::new(handler));
        self
    }
}

/// Decodes a payload; the error names place and kind, never the value.
fn decode<E: DeserializeOwned>(delivery: &Delivery) -> Result<E, DispatchError> {
    let reject = |why: String| DispatchError::reject(why).with_code(Code::PayloadUndecodable);
    match &delivery.payload {
        Payload::Json(json) => json.decode().map_err(|e| {
            let kind = match e.classify() {
                serde_json::error::Category::Data => "a field is missing or of another type",
                serde_json::error::Category::Syntax => "it is not JSON",
                serde_json::error::Category::Eof => "it ends early",
                serde_json::error::Category::Io => "it cannot be read",
            };
            reject(format!(
                "the payload of {} is not what the handler expects: {kind} at line {} column {}",
                delivery.meta.topic,
                e.line(),
                e.column()
            ))
        }),
        Payload::Bytes { .. } => {
            Err(reject(format!("the payload of {} is bytes, not JSON", delivery.meta.topic)))
        }
    }
}

impl Dispatcher for EventBus {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let Some(handlers) = self.handlers.get(&delivery.meta.topic) else {
            let error = DispatchError::retry(format!("no handler for {}", delivery.meta.topic));
            return Err(error.with_code(Code::NoSubscribers));
        };
        let mut errors = Vec::new();
        for handler in handlers {
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
        f.debug_set().entries(self.handlers.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::delivery;
    use serde::{Deserialize, Serialize};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Serialize, Deserialize)]
    struct Created {
        n: u64,
    }

    impl Event for Created {
        const TOPIC: Topic = Topic::from_static("org.thing.created.v1");
    }

    fn created(json: &str) -> Delivery {
        delivery("org.thing.created.v1", json)
    }

    #[tokio::test]
    async fn all_handlers_run_and_all_errors_are_joined() {
        let ran = Arc::new(AtomicUsize::new(0));
        let (a, b) = (Arc::clone(&ran), Arc::clone(&ran));
        let bus = EventBus::new()
            .on(move |_: Meta, e: Created| {
                a.fetch_add(usize::try_from(e.n).unwrap(), Ordering::SeqCst);
                async { Err(std::io::Error::other("first").into()) }
            })
            .on(move |_: Meta, _: Created| {
                let b = Arc::clone(&b);
                async move {
                    b.fetch_add(1, Ordering::SeqCst);
                    panic!("second")
                }
            });
        let error = bus.dispatch(&created(r#"{"n":10}"#)).await.unwrap_err();
        assert_eq!(ran.load(Ordering::SeqCst), 11);
        assert_eq!(error.kind(), DispatchErrorKind::Retry(None));
        let text = error.to_string();
        assert!(text.contains("first") && text.contains("handler panicked: second"), "{text}");
    }

    #[tokio::test]
    async fn no_handler_is_a_retry_with_its_code() {
        let error = EventBus::new().dispatch(&created("{}")).await.unwrap_err();
        assert_eq!((error.code(), error.kind()), (Code::NoSubscribers, DispatchErrorKind::Retry(None)));
    }

    #[tokio::test]
    async fn a_payload_of_another_shape_is_a_reject_that_shows_no_value() {
        let bus = EventBus::new().on(|_: Meta, _: Created| async { Ok(()) });
        let error = bus.dispatch(&created(r#"{"n":"4111111111111111"}"#)).await.unwrap_err();
        assert_eq!((error.code(), error.kind()), (Code::PayloadUndecodable, DispatchErrorKind::Reject));
        assert!(!error.to_string().contains("4111"), "{error}");
    }

    #[tokio::test]
    async fn a_handler_can_reject_or_say_that_its_destination_is_down() {
        let bus = EventBus::new()
            .on(|_: Meta, _: Created| async { Err(DispatchError::unavailable("down").into()) });
        let error = bus.dispatch(&created(r#"{"n":1}"#)).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable);
    }
}
