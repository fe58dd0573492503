//! What is promised of handlers and interceptors in the process.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};

use postbox_core::interceptor::{EventInterceptor, after, before};
use postbox_core::{Code, Delivery, DispatchError, EventBus, EventId, HandlerResult, Payload, Relay};

use super::script::Scripted;
use super::{PATIENCE, Subject, TOPIC, enqueue, events, exhausted, published, quick, state};
use crate::{eventually, skipped};

fn number(delivery: &Delivery) -> u64 {
    let Payload::Json(json) = &delivery.payload else { panic!("bytes") };
    json.decode::<HashMap<String, u64>>().expect("a number")["n"]
}

/// Every event passes them, also in batches; what they end is settled by the class of their error.
pub async fn interceptors_stand_around_every_dispatch<S: Subject>(subject: &S) {
    for batch in [1, 10] {
        let ids = enqueue(subject, events(40)).await;
        let sink = Scripted::ok().in_batches(batch);
        let (open, ends) = (Arc::new(Mutex::new(0_i64)), Arc::new(Mutex::new(Vec::new())));
        let (enter, leave, noted) = (Arc::clone(&open), Arc::clone(&open), Arc::clone(&ends));
        let relay = Relay::builder(subject.store(true))
            .interceptor(before(move |_| {
                *enter.lock().expect("unpoisoned") += 1;
                Ok(())
            }))
            .interceptor(after(move |delivery, outcome| {
                *leave.lock().expect("unpoisoned") -= 1;
                noted
                    .lock()
                    .expect("unpoisoned")
                    .push((delivery.meta.event_id, outcome.as_ref().err().map(DispatchError::code)));
            }))
            .interceptor(Moody)
            .dispatcher(sink.clone())
            .settings(quick())
            .build()
            .unwrap()
            .spawn();
        for (n, id) in ids.iter().enumerate() {
            match n % 10 {
                0 => eventually("the reject", PATIENCE, async || exhausted(subject, *id, 25).await).await,
                _ => published(subject, *id).await,
            }
        }
        relay.shutdown().await.unwrap();
        let arrived = sink.arrived();
        assert_eq!(arrived.len(), 36, "each once, and none that was ended before");
        let of = |id: &EventId| {
            let ends = ends.lock().expect("unpoisoned");
            ends.iter().filter(|(event, _)| event == id).map(|(_, code)| *code).collect::<Vec<_>>()
        };
        for (n, id) in ids.iter().enumerate() {
            let expected = match n % 10 {
                0 => vec![Some(Code::Rejected)],
                1 => vec![Some(Code::DispatchFailed), None],
                2 => vec![Some(Code::Panicked), None],
                _ => vec![None],
            };
            assert_eq!(of(id), expected, "event {n}");
            assert_eq!(arrived.contains(id), n % 10 != 0);
        }
        assert_eq!(*open.lock().expect("unpoisoned"), 0, "each that entered has left");
        assert_eq!(state(subject, ids[1]).await.attempts, 2);
    }
}

/// Rejects every tenth event, and lets some others pass only at the second attempt.
struct Moody;

impl EventInterceptor for Moody {
    async fn before_dispatch(&self, delivery: &Delivery) -> HandlerResult {
        match (number(delivery) % 10, delivery.meta.attempts) {
            (0, _) => Err(DispatchError::reject("never").into()),
            (1, 1) => Err(std::io::Error::other("not yet").into()),
            (2, 1) => resume_unwind(Box::new("a moody interceptor")),
            _ => Ok(()),
        }
    }

    async fn after_dispatch(&self, _: &Delivery, _: &Result<(), DispatchError>) -> HandlerResult {
        Err(std::io::Error::other("too late").into())
    }
}

/// One handler per aggregate type and topic; what none of them takes is dead at once.
pub async fn exclusive_handlers_go_by_aggregate_type_and_topic<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table has no column for aggregates");
    }
    let record = |kind: &str| super::event(TOPIC, 1).aggregate(kind, 7).build().unwrap();
    let plain = super::event(TOPIC, 1).build().unwrap();
    let other = super::event(postbox_core::Topic::from_static("org.other.happened.v1"), 1).build().unwrap();
    let ids = enqueue(subject, vec![record("order"), record("cart"), plain, other]).await;
    let ran = Arc::new(Mutex::new(Vec::new()));
    let handler = |name: &'static str| {
        let ran = Arc::clone(&ran);
        move |delivery: Delivery| {
            ran.lock().expect("unpoisoned").push((name, delivery.meta.event_id));
            async { Ok(()) }
        }
    };
    let bus = EventBus::new().only_topic("order", TOPIC, handler("order")).only_topic(
        postbox_core::AggregateKey::GLOBAL,
        TOPIC,
        handler("all"),
    );
    let relay =
        Relay::builder(subject.store(true)).dispatcher(bus).settings(quick()).build().unwrap().spawn();
    eventually("the unroutable one to die", PATIENCE, async || state(subject, ids[3]).await.dead).await;
    for id in &ids[..3] {
        published(subject, *id).await;
    }
    relay.shutdown().await.unwrap();
    let mut ran = ran.lock().expect("unpoisoned").clone();
    ran.sort_unstable_by_key(|(_, id)| ids.iter().position(|known| known == id));
    assert_eq!(ran, [("order", ids[0]), ("all", ids[1]), ("all", ids[2])]);
    let dead = state(subject, ids[3]).await;
    assert_eq!(dead.attempts, 1);
    assert!(dead.last_error.unwrap().starts_with(Code::Unroutable.as_str()));
}
