//! What is shown of sinks, in errors and in `config show`: never what may be a secret.

use super::super::{Config, show_json, show_text};
use super::Start;

/// All that a start says of its configuration: what is wrong with it, or what is in force.
fn told(start: &Start) -> String {
    let of = |config: &Config| {
        let sinks = crate::assemble::sinks(config).map(drop);
        format!("{}{}{config:?}{sinks:?}", show_text(config), show_json(config))
    };
    match start.load() {
        Ok(config) => of(&config),
        Err(errors) => format!("{errors}{}", errors.to_json()),
    }
}

/// Ways to give a sink.
fn given(sink: &str) -> Vec<Start> {
    let file = |text: String| Start::default().file(text);
    vec![
        Start::default().env("OUTBOX_SINK", sink),
        Start::default().env("OUTBOX_SINK", &format!("{sink}\u{7}")),
        Start::default().env("OUTBOX_DEAD_LETTER", sink),
        Start::default().flags(["--sink", sink]),
        file(format!("sink = '{sink}'")),
        file(format!("[sinks.a]\nurl = '{sink}'\n[[route]]\ntopic = '**'\nsink = 'a'")),
        file(format!("[[route]]\ntopic = 'a.**'\nsink = '{sink}'\ndestination = 'x'")),
        file(format!("[[route]]\ntopic = '**'\nsinks = ['{sink}', 'b']")),
        file(format!("[[route]]\ntopic = '**'\nsinks = ['{sink}', '{sink}']")),
        file(format!("[sinks.'{sink}']\nurl = 'x'")),
        file(format!("[sinks.'{sink}']\nurl = ' '")),
    ]
}

#[test]
fn hazard_49_nothing_shows_the_secret_of_a_webhook() {
    for sink in [
        "https://hooks.example/services/Zq9",
        "https://f.azurewebsites.example/api/in?code=Zq9",
        "https://hooks.example?v=Zq9#timeout=1s",
        "HTTPS://hooks.example/in?v=1&to=a@b&v=Zq9",
        "hooks.slack.example/services/T0/B0/Zq9",
        "htps://hooks.example/services/Zq9",
        "https:/hooks.example/services/Zq9",
        "https:///Zq9",
        "hooks.example:8443/services/Zq9",
        "api.telegram.example/bot123:Zq9/sendMessage",
        "https//api.telegram.example/bot123:Zq9/x",
        "hooks.example/services/Zq9?next=https://a",
        "Zq9:@hooks.example/in",
        "/services/Zq9",
    ] {
        for start in given(sink) {
            let text = told(&start);
            assert!(!text.to_ascii_lowercase().contains("zq9"), "{sink}: {text}");
        }
    }
}

#[test]
fn what_is_left_of_a_webhook_says_which() {
    for (sink, shown) in [
        ("https://f.azurewebsites.example/api/in?code=Zq9", "https://f.azurewebsites.example/***?***"),
        ("https://hooks.example/x#secret=Zq9&timeout=1s", "https://hooks.example/***#secret=***&timeout=1s"),
        ("htps://hooks.example/services/Zq9", "htps://hooks.example/***"),
        ("https:/hooks.example/Zq9", "https:/hooks.example/***"),
        ("hooks.example:8443/services/Zq9", "hooks.example:8443/***"),
        ("kafka://app:Zq9@broker/topic?acks=all", "kafka://***@broker/topic?acks=all"),
        ("file:out/events.jsonl", "file:out/events.jsonl"),
    ] {
        let config = Start::default().env("OUTBOX_SINK", sink).config();
        let json = show_json(&config);
        assert_eq!(json["sinks"][0]["url"], shown);
        let settings = json["settings"].as_array().unwrap();
        assert!(
            settings.iter().any(|setting| setting["name"] == "sink" && setting["value"] == shown),
            "{json}"
        );
        assert_eq!(show_text(&config).matches(&format!(" {shown}")).count(), 2, "{}", show_text(&config));
    }
    for (sink, shown) in [
        ("hooks.slack.example/services/T0/B0/Zq9", "sink = \"hooks.slack.example/***\" is not in [sinks]"),
        ("api.telegram.example/bot123:Zq9/x", "sink = \"api.telegram.example/***\" is not a URL"),
        ("audit-2_b", "sink = \"audit-2_b\" is not in [sinks]"),
    ] {
        let error = Start::default().env("OUTBOX_SINK", sink).error("OUTBOX_CONFIG_INVALID");
        assert!(error.contains(shown), "{error}");
    }
}
