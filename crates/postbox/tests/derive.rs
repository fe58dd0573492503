//! `#[derive(Event)]` from end to end: the record that is written, the handler that receives it.
#![cfg(feature = "derive")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::sync::{Arc, Mutex};

use postbox::testing::{MemoryOutbox, assert_enqueued, delivery};
use postbox::{
    AggregateKey, Code, Dispatcher as _, Event, EventBus, HandlerResult, IntoRecord as _, Meta, Payload,
    Receive as _, Record,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Event, Serialize, Deserialize)]
#[event(topic = "org.organization.created.v1", aggregate = "organization", id = "org_id")]
struct OrganizationCreated {
    org_id: Uuid,
    name: String,
}

/// The next version of it, beside the first.
#[derive(Debug, Clone, PartialEq, Event, Serialize, Deserialize)]
#[event(topic = "org.organization.created.v2", aggregate = "organization", id = "org_id")]
struct OrganizationCreatedV2 {
    org_id: Uuid,
    name: String,
    country: String,
}

fn json(payload: &Payload) -> &str {
    match payload {
        Payload::Json(json) => json.as_str(),
        Payload::Bytes { .. } => panic!("bytes"),
    }
}

#[test]
fn a_record_has_topic_aggregate_and_payload_of_its_event() {
    let event = OrganizationCreated { org_id: Uuid::nil(), name: "Acme".into() };
    let record = Record::of(&event).tenant_name("acme").header("source", "test").build().unwrap();
    assert_eq!(record.topic.as_str(), "org.organization.created.v1");
    assert_eq!(record.aggregate, Some(AggregateKey::new("organization", Uuid::nil())));
    assert_eq!(json(&record.payload), r#"{"org_id":"00000000-0000-0000-0000-000000000000","name":"Acme"}"#);
    assert_eq!(record.headers["tenant"], "acme");
}

#[tokio::test]
async fn versions_live_side_by_side_and_each_handler_gets_its_own() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (one, two) = (Arc::clone(&seen), Arc::clone(&seen));
    let bus = EventBus::new()
        .on(move |meta: Meta, event: OrganizationCreated| {
            one.lock().unwrap().push((meta.topic.version(), event.name, None));
            async { Ok(()) }
        })
        .on(move |meta: Meta, event: OrganizationCreatedV2| {
            two.lock().unwrap().push((meta.topic.version(), event.name, Some(event.country)));
            async { Ok(()) }
        });
    let old = OrganizationCreated { org_id: Uuid::nil(), name: "Old".into() };
    let new = OrganizationCreatedV2 { org_id: Uuid::nil(), name: "New".into(), country: "CH".into() };
    for record in [Record::of(&new).build().unwrap(), Record::of(&old).build().unwrap()] {
        bus.dispatch(&delivery(record.topic.as_str(), json(&record.payload))).await.unwrap();
    }
    let expected = [(Some(2), "New".to_owned(), Some("CH".to_owned())), (Some(1), "Old".to_owned(), None)];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_handler_can_be_a_function() {
    async fn handle(_: Meta, event: OrganizationCreated) -> HandlerResult {
        let _: u32 = event.name.parse()?;
        Ok(())
    }
    let bus = EventBus::new().on(handle);
    let event = |name: &str| {
        let event = OrganizationCreated { org_id: Uuid::nil(), name: name.to_owned() };
        let record = Record::of(&event).build().unwrap();
        delivery(record.topic.as_str(), json(&record.payload))
    };
    bus.dispatch(&event("7")).await.unwrap();
    bus.dispatch(&event("seven")).await.unwrap_err();
}

#[derive(Event, Serialize)]
#[event(topic = "org.thing.pinged.v1")]
struct Pinged;

#[derive(Event, Serialize)]
#[event(topic = "org.thing.moved.v1", aggregate = "thing", id = "0")]
struct Moved(u32, #[allow(dead_code, reason = "serialised")] i8);

#[derive(Event, Serialize)]
#[event(topic = "org.thing.typed.v1")]
#[event(aggregate = "thing", id = "type")]
struct Typed {
    r#type: &'static str,
}

#[derive(Event, Serialize)]
#[event(topic = "org.thing.changed.v1", aggregate = "thing", id = "id")]
struct Changed<'a, I: Serialize + std::fmt::Display, T, const N: usize>
where
    T: Serialize,
{
    id: I,
    names: Vec<&'a str>,
    to: Option<T>,
    #[serde(skip)]
    _marks: [u8; N],
}

mod reexported {
    pub(crate) mod deep {
        pub(crate) use postbox::*;
    }
}

#[derive(Event, Serialize)]
#[event(crate = "crate::reexported::deep", topic = "org.thing.renamed.v1", aggregate = "thing", id = "id")]
struct Renamed {
    id: u8,
}

#[test]
fn structs_of_every_shape_are_events() {
    assert_eq!(Pinged.aggregate(), None);
    assert_eq!(Record::of(&Pinged).build().unwrap().topic, Pinged::TOPIC);
    assert_eq!(Moved(7, 1).aggregate(), Some(AggregateKey::new("thing", 7)));
    assert_eq!(Typed { r#type: "x" }.aggregate(), Some(AggregateKey::new("thing", "x")));
    let changed = Changed { id: "a", names: vec!["b"], to: Some(1), _marks: [0; 3] };
    assert_eq!(changed.aggregate(), Some(AggregateKey::new("thing", "a")));
    assert_eq!(json(&Record::of(&changed).build().unwrap().payload), r#"{"id":"a","names":["b"],"to":1}"#);
    assert_eq!(Renamed { id: 3 }.aggregate(), Some(AggregateKey::new("thing", 3)));
}

/// Several events, and two versions of one, in one place.
#[derive(Debug, PartialEq, Event)]
enum OrganizationEvent {
    Created(OrganizationCreated),
    CreatedV2(Box<OrganizationCreatedV2>),
    Closed(OrganizationClosed),
}

#[derive(Debug, Clone, PartialEq, Event, Serialize, Deserialize)]
#[event(topic = "org.organization.closed.v1", aggregate = "organization", id = "0")]
struct OrganizationClosed(Uuid);

fn one_of_each() -> [OrganizationEvent; 3] {
    let new = OrganizationCreatedV2 { org_id: Uuid::nil(), name: "New".into(), country: "CH".into() };
    [
        OrganizationEvent::Created(OrganizationCreated { org_id: Uuid::nil(), name: "Old".into() }),
        OrganizationEvent::CreatedV2(Box::new(new)),
        OrganizationEvent::Closed(OrganizationClosed(Uuid::nil())),
    ]
}

#[test]
fn an_enum_travels_as_the_struct_in_it() {
    let topics: Vec<_> = OrganizationEvent::TOPICS.iter().map(postbox::Topic::as_str).collect();
    assert_eq!(
        topics,
        ["org.organization.created.v1", "org.organization.created.v2", "org.organization.closed.v1"]
    );
    let [old, new, closed] =
        one_of_each().map(|event| event.into_builder().header("h", "v").build().unwrap());
    assert_eq!(old.topic, OrganizationCreated::TOPIC);
    assert_eq!(json(&old.payload), r#"{"org_id":"00000000-0000-0000-0000-000000000000","name":"Old"}"#);
    assert_eq!(new.topic, OrganizationCreatedV2::TOPIC);
    assert_eq!(closed.aggregate, Some(AggregateKey::new("organization", Uuid::nil())));
}

#[tokio::test]
async fn a_handler_of_an_enum_gets_each_event_as_its_variant() {
    let memory = MemoryOutbox::new();
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue_all(&mut tx, one_of_each()).await.unwrap();
    let [old, ..] = one_of_each();
    memory.enqueue(&mut tx, old).await.unwrap();
    tx.commit().await.unwrap();
    assert_enqueued!(memory, OrganizationEvent => OrganizationEvent::CreatedV2(new) if new.country == "CH");
    assert_enqueued!(memory, OrganizationCreated { name, .. } if name == "Old");

    let seen = Arc::new(Mutex::new(Vec::new()));
    let (on, only) = (Arc::clone(&seen), Arc::clone(&seen));
    let broadcast = EventBus::new().on(move |_: Meta, event: OrganizationEvent| {
        on.lock().unwrap().push(event);
        async { Ok(()) }
    });
    assert_eq!(memory.drain(broadcast).await.delivered(), 4);
    assert_eq!(seen.lock().unwrap()[..3], one_of_each());

    let exclusive = EventBus::new().only_for("organization", move |_: Meta, event: OrganizationEvent| {
        only.lock().unwrap().push(event);
        async { Ok(()) }
    });
    let payload = r#"["00000000-0000-0000-0000-000000000000"]"#;
    let mut closed = delivery("org.organization.closed.v1", r#""00000000-0000-0000-0000-000000000000""#);
    closed.meta.aggregate = Some(AggregateKey::new("organization", 1));
    exclusive.dispatch(&closed).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 5);
    closed.payload = delivery("org.organization.closed.v1", payload).payload;
    let error = exclusive.dispatch(&closed).await.unwrap_err();
    assert_eq!(error.code(), Code::PayloadUndecodable);
    assert!(!error.to_string().contains("0000"), "{error}");
    let other = delivery("org.organization.moved.v1", "{}");
    assert_eq!(exclusive.dispatch(&other).await.unwrap_err().code(), Code::Unroutable);
}
