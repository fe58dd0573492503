//! The sink suite, against a receiver in Python.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_sinks::{AnySink, Options};
use postbox_testkit::sink_suite::{Abilities, Broker, Received, WRONG_PASSWORD};
use serde_json::Value;

use crate::python::Hook;

postbox_testkit::sink_suite!(in_python, async { Hook::start() });

fn sink_of(addr: SocketAddr, password: &str, options: &[(&str, &str)]) -> AnySink {
    let usual = [("allow_private", "true"), ("timeout", "2s")];
    let all = usual.iter().chain(options).fold(Options::new(), |all, (name, value)| all.set(*name, *value));
    let has_destination = options.iter().any(|(name, _)| *name == "destination");
    let path = if has_destination { "" } else { "{topic}" };
    AnySink::new(&format!("http://suite:{password}@{addr}/{path}"), all).unwrap()
}

impl Broker for Hook {
    type Sink = AnySink;

    fn abilities(&self) -> Abilities {
        // As many as are sent at a time; see the sink.
        Abilities { batch: 32, cloudevents_prefix: "ce-", ..Abilities::default() }
    }

    fn addr(&self) -> SocketAddr {
        Hook::addr(self)
    }

    fn sink_at(&self, addr: SocketAddr, options: &[(&str, &str)]) -> AnySink {
        sink_of(addr, "right", options)
    }

    fn sink_with_wrong_credentials(&self) -> AnySink {
        sink_of(Hook::addr(self), WRONG_PASSWORD, &[])
    }

    async fn prepare(&self, _: &str) {}

    async fn read(&self, destination: &str) -> Vec<Received> {
        self.seen(&format!("/{destination}")).iter().map(received).collect()
    }

    async fn stop(&self) {
        self.kill();
    }

    async fn start_again(&self) {
        Hook::start_again(self);
    }
}

/// A request as the suite wants it: the standard headers by their usual names.
fn received(seen: &Value) -> Received {
    let mut message =
        Received { payload: STANDARD.decode(seen["body"].as_str().unwrap()).unwrap(), ..Received::default() };
    let headers: BTreeMap<String, String> = serde_json::from_value(seen["headers"].clone()).unwrap();
    for (name, value) in headers {
        match name.strip_prefix("postbox-") {
            Some("message-key") => message.key = Some(value),
            Some(standard) => drop(message.headers.insert(standard.replace('-', "_"), value)),
            None => {
                if name == "content-type" {
                    message.headers.insert("content_type".to_owned(), value.clone());
                }
                message.headers.insert(name, value);
            }
        }
    }
    message
}
