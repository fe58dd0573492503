//! HTTP by hand: every header is the test's own.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The code of an error.
    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A server, and the headers that every request to it has.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) address: String,
    pub(crate) base: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Client {
    pub(crate) fn new(url: &str) -> Self {
        let rest = url.strip_prefix("http://").unwrap().trim_end_matches('/');
        let (address, base) =
            rest.split_once('/').map_or((rest, String::new()), |(a, b)| (a, format!("/{b}")));
        let headers = vec![("host".to_owned(), address.to_owned())];
        Self { address: address.to_owned(), base, headers }
    }

    /// The same with another header, in place of the one of this name.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.retain(|(known, _)| known != name);
        client.headers.push((name.to_owned(), value.to_owned()));
        client
    }

    pub(crate) fn bearer(&self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }

    fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let mut head = format!("{method} {}{path} HTTP/1.1\r\nconnection: close\r\n", self.base);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if method != "GET" {
            let _ = write!(head, "content-length: {}\r\n", body.len());
            if !self.headers.iter().any(|(name, _)| name == "content-type") {
                head += "content-type: application/json\r\n";
            }
        }
        // Who is refused may find the connection closed before it has said everything.
        let _ = write!(stream, "{head}\r\n{body}");
        BufReader::new(stream)
    }

    fn head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
        let mut lines = reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty());
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let pair = |line: String| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        };
        (status, lines.map(pair).collect())
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut reader = self.send(method, path, body);
        let (status, headers) = Self::head(&mut reader);
        let mut body = String::new();
        reader.read_to_string(&mut body).unwrap();
        Answer { status, headers, body }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    /// A GET of the API that must work.
    #[track_caller]
    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.get(&format!("/api/v1{path}"));
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    /// A POST to the API.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", &format!("/api/v1{path}"), &body.to_string())
    }

    /// A POST that must work.
    #[track_caller]
    pub(crate) fn done(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert!(answer.status == 200 || answer.status == 202, "{path}: {answer:?}");
        answer.json()
    }

    /// The live stream: gives each event's name and data, as they come.
    pub(crate) fn stream(&self) -> impl Iterator<Item = (String, Value)> {
        let mut reader = self.send("GET", "/api/v1/stream", "");
        let (status, headers) = Self::head(&mut reader);
        assert_eq!(status, 200);
        assert!(headers.iter().any(|(_, value)| value.starts_with("text/event-stream")), "{headers:?}");
        let mut name = String::new();
        // Lines of the chunks' sizes are in between; none looks like a field.
        reader.lines().map_while(Result::ok).filter_map(move |line| {
            if let Some(event) = line.strip_prefix("event: ") {
                event.clone_into(&mut name);
            }
            let data = line.strip_prefix("data: ")?;
            Some((name.clone(), serde_json::from_str(data).unwrap()))
        })
    }
}
