//! A delivery as AMQP has it: routing key, properties, payload.

use std::borrow::Cow;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use postbox_core::{Delivery, DispatchError};

use super::config::RabbitConfig;

/// By these headers a message orders the broker where else to put it; that is not for events to say.
const ORDERS: [&str; 2] = ["CC", "BCC"];
/// The mark of messages that survive a restart of the broker, in durable queues.
const PERSISTENT: u8 = 2;
/// What the properties take besides headers, content type and topic: more than it is.
const FRAME_SPARE: usize = 256;

/// What is published.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) payload: Cow<'a, [u8]>,
}

/// The message of a delivery; `frame_max` is what the properties have to fit into.
///
/// # Errors
/// A reject, when AMQP cannot carry it. The broker would close the connection over it.
pub(super) fn outgoing<'a>(
    config: &'a RabbitConfig,
    delivery: &'a Delivery,
    frame_max: u32,
) -> Result<Outgoing<'a>, DispatchError> {
    let routing_key = short("the routing key", &config.destination.of(delivery)?)?;
    let message = config.encoding.message(delivery);
    let (mut table, mut size) = (FieldTable::default(), FRAME_SPARE);
    let key = ("message_key".into(), message.key.as_str().into());
    for (name, value) in message.headers.iter().chain([&key]) {
        if ORDERS.contains(&&**name) {
            continue;
        }
        let value = AMQPValue::LongString(value.as_bytes().into());
        size +=
            name.len() + 6 + if let AMQPValue::LongString(text) = &value { text.as_bytes().len() } else { 0 };
        table.insert(short("the name of a header", name)?, value);
    }
    let mut properties = BasicProperties::default()
        .with_message_id(short("the event id", &delivery.meta.event_id.to_string())?)
        .with_content_type(short("the content type", message.content_type)?)
        .with_delivery_mode(PERSISTENT)
        .with_headers(table);
    // AMQP knows no time before 1970.
    if let Ok(seconds) = u64::try_from(delivery.meta.occurred_at.unix_timestamp()) {
        properties = properties.with_timestamp(seconds);
    }
    if let Ok(topic) = ShortString::try_new(delivery.meta.topic.as_str()) {
        properties = properties.with_type(topic);
    }
    size += message.content_type.len() + delivery.meta.topic.as_str().len();
    if u32::try_from(size).unwrap_or(u32::MAX) > frame_max {
        return Err(DispatchError::reject(format!(
            "its headers of {size} bytes do not fit into a frame of {frame_max} bytes: raise frame_max, and replay the event"
        )));
    }
    Ok(Outgoing { routing_key, properties, payload: message.payload })
}

fn short(what: &str, text: &str) -> Result<ShortString, DispatchError> {
    ShortString::try_new(text).map_err(|_| {
        DispatchError::reject(format!("{what} has {} bytes: AMQP carries 255 at most", text.len()))
    })
}
