//! kcat, which reads what the sink wrote. It is built on another librdkafka than the sink, and asked for both of its forms:
//! JSON for keys and headers, and plain bytes with their lengths for payloads, which need not be text.

use std::collections::BTreeMap;
use std::process::Command;

use postbox_testkit::sink_suite::Received;
use serde_json::Value;

/// Whether there is a kcat.
pub(crate) fn installed() -> Result<(), String> {
    let run = Command::new("kcat").arg("-V").output();
    run.map(|_| ())
        .map_err(|error| format!("no kcat found ({error}): run `cargo xtask test`, which installs it"))
}

/// A message with what only Kafka has.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) received: Received,
    pub(crate) partition: i64,
    pub(crate) timestamp: i64,
    /// Whether there is a payload at all: none is not the same as an empty one.
    pub(crate) has_payload: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Reader {
    args: Vec<String>,
}

impl Reader {
    pub(crate) fn new(bootstrap: String) -> Self {
        Self { args: vec!["30".into(), "kcat".into(), "-b".into(), bootstrap] }
    }

    pub(crate) fn login(self, user: &str, password: &str) -> Self {
        self.set("security.protocol", "SASL_PLAINTEXT")
            .set("sasl.mechanism", "PLAIN")
            .set("sasl.username", user)
            .set("sasl.password", password)
    }

    pub(crate) fn set(mut self, property: &str, value: &str) -> Self {
        self.args.extend(["-X".to_owned(), format!("{property}={value}")]);
        self
    }

    /// Has the broker make a topic, as it does for those who ask for one.
    pub(crate) fn make(&self, topic: &str) {
        for _ in 0..100 {
            let seen = self.kcat(&["-L", "-t", topic]);
            if String::from_utf8_lossy(&seen).contains(", leader 1") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("the broker does not make the topic {topic}");
    }

    /// All messages of a topic.
    pub(crate) fn read(&self, topic: &str) -> Vec<Found> {
        let from_start = ["-C", "-q", "-e", "-o", "beginning", "-t", topic];
        let json = self.kcat(&[&from_start[..], &["-J"]].concat());
        let mut payloads = payloads(&self.kcat(&[&from_start[..], &["-f", "%p %o %S\n%s\n"]].concat()));
        let lines = json.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let found = lines.map(|line| {
            let value: Value = serde_json::from_str(&String::from_utf8_lossy(line)).expect("JSON of kcat");
            let number = |name: &str| value[name].as_i64().expect(name);
            let payload = payloads.remove(&(number("partition"), number("offset"))).expect("a payload");
            let received = Received {
                key: value["key"].as_str().map(str::to_owned),
                headers: headers(&value["headers"]),
                content_type: None,
                payload: payload.clone().unwrap_or_default(),
            };
            let has_payload = payload.is_some();
            Found { received, partition: number("partition"), timestamp: number("ts"), has_payload }
        });
        found.collect()
    }

    fn kcat(&self, args: &[&str]) -> Vec<u8> {
        // Bounded: an answer that never comes is a failure, not a hang.
        let output = Command::new("timeout").args(&self.args).args(args).output().expect("timeout and kcat");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kcat {args:?}: {complaint}");
        output.stdout
    }
}

/// Names and values take turns.
fn headers(value: &Value) -> BTreeMap<String, String> {
    let texts: Vec<String> = value.as_array().into_iter().flatten().map(text).collect();
    texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// Payloads by partition and offset, of lines `partition offset length` with so many bytes after each.
fn payloads(mut bytes: &[u8]) -> BTreeMap<(i64, i64), Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let head = std::str::from_utf8(&bytes[..end]).expect("numbers");
        let numbers: Vec<i64> = head.split(' ').map(|number| number.parse().expect("a number")).collect();
        let length = usize::try_from(numbers[2]).ok();
        let (payload, rest) = bytes[end + 1..].split_at(length.unwrap_or(0));
        all.insert((numbers[0], numbers[1]), length.map(|_| payload.to_vec()));
        bytes = &rest[1..];
    }
    all
}
