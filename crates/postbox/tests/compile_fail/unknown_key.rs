//! Keys that are not known are refused, not ignored.

use postbox::Event;
use serde::Serialize;

#[derive(Event, Serialize)]
#[event(topics = "org.organization.created.v1")]
struct UnknownKey;

#[derive(Event, Serialize)]
#[event(topic = "org.organization.created.v1", topic = "org.organization.created.v2")]
struct Twice;

#[derive(Event, Serialize)]
#[event(topic)]
struct NoValue;

#[derive(Event, Serialize)]
#[event(topic = TOPIC)]
struct NotText;

fn main() {}
