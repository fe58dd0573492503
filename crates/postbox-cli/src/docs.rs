//! The reference pages of commands, errors and metrics, made from the code itself.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command};
use postbox_core::Code;
use postbox_core::telemetry::METRICS;

use crate::cli::command;
use crate::config::DATABASE;

const COMMANDS: &str = "\
<!-- Made from crates/postbox-cli/src/cli.rs. Do not edit; after a change there, run
     POSTBOX_BLESS=1 cargo test -p postbox-cli reference -->

# Commands

Flags that are settings (`--database-url`, `--table`, …) are described in [Configuration](configuration.md); the others are
below. Every command takes `--json`, which prints results and errors as JSON. Those that read the configuration take `--config FILE`, and `--database NAME`
for one database where the configuration has several. Commands that replay, discard, forget, pause, resume or remove (`migrate down`) need the table named by
`--table`, not by a file or a variable; `clean` and `enqueue` do not.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | tried and failed |
| 2 | usage, configuration, or an event that cannot be enqueued |
| 3 | looked for problems and found some |
| 130 | stopped at once: Ctrl-C at a question, a second signal to a relay |
";

const ERRORS: &str = "\
<!-- Made from crates/postbox-core/src/code.rs. Do not edit; after a change there, run
     POSTBOX_BLESS=1 cargo test -p postbox-cli reference -->

# Errors

Codes are stable: scripts and alerts may match on them. `postbox explain CODE` prints the same. Codes that begin with `IDEMPOTENCY_` are answers of
[the layer for calls](../idempotency.md#what-callers-are-told), and not here.

| code | meaning | what to do |
| --- | --- | --- |
";

const METRICS_PAGE: &str = "\
<!-- Made from crates/postbox-core/src/telemetry.rs. Do not edit; after a change there, run
     POSTBOX_BLESS=1 cargo test -p postbox-cli reference -->

# Metrics

Served at `PROMETHEUS_METRICS_PATH` and `/metrics` of `OUTBOX_LISTEN`; in the library through the `metrics` facade. `OUTBOX_METRICS_PREFIX`
replaces `outbox`. No label ever holds a tenant, an event id or a sequence; topics beyond `OUTBOX_MAX_TOPIC_LABELS` share `other`.

With [several databases](../databases.md) (`[[database]]`, or `Postboxes` in Rust) every metric also has the label `database`, before `table`.

| metric | kind | labels | meaning |
| --- | --- | --- | --- |
";

fn metrics() -> String {
    let mut page = METRICS_PAGE.to_owned();
    for metric in METRICS {
        let labels = metric.labels.join("`, `");
        let _ =
            writeln!(page, "| `outbox_{}` | {} | `{labels}` | {} |", metric.name, metric.kind, metric.help);
    }
    page
}

fn commands() -> String {
    let mut page = COMMANDS.to_owned();
    let root = command();
    for outer in root.get_subcommands() {
        let inner: Vec<&Command> = outer.get_subcommands().collect();
        if inner.is_empty() {
            section(&mut page, outer.get_name(), outer);
        }
        for inner in inner {
            section(&mut page, &format!("{} {}", outer.get_name(), inner.get_name()), inner);
        }
    }
    page
}

fn section(page: &mut String, name: &str, command: &Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n## `postbox {name}`\n\n{about}.\n");
    let mut settings = Vec::new();
    let mut own = String::new();
    for arg in command.get_arguments().filter(|arg| arg.get_id() != "config" && arg.get_id() != DATABASE) {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        match (arg.get_help_heading(), arg.get_long()) {
            (Some(_), Some(long)) => settings.push(format!("`--{long}`")),
            (_, Some(long)) => {
                let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
                let value = value.map(|names| format!(" {}", names.join(" "))).unwrap_or_default();
                let _ = writeln!(own, "- `--{long}{value}`: {}{}.", outside_code(&help), unless_given(arg));
            }
            (_, None) => {
                let _ = writeln!(own, "- `{}`: {help}.", arg.get_id().as_str().to_ascii_uppercase());
            }
        }
    }
    let settings = match settings.len() {
        0 => String::new(),
        1..20 => format!("Settings: {}.\n", settings.join(", ")),
        _ => "Settings: all of them.\n".to_owned(),
    };
    for part in [own, settings].iter().filter(|part| !part.is_empty()) {
        let _ = write!(page, "\n{part}");
    }
    if let Some(after) = command.get_after_help() {
        let _ = write!(page, "\n```text\n{after}\n```\n");
    }
}

/// What a flag may be, and what it is by default.
fn unless_given(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let mut parts: Vec<String> = Vec::new();
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if !values.is_empty() {
        parts.push(values.join(", "));
    }
    if let [default] = arg.get_default_values()
        && !default.is_empty()
    {
        parts.push(format!("`{}` unless given", default.to_string_lossy()));
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) }
}

fn errors() -> String {
    let mut page = ERRORS.to_owned();
    for code in Code::ALL {
        let _ = writeln!(
            page,
            "| `{code}` | {} | {} |",
            outside_code(code.meaning()),
            outside_code(code.next_step())
        );
    }
    page
}

/// Text whose `<name>` is no HTML, except in code, where it never is.
fn outside_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// `POSTBOX_BLESS=1 cargo test -p postbox-cli reference` writes the pages anew.
#[test]
fn the_reference_of_commands_errors_and_metrics_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/reference");
    for (name, page) in [("commands.md", commands()), ("errors.md", errors()), ("metrics.md", metrics())] {
        let path = folder.join(name);
        if std::env::var_os("POSTBOX_BLESS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
        let advice = "run: POSTBOX_BLESS=1 cargo test -p postbox-cli reference";
        assert!(stored == page, "docs/book/reference/{name} is not what the program says; {advice}");
    }
}
