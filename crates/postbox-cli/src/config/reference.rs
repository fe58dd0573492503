//! The reference page `docs/book/reference/configuration.md`, made from the table.

use std::fmt::Write as _;

use super::flags::heading;
use super::kind::Shape;
use super::settings::{SETTINGS, Setting};
use postbox_core::Code;

const INTRODUCTION: &str = "\
<!-- Made from crates/postbox-cli/src/config/settings.rs. Do not edit; after a change there, run
     POSTBOX_BLESS=1 cargo test -p postbox-cli reference -->

# Configuration

Each setting can be given as a flag, an environment variable or a key of `postbox.toml`; the first of these that is
there wins, then the default. `postbox config show` prints what is in force and where it came from, `postbox config check` what
is wrong: first everything about the settings themselves and, once they are right, everything about the tables, sinks and routes
that they name. Nothing starts with settings that are wrong.

- **File**: `postbox.toml` in the current directory if there is one, or the file that `--config` or `POSTBOX_CONFIG` names.
  A key before the dot in the tables below is a section: `relay.batch_size` is `batch_size` under `[relay]`. Unknown keys are errors.
- **Environment**: an empty variable counts as not set. Unknown names that start with `OUTBOX_RELAY_`, `OUTBOX_CLEANER_`,
  `OUTBOX_INBOX_` or `OUTBOX_ADMIN_` are errors, except those that Kubernetes makes for a Service of such a name; so are other names that
  start with `OUTBOX_` and are a slip of the finger away from a setting's.
- **Durations** have a unit: `500ms`, `1s`, `1m`, `168h`, `7d`; only `0` needs none. **Sizes**: `16MiB`, `512KiB`, or plain bytes.
- **Switches** are `true` or `false` (or `1` or `0`; in the file without quotes); as a flag, `--single-active` or `--single-active=false`.
- **Lists** are arrays in the file and comma separated elsewhere; their flags may be repeated.
";

const DATABASES: &str = "
## Several databases

```toml
[[database]]
name = \"orders\"                       # letters, digits, - and _
url = \"postgres://app@db-1:6432/app\"  # or DATABASE_URL_ORDERS, which wins
direct_url = \"postgres://app@db-1/app\"   # past a pooler; or OUTBOX_DIRECT_URL_ORDERS
tables = [\"public.shop_outbox\"]
cleaner_tables = [\"public.shop_outbox\"]       # unless these are `tables`

[[database]]
name = \"till\"
url = \"sqlite:till.db\"
tables = [\"till_outbox\"]
```

In place of `database_url`, `direct_url`, `relay.tables` and `cleaner.tables`, which are errors beside it. Everything else holds for all of
them. `--database NAME` chooses: see [Several databases](../databases.md).
";

const ROUTES: &str = "
## Sinks and routes

```toml
[sinks.main]
url = \"file:out.jsonl\"

[sinks.broker]
url = \"nats://broker:4222\"      # of a build with this sink
user = \"app\"                    # and any options of the sink
password = \"secret\"

[[route]]
topic = \"org.**\"
sink = \"broker\"                 # a name from [sinks], or a URL
destination = \"events.{topic}\"  # where at the sink; else the sink knows
```

The first route that takes a topic wins. `sink` is the route for `**` after all of them. A topic that no route takes is dead at once.

Options of a sink also work as the query of its URL: `nats://broker?user=app`. Each sink's page has its own; one that it does not
know is an error. `postbox config show` hides what may be a secret.

A destination is a subject, topic, stream or queue with placeholders: `{topic}`, `{tenant_id}`, `{aggregate_type}`, `{aggregate_id}`,
`{event_id}`, `{routing_key}`, `{key}` (routing key, else aggregate id, else event id) and `{table}`; `{{` and `}}` are braces
themselves. What a route says wins over the sink's own option `destination`; without either it is `{topic}`. An event that lacks
a value for it is dead at once.
";

/// The page.
pub(crate) fn reference_markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut section = None;
    for setting in SETTINGS {
        if section != Some(setting.section()) {
            section = Some(setting.section());
            let _ = write!(page, "\n## {}\n\n", heading(setting.section()));
            page.push_str("| setting | environment | flag | default | what it does |\n");
            page.push_str("| --- | --- | --- | --- | --- |\n");
        }
        page.push_str(&row(setting));
    }
    page.push_str(DATABASES);
    page.push_str(ROUTES);
    page.push_str("\n## Errors\n\n| code | meaning |\n| --- | --- |\n");
    for code in [
        Code::ConfigInvalid,
        Code::ConfigUnknownKey,
        Code::ConfigUnsupported,
        Code::ConfigFile,
        Code::ConfigMissing,
    ] {
        let _ = writeln!(page, "| `{}` | {} |", code.as_str(), code.meaning());
    }
    page
}

fn row(setting: &Setting) -> String {
    let default = match setting.default {
        "" => "unset".to_owned(),
        default => format!("`{default}`"),
    };
    let flag = match setting.shape {
        Shape::List => format!("`--{}` …", setting.flag),
        Shape::Text | Shape::Number | Shape::Switch | Shape::Duration | Shape::Size => {
            format!("`--{}`", setting.flag)
        }
    };
    // A `|` would end the cell, even in code.
    let what = format!("{} Takes {}.", setting.doc, (setting.accepts)()).replace('|', "\\|");
    format!("| `{}` | `{}` | {flag} | {default} | {what} |\n", setting.path, setting.env)
}
