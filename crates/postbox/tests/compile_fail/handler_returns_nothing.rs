//! A handler says whether it worked: one that returns nothing is refused.

use postbox::{Event, EventBus, Meta};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
#[event(topic = "org.organization.created.v1")]
struct OrganizationCreated;

fn main() {
    let _ = EventBus::new().on(|_: Meta, _: OrganizationCreated| async {});
}
