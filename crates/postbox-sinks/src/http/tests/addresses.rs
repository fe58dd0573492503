//! Which addresses are sent to.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use postbox_core::testing::delivery;
use postbox_core::{DispatchErrorKind, Dispatcher as _};
use serde_json::json;

use super::{config, options};
use crate::http::HttpSink;
use crate::http::guard::Guard;
use crate::http::resolve::Lookup;
use crate::options::Value;

/// Every address that is not of the public internet, as IPv4 or IPv6 can spell it.
const REFUSED: [&str; 58] = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "0:0:0:0:ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "8000::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "fe00::1",
    "::ffff:255.255.255.255",
];

const PUBLIC: [&str; 14] = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "198.20.0.1",
    "223.255.255.255",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
];

#[test]
fn hazard_52_every_address_outside_the_internet_is_refused_unless_allowed() {
    let (strict, open) = (Guard::default(), Guard { allow_private: true, ..Guard::default() });
    for text in REFUSED {
        let address: IpAddr = text.parse().unwrap();
        assert!(strict.check(address).is_err(), "{text}");
        assert!(open.check(address).is_ok(), "{text}");
        let mut named = Guard::default();
        named.allow(text).unwrap();
        assert!(named.check(address).is_ok(), "{text}");
        let other: IpAddr =
            if text == "10.0.0.1" || text == "::ffff:10.0.0.1" { "10.0.0.2" } else { "10.0.0.1" }
                .parse()
                .unwrap();
        assert!(named.check(other).is_err(), "{text} allows one address only");
    }
    for text in PUBLIC {
        assert_eq!(strict.check(text.parse().unwrap()), Ok(()), "{text}");
    }
}

#[test]
fn networks_hold_their_addresses_and_no_others() {
    for (network, inside, outside) in [
        ("10.0.0.0/8", "10.255.0.1", "192.168.0.1"),
        ("10.1.2.3/8", "10.255.0.1", "127.0.0.1"),
        ("192.168.4.0/23", "192.168.5.255", "192.168.6.0"),
        ("127.0.0.1/32", "127.0.0.1", "127.0.0.2"),
        ("0.0.0.0/0", "10.0.0.1", "fd00::1"),
        ("fd00::/8", "fdff::1", "fc00::1"),
        ("::/0", "fe80::1", "10.0.0.1"),
        ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
        ("10.0.0.0/8", "64:ff9b::10.0.0.1", "64:ff9b::192.168.0.1"),
    ] {
        let mut guard = Guard::default();
        guard.allow(network).unwrap();
        assert!(guard.check(inside.parse().unwrap()).is_ok(), "{network} {inside}");
        assert!(guard.check(outside.parse().unwrap()).is_err(), "{network} {outside}");
    }
    for wrong in ["10.0.0.0/33", "fd00::/129", "10.0.0/8", "a/b", "", "exa mple", "10.0.0.0/-1"] {
        assert!(Guard::default().allow(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn hazard_52_an_address_in_the_url_is_refused_in_every_spelling() {
    for host in [
        "127.0.0.1",
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "１２７.0.0.1",
        "127。0。0。1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:0:0:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[fe80::1]",
        "169.254.169.254",
        "0xa9fea9fe",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "x.localhost",
    ] {
        for scheme in ["https", "http"] {
            let problem =
                config(&format!("{scheme}://{host}/hook"), json!({"allow_http": true})).unwrap_err();
            assert!(problem.contains("refused"), "{host}: {problem}");
            config(&format!("{scheme}://{host}/hook"), json!({"allow_http": true, "allow_private": true}))
                .unwrap();
        }
    }
    config("https://8.8.8.8/", json!({})).unwrap();
    config("http://127.1/", json!({"allow": ["127.0.0.0/8"]})).unwrap();
    config("http://localhost/", json!({"allow": "localhost"})).unwrap();
}

#[test]
fn plain_http_has_to_be_asked_for() {
    let problem = config("http://example.com/hook", json!({})).unwrap_err();
    assert!(problem.contains("in the clear") && problem.contains("allow_http"), "{problem}");
    config("http://example.com/hook", json!({"allow_private": true})).unwrap_err();
    config("http://example.com/hook", json!({"allow_http": true})).unwrap();
    config("http://example.com/hook", json!({"allow": ["Example.com"]})).unwrap();
    config("https://example.com/hook", json!({})).unwrap();
    config("http://127.0.0.1:8080/hook", json!({"allow_private": true})).unwrap();
}

/// Names with answers: each question takes the next one, the last stays.
struct Answers(Mutex<VecDeque<Vec<&'static str>>>);

impl Lookup for Answers {
    fn lookup(&self, _: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let mut answers = self.0.lock().unwrap();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        let found = answer.map(|all| all.iter().map(|address| address.parse().unwrap()).collect());
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such host")) })
    }
}

fn sink(url: &str, given: Value, answers: &[&[&'static str]]) -> HttpSink {
    let answers = answers.iter().map(|answer| answer.to_vec()).collect();
    HttpSink::with_lookup(url, options(given), Arc::new(Answers(Mutex::new(answers)))).unwrap()
}

async fn refusal(sink: &HttpSink) -> String {
    let error = sink.dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    error.to_string()
}

#[tokio::test]
async fn hazard_52_every_resolved_address_is_judged() {
    // A receiver at these addresses would be reached: the listener would see it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("http://hooks.example.com:{port}/");
    for answer in [
        &["127.0.0.1"][..],
        &["8.8.8.8", "127.0.0.1"],
        &["::ffff:127.0.0.1"],
        &["169.254.169.254", "1.1.1.1"],
    ] {
        let sink = sink(&url, json!({"allow_http": true}), &[answer]);
        let text = refusal(&sink).await;
        assert!(
            text.contains("hooks.example.com is not sent to: the address") && text.contains("refused"),
            "{text}"
        );
    }
    let text = refusal(&sink(&url, json!({"allow_http": true}), &[])).await;
    assert!(text.contains("cannot resolve hooks.example.com: no such host"), "{text}");
    let text = refusal(&sink(&url, json!({"allow_http": true}), &[&[]])).await;
    assert!(text.contains("hooks.example.com has no address"), "{text}");
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody was connected to");
}

#[tokio::test]
async fn hazard_52_a_name_that_changes_its_answer_is_judged_each_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    // First a public address, at which nothing listens (TEST-NET would be refused), then this machine: whatever the
    // order, what is connected to has been judged, and the listener here never hears of it.
    let given = json!({"allow_http": true, "timeout": "400ms", "allow": ["203.0.113.1"]});
    let url = format!("http://rebind.example.com:{port}/");
    let sink = sink(&url, given, &[&["203.0.113.1"], &["127.0.0.1"]]);
    let first = refusal(&sink).await;
    assert!(!first.contains("refused: it is"), "{first}");
    let second = refusal(&sink).await;
    assert!(second.contains("127.0.0.1 is refused: it is a loopback address"), "{second}");
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody was connected to");
}

#[tokio::test]
async fn hazard_52_what_was_judged_is_what_is_connected_to() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://pinned.example.com:{}/", listener.local_addr().unwrap().port());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await.unwrap();
    });
    // Were the name looked up once to check and again to connect, the second answer would be taken.
    let answers =
        Arc::new(Answers(Mutex::new([vec!["127.0.0.1"], vec!["169.254.169.254"], vec!["1.1.1.1"]].into())));
    let given = options(json!({"allow": ["127.0.0.1"], "allow_http": true}));
    let sink = HttpSink::with_lookup(&url, given, Arc::clone(&answers) as Arc<dyn Lookup>).unwrap();
    sink.dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap();
    server.await.unwrap();
    assert_eq!(answers.0.lock().unwrap().len(), 2, "asked once");
    let text = refusal(&sink).await;
    assert!(text.contains("169.254.169.254 is refused: it is a link-local address"), "{text}");
}
