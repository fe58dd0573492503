//! Pulsar's own client, in Java, which reads what the sink wrote.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_testkit::PulsarServer;
use postbox_testkit::sink_suite::Received;

/// A message with what only Pulsar has.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) received: Received,
    /// With its partition, if the topic has any.
    pub(crate) topic: String,
    pub(crate) event_time: i64,
}

/// All messages of a topic, in its order.
pub(crate) fn read(server: &PulsarServer, token: Option<&str>, topic: &str) -> Vec<Found> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../postbox-sinks/tests/pulsar/Read.java");
    let url = format!("pulsar://{}", server.addr());
    let printed = server.java(&source, &[&url, token.unwrap_or("-"), topic]);
    let printed = printed.unwrap_or_else(|error| panic!("cannot read {topic}: {error}"));
    printed.lines().filter_map(|line| line.strip_prefix("> ")).map(found).collect()
}

fn found(line: &str) -> Found {
    let parts: Vec<&str> = line.split(' ').collect();
    let [topic, event_time, key, payload, properties @ ..] = parts.as_slice() else { panic!("{line}") };
    let header = |pair: &&str| {
        let (name, value) = pair.split_once(':').expect("a property");
        (text(name), text(value))
    };
    let received = Received {
        key: (*key != "-").then(|| text(key)),
        headers: properties.iter().map(header).collect(),
        content_type: None,
        payload: bytes(&payload[1..]),
    };
    Found { received, topic: text(topic), event_time: event_time.parse().expect("a number") }
}

fn bytes(encoded: &str) -> Vec<u8> {
    STANDARD.decode(encoded).expect("Base64")
}

fn text(encoded: &str) -> String {
    String::from_utf8(bytes(encoded)).expect("UTF-8")
}
