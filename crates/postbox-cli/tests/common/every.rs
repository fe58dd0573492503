//! Every command there is, as the program's own help has them: none is forgotten here.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Done, TOPIC};

/// Runs the program to its end.
type Run<'a> = &'a dyn Fn(&[&str]) -> Done;

/// The leaves of the command line.
fn commands(run: Run<'_>, path: &[String]) -> Vec<String> {
    let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = run(&args).stdout;
    let Some((_, rest)) = help.split_once("\nCommands:\n") else { return vec![path.join(" ")] };
    let names = rest.lines().take_while(|line| !line.is_empty()).filter_map(|line| {
        // A line that goes on is deeper than a name.
        line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split(' ').next()
    });
    let names = names.filter(|name| *name != "help");
    names.flat_map(|name| commands(run, &[path, &[name.to_owned()]].concat())).collect()
}

/// Runs every command with `--json` on a table that holds a published and a dead event; all must answer with objects of JSON.
pub(crate) fn check_every_command(run: Run<'_>, table: &str, sent: &str, dead: &str) {
    // What each is called with, apart from the table, and how it ends.
    let cases: BTreeMap<&str, (String, i32)> = [
        ("migrate up", "--inbox", 0),
        ("migrate down", "--yes --discard-unpublished", 0),
        ("migrate print", "", 0),
        ("relay", "--relay-enabled=false --cleaner-enabled=false", 0),
        ("status", "--check --max-dead 5", 0),
        ("top", "--once --every 100ms", 0),
        ("events list", "--status dead", 0),
        ("events show", "DEAD SENT --payload", 0),
        ("events tail", "--for 100ms", 0),
        ("events replay", "SENT --yes --watch 0", 0),
        ("dead list", "--cause 1", 0),
        ("dead show", "DEAD", 0),
        ("dead replay", "--topic nobody.has.this.v1 --yes", 0),
        ("dead discard", "DEAD --yes", 0),
        ("inbox list", "--consumer stock", 0),
        ("inbox forget", "--all --yes", 0),
        ("pause", "", 0),
        ("resume", "", 0),
        ("clean", "--dry-run", 0),
        ("doctor", "", 3),
        ("enqueue", "--topic TOPIC --payload 1", 0),
        ("config check", "", 0),
        ("config show", "", 0),
        ("bench", "--events 500 --seconds 1 --connections 2", 0),
        ("demo", "--for 1s", 0),
        ("explain", "OUTBOX_TIMEOUT", 0),
        ("completions", "zsh", 0),
    ]
    .map(|(name, more, exit)| {
        let more = more.replace("DEAD", dead).replace("SENT", sent).replace("TOPIC", TOPIC);
        (name, (more, exit))
    })
    .into();
    let mut commands = commands(run, &[]);
    assert!(commands.len() >= cases.len(), "{commands:?}");
    commands.sort_by_key(|name| name == "migrate down");
    for name in commands {
        let Some((more, exit)) = cases.get(name.as_str()) else { panic!("postbox {name} has no case here") };
        let alone = matches!(name.as_str(), "bench" | "demo" | "explain" | "completions");
        let on: &[&str] = if alone { &[] } else { &["--table", table] };
        let args = name.split(' ').chain(on.iter().copied()).chain(more.split_whitespace()).chain(["--json"]);
        let done = run(&args.collect::<Vec<_>>());
        assert_eq!(done.code, *exit, "{name}: {done:#?}");
        let silent = matches!(name.as_str(), "relay" | "events tail");
        assert_eq!(done.stdout.is_empty(), silent, "{name}: {done:#?}");
        for line in done.stdout.lines() {
            let object = serde_json::from_str::<Map<String, Value>>(line);
            object.unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
        }
    }
}
