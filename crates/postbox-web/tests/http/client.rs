//! A client that can also hang up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A request, to be sent as often as one likes.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    address: String,
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Ask {
    pub(crate) fn new(address: &str, method: &'static str, path: &str) -> Self {
        let headers = vec![("x-account", "acme".to_owned())];
        Self { address: address.to_owned(), method, path: path.to_owned(), headers, body: String::new() }
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub(crate) fn account(mut self, account: &str) -> Self {
        self.headers.retain(|(name, _)| *name != "x-account");
        if account.is_empty() { self } else { self.header("x-account", account) }
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it; the connection on which the answer will come.
    pub(crate) async fn start(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let mut head =
            format!("{} {} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.extend([name, ": ", value.as_str(), "\r\n"]);
        }
        let request = format!("{head}content-length: {}\r\n\r\n{}", self.body.len(), self.body);
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends it and waits; none if the connection ends without an answer.
    pub(crate) async fn try_send(&self) -> Option<Answer> {
        let mut stream = self.start().await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.ok()?;
        Answer::read(&bytes)
    }

    /// Sends it again and again while it is told to wait.
    pub(crate) async fn insist(&self) -> Answer {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = self.send().await;
            if answer.status != 409 {
                return answer;
            }
            assert!(Instant::now() < until, "{answer:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn send(&self) -> Answer {
        self.try_send().await.expect("an answer")
    }
}

/// Reads until this has come, of an answer that may have no end; all that came.
pub(crate) async fn read_to(stream: &mut TcpStream, what: &str) -> String {
    let mut text = String::new();
    let read = async {
        while !text.contains(what) {
            let mut bytes = [0; 1000];
            let size = stream.read(&mut bytes).await.unwrap();
            assert!(size > 0, "it ended with {text:?}");
            text += std::str::from_utf8(&bytes[..size]).unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), read).await.expect("nothing came within 30 s");
    text
}

impl Answer {
    fn read(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let mut headers: HashMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect();
        headers.remove("date");
        let chunked = headers.remove("transfer-encoding").is_some();
        let body = if chunked { without_chunks(body) } else { body.to_owned() };
        Some(Self { status, headers, body })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// Checks that it is a problem as RFC 9457 has it; answers its code.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], self.status, "{self:?}");
        for member in ["type", "title", "detail"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        }
        (self.status, problem["code"].as_str().unwrap().to_owned())
    }
}

fn without_chunks(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        body += &after[..size];
        rest = &after[size + 2..];
    }
    body
}
