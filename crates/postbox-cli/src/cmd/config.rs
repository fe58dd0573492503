//! `postbox config check` and `postbox config show`.

use serde_json::json;

use crate::assemble;
use crate::cli::Call;
use crate::config::{show_json, show_text};
use crate::report::{Exit, Failure};
use crate::say::{say, say_json};

/// Says whether the configuration can be used, and what is doubtful about it.
pub(crate) fn check(call: &Call<'_>) -> Result<Exit, Failure> {
    // What the layers themselves have wrong was refused before this.
    assemble::check(&call.config)?;
    let (warnings, needed) = (&call.config.warnings, call.config.needed());
    if call.json {
        say_json(&json!({ "ok": true, "warnings": warnings, "needed": needed }))?;
    } else {
        let mut lines: Vec<String> = warnings.iter().map(|warning| format!("warning: {warning}")).collect();
        let well = if warnings.is_empty() { "nothing is wrong with these settings; " } else { "" };
        if !needed.is_empty() {
            // No error: other commands have the table on their command line, and need no sink.
            lines.push(format!("{well}postbox relay also needs {}", needed.join(" and ")));
        } else if lines.is_empty() {
            lines.push("the configuration can be used".to_owned());
        }
        say(&lines.join("\n"))?;
    }
    Ok(if warnings.is_empty() { Exit::Done } else { Exit::Problems })
}

/// Shows every setting and where it came from.
pub(crate) fn show(call: &Call<'_>) -> Result<Exit, Failure> {
    if call.json {
        say_json(&show_json(&call.config))?;
    } else {
        say(show_text(&call.config).trim_end())?;
    }
    Ok(Exit::Done)
}
