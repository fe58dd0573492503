//! An enum of events holds one event struct in each variant, with its own topic.

use postbox::Event;
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
#[event(topic = "org.organization.created.v1")]
struct Created;

#[derive(Event, Serialize, Deserialize)]
#[event(topic = "org.organization.created.v1")]
struct AlsoCreated;

#[derive(Serialize, Deserialize)]
struct NoEvent;

#[derive(Event)]
enum HoldsNothing {
    Created,
    Renamed { name: String },
    Both(Created, Created),
}

#[derive(Event)]
#[event(topic = "org.organization.changed.v1")]
enum WithATopic {
    Created(Created),
}

#[derive(Event)]
enum TopicAtAVariant {
    #[event(topic = "org.organization.created.v1")]
    Created(Created),
}

#[derive(Event)]
enum Generic<T> {
    Created(T),
}

#[derive(Event)]
enum Empty {}

#[derive(Event)]
enum HoldsNoEvent {
    No(NoEvent),
}

#[derive(Event)]
enum SameTopicTwice {
    Created(Created),
    Also(AlsoCreated),
}

fn main() {}
