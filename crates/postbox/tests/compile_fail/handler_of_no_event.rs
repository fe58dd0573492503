//! A handler takes an event, not just anything.

use postbox::{EventBus, Meta};
use serde::Deserialize;

#[derive(Deserialize)]
struct Order {
    id: u64,
}

fn main() {
    let _ = EventBus::new().on(|_: Meta, order: Order| async move {
        println!("{}", order.id);
        Ok(())
    });
}
