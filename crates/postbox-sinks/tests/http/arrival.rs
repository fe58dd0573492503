//! What arrives: URL, headers, body, signature.

use std::io::Write as _;
use std::process::{Command, Stdio};

use postbox_core::testing::delivery;
use postbox_core::{AggregateKey, Delivery, Dispatcher as _, Payload, TenantId};
use postbox_sinks::options::Value;
use serde_json::json;

use crate::receiver::{Receiver, Seen};
use crate::{SECRET, sink};

async fn arrived(given: Value, path: &str, event: &Delivery) -> Seen {
    let receiver = Receiver::willing();
    sink(&receiver.url(path), given).dispatch(event).await.unwrap();
    receiver.only()
}

fn rich() -> Delivery {
    let mut event =
        delivery("shop.order.placed.v1", "{ \"price\": 12345678901234567890.50, \"to\": \"Zoë\" }");
    event.meta.aggregate = Some(AggregateKey::new("order", "nº 7"));
    event.meta.tenant_id = TenantId::from_name("acme");
    event.meta.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    event.meta.tracestate = Some("a=1%2,b=2".into());
    event.meta.schema_id = Some("order/7".into());
    event.meta.headers = [
        ("tenant", "acme"),
        ("X_Request_Id", "r-1 é"),
        ("Event_ID", "forged"),
        ("event_id", "forged"),
        ("ce-id", "forged"),
        ("CE-Type", "forged"),
        ("Authorization", "forged"),
        ("webhook-signature", "forged"),
        ("Content-Length", "3"),
        ("postbox-dead-reason", "why"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    event
}

#[tokio::test]
async fn an_event_arrives_with_its_headers() {
    let event = rich();
    let seen = arrived(json!({}), "/hooks/{topic}?a=b", &event).await;
    assert_eq!((seen.method.as_str(), seen.uri.as_str()), ("POST", "/hooks/shop.order.placed.v1?a=b"));
    assert_eq!(&seen.body[..], "{ \"price\": 12345678901234567890.50, \"to\": \"Zoë\" }".as_bytes());
    let id = event.meta.event_id.to_string();
    for (name, value) in [
        ("content-type", "application/json"),
        ("webhook-id", id.as_str()),
        ("webhook-signature", ""),
        ("postbox-message-key", "n%C2%BA 7"),
        ("ce-id", ""),
        ("event-id", ""),
        ("postbox-event-id", &id),
        ("postbox-tenant-id", &event.meta.tenant_id.to_string()),
        ("postbox-topic", "shop.order.placed.v1"),
        ("postbox-sequence", "1"),
        ("postbox-attempts", "1"),
        ("postbox-aggregate-type", "order"),
        ("postbox-aggregate-id", "n%C2%BA 7"),
        ("postbox-schema-id", "order/7"),
        ("postbox-schema-version", "1"),
        ("postbox-content-type", ""),
        ("postbox-dead-reason", "why"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1%2,b=2"),
        ("tenant", "acme"),
        ("x-request-id", "r-1 %C3%A9"),
        ("authorization", ""),
        ("content-length", &seen.body.len().to_string()),
        ("user-agent", concat!("postbox/", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    assert!(seen.header("postbox-occurred-at").ends_with('Z'));
    let sent: i64 = seen.header("webhook-timestamp").parse().unwrap();
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    assert!((now - 60..=now).contains(&sent), "{sent}");
}

/// Checks a signature as the standard says, with nothing of ours: prints how many of the header's signatures are right.
const CHECK: &str = r#"
import base64, hashlib, hmac, sys
secret, message_id, timestamp, signatures = sys.argv[1:5]
body = sys.stdin.buffer.read()
key = base64.b64decode(secret.removeprefix("whsec_"))
expected = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
versions = [part.split(",", 1) for part in signatures.split(" ")]
print(sum(v == "v1" and hmac.compare_digest(base64.b64decode(s), expected) for v, s in versions), len(versions))
"#;

/// What Python finds, or nothing where there is none.
fn checked_by_python(secret: &str, seen: &Seen) -> Option<String> {
    let arguments = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| seen.header(name));
    let mut python = Command::new("python3")
        .args(["-c", CHECK, secret])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    python.stdin.take().unwrap().write_all(&seen.body).unwrap();
    Some(String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap().trim().to_owned())
}

#[tokio::test]
async fn python_agrees_with_the_signature() {
    let other = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let unknown = "whsec_//79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{SECRET}\n\n  {other}\n")).unwrap();
    for (given, known) in [
        (json!({"secret": SECRET}), vec![SECRET]),
        (json!({"secrets": [other, SECRET]}), vec![SECRET, other]),
        (json!({"secret_file": file.path().to_str().unwrap()}), vec![SECRET, other]),
        (json!({"secret": SECRET, "cloudevents": "structured"}), vec![SECRET]),
    ] {
        let seen = arrived(given, "/", &rich()).await;
        for secret in [SECRET, other, unknown] {
            let Some(answer) = checked_by_python(secret, &seen) else {
                postbox_testkit::skip!("no python3 to check signatures with");
            };
            let right = usize::from(known.contains(&secret));
            assert_eq!(answer, format!("{right} {}", known.len()), "{secret}");
        }
    }
}

#[tokio::test]
async fn every_payload_arrives_as_it_is() {
    let bytes = |bytes: Vec<u8>, content_type: &str| Payload::Bytes {
        bytes: bytes.into(),
        content_type: content_type.to_owned(),
    };
    let large = format!("\"{}\"", "é".repeat(512 << 10));
    let mut event = delivery("shop.order.placed.v1", &large);
    let seen = arrived(json!({"secret": SECRET}), "/", &event).await;
    assert_eq!(&seen.body[..], large.as_bytes());
    for (payload, expected) in [
        (bytes(Vec::new(), "application/octet-stream"), Vec::new()),
        (bytes(vec![0, 255, 10, 13, 0], "image/x-thing; a=\"b\""), vec![0, 255, 10, 13, 0]),
        (bytes("日本語\n".into(), "text/plain; charset=utf-8"), "日本語\n".into()),
    ] {
        event.payload = payload;
        let Payload::Bytes { content_type, .. } = &event.payload else { unreachable!() };
        let seen = arrived(json!({}), "/", &event).await;
        assert_eq!((&seen.body[..], seen.header("content-type")), (&expected[..], content_type.as_str()));
        assert_eq!(seen.header("content-length"), expected.len().to_string());
    }
    event.payload = bytes(vec![1], "bad\r\ninjected: yes");
    let seen = arrived(json!({}), "/", &event).await;
    assert_eq!((seen.header("injected"), seen.header("content-type")), ("", "bad%0D%0Ainjected: yes"));
}

#[tokio::test]
async fn method_credentials_and_headers_are_the_operators() {
    let event = rich();
    let given =
        json!({"method": "put", "bearer_token": "t0k", "headers": {"X-Api-Key": "k", "tenant": "mine"}});
    let seen = arrived(given, "/", &event).await;
    assert_eq!((seen.method.as_str(), seen.header("authorization")), ("PUT", "Bearer t0k"));
    assert_eq!((seen.header("x-api-key"), seen.header("tenant")), ("k", "mine"));
    let receiver = Receiver::willing();
    let url = receiver.url("/x").replace("http://", "http://app:p%40ss@");
    sink(&url, json!({})).dispatch(&event).await.unwrap();
    assert_eq!(receiver.only().header("authorization"), "Basic YXBwOnBAc3M=");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "t1\n").unwrap();
    let seen = arrived(json!({"bearer_token_file": file.path().to_str().unwrap()}), "/", &event).await;
    assert_eq!(seen.header("authorization"), "Bearer t1");
}

#[tokio::test]
async fn cloudevents_in_headers_or_in_the_body() {
    let event = rich();
    let seen = arrived(json!({"cloudevents": "binary", "cloudevents_source": "//shop"}), "/", &event).await;
    let id = event.meta.event_id.to_string();
    for (name, value) in [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", id.as_str()),
        ("ce-source", "//shop"),
        ("ce-type", "shop.order.placed.v1"),
        ("ce-subject", "n%C2%BA%207"),
        ("postbox-event-id", &id),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    assert_eq!(&seen.body[..], "{ \"price\": 12345678901234567890.50, \"to\": \"Zoë\" }".as_bytes());
    let seen = arrived(json!({"cloudevents": "structured"}), "/", &event).await;
    assert!(seen.header("content-type").starts_with("application/cloudevents+json"));
    assert_eq!(seen.header("ce-id"), "");
    let body: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(
        (&body["id"], &body["specversion"], &body["data"]["to"]),
        (&id.into(), &"1.0".into(), &"Zoë".into())
    );
    assert!(std::str::from_utf8(&seen.body).unwrap().contains("12345678901234567890.50"));
}

#[tokio::test]
async fn a_route_leads_below_the_url() {
    let mut event = rich();
    event.destination = Some("orders/nº 7".into());
    let seen = arrived(json!({}), "/hooks?k=v", &event).await;
    assert_eq!(seen.uri, "/hooks/orders/n%C2%BA%207?k=v");
}
