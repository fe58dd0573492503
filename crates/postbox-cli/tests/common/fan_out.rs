//! A relay to two sinks, one of which is not there yet, and to a third for dead events.

use postbox_testkit::{Program, eventually_blocking, read_jsonl};
use serde_json::Value;

use super::{LONG, Place, TABLE};

pub(crate) const CONFIG: &str = r#"
dead_letter = "file:dead.jsonl"

[sinks.main]
url = "file:main.jsonl"
[sinks.audit]
url = "file:later/audit.jsonl"

[[route]]
topic = "org.**"
sinks = ["main", "audit"]
"#;

pub(crate) fn relay(place: &Place, more: &[&str], env: &[(&str, &str)]) -> Program {
    let args = ["relay", "--table", TABLE, "--poll-interval", "50ms", "--lock-ttl", "1500ms"];
    let args: Vec<&str> = args.iter().chain(&["--dispatch-timeout", "1s"]).chain(more).copied().collect();
    let mut command = place.command(&args);
    command.envs(env.iter().copied());
    Program::from_command(command)
}

pub(crate) fn lines(place: &Place, file: &str) -> Vec<Value> {
    read_jsonl(place.dir.path().join(file))
}

pub(crate) fn wait_for(place: &Place, file: &str, events: usize) {
    eventually_blocking(&format!("{events} events in {file}"), LONG, || lines(place, file).len() >= events);
}
