//! The command line's help, `config show`, and the reference page.

use std::path::Path;

use super::super::{Flags, SETTINGS, args, args_for, reference_markdown, show_json, show_text};
use super::Start;

#[test]
fn help_has_every_setting_with_its_variable_and_default() {
    let mut command = clap::Command::new("postbox").args(args());
    command.clone().debug_assert();
    let help = command.render_long_help().to_string();
    for setting in SETTINGS {
        assert!(help.contains(&format!("--{}", setting.flag)), "{}", setting.flag);
        assert!(help.contains(&format!("[env: {}]", setting.env)), "{}", setting.env);
        assert!(setting.default.is_empty() || help.contains(&format!("[default: {}]", setting.default)));
    }
    assert!(help.contains("POSTBOX_CONFIG"));
}

#[test]
fn a_command_may_take_some_flags_only() {
    let some = args_for(&["database_url", "cleaner"]);
    // With --config and --database.
    assert_eq!(some.len(), 2 + 1 + 7);
    let command = clap::Command::new("clean").args(some);
    let matches = command.try_get_matches_from(["clean", "--database-url", "postgres://db/app"]).unwrap();
    let flags = Flags::from_matches(&matches);
    assert_eq!(flags.values.len(), 1);
    assert_eq!(flags.values["database_url"], ["postgres://db/app"]);
    // Nor does a command that takes none of them trip over it.
    let none = clap::Command::new("explain").try_get_matches_from(["explain"]).unwrap();
    assert!(Flags::from_matches(&none).values.is_empty());
}

fn start() -> Start {
    Start::default()
        .file("sink = \"nats://t0ken@broker\"\n[relay]\ntables = [\"public.a\", \"public.b\"]\n")
        .env("DATABASE_URL", "postgres://app:s3cret@db/app?sslpassword=s3cret")
        .env("OUTBOX_RELAY_SINGLE_ACTIVE", "0")
        .flags(["--batch-size", "007", "--listen", ":9000"])
}

#[test]
fn show_for_people() {
    let config = start().config();
    let text = show_text(&config);
    let line = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(
        line("relay.batch_size"),
        ["relay.batch_size", "7", "--batch-size", "OUTBOX_RELAY_BATCH_SIZE"]
    );
    assert_eq!(line("relay.single_active")[1..3], ["false", "OUTBOX_RELAY_SINGLE_ACTIVE"]);
    assert_eq!(line("relay.lock_ttl")[1..3], ["60s", "default"]);
    assert_eq!(line("relay.tables")[1], "public.a,public.b");
    assert!(line("relay.tables")[2].ends_with("postbox.toml:3"));
    assert_eq!(line("listen")[1], "127.0.0.1:9000");
    assert_eq!(line("direct_url")[1], "-");
    assert_eq!(line("database_url")[1], "postgres://app:***@db/app?sslpassword=***");
    assert_eq!(line("**")[1], "nats");
    assert_eq!(line("**")[3], "nats://***@broker");
    for secret in ["s3cret", "t0ken"] {
        assert!(!format!("{text}{config:?}").contains(secret), "{text}\n{config:#?}");
    }
    for setting in SETTINGS {
        assert!(text.contains(setting.path) && text.contains(setting.env));
    }
}

#[test]
fn show_for_programs() {
    let json = show_json(&start().config());
    let settings = json["settings"].as_array().unwrap();
    assert_eq!(settings.len(), SETTINGS.len());
    let setting = |name: &str| settings.iter().find(|setting| setting["name"] == name).unwrap();
    assert_eq!(setting("relay.batch_size")["value"], 7);
    assert_eq!(setting("relay.batch_size")["layer"], "flag");
    assert_eq!(setting("relay.batch_size")["origin"], "--batch-size");
    assert_eq!(setting("relay.single_active")["value"], false);
    assert_eq!(setting("relay.tables")["value"], serde_json::json!(["public.a", "public.b"]));
    assert_eq!(setting("relay.tables")["layer"], "file");
    assert_eq!(setting("relay.lock_ttl")["value"], "60s");
    assert!(setting("direct_url")["value"].is_null());
    assert_eq!(json["routes"][0]["sinks"][0], "nats");
    assert!(json["file"].as_str().unwrap().ends_with("postbox.toml"));
    assert!(!json.to_string().contains("s3cret") && !json.to_string().contains("t0ken"));
}

/// `POSTBOX_BLESS=1 cargo test -p postbox-cli reference` writes the page anew.
#[test]
fn the_reference_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/reference/configuration.md");
    let page = reference_markdown();
    if std::env::var_os("POSTBOX_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    let advice = "run: POSTBOX_BLESS=1 cargo test -p postbox-cli reference";
    assert!(stored == page, "docs/book/reference/configuration.md is not what the settings say; {advice}");
    for setting in SETTINGS {
        assert!(page.contains(&format!("| `{}` | `{}` |", setting.path, setting.env)));
    }
}
