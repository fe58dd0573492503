//! Asks RabbitMQ by pika, which is of other people than the sink's client.

use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_testkit::sink_suite::Received;
use serde_json::Value;

const SCRIPT: &str = include_str!("reader.py");

/// A Python that has pika: Debian's package belongs to Debian's own.
pub(crate) fn python() -> Result<&'static str, String> {
    let has_pika = |python: &&str| {
        let output = Command::new(python).args(["-c", "import pika"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let missing = "no Python with pika found: install Debian's python3-pika";
    ["/usr/bin/python3", "python3"].into_iter().find(has_pika).ok_or_else(|| missing.to_owned())
}

/// Runs the script: what it printed.
pub(crate) fn ask(url: &str, args: &[&str]) -> String {
    let python = python().unwrap();
    let output = Command::new(python).args(["-c", SCRIPT, url]).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The event ids of the messages of a queue.
#[allow(dead_code, reason = "for the tests of the program, which share this reader")]
pub(crate) fn ids(url: &str, queue: &str) -> Vec<String> {
    ask(url, &["ids", queue]).lines().map(str::to_owned).collect()
}

/// The messages of a queue, with all that pika says about them.
pub(crate) fn raw(url: &str, queue: &str) -> Vec<Value> {
    ask(url, &["read", queue]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The messages of a queue.
pub(crate) fn read(url: &str, queue: &str) -> Vec<Received> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let message = |message: Value| {
        let headers = message["headers"].as_object().unwrap();
        Received {
            key: text(&message["headers"]["message_key"]),
            headers: headers.iter().map(|(name, value)| (name.clone(), text(value).unwrap())).collect(),
            content_type: text(&message["content_type"]),
            payload: STANDARD.decode(message["payload"].as_str().unwrap()).unwrap(),
        }
    };
    raw(url, queue).into_iter().map(message).collect()
}
