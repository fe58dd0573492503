//! Pulsar, asked by its administration, which also takes messages.

use std::net::SocketAddr;

use postbox_testkit::{PulsarServer, ServerOptions, broker_or_skip};

use super::{survives, tell_until_closed};

fn ask(pulsar: &PulsarServer, method: &str, path: &str, headers: &str, body: &str) -> String {
    let admin: SocketAddr = pulsar.admin_url().strip_prefix("http://").unwrap().parse().unwrap();
    let length = body.len();
    tell_until_closed(
        admin,
        &format!(
            "{method} {path} HTTP/1.0\r\nHost: {admin}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        ),
    )
}

const MESSAGE: &str = r#"{"producerName":"test","messages":[{"payload":"hi"}]}"#;

#[test]
fn topics_survive_a_stop_and_a_crash() {
    let pulsar = broker_or_skip!(PulsarServer::try_start());
    assert_eq!(pulsar.url(), format!("pulsar://127.0.0.1:{}", pulsar.port()));
    let topic = "/persistent/public/default/things";
    let made = ask(&pulsar, "PUT", &format!("/admin/v2{topic}"), "", "");
    assert!(made.contains(" 204 "), "{made}");
    let sent = ask(&pulsar, "POST", &format!("/topics{topic}"), "", MESSAGE);
    assert!(sent.contains("\"errorCode\":0"), "{sent}");
    // The message itself, not only that there is one: it is the bookie's to keep.
    survives(&pulsar, || {
        let examine = format!("/admin/v2{topic}/examinemessage?initialPosition=earliest&messagePosition=1");
        ask(&pulsar, "GET", &examine, "", "").ends_with("hi")
    });
}

#[test]
fn a_login_a_token_and_a_limit() {
    let clusters =
        |pulsar: &PulsarServer, headers: &str| ask(pulsar, "GET", "/admin/v2/clusters", headers, "");
    let options = ServerOptions::new().login("me", "secret").max_message(10_000);
    let pulsar = broker_or_skip!(PulsarServer::try_with(&options));
    assert_eq!(pulsar.url(), format!("pulsar://me:secret@127.0.0.1:{}", pulsar.port()));
    assert!(clusters(&pulsar, "").contains(" 401 "));
    // me:secret
    let login = "Authorization: Basic bWU6c2VjcmV0\r\n";
    assert!(clusters(&pulsar, login).contains("standalone"));
    let settings = ask(&pulsar, "GET", "/admin/v2/brokers/configuration/runtime", login, "");
    assert!(settings.contains("\"maxMessageSize\":\"10000\""), "{settings}");
    drop(pulsar);

    let pulsar = PulsarServer::with(&ServerOptions::new().token(PulsarServer::TOKEN));
    assert!(clusters(&pulsar, "").contains(" 401 "));
    let token = format!("Authorization: Bearer {}\r\n", PulsarServer::TOKEN);
    assert!(clusters(&pulsar, &token).contains("standalone"));
}

#[test]
fn the_shared_broker_is_well() {
    let pulsar = broker_or_skip!(PulsarServer::try_shared());
    assert!(ask(pulsar, "GET", "/admin/v2/brokers/health", "", "").ends_with("ok"));
}
