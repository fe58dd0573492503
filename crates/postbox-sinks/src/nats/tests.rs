//! What can be known of the sink without a server.

use postbox_core::{DispatchErrorKind, Dispatcher as _, testing::delivery};

use super::{Login, NatsConfig, NatsSink};
use crate::options::{Options, Secret};

fn config(url: &str) -> NatsConfig {
    NatsConfig::new(url, Options::new()).unwrap()
}

#[test]
fn every_way_to_log_in() {
    let login = |url: &str| config(url).login;
    assert_eq!(login("nats://h"), Login::None);
    assert_eq!(login("nats://u:p%40@h"), Login::Password("u".into(), Secret::new("p@")));
    assert_eq!(login("nats://h?user=u&password=p"), Login::Password("u".into(), Secret::new("p")));
    assert_eq!(login("nats://t@h"), Login::Token(Secret::new("t")));
    assert_eq!(login("nats://h?token=t"), Login::Token(Secret::new("t")));
    assert_eq!(login("nats://h?nkey=SU"), Login::Nkey(Secret::new("SU")));
    let file = tempfile::NamedTempFile::new().unwrap();
    let creds = Options::new().set("creds", file.path().to_str().unwrap());
    assert_eq!(NatsConfig::new("nats://h", creds).unwrap().login, Login::Creds(file.path().into()));
    for url in ["nats://u:Zq9@h?token=Zq9", "nats://h?password=Zq9", "nats://h?nkey=Zq9&creds=/none"] {
        let error = NatsConfig::new(url, Options::new()).unwrap_err().to_string();
        assert!(!error.contains("Zq9"), "{error}");
    }
}

#[test]
fn certificates_are_for_connections_with_tls() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let ca = || Options::new().set("tls_ca", file.path().to_str().unwrap());
    let error = NatsConfig::new("nats://h", ca()).unwrap_err().to_string();
    assert!(error.contains("without TLS: write nats+tls://"), "{error}");
    for url in ["nats+tls://h", "tls://h"] {
        let config = NatsConfig::new(url, ca()).unwrap();
        assert!(config.encrypted && config.tls.ca.is_some());
    }
    let half = Options::new().set("tls_cert", file.path().to_str().unwrap());
    let error = NatsConfig::new("tls://h", half).unwrap_err().to_string();
    assert!(error.contains("tls_key belong together"), "{error}");
}

#[test]
fn nothing_shows_a_secret() {
    let sink = NatsSink::new("nats://app:Zq9@h:1/events.{topic}?timeout=1s", Options::new()).unwrap();
    assert_eq!(sink.to_string(), "nats://h:1/events.{topic}");
    assert!(!format!("{sink:?}").contains("Zq9"), "{sink:?}");
}

#[tokio::test]
async fn what_nats_cannot_carry_is_rejected_before_it_is_sent() {
    for (destination, problem) in [
        ("a b", "white space"),
        ("a..b", "empty part"),
        ("a.*", "wildcard"),
        ("a.>", "wildcard"),
        ("$JS.API.STREAM.DELETE.x", "server's own"),
    ] {
        let sink =
            NatsSink::new("nats://127.0.0.1:1", Options::new().set("destination", destination)).unwrap();
        let error = sink.message(&delivery("a.b", "1")).unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Reject);
        assert!(error.to_string().contains(problem), "{error}");
    }
    let sink = NatsSink::new("nats://127.0.0.1:1", Options::new()).unwrap();
    let mut event = delivery("a.b", "1");
    event.meta.headers = [("a b".into(), "1".into())].into();
    let error = sink.message(&event).unwrap_err();
    assert!(error.to_string().contains("cannot carry the header \"a b\""), "{error}");
    assert!(sink.batch_limit() >= 500);
}
