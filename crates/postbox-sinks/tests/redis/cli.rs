//! `redis-cli`: another reader than the client that the sink is made of.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;

use postbox_testkit::sink_suite::Received;

pub(crate) struct Cli {
    addr: SocketAddr,
    login: Option<(&'static str, &'static str)>,
}

impl Cli {
    pub(crate) fn new(addr: SocketAddr, login: Option<(&'static str, &'static str)>) -> Self {
        Self { addr, login }
    }

    /// Runs a command; what it printed, as comma separated values.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", &self.addr.ip().to_string(), "-p", &self.addr.port().to_string(), "--csv"]);
        if let Some((user, password)) = self.login {
            command.args(["--user", user]).env("REDISCLI_AUTH", password);
        }
        let output = command.args(args).output().expect("redis-cli");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.starts_with("ERROR"), "{args:?}: {text}");
        text
    }

    pub(crate) fn read_stream(&self, stream: &str) -> Vec<Received> {
        let mut words = words(&self.run(&["XRANGE", stream, "-", "+"])).into_iter();
        let mut received = Vec::new();
        // An entry is its id and then pairs, of which the payload is the last.
        while words.next().is_some() {
            let mut headers = BTreeMap::new();
            let payload = loop {
                let (name, value) = (words.next().unwrap(), words.next().unwrap());
                match String::from_utf8(name).unwrap() {
                    name if name == "payload" => break value,
                    name => headers.insert(name, String::from_utf8(value).unwrap()),
                };
            };
            received.push(Received { key: headers.remove("key"), headers, content_type: None, payload });
        }
        received
    }
}

/// Quoted words with the escapes of C between commas.
fn words(text: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut bytes = text.trim_end().bytes();
    while let Some(byte) = bytes.next() {
        assert!(byte == b'"' || byte == b',', "{:?} in {text:.200}", char::from(byte));
        if byte == b',' {
            continue;
        }
        let mut word = Vec::new();
        loop {
            match bytes.next().expect("the end of a word") {
                b'"' => break,
                b'\\' => word.push(match bytes.next().expect("an escape") {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => {
                        let mut digit = || char::from(bytes.next().unwrap()).to_digit(16).unwrap();
                        u8::try_from(digit() * 16 + digit()).unwrap()
                    }
                    other => other,
                }),
                other => word.push(other),
            }
        }
        words.push(word);
    }
    words
}
