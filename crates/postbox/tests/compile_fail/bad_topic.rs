//! Topics are checked when the program is built, and the error points at the text.

use postbox::{Event, Record};
use serde::Serialize;

#[derive(Event, Serialize)]
#[event(topic = "Org.organization.created.v1")]
struct UpperCase;

#[derive(Event, Serialize)]
#[event(topic = "org.organization.created")]
struct NoVersion;

#[derive(Event, Serialize)]
#[event(topic = "org.created.v1")]
struct TooShort;

#[derive(Event, Serialize)]
struct NoTopic;

fn main() {
    // Only the topic is wrong: nothing is said about this.
    let _ = Record::of(&UpperCase);
}
