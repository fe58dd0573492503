//! What each kind of value accepts, and what it refuses.

use std::time::Duration;

use postbox_stores::any::Strategy;

use super::super::SETTINGS;
use super::Start;

const INVALID: &str = "OUTBOX_CONFIG_INVALID";

fn env(name: &str, value: &str) -> Start {
    Start::default().env(name, value)
}

#[test]
fn durations() {
    let ms = |value: &str| env("OUTBOX_RELAY_DRAIN_TIMEOUT", value).config().relay.drain_timeout.as_millis();
    assert_eq!(
        [ms("0"), ms("0s"), ms("500ms"), ms("1s"), ms("1m"), ms("1h")],
        [0, 0, 500, 1_000, 60_000, 3_600_000]
    );
    let retention = |value: &str| env("OUTBOX_CLEANER_RETENTION", value).config().cleaner.retention;
    assert_eq!(retention("168h"), retention("7d"));
    let dead = |value: &str| env("OUTBOX_CLEANER_DEAD_RETENTION", value).config().cleaner.dead_retention;
    assert_eq!(dead("30d"), Some(Duration::from_hours(720)));
    assert_eq!(dead("0"), None);
    assert_eq!(dead("0s"), None);
    let zero = Start::default().file("relay.drain_timeout = 0").config();
    assert_eq!(zero.relay.drain_timeout, Duration::ZERO);

    for value in [
        "5",
        "-1s",
        "1.5s",
        "1 s",
        "s",
        "1S",
        "1h30m",
        "٣s",
        "1w",
        "soon",
        "1e3s",
        "+1s",
        "99999999999999999999d",
    ] {
        let error = env("OUTBOX_RELAY_DRAIN_TIMEOUT", value).error(INVALID);
        assert!(error.contains("relay.drain_timeout") && error.contains("500ms"), "{error}");
    }
    let error = env("OUTBOX_RELAY_POLL_INTERVAL", "5").error(INVALID);
    assert_eq!(
        error,
        "error[OUTBOX_CONFIG_INVALID]: relay.poll_interval = \"5\" has no unit: seconds are `s`, milliseconds `ms` \
         (from OUTBOX_RELAY_POLL_INTERVAL)\n  next: set OUTBOX_RELAY_POLL_INTERVAL to a duration such as 500ms, 1s, 1m, \
         168h or 7d, from 10ms to 1h      more: postbox explain OUTBOX_CONFIG_INVALID"
    );
    let error = Start::default().file("[relay]\npoll_interval = 5").error(INVALID);
    assert!(error.contains("has no unit") && error.contains("(from postbox.toml:2)"), "{error}");
    for (name, value) in [
        ("OUTBOX_RELAY_POLL_INTERVAL", "9ms"),
        ("OUTBOX_RELAY_POLL_INTERVAL", "0"),
        ("OUTBOX_CLEANER_RETENTION", "0"),
        ("OUTBOX_CLEANER_INTERVAL", "0"),
        ("OUTBOX_RELAY_DISPATCH_TIMEOUT", "0"),
        ("OUTBOX_CLEANER_RETENTION", "3651d"),
        ("OUTBOX_CLEANER_DEAD_RETENTION", "3651d"),
    ] {
        env(name, value).error(INVALID);
    }
}

#[test]
fn switches() {
    for (text, value) in [("true", true), ("1", true), ("false", false), ("0", false)] {
        assert_eq!(env("OUTBOX_RELAY_SINGLE_ACTIVE", text).config().relay.single_active, value);
    }
    for text in ["yes", "TRUE", "on", "2", "tru"] {
        assert!(env("OUTBOX_RELAY_SINGLE_ACTIVE", text).error(INVALID).contains("true or false"));
    }
}

#[test]
fn numbers() {
    for (name, least, most) in [
        ("OUTBOX_RELAY_BATCH_SIZE", 1_u64, 10_000_u64),
        ("OUTBOX_RELAY_CONCURRENCY", 1, 10_000),
        ("OUTBOX_RELAY_MAX_ATTEMPTS", 1, 2_147_483_647),
        ("OUTBOX_MAX_TOPIC_LABELS", 0, 100_000),
    ] {
        env(name, &least.to_string()).config();
        env(name, &most.to_string()).config();
        let error = env(name, &(most + 1).to_string()).error(INVALID);
        assert!(error.contains(&format!("from {least} to {most}")), "{error}");
        if least > 0 {
            env(name, "0").error(INVALID);
        }
    }
    for value in ["-1", "+1", "1.0", "1e3", "0x10", "1_000", "٣", "ten", "18446744073709551616", "1 0"] {
        env("OUTBOX_RELAY_BATCH_SIZE", value).error(INVALID);
    }
    // TOML's own ways of writing integers are fine in TOML.
    assert_eq!(Start::default().file("relay.batch_size = 0x10").config().relay.batch_size, 16);
    assert_eq!(Start::default().file("relay.batch_size = 1_000").config().relay.batch_size, 1_000);
    for value in [
        "-1",
        "1.5",
        "99999999999999999999999999999999999999999999",
        "\"5\"",
        "true",
        "[1]",
        "{}",
        "1979-05-27",
    ] {
        Start::default().file(format!("relay.batch_size = {value}")).error(INVALID);
    }
    assert!(Start::default().flags(["--batch-size", "-1"]).error(INVALID).contains("from --batch-size"));
}

#[test]
fn sizes() {
    let bytes =
        |value: &str| env("OUTBOX_RELAY_MAX_IN_FLIGHT_BYTES", value).config().relay.max_in_flight_bytes;
    assert_eq!(
        [bytes("512KiB"), bytes("1mib"), bytes("65536"), bytes("2GiB")],
        [524_288, 1_048_576, 65_536, 2_147_483_648]
    );
    assert_eq!(
        Start::default().file("relay.max_in_flight_bytes = 70000").config().relay.max_in_flight_bytes,
        70_000
    );
    for value in
        ["16MB", "16M", "-1", "1.5MiB", "MiB", "63KiB", "1025GiB", "99999999999999999999GiB", "16 MiB"]
    {
        env("OUTBOX_RELAY_MAX_IN_FLIGHT_BYTES", value).error(INVALID);
    }
}

#[test]
fn words_lists_and_ids() {
    assert_eq!(env("OUTBOX_RELAY_CLAIM", "lease").config().relay.claim, Strategy::Lease);
    let error = env("OUTBOX_RELAY_CLAIM", "Lease").error(INVALID);
    assert!(error.contains("one of auto, lease, owner"), "{error}");

    for value in ["a,,b", ",", "a,", "a,b,a"] {
        env("OUTBOX_RELAY_TABLES", value).error(INVALID);
    }
    for value in ["\"a\"", "[1]", "[[\"a\"]]", "[\"a\", \"\"]", "{}"] {
        Start::default().file(format!("relay.tables = {value}")).error(INVALID);
    }
    assert!(Start::default().file("relay.tables = []").config().relay.tables.is_empty());

    let id = "0198a6f0-5f3c-7c1e-9d5e-3f0b8a7c6d5e";
    assert_eq!(env("OUTBOX_DEFAULT_TENANT_ID", id).config().general.default_tenant_id.to_string(), id);
    env("OUTBOX_DEFAULT_TENANT_ID", "acme").error(INVALID);
}

#[test]
fn addresses_and_paths() {
    let listen = |value: &str| env("OUTBOX_LISTEN", value).config().general.listen.unwrap().to_string();
    assert_eq!(listen(":9000"), "127.0.0.1:9000");
    assert_eq!(listen("localhost:9000"), "127.0.0.1:9000");
    assert_eq!(listen("0.0.0.0:9000"), "0.0.0.0:9000");
    assert_eq!(listen("[::]:9000"), "[::]:9000");
    for value in ["9000", ":", ":99999", "example.com:9000", "http://127.0.0.1:9000", "127.0.0.1"] {
        env("OUTBOX_LISTEN", value).error(INVALID);
    }
    assert_eq!(env("PROMETHEUS_METRICS_PATH", "/metrics").config().metrics.path, "/metrics");
    for value in ["metrics", "/healthz", "/readyz", "/a b", "/{x}", "/a?b", "/a#b", "/*x", "/é"] {
        env("PROMETHEUS_METRICS_PATH", value).error(INVALID);
    }
    assert_eq!(env("OUTBOX_METRICS_PREFIX", "_my_outbox2").config().metrics.prefix, "_my_outbox2");
    for value in ["2outbox", "out-box", "out.box", "a b", "é", &"a".repeat(65)] {
        env("OUTBOX_METRICS_PREFIX", value).error(INVALID);
    }
}

#[test]
fn hostile_values_are_refused_in_every_setting() {
    let long = "x".repeat(100_000);
    for setting in SETTINGS {
        for value in ["a\u{0}b", "a\u{1b}[2Jb", "a\nb", "a\u{fffd}b", "'; DROP TABLE x; --\u{7}"] {
            let error = env(setting.env, value).error(INVALID);
            assert_eq!(error.lines().count(), 2, "{error}");
            assert!(!error.contains(['\u{0}', '\u{1b}', '\u{7}']), "{error}");
            assert!(error.contains(setting.path) && error.contains(setting.env), "{error}");
        }
        if let Err(errors) = env(setting.env, &long).load() {
            assert!(errors.to_string().len() < 1_000, "{}", setting.path);
        }
        // A URL that landed in the wrong variable keeps its password, whatever the variable.
        let url = "postgres://app:Zq9@x/y?z#@db/app";
        match env(setting.env, url).load() {
            Err(errors) => assert!(!format!("{errors}{}", errors.to_json()).contains("Zq9"), "{errors}"),
            Ok(config) => {
                let shown = format!(
                    "{config:?}{}{}",
                    super::super::show_text(&config),
                    super::super::show_json(&config)
                );
                if setting.shape != super::super::kind::Shape::List {
                    assert!(!shown.contains("Zq9"), "{shown}");
                }
            }
        }
    }
    for variable in ["OUTBOX_ADMIN_VIEWER_TOKENS", "OUTBOX_ADMIN_OPERATOR_TOKENS"] {
        let config = env(variable, "alice:0123456789abcdef").config();
        let shown =
            format!("{config:?}{}{}", super::super::show_text(&config), super::super::show_json(&config));
        assert!(!shown.contains("0123456789"), "{shown}");
    }
    // What is no URL may be the password alone.
    let error = env("DATABASE_URL", "hunter2").error(INVALID);
    assert!(error.contains("\"***\"") && !error.contains("hunter2"), "{error}");
    env("DATABASE_URL", "host=db password=hunter2").error(INVALID);
}
