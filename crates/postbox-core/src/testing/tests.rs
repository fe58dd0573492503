//! The helpers for tests, tested.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::bus::EventBus;
use crate::event::Event;
use crate::interceptor::after;
use crate::record::Record;
use crate::relay::Relay;
use crate::store::Verdict;
use crate::until::until;

#[derive(Debug, Serialize, Deserialize)]
struct Placed {
    order: u64,
    total: String,
}

impl Event for Placed {
    const TOPIC: Topic = Topic::from_static("shop.order.placed.v1");
}

#[derive(Debug, Serialize, Deserialize)]
struct Moved(u64);

impl Event for Moved {
    const TOPIC: Topic = Topic::from_static("shop.order.moved.v1");
}

fn placed(order: u64) -> Placed {
    Placed { order, total: "9.90".into() }
}

async fn with(orders: impl IntoIterator<Item = u64>) -> MemoryOutbox {
    let memory = MemoryOutbox::new();
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue_all(&mut tx, orders.into_iter().map(placed)).await.unwrap();
    tx.commit().await.unwrap();
    memory
}

fn message(panics: impl FnOnce() + std::panic::UnwindSafe) -> String {
    crate::panic::message(&*std::panic::catch_unwind(panics).unwrap_err())
}

#[tokio::test]
async fn what_was_enqueued_is_found_by_pattern() {
    let memory = with([7, 8]).await;
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, Moved(3)).await.unwrap();
    tx.commit().await.unwrap();
    assert_enqueued!(memory, Placed { order: 7, .. });
    assert_enqueued!(memory, Placed { order, total } if *order > 7 && total == "9.90",);
    assert_enqueued!(memory, Placed);
    assert_enqueued!(memory, super::tests::Moved(1..=3));
    assert_enqueued!(memory, Moved => Moved(n) if *n == 3);
    assert_eq!(memory.events::<Placed>().len(), 2);
}

#[tokio::test]
async fn a_failed_assertion_shows_what_there_is() {
    let memory = with([8]).await;
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, Moved(3)).await.unwrap();
    let text = message(std::panic::AssertUnwindSafe(|| assert_enqueued!(memory, Placed { order: 7, .. })));
    assert_eq!(
        text,
        "no event was enqueued that matches Placed { order: 7, .. }\n\
         enqueued were 1, looked for among those with a *:\n\
         * shop.order.placed.v1 {\"order\":8,\"total\":\"9.90\"}\n\
         1 more in transactions that are still open: was `commit` forgotten?\n"
    );
    let empty = MemoryOutbox::new();
    let text = message(std::panic::AssertUnwindSafe(|| assert_enqueued!(empty, Moved(_))));
    assert!(text.contains("nothing was enqueued"), "{text}");
}

#[tokio::test]
async fn a_drain_runs_the_handlers_in_order_and_says_what_became_of_each_event() {
    let memory = with([1, 2, 3]).await;
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let orders = std::sync::Arc::clone(&seen);
    let bus = EventBus::new().on(move |_: Meta, event: Placed| {
        orders.lock().unwrap().push(event.order);
        async move { if event.order == 2 { Err(std::io::Error::other("no").into()) } else { Ok(()) } }
    });
    let drained = memory.drain(bus.clone()).await;
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
    assert_eq!((drained.delivered(), drained.retried(), drained.dead()), (2, 1, 0));
    assert_eq!(drained.errors(), ["OUTBOX_DISPATCH_FAILED: no"]);
    assert_eq!(memory.drain(bus.clone()).await, Drained(Vec::new()), "not due yet");
    memory.clock().advance(Duration::from_secs(1));
    let again = memory.drain(bus).await;
    assert_eq!((again.0.len(), again.0[0].attempts), (1, 2));
}

#[tokio::test]
async fn failing_dispatchers_fail_as_they_were_told() {
    let run = async |sink: FailingDispatcher| {
        let memory = with([1, 2]).await;
        let drained = memory.drain(sink.clone()).await;
        memory.clock().advance(Duration::from_mins(1));
        (drained, memory.drain(sink).await)
    };
    let (first, second) = run(FailingDispatcher::times(1)).await;
    assert_eq!((first.retried(), second.delivered()), (2, 2));
    let (first, second) = run(FailingDispatcher::rejecting()).await;
    assert_eq!((first.dead(), second.0.len()), (2, 0));
    let (first, second) = run(FailingDispatcher::panicking(1)).await;
    assert_eq!((first.retried(), second.delivered()), (2, 2));
    let (first, second) = run(FailingDispatcher::unavailable(1)).await;
    assert_eq!(first.released(), 2, "the second was never sent");
    assert_eq!(
        (second.0[0].attempts, second.delivered()),
        (1, 1),
        "uncharged, and the other is a first try again"
    );
    tokio::time::pause();
    let (first, second) = run(FailingDispatcher::hanging(1)).await;
    assert!(
        matches!(&first.0[0].verdict, Verdict::Retry { reason, .. } if reason.as_str().contains("OUTBOX_TIMEOUT"))
    );
    assert_eq!(second.delivered(), 2);
}

#[tokio::test]
async fn what_a_handler_enqueues_is_drained_too_and_delays_wait_for_the_clock() {
    let memory = with([1]).await;
    let inner = memory.clone();
    let bus = EventBus::new()
        .on(move |_: Meta, event: Placed| {
            let memory = inner.clone();
            async move {
                let mut tx = memory.begin().await?;
                memory.enqueue(&mut tx, Moved(event.order)).await?;
                memory.enqueue(&mut tx, Record::of(&Moved(99)).delay(Duration::from_hours(1))).await?;
                tx.commit().await?;
                Ok(())
            }
        })
        .only(|_: Meta, _: Moved| async { Ok(()) });
    let drained = memory.drain(bus.clone()).await;
    assert_eq!(drained.delivered(), 2, "{drained:?}");
    memory.clock().advance(Duration::from_hours(1));
    assert_eq!(memory.drain(bus).await.delivered(), 1);
}

#[tokio::test]
async fn a_relay_of_one_s_own_runs_on_the_store_with_routes_and_interceptors() {
    let memory = with(1..=250).await;
    let sink = FailingDispatcher::times(0);
    let outcomes = std::sync::Arc::new(std::sync::Mutex::new(0));
    let count = std::sync::Arc::clone(&outcomes);
    let relay = Relay::builder(memory.store())
        .interceptor(after(move |_, outcome| *count.lock().unwrap() += usize::from(outcome.is_ok())))
        .route("shop.**", sink.clone())
        .build()
        .unwrap()
        .spawn();
    until("250 deliveries", || sink.delivered().len() >= 250).await;
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, Moved(3)).await.unwrap();
    tx.commit().await.unwrap();
    until("one more", || sink.delivered().len() >= 251).await;
    relay.shutdown().await.unwrap();
    assert_eq!(*outcomes.lock().unwrap(), 251);
    let mut ids = sink.delivered();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 251, "each once");
}

#[tokio::test]
async fn after_a_drain_other_relays_try_as_often_as_they_like() {
    let memory = with([1]).await;
    let sink = FailingDispatcher::times(3);
    assert_eq!(memory.drain(sink.clone()).await.retried(), 1);
    memory.clock().advance(Duration::from_secs(1));
    let quick = crate::Backoff::fixed(Duration::ZERO);
    let relay =
        memory.relay().set(move |s| s.backoff = quick).dispatcher(sink.clone()).build().unwrap().spawn();
    until("a delivery", || {
        memory.table.changed.notify_waiters();
        !sink.delivered().is_empty()
    })
    .await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.seen().len(), 4);
}

#[tokio::test]
async fn a_bus_that_contradicts_itself_is_refused_when_the_relay_is_built() {
    let bus =
        EventBus::new().only(|_: Meta, _: Moved| async { Ok(()) }).only(|_: Meta, _: Moved| async { Ok(()) });
    let error =
        MemoryOutbox::new().relay().interceptor(after(|_, _| {})).route("**", bus).build().unwrap_err();
    assert_eq!(error.code(), crate::Code::DuplicateHandler);
    assert!(error.to_string().contains("remove one of them"), "{error}");
}
