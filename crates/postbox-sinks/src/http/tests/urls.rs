//! What URLs and options mean, and which are refused.

use postbox_core::testing::delivery;
use postbox_core::{AggregateKey, Delivery};
use serde_json::json;

use super::config;
use crate::http::HttpSink;
use crate::options::{Options, Value};

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
        ("https://u:hunter2/x@h.example/", json!({}), "invalid port"),
        ("https://h.example/", json!({"secret": "hunter2"}), "begins with whsec_"),
        ("https://h.example/#secret=hunter2", json!({}), "begins with whsec_"),
        ("https://h.example/", json!({"secret_file": "/no/such/file"}), "cannot be read"),
        ("https://h.example/", json!({"allow": ["a/b"]}), "not a network"),
        ("https://h.example/", json!({"method": "get"}), "use one of post, put"),
        ("https://h.example/", json!({"timeout": "1h"}), "timeout"),
        ("https://h.example/", json!({"timeout": "1s", "connect_timeout": "1s"}), "not less than timeout"),
        ("http://h.example/", json!({"allow_http": true, "tls_ca": "x"}), "write https:// in the URL"),
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
