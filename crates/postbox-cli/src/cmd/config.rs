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
    let warnings = &call.config.warnings;
    if call.json {
        say_json(&json!({ "ok": true, "warnings": warnings }))?;
    } else if warnings.is_empty() {
        say("the configuration can be used")?;
    } else {
        let lines: Vec<String> = warnings.iter().map(|warning| format!("warning: {warning}")).collect();
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
