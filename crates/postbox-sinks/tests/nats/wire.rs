//! The protocol of NATS by hand: another reader than the client that the sink is made of.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_testkit::sink_suite::Received;
use serde_json::Value;

pub(crate) struct Wire {
    reader: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) fn connect(addr: SocketAddr, login: Option<(&str, &str)>) -> Self {
        let login = login.map(|(user, password)| format!(r#""user":"{user}","pass":"{password}""#));
        Self::connect_with(addr, &login.unwrap_or_default())
    }

    pub(crate) fn connect_with(addr: SocketAddr, login: &str) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut wire = Self { reader: BufReader::new(stream) };
        let comma = if login.is_empty() { "" } else { "," };
        wire.send(&format!(
            "CONNECT {{\"verbose\":false,\"headers\":true{comma}{login}}}\r\nSUB answers.* 1\r\n"
        ));
        wire
    }

    pub(crate) fn make_stream(&mut self, subject: &str) {
        self.make_stream_with(subject, "");
    }

    pub(crate) fn make_stream_with(&mut self, subject: &str, more: &str) {
        let name = name_of(subject);
        let config = format!(r#"{{"name":"{name}","subjects":["{subject}"],"storage":"file"{more}}}"#);
        let answer = self.ask(&format!("$JS.API.STREAM.CREATE.{name}"), &config);
        assert!(answer["error"].is_null(), "{answer}");
    }

    /// All messages of a stream, by its own interface for single ones.
    pub(crate) fn read_stream(&mut self, subject: &str) -> Vec<Received> {
        let name = name_of(subject);
        let info = self.ask(&format!("$JS.API.STREAM.INFO.{name}"), "");
        let last = info["state"]["last_seq"].as_u64().unwrap_or_else(|| panic!("{info}"));
        let mut received = Vec::new();
        for first in (1..=last).step_by(500) {
            let some = first..=last.min(first + 499);
            let mut requests = String::new();
            for sequence in some.clone() {
                let body = format!("{{\"seq\":{sequence}}}");
                let _ = write!(
                    requests,
                    "PUB $JS.API.STREAM.MSG.GET.{name} answers.{sequence} {}\r\n{body}\r\n",
                    body.len()
                );
            }
            self.send(&requests);
            received.extend(some.map(|_| message(&self.answer()["message"])));
        }
        received
    }

    fn ask(&mut self, subject: &str, body: &str) -> Value {
        self.send(&format!("PUB {subject} answers.0 {}\r\n{body}\r\n", body.len()));
        self.answer()
    }

    fn answer(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "the server closed the connection");
            if line.starts_with("MSG ") {
                let bytes: usize = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
                let mut body = vec![0; bytes + 2];
                self.reader.read_exact(&mut body).unwrap();
                return serde_json::from_slice(&body[..bytes]).unwrap();
            }
            if line.starts_with("PING") {
                self.send("PONG\r\n");
            }
            assert!(!line.starts_with("-ERR"), "{line}");
        }
    }

    fn send(&mut self, text: &str) {
        self.reader.get_mut().write_all(text.as_bytes()).unwrap();
    }
}

fn name_of(subject: &str) -> String {
    subject.replace(['.', '*'], "_")
}

fn message(message: &Value) -> Received {
    let bytes = |name: &str| STANDARD.decode(message[name].as_str().unwrap_or_default()).unwrap();
    let text = String::from_utf8(bytes("hdrs")).unwrap();
    let mut headers = BTreeMap::new();
    for line in text.split("\r\n").skip(1).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap();
        headers.insert(name.to_owned(), value.trim_start().to_owned());
    }
    Received { key: headers.get("message_key").cloned(), headers, content_type: None, payload: bytes("data") }
}
