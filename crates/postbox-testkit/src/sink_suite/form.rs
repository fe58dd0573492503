//! Messages have their form: key, headers, CloudEvents, destination.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::{AggregateKey, Delivery, DispatchErrorKind, TenantId};

use super::{Broker, Received, deliver, event, fresh, of, refused};

/// An event with all that a header can be made of.
fn full(topic: &str) -> Delivery {
    let mut event = event(topic, 41);
    event.meta.tenant_id = TenantId::from_name("acme");
    event.meta.aggregate = Some(AggregateKey::new("order", "o-17"));
    event.meta.schema_id = Some("order-placed".into());
    event.meta.schema_version = 3;
    event.meta.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    event.meta.tracestate = Some("vendor=value".into());
    event.meta.headers = [("region", "eu"), ("event_id", "forged"), ("note", "a: b; c=\"d\"")]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
    event
}

/// What a reader sees beside the payload.
pub async fn key_and_headers_arrive<B: Broker>(broker: &B) {
    let topic = fresh("headers");
    broker.prepare(&topic).await;
    let by_aggregate = full(&topic);
    let mut by_routing_key = full(&topic);
    by_routing_key.meta.event_id = postbox_core::EventId::new();
    by_routing_key.meta.routing_key = Some("r-1".into());
    let bare = event(&topic, 5);
    let all = [by_aggregate, by_routing_key, bare];
    deliver(&broker.sink(&[]), &all, broker.abilities().patience).await;
    let received = broker.read(&topic).await;
    let bare_id = all[2].meta.event_id.to_string();
    for (event, key) in all.iter().zip(["o-17", "r-1", bare_id.as_str()]) {
        assert_eq!(of(&received, event.meta.event_id).key.as_deref(), Some(key));
    }
    let message = of(&received, all[0].meta.event_id);
    let tenant = TenantId::from_name("acme").to_string();
    for (name, value) in [
        ("tenant_id", tenant.as_str()),
        ("topic", topic.as_str()),
        ("sequence", "42"),
        ("attempts", "1"),
        ("aggregate_type", "order"),
        ("aggregate_id", "o-17"),
        ("schema_id", "order-placed"),
        ("schema_version", "3"),
        ("content_type", "application/json"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "vendor=value"),
        ("region", "eu"),
        ("note", "a: b; c=\"d\""),
    ] {
        assert_eq!(message.headers.get(name).map(String::as_str), Some(value), "{name} in {message:?}");
    }
    assert!(message.headers.contains_key("occurred_at"));
    let bare = of(&received, all[2].meta.event_id);
    for name in ["aggregate_type", "aggregate_id", "schema_id", "traceparent", "tracestate"] {
        assert!(!bare.headers.contains_key(name), "{name} in {bare:?}");
    }
}

/// CloudEvents in the headers.
pub async fn binary_cloudevents_arrive<B: Broker>(broker: &B) {
    let (event, message) =
        one(broker, "binary", &[("cloudevents", "binary"), ("cloudevents_source", "//shop/orders")]).await;
    let prefix = broker.abilities().cloudevents_prefix;
    let id = event.meta.event_id.to_string();
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", id.as_str()),
        ("source", "//shop/orders"),
        ("type", event.meta.topic.as_str()),
        ("subject", "o-17"),
        ("partitionkey", "o-17"),
        ("sequence", "42"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ] {
        let header = message.headers.get(&format!("{prefix}{name}"));
        assert_eq!(header.map(String::as_str), Some(value), "{name} in {message:?}");
    }
    let json = "application/json";
    let attribute = message.headers.get(&format!("{prefix}datacontenttype")).map(String::as_str);
    assert!(content_type(&message) == Some(json) || attribute == Some(json), "{message:?}");
    assert_eq!(message.payload, b"{\"n\":41}");
}

/// CloudEvents around the payload.
pub async fn structured_cloudevents_arrive<B: Broker>(broker: &B) {
    let (event, message) = one(broker, "structured", &[("cloudevents", "structured")]).await;
    assert!(
        content_type(&message).is_some_and(|it| it.starts_with("application/cloudevents+json")),
        "{message:?}"
    );
    let value: serde_json::Value = serde_json::from_slice(&message.payload).expect("JSON");
    for (name, expected) in [
        ("specversion", "1.0"),
        ("id", &event.meta.event_id.to_string()),
        ("source", "/postbox/test_outbox"),
        ("type", event.meta.topic.as_str()),
        ("subject", "o-17"),
        ("datacontenttype", "application/json"),
    ] {
        assert_eq!(value[name], expected, "{name} in {value}");
    }
    assert_eq!(value["data"], serde_json::json!({ "n": 41 }));
}

fn content_type(message: &Received) -> Option<&str> {
    let header = message.headers.get("content-type").or_else(|| message.headers.get("Content-Type"));
    header.or(message.content_type.as_ref()).map(String::as_str)
}

async fn one<B: Broker>(broker: &B, what: &str, options: &[(&str, &str)]) -> (Delivery, Received) {
    let topic = fresh(what);
    broker.prepare(&topic).await;
    let event = full(&topic);
    deliver(&broker.sink(options), std::slice::from_ref(&event), broker.abilities().patience).await;
    let message = of(&broker.read(&topic).await, event.meta.event_id).clone();
    (event, message)
}

/// The sink's own template, and the destination that a route gave, which wins.
pub async fn templates_lead_to_their_destinations<B: Broker>(broker: &B) {
    let place = fresh("template");
    let (by_template, by_route) = (format!("{place}.order"), format!("{place}.route"));
    broker.prepare(&by_template).await;
    broker.prepare(&by_route).await;
    let sink = broker.sink(&[("destination", &format!("{place}.{{aggregate_type}}"))]);
    let first = full("some.topic");
    let mut second = full("some.topic");
    second.meta.event_id = postbox_core::EventId::new();
    second.destination = Some(Arc::from(by_route.as_str()));
    deliver(&sink, &[first.clone(), second.clone()], broker.abilities().patience).await;
    for (destination, event) in [(by_template, first), (by_route, second)] {
        let received = broker.read(&destination).await;
        assert_eq!(received.len(), 1, "at {destination}");
        assert_eq!(of(&received, event.meta.event_id).headers["topic"], "some.topic");
    }
}

/// Where there is no value there is no destination, and there never will be.
pub async fn an_event_without_a_value_for_its_destination_is_rejected<B: Broker>(broker: &B) {
    let sink = broker.sink(&[("destination", "suite.{aggregate_id}")]);
    let error = refused(&sink, &event("some.topic", 1), Duration::from_secs(30)).await;
    assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
    assert!(error.to_string().contains("aggregate_id"), "{error}");
}
