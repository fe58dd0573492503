//! What is promised of the bus.

use super::*;
use crate::event::Event;
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
    let bus =
        EventBus::new().on(|_: Meta, _: Created| async { Err(DispatchError::unavailable("down").into()) });
    let error = bus.dispatch(&created(r#"{"n":1}"#)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable);
}

#[derive(Serialize, Deserialize)]
struct Removed {
    n: u64,
}

impl Event for Removed {
    const TOPIC: Topic = Topic::from_static("org.thing.removed.v1");
}

fn of_kind(kind: &str, json: &str) -> Delivery {
    let mut delivery = created(json);
    delivery.meta.aggregate = Some(AggregateKey::new(kind, 1));
    delivery
}

type Ran = Arc<std::sync::Mutex<Vec<&'static str>>>;

fn note<E>(
    ran: &Ran,
    name: &'static str,
) -> impl Fn(Meta, E) -> std::future::Ready<HandlerResult> + Send + Sync + 'static + use<E> {
    let ran = Arc::clone(ran);
    move |_, _| {
        ran.lock().unwrap().push(name);
        std::future::ready(Ok(()))
    }
}

#[tokio::test]
async fn an_exclusive_handler_of_the_aggregate_type_comes_before_the_one_for_all() {
    let ran = Ran::default();
    let bus = EventBus::new()
        .only(note::<Created>(&ran, "all"))
        .only_for("order", note::<Created>(&ran, "order"))
        .only_topic("cart", Created::TOPIC, {
            let ran = Arc::clone(&ran);
            move |_: Delivery| {
                ran.lock().unwrap().push("cart");
                async { Ok(()) }
            }
        });
    bus.check().unwrap();
    for delivery in [
        of_kind("order", r#"{"n":1}"#),
        of_kind("cart", "1"),
        of_kind("x", r#"{"n":1}"#),
        created(r#"{"n":1}"#),
    ] {
        bus.dispatch(&delivery).await.unwrap();
    }
    assert_eq!(*ran.lock().unwrap(), ["order", "cart", "all", "all"]);
}

#[tokio::test]
async fn a_second_exclusive_handler_is_refused_in_words() {
    let ran = Ran::default();
    let bus = EventBus::new().only(note::<Created>(&ran, "a")).only(note::<Created>(&ran, "b"));
    let error = bus.check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "EVENTBUS_DUPLICATE_HANDLER: two handlers are registered with `only` for the topic org.thing.created.v1 and \
         the aggregate type __GLOBAL__, and only one can have its events: remove one of them, or register both with \
         `on` to run both"
    );
    let error = bus.dispatch(&created(r#"{"n":1}"#)).await.unwrap_err();
    assert_eq!((error.code(), error.kind()), (Code::DuplicateHandler, DispatchErrorKind::Retry(None)));
    assert!(ran.lock().unwrap().is_empty(), "none of the two runs");

    let typed = EventBus::new()
        .only_for("order", note::<Created>(&ran, "a"))
        .only_for("order", note::<Created>(&ran, "b"));
    assert!(typed.check().unwrap_err().to_string().contains("aggregate type order"));
    for mixed in [
        EventBus::new().on(note::<Created>(&ran, "a")).only(note::<Created>(&ran, "b")),
        EventBus::new().only(note::<Created>(&ran, "a")).on(note::<Created>(&ran, "b")),
    ] {
        assert!(mixed.check().unwrap_err().to_string().contains("it alone gets the events"));
    }
    let apart = EventBus::new().only(note::<Created>(&ran, "a")).on(note::<Removed>(&ran, "b"));
    apart.check().unwrap();
}

#[tokio::test]
async fn what_no_exclusive_handler_takes_is_dead_at_once() {
    let ran = Ran::default();
    let unroutable = (Code::Unroutable, DispatchErrorKind::Reject);
    let what = |error: DispatchError| (error.code(), error.kind());
    let bus = EventBus::new().only_for("order", note::<Created>(&ran, "order"));
    assert_eq!(what(bus.dispatch(&of_kind("cart", "1")).await.unwrap_err()), unroutable, "another type");
    assert_eq!(what(bus.dispatch(&created("1")).await.unwrap_err()), unroutable, "no type");
    let other = delivery("org.thing.removed.v1", "1");
    assert_eq!(what(bus.dispatch(&other).await.unwrap_err()), unroutable, "another topic");
    let mixed = bus.on_topic(Topic::from_static("org.thing.moved.v1"), |_| async { Ok(()) });
    let error = mixed.dispatch(&other).await.unwrap_err();
    assert_eq!(error.code(), Code::NoSubscribers, "where others broadcast, one may still come");
    assert_eq!(what(mixed.dispatch(&of_kind("cart", "1")).await.unwrap_err()), unroutable);
}
