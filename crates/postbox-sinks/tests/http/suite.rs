//! The sink suite, against a receiver in Python.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_core::Dispatcher as _;
use postbox_sinks::{AnySink, Options};
use postbox_testkit::eventually;
use postbox_testkit::sink_suite::{
    Abilities, Broker, Received, WRONG_PASSWORD, assert_complete, deliver, events,
};
use serde_json::Value;
use tempfile::TempDir;

postbox_testkit::sink_suite!(python, async { Hook::start() });

const PATIENCE: Duration = Duration::from_mins(5);

/// A receiver in a process of its own, and what it wrote down.
struct Hook {
    directory: TempDir,
    addr: SocketAddr,
    process: Mutex<Option<Child>>,
}

impl Hook {
    fn start() -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let (process, addr) = run(&directory, 0)?;
        Ok(Self { directory, addr, process: Mutex::new(Some(process)) })
    }

    fn kill(&self) {
        if let Some(mut process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn lines(&self) -> usize {
        std::fs::read_to_string(self.directory.path().join("journal")).map_or(0, |text| text.lines().count())
    }

    fn sink_of(addr: SocketAddr, password: &str, options: &[(&str, &str)]) -> AnySink {
        let usual = [("allow_private", "true"), ("timeout", "2s")];
        let all =
            usual.iter().chain(options).fold(Options::new(), |all, (name, value)| all.set(*name, *value));
        let has_destination = options.iter().any(|(name, _)| *name == "destination");
        let path = if has_destination { "" } else { "{topic}" };
        AnySink::new(&format!("http://suite:{password}@{addr}/{path}"), all).unwrap()
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(directory: &TempDir, port: u16) -> Result<(Child, SocketAddr), String> {
    let mut process = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http/receiver.py"))
        .arg(port.to_string())
        .arg(directory.path().join("journal"))
        // Open as long as this process lives: the receiver never outlives it.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("no python3 for a receiver: {error}"))?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Ok((process, SocketAddr::from(([127, 0, 0, 1], line.trim().parse().unwrap()))))
}

impl Broker for Hook {
    type Sink = AnySink;

    fn abilities(&self) -> Abilities {
        // As many as are sent at a time; see the sink.
        Abilities { batch: 32, cloudevents_prefix: "ce-", ..Abilities::default() }
    }

    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn sink_at(&self, addr: SocketAddr, options: &[(&str, &str)]) -> AnySink {
        Self::sink_of(addr, "right", options)
    }

    fn sink_with_wrong_credentials(&self) -> AnySink {
        Self::sink_of(self.addr, WRONG_PASSWORD, &[])
    }

    async fn prepare(&self, _: &str) {}

    async fn read(&self, destination: &str) -> Vec<Received> {
        let journal = std::fs::read_to_string(self.directory.path().join("journal")).unwrap();
        // A line that a kill cut off was never confirmed.
        let lines = journal.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let seen = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        seen.filter(|seen| seen["path"] == format!("/{destination}")).map(|seen| received(&seen)).collect()
    }

    async fn stop(&self) {
        self.kill();
    }

    async fn start_again(&self) {
        let (process, _) = run(&self.directory, self.addr.port()).unwrap();
        *self.process.lock().unwrap() = Some(process);
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

/// As much as a busy day's first minute, with the receiver killed in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes a minute or two: cargo test -p postbox-sinks --features http --test http -- --ignored"]
async fn fifty_thousand_events_outlive_a_restart() {
    const EVENTS: usize = 50_000;
    let hook = match Hook::start() {
        Ok(hook) => hook,
        Err(reason) => postbox_testkit::skip!("{reason}"),
    };
    let (sink, all) = (hook.sink(&[]), events("shop.order.placed.v1", EVENTS));
    let restart = async {
        eventually("a third to arrive", PATIENCE, async || hook.lines() > EVENTS / 3).await;
        hook.stop().await;
        hook.start_again().await;
    };
    tokio::join!(deliver(&sink, &all, PATIENCE), restart);
    let twice = assert_complete(&all, &hook.read("shop.order.placed.v1").await);
    assert!(twice <= 2 * sink.batch_limit(), "{twice} are there twice: more than were in flight");
}
