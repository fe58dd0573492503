//! What needs no server: which hosts, which URLs, which options.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use postbox_core::testing::delivery;
use postbox_core::{AggregateKey, Delivery, DispatchErrorKind, Dispatcher as _};
use serde_json::json;

use super::HttpSink;
use super::config::Config;
use super::guard::Guard;
use super::resolve::Lookup;
use crate::options::{Options, Value};

fn options(value: Value) -> Options {
    let Value::Object(map) = value else { panic!("an object") };
    map.into_iter().collect()
}

fn config(url: &str, given: Value) -> Result<Config, String> {
    Config::new(url, options(given)).map_err(|error| error.to_string())
}

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

fn url_of(url: &str, given: Value, event: &Delivery) -> Result<String, String> {
    config(url, given).unwrap().target.of(event).map(|url| url.to_string())
}

#[test]
fn values_stay_within_their_place_in_the_url() {
    let mut event = delivery("org.order.placed.v1", "{}");
    event.meta.aggregate = Some(AggregateKey::new("order", "a/../b?x=1#y&z é%2e"));
    let encoded = "a%2F..%2Fb%3Fx%3D1%23y%26z%20%C3%A9%252e";
    for (url, expected) in [
        ("https://h.example/hooks/{topic}", "https://h.example/hooks/org.order.placed.v1".to_owned()),
        ("https://h.example/{aggregate_id}/x", format!("https://h.example/{encoded}/x")),
        ("https://h.example/x?id={aggregate_id}&t=1", format!("https://h.example/x?id={encoded}&t=1")),
        ("https://h.example", "https://h.example/".to_owned()),
        ("https://h.example?k=v", "https://h.example/?k=v".to_owned()),
        ("https://h.example/a%20b", "https://h.example/a%20b".to_owned()),
        ("https://h.example/%7B{{x}}", "https://h.example/%7B%7Bx%7D".to_owned()),
    ] {
        assert_eq!(url_of(url, json!({}), &event).unwrap(), expected, "{url}");
    }
    event.meta.aggregate = Some(AggregateKey::new("order", ".."));
    assert!(url_of("https://h.example/a/{aggregate_id}/b", json!({}), &event).unwrap_err().contains("dots"));
    event.meta.aggregate = None;
    let missing = url_of("https://h.example/{aggregate_id}", json!({}), &event).unwrap_err();
    assert!(missing.contains("aggregate_id"), "{missing}");
}

#[test]
fn a_destination_stays_below_the_url() {
    let mut event = delivery("org.order.placed.v1", "{}");
    let mut at = |url: &str, destination: &str| {
        event.destination = Some(destination.into());
        url_of(url, json!({}), &event)
    };
    for (url, destination, expected) in [
        ("https://h.example/in", "orders", "https://h.example/in/orders"),
        ("https://h.example/in/?k=v", "/orders/new", "https://h.example/in/orders/new?k=v"),
        ("https://h.example", "x", "https://h.example/x"),
        ("https://h.example/in/{topic}", "x", "https://h.example/in/x"),
        ("https://h.example/in", "//evil.example/x", "https://h.example/in/evil.example/x"),
        ("https://h.example/in", "https://evil.example/x", "https://h.example/in/https://evil.example/x"),
        ("https://h.example/in", "a?b#c%2e\\@d", "https://h.example/in/a%3Fb%23c%252e%5C@d"),
    ] {
        assert_eq!(at(url, destination).unwrap(), expected, "{url} {destination}");
    }
    for destination in ["..", "a/../b", "./x", "a/."] {
        assert!(at("https://h.example/in", destination).unwrap_err().contains("dots"), "{destination}");
    }
    event.destination = None;
    let given = json!({"destination": "by-topic/{topic}"});
    assert_eq!(
        url_of("https://h.example/in", given, &event).unwrap(),
        "https://h.example/in/by-topic/org.order.placed.v1"
    );
}

#[test]
fn what_cannot_be_used_is_refused_at_the_start_and_shows_no_secret() {
    let whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    for (url, given, reason) in [
        ("https://{topic}.example.com/", json!({}), "placeholders may stand in the path and the query only"),
        ("https://u{topic}:p@example.com/", json!({}), "placeholders may stand"),
        ("https://h.example/{tpoic}", json!({}), "{tpoic} is not known"),
        ("https://h.example/a/../b", json!({}), "dots"),
        ("https://h.example\\@evil.example/", json!({}), "backslash"),
        ("https://h.example/a b", json!({}), "space"),
        ("https:///x", json!({}), "host"),
        ("https:x", json!({}), "write https://"),
        ("https://h.example/", json!({"secret": "hunter2"}), "begins with whsec_"),
        ("https://h.example/#secret=hunter2", json!({}), "begins with whsec_"),
        ("https://h.example/", json!({"secret_file": "/no/such/file"}), "cannot be read"),
        ("https://h.example/", json!({"allow": ["a/b"]}), "not a network"),
        ("https://h.example/", json!({"method": "get"}), "use one of post, put"),
        ("https://h.example/", json!({"timeout": "1h"}), "timeout"),
        ("https://h.example/", json!({"concurrency": 0}), "concurrency"),
        ("https://h.example/", json!({"headers": {"Webhook-Id": "x"}}), "the sink's own"),
        ("https://h.example/", json!({"headers": {"content-length": "1"}}), "the sink's own"),
        ("https://h.example/", json!({"headers": {"a b": "1"}}), "no such header"),
        ("https://u:hunter2@h.example/", json!({"bearer_token": "hunter2"}), "not the only way"),
        ("https://h.example/", json!({"tls_cert": file!().rsplit('/').next().unwrap()}), "tls_cert"),
        (
            "https://h.example/",
            json!({"proxy": "socks5://u:hunter2@p"}),
            "option proxy is not the URL of one",
        ),
        (
            "https://h.example/hunter2?hunter2=1",
            json!({"typo": 1}),
            "it has no option typo; there is destination",
        ),
        ("https://h.example/{topic}", json!({"destination": "x"}), "keep one"),
        (&format!("https://h.example/#secret={whsec}&secret={whsec}"), json!({}), "given twice"),
    ] {
        let text = config(url, given).unwrap_err();
        assert!(text.contains(reason), "{url}: {text}");
        assert!(!text.contains("hunter2") && !text.contains("MfKQ"), "{text}");
    }
    let sink = HttpSink::new("https://u:hunter2@h.example:8443/hunter2", Options::new()).unwrap();
    assert_eq!(
        (sink.to_string(), format!("{sink:?}")),
        ("https://h.example:8443/".into(), "HttpSink(https://h.example:8443/)".into())
    );
}

#[test]
fn options_stand_in_the_table_or_behind_the_hash() {
    let url = "https://h.example/x?secret=theirs#timeout=3s&concurrency=7&allow=10.0.0.0/8,h&method=put";
    let config = config(url, json!({"headers": {"X-Api-Key": "k"}})).unwrap();
    assert_eq!((config.connect.timeout.as_secs(), config.connect.concurrency), (3, 7));
    assert_eq!((config.connect.guard.networks.len(), config.connect.guard.hosts.len()), (1, 1));
    assert_eq!(config.method, "PUT");
    assert_eq!(config.headers["x-api-key"], "k");
    assert!(!format!("{config:?}").contains("\"k\""), "a header of the operator's may be a key");
    let event = delivery("a.b.c.v1", "{}");
    assert_eq!(config.target.of(&event).unwrap().as_str(), "https://h.example/x?secret=theirs");
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
