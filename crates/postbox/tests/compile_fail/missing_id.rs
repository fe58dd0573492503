//! An aggregate needs its id, and the id a field.

use postbox::Event;
use serde::Serialize;

#[derive(Event, Serialize)]
#[event(topic = "org.organization.created.v1", aggregate = "organization", id = "org")]
struct NoSuchField {
    org_id: u64,
    name: String,
}

#[derive(Event, Serialize)]
#[event(topic = "org.organization.created.v1", aggregate = "organization")]
struct NoId {
    org_id: u64,
}

#[derive(Event, Serialize)]
#[event(topic = "org.organization.created.v1", id = "org_id")]
struct NoAggregate {
    org_id: u64,
}

#[derive(Event, Serialize)]
#[event(topic = "org.organization.created.v1", aggregate = "organization", id = "org_ids")]
struct NotText {
    org_ids: Vec<u64>,
}

fn main() {}
