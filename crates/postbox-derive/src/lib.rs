//! `#[derive(Event)]` for Postbox. Users take it from the `postbox` crate.

mod attributes;
mod expand;
mod topic;
mod variants;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct an event, with its topic checked when the program is built; or an enum of such structs, for code that
/// handles several events in one place.
///
/// ```
/// # extern crate postbox_core as postbox;
/// # use postbox_derive::Event;
/// use postbox::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[event(topic = "org.organization.created.v1", aggregate = "organization", id = "org_id")]
/// struct OrganizationCreated {
///     org_id: u64,
///     name: String,
/// }
///
/// let event = OrganizationCreated { org_id: 7, name: "Acme".to_owned() };
/// assert_eq!(OrganizationCreated::TOPIC.as_str(), "org.organization.created.v1");
/// assert_eq!(event.aggregate(), Some(postbox::AggregateKey::new("organization", 7)));
/// ```
///
/// - `topic`: what the event is, `<module>.<aggregate>.<event>.vN`. A breaking change of the struct gets a new `vN`
///   and a new struct.
/// - `aggregate` and `id`, together or not at all: the kind of thing that the event is about, and the field that
///   holds its id (anything with `Display`; `"0"` for the first field of a tuple struct).
/// - `crate`: where Postbox is to be found, if not at `::postbox`; implementors write `crate = "postbox_core"`.
///
/// The struct must be `Serialize`, and `Deserialize` where handlers receive it. A generic struct needs the bounds
/// that its `Serialize` needs on itself: `struct Changed<T: Serialize> { … }`.
///
/// # Enums
///
/// Each variant holds one event (in a `Box`, if it is large). The enum can be enqueued, and a handler that takes it gets
/// the events of all its topics, each as its variant:
///
/// ```
/// # extern crate postbox_core as postbox;
/// # use postbox_derive::Event;
/// use postbox::{EventBus, Meta};
/// # use postbox::Event;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[event(topic = "shop.order.placed.v1")]
/// # struct OrderPlaced { order_id: u64 }
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[event(topic = "shop.order.placed.v2")]
/// # struct OrderPlacedV2 { order_id: u64, country: String }
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[event(topic = "shop.order.paid.v1")]
/// # struct OrderPaid { order_id: u64 }
///
/// #[derive(Event)]
/// enum OrderEvent {
///     Placed(OrderPlaced),
///     PlacedV2(OrderPlacedV2), // versions side by side
///     Paid(Box<OrderPaid>),
/// }
///
/// let bus = EventBus::new().on(|_: Meta, event: OrderEvent| async move {
///     match event {
///         OrderEvent::Placed(old) => println!("order {} from an unknown country", old.order_id),
///         OrderEvent::PlacedV2(new) => println!("order {} from {}", new.order_id, new.country),
///         OrderEvent::Paid(paid) => println!("order {} is paid", paid.order_id),
///     }
///     Ok(())
/// });
/// ```
///
/// The structs must be `Serialize` and `Deserialize`; the enum need not be: what travels is the struct, by its own topic.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    expand::event(&parse_macro_input!(input as DeriveInput)).into()
}
