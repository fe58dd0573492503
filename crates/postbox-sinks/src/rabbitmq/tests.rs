//! URLs, options, messages and classes, without a broker.

use postbox_core::testing::delivery;
use postbox_core::{DispatchErrorKind, Payload};

use super::config::RabbitConfig;
use super::error::{Concerns, of_end, size_limit};
use super::message::outgoing;
use crate::options::Options;

fn config(url: &str, options: &[(&str, &str)]) -> Result<RabbitConfig, String> {
    let options = options.iter().fold(Options::new(), |all, (name, value)| all.set(*name, *value));
    RabbitConfig::new(url, options).map_err(|error| error.to_string())
}

#[test]
fn urls_and_options() {
    let plain = config("amqp://broker", &[]).unwrap();
    assert_eq!((plain.vhost.as_str(), plain.exchange.as_str(), plain.mandatory), ("/", "", true));
    assert_eq!((plain.frame_max, plain.heartbeat, plain.connections), (0, 0, 4));
    assert_eq!(config("amqp://broker/%2F", &[]).unwrap().vhost, "/");
    let full = config(
        "amqp://app:p%40ss@a:1,b/shop?exchange=events&heartbeat=30s&frame_max=64KiB&mandatory=false",
        &[("destination", "{tenant_id}.{topic}"), ("timeout", "2s"), ("connections", "1")],
    )
    .unwrap();
    assert_eq!((full.vhost.as_str(), full.exchange.as_str(), full.mandatory), ("shop", "events", false));
    assert_eq!((full.frame_max, full.heartbeat, full.connections), (65_536, 30, 1));
    assert!(!format!("{full:?}").contains("p@ss"));
}

#[test]
fn what_is_wrong_is_told() {
    for (url, options, part) in [
        ("amqp://broker", &[("auth", "external")][..], "needs a certificate"),
        ("amqp://u:Zq9@broker", &[("auth", "external")], "keep one of the two"),
        ("amqp://broker", &[("password", "Zq9")], "without a user"),
        ("amqp://broker", &[("tls_ca", "/dev/null")], "write amqps:// in the URL"),
        ("amqp://broker", &[("frame_max", "1KiB")], "option frame_max"),
        ("amqp://broker", &[("heartbeat", "10ms")], "option heartbeat"),
        ("amqp://broker", &[("connections", "0")], "option connections"),
        ("amqp://broker", &[("queue", "q")], "it has no option queue"),
        ("amqp://broker", &[("destination", "{tpoic}")], "{tpoic} is not known"),
    ] {
        let text = config(url, options).unwrap_err();
        assert!(text.contains(part), "{text}");
        assert!(!text.contains("Zq9"), "{text}");
    }
}

#[test]
fn what_amqp_cannot_carry_is_rejected() {
    let config = config("amqp://broker", &[]).unwrap();
    let refused = |event: &postbox_core::Delivery| {
        let error = outgoing(&config, event, 10_000).unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
        error.to_string()
    };
    let mut event = delivery("a.b", "1");
    assert!(outgoing(&config, &event, 10_000).is_ok());
    event.meta.headers = [("x".repeat(256), "1".to_owned())].into();
    assert!(refused(&event).contains("the name of a header has 256 bytes"));
    event.meta.headers = [("x".to_owned(), "1".repeat(10_000))].into();
    assert!(refused(&event).contains("do not fit into a frame of 10000 bytes"));
    event.meta.headers = [("CC".to_owned(), "1".to_owned())].into();
    let message = outgoing(&config, &event, 10_000).unwrap();
    assert!(!message.properties.headers().as_ref().unwrap().contains_key("CC"));
    event.destination = Some("k".repeat(256).into());
    assert!(refused(&event).contains("the routing key has 256 bytes"));
    event.destination = None;
    event.payload = Payload::Bytes { bytes: [].into(), content_type: "t".repeat(256) };
    assert!(refused(&event).contains("the content type has 256 bytes"));
}

#[test]
fn every_closing_has_its_class() {
    use DispatchErrorKind::{Reject, Retry, Unavailable};
    use lapin::protocol::AMQPError;
    let of = |code: u16, words: &str| {
        let error = AMQPError::from_id(code, words.into()).unwrap();
        match of_end(&lapin::ErrorKind::ProtocolError(error).into()) {
            Concerns::All(error) => (true, error.kind()),
            Concerns::One(error) => (false, error.kind()),
        }
    };
    for (code, words, class) in [
        (406, "PRECONDITION_FAILED - message size 2 is larger than configured max size 1", (false, Reject)),
        (311, "CONTENT_TOO_LARGE", (false, Reject)),
        (403, "ACCESS_REFUSED - access to topic 'a' in exchange 'b' refused", (false, Retry(None))),
        (403, "ACCESS_REFUSED - access to exchange 'b' refused", (true, Unavailable)),
        (404, "NOT_FOUND - no exchange 'b' in vhost '/'", (true, Unavailable)),
        (320, "CONNECTION_FORCED - shutdown", (true, Unavailable)),
        (530, "NOT_ALLOWED", (true, Unavailable)),
        (504, "CHANNEL_ERROR - expected 'channel.open'", (false, Retry(None))),
        (541, "INTERNAL_ERROR", (true, Unavailable)),
    ] {
        assert_eq!(of(code, words), class, "{code}");
    }
    let words = "PRECONDITION_FAILED - message size 2 is larger than configured max size 1000";
    let error = AMQPError::from_id(406, words.into()).unwrap();
    assert_eq!(size_limit(&lapin::ErrorKind::ProtocolError(error).into()), Some(1000));
    let lost = lapin::Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    assert!(matches!(of_end(&lost), Concerns::All(error) if error.kind() == Unavailable));
}
