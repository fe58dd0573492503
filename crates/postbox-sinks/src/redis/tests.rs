//! What can be known of the sink without a server.

use postbox_core::{DispatchErrorKind, testing::delivery};

use super::{RedisConfig, RedisSink};
use crate::options::{Options, Secret};

fn config(url: &str) -> RedisConfig {
    RedisConfig::new(url, Options::new()).unwrap()
}

#[test]
fn databases_and_destinations_share_the_path() {
    for (url, database, stream) in [
        ("redis://h", 0, "a.b"),
        ("redis://h/3", 3, "a.b"),
        ("redis://h/3/events:{topic}", 3, "events:a.b"),
        ("redis://h/events:{topic}", 0, "events:a.b"),
        ("redis://h?db=4&destination=x", 4, "x"),
    ] {
        let config = config(url);
        assert_eq!(config.database, database, "{url}");
        assert_eq!(config.destination.of(&delivery("a.b", "1")).unwrap(), stream, "{url}");
    }
    for (url, reason) in [
        ("redis://h/3?db=4", "keep one of the two"),
        ("redis://a,b", "several hosts"),
        ("redis://app@h", "without a password"),
        ("redis://h?wait_replicas=0", "out of range"),
        ("redis://h?maxlen=x", "not a whole number"),
    ] {
        let error = RedisConfig::new(url, Options::new()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn logins_and_secrets() {
    let app = config("redis://app:Zq9@h");
    assert_eq!((app.user.as_deref(), app.password.clone()), (Some("app"), Some(Secret::new("Zq9"))));
    let old = config("redis://:Zq9@h");
    assert_eq!((old.user.as_deref(), old.password), (None, Some(Secret::new("Zq9"))));
    let sink = RedisSink::new("rediss://app:Zq9@h:1/0/x", Options::new()).unwrap();
    assert_eq!(sink.to_string(), "rediss://h:1/x");
    assert!(!format!("{sink:?}{app:?}").contains("Zq9"));
}

#[test]
fn an_entry_has_its_fields() {
    let sink = RedisSink::new("redis://h?maxlen=1000", Options::new()).unwrap();
    let mut event = delivery("a.b", "{\"n\":1}");
    event.meta.headers = [("mine", "1"), ("payload", "forged"), ("key", "forged")]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
    let (command, _) = sink.command(&event, 1024).unwrap();
    let text = String::from_utf8(command.get_packed_command()).unwrap();
    let words: Vec<&str> =
        text.split("\r\n").filter(|part| !part.starts_with(['*', '$']) || *part == "*").collect();
    assert_eq!(words[..5], ["XADD", "a.b", "MAXLEN", "~", "1000"]);
    assert!(!text.contains("forged"), "{text}");
    assert!(text.ends_with("payload\r\n$7\r\n{\"n\":1}\r\n"), "{text}");
    assert!(text.contains("mine"), "{text}");
    for (url, limit) in [("redis://h", "(proto-max-bulk-len)"), ("redis://h?max_payload=6", "(max_payload)")]
    {
        let error = RedisSink::new(url, Options::new()).unwrap().command(&event, 6).unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
        assert!(error.to_string().contains(limit), "{error}");
    }
}
