//! One struct, one topic: an enum would have several.

use postbox::Event;
use serde::Serialize;

#[derive(Event, Serialize)]
#[event(topic = "org.organization.changed.v1")]
enum OrganizationChanged {
    Created,
    Renamed,
}

fn main() {}
