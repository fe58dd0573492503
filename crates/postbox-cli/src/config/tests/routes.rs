//! Sinks and routes.

use super::super::{Config, Origin};
use super::Start;

const INVALID: &str = "OUTBOX_CONFIG_INVALID";

fn routes(config: &Config) -> Vec<(&str, &str, &str)> {
    let shown = config.routes.iter().map(|route| {
        assert_eq!(route.sinks.len(), 1);
        let sink = config.sink(&route.sinks[0]).unwrap();
        (route.topic.as_str(), sink.name.as_str(), sink.url.reveal())
    });
    shown.collect()
}

#[test]
fn without_routes_the_sink_takes_everything() {
    assert!(Start::default().config().routes.is_empty());
    let config = Start::default().env("OUTBOX_SINK", "stdout:").config();
    assert_eq!(routes(&config), [("**", "stdout", "stdout:")]);
    assert_eq!(config.routes[0].origin, Origin::Env("OUTBOX_SINK".into()));
}

#[test]
fn routes_come_first_then_the_sink() {
    let text = r#"
sink = "main"
[sinks.main]
url = "kafka://app:pw@broker"
[sinks.audit]
url = "file:audit.jsonl"

[[route]]
topic = "org.**"
sink = "audit"
[[route]]
topic = "pay.*.created.*"
sinks = ["file:pay.jsonl"]
[[route]]
topic = "hr.**"
sink = "file:hr.jsonl"
[[route]]
topic = "it.**"
sink = "file:hr.jsonl"
"#;
    let config = Start::default().file(text).config();
    assert_eq!(
        routes(&config),
        [
            ("org.**", "audit", "file:audit.jsonl"),
            ("pay.*.created.*", "file", "file:pay.jsonl"),
            ("hr.**", "file-2", "file:hr.jsonl"),
            ("it.**", "file-2", "file:hr.jsonl"),
            ("**", "main", "kafka://app:pw@broker"),
        ]
    );
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let lines: Vec<String> = config.routes.iter().map(|route| route.origin.to_string()).collect();
    let ends: Vec<&str> = lines.iter().map(|line| line.rsplit(':').next().unwrap()).collect();
    assert_eq!(ends, ["8", "11", "14", "17", "2"]);
    // A flag replaces the sink of the file, and leaves its routes.
    let config = Start::default().file(text).flags(["--sink", "null:"]).config();
    assert_eq!(routes(&config)[4], ("**", "null", "null:"));
    assert!(config.warnings[0].contains("the sink main"), "{:?}", config.warnings);
}

#[test]
fn routes_that_cannot_work() {
    for text in [
        "sink = \"\"",
        "sink = \"nobody\"",
        "sink = \"//x:y\"",
        "[sinks.a]",
        "[sinks.a]\nurl = 1",
        "[sinks.a]\nurl = \"not a url\"",
        "[sinks.\"a b\"]\nurl = \"stdout:\"",
        "[sinks.\"\"]\nurl = \"stdout:\"",
        "[[route]]\ntopic = \"**\"",
        "[[route]]\nsink = \"stdout:\"",
        "[[route]]\ntopic = 1\nsink = \"stdout:\"",
        "[[route]]\ntopic = \"\"\nsink = \"stdout:\"",
        "[[route]]\ntopic = \"a b\"\nsink = \"stdout:\"",
        "[[route]]\ntopic = \"**\"\nsink = 1",
        "[[route]]\ntopic = \"**\"\nsink = \"stdout:\"\ndestination = 1",
        "[[route]]\ntopic = \"**\"\nsink = \"stdout:\"\ndestination = \"\"",
        "[[route]]\ntopic = \"**\"\nsink = \"\"",
        "[[route]]\ntopic = \"**\"\nsinks = []",
        "[[route]]\ntopic = \"**\"\nsinks = [1]",
        "[[route]]\ntopic = \"**\"\nsink = \"stdout:\"\nsinks = [\"null:\"]",
        "[[route]]\ntopic = \"**\"\nsink = \"a\\u0007:b\"",
        // One refused sink is one error, however many routes lead to it.
        "[[route]]\ntopic = \"**\"\nsink = \"a\"\n[sinks.a]\nurl = \"x\"",
    ] {
        let error = Start::default().file(text).error(INVALID);
        assert_eq!(error.lines().count(), 2, "{error}");
        assert!(error.contains("postbox.toml:"), "{error}");
    }
    let text = "[sinks.main]\nurl = \"null:\"\n[[route]]\ntopic = \"**\"\nsink = \"mian\"";
    let error = Start::default().file(text).error(INVALID);
    assert!(
        error.contains("route.sink = \"mian\" is not in [sinks]. Did you mean main? (from postbox.toml:3)"),
        "{error}"
    );
    let error = Start::default().file("[sinks.a]\nurl = \"//app:Zq9@x\"").error(INVALID);
    assert!(!error.contains("Zq9"), "{error}");
}

#[test]
fn a_route_to_several_sinks_and_one_for_dead_events() {
    let sinks =
        "[sinks.a]\nurl = \"null:\"\n[sinks.b]\nurl = \"stdout:\"\n[sinks.dlq]\nurl = \"file:dead.jsonl\"\n";
    let route = |names: &str| format!("{sinks}[[route]]\ntopic = \"**\"\nsinks = {names}");
    let text = format!("dead_letter = \"dlq\"\n{}", route("[\"a\", \"b\"]"));
    let config = Start::default().file(text).config();
    assert_eq!(config.routes[0].sinks, ["a", "b"]);
    assert_eq!(config.dead_letter.as_deref(), Some("dlq"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let shown = super::super::show_text(&config);
    assert!(shown.contains("**             a") && shown.contains("(dead events)  dlq"), "{shown}");
    assert_eq!(super::super::show_json(&config)["dead_letter"], "dlq");
    // A URL does as well; and a sink that has routes too.
    let config = Start::default().flags(["--sink", "null:", "--dead-letter", "file:d.jsonl"]).config();
    assert_eq!((config.sinks.len(), config.dead_letter.as_deref()), (2, Some("file")));
    let config = Start::default().env("OUTBOX_SINK", "null:").env("OUTBOX_DEAD_LETTER", "null:").config();
    assert_eq!((config.sinks.len(), config.dead_letter.as_deref()), (1, Some("null")));

    for (names, part) in [
        ("[\"a\", \"a\"]", "names the sink \"a\" twice"),
        ("[\"a\", \"bb\"]", "route.sinks = \"bb\" is not in [sinks]. Did you mean b?"),
        ("[\"a\", \"\"]", "the route has an empty sink"),
        ("[\"a\", \"kafka://u:Zq9@x\"]", "remembered by the sinks' names"),
    ] {
        let error = Start::default().file(route(names)).error(INVALID);
        assert!(error.contains(part) && !error.contains("Zq9"), "{error}");
    }
    let error = Start::default().env("OUTBOX_DEAD_LETTER", "nobody").error(INVALID);
    assert!(error.contains("dead_letter = \"nobody\" is not in [sinks]"), "{error}");
    let config = Start::default().env("OUTBOX_RELAY_REDRIVE_MAX", "5").config();
    assert!(config.warnings[0].contains("redrive_after"), "{:?}", config.warnings);
    let config = Start::default().flags(["--redrive-after", "10m"]).config();
    assert_eq!(config.relay.redrive_after, Some(std::time::Duration::from_mins(10)));
}

#[test]
fn a_sink_has_options_and_a_route_a_destination() {
    let text = r#"
[sinks.broker]
url = "nats://broker"
user = "app"
password = "Zq9"
timeout = "5s"
maxlen = 1_000
on = true
several = ["a", "b"]
headers = { "x-api-key" = "Zq9", colour = "red" }

[[route]]
topic = "org.**"
sink = "broker"
destination = "events.{topic}"
"#;
    let config = Start::default().file(text).config();
    assert_eq!(
        config.routes[0].destination.as_ref().map(ToString::to_string).as_deref(),
        Some("events.{topic}")
    );
    let shown = super::super::show_text(&config);
    let json = super::super::show_json(&config);
    for (name, value) in [
        ("user", "app"),
        ("password", "***"),
        ("timeout", "5s"),
        ("maxlen", "1000"),
        ("on", "true"),
        ("several", "a,b"),
        ("headers", "colour=***,x-api-key=***"),
    ] {
        assert_eq!(json["sinks"][0]["options"][name], value, "{json}");
        let line =
            shown.lines().find(|line| line.starts_with("broker") && line.contains(&format!(" {name} ")));
        assert!(line.is_some_and(|line| line.contains(value)), "{name}: {shown}");
    }
    assert!(shown.contains("org.** → events.{topic}"), "{shown}");
    assert_eq!(json["routes"][0]["destination"], "events.{topic}");
    assert!(!format!("{shown}{json}{config:?}").contains("Zq9"));

    let text = "[[route]]\ntopic = \"**\"\nsink = \"stdout:\"\ndestination = \"{tpoic}\"";
    let error = Start::default().file(text).error(INVALID);
    assert!(error.contains("{tpoic} is not known; there are {topic}"), "{error}");
    let text = "[sinks.a]\nurl = \"stdout:\"\nsince = 2026-01-01";
    assert!(Start::default().file(text).error(INVALID).contains("sinks.a.since has the wrong type"));
}

#[test]
fn what_is_hardly_meant_is_a_warning() {
    let text = "[[route]]\ntopic = \"**\"\nsink = \"null:\"\n[[route]]\ntopic = \"a.**\"\nsink = \"stdout:\"";
    let config = Start::default().file(text).env("OUTBOX_SINK", "stdout:").config();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
    assert!(config.warnings[1].contains("OUTBOX_SINK"), "{:?}", config.warnings);
    let config = Start::default()
        .env("OUTBOX_CLEANER_DEAD_RETENTION", "1h")
        .env("OUTBOX_RELAY_ON_DEAD", "skip")
        .config();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
}

#[test]
fn a_destination_at_one_place_is_told() {
    let text = r#"
[sinks.log]
url = "file:log.jsonl"
[sinks.broker]
url = "nats://broker"
[[route]]
topic = "org.**"
sinks = ["log", "broker"]
destination = "events.{topic}"
"#;
    let warnings = Start::default().file(text).config().warnings;
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.contains("has a destination, which the sink log ignores"), "{warning}");
}

#[test]
fn a_sink_without_a_url_is_told() {
    let error = Start::default().file("[sinks.log]\nurl = \" \"\n").error(INVALID);
    assert!(error.contains("sinks.log.url is empty"), "{error}");
}
