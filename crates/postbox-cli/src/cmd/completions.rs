//! `postbox completions SHELL`.

use clap_complete::Shell;
use serde_json::json;

use crate::cli::command;
use crate::report::{Exit, Failure};
use crate::say::{say, say_json};

/// Prints the completions of a shell.
pub(crate) fn run(shell: &str, as_json: bool) -> Result<Exit, Failure> {
    let shell = match shell {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "postbox", &mut script);
    let script = String::from_utf8_lossy(&script);
    if as_json {
        say_json(&json!({ "shell": shell.to_string(), "script": script }))?;
    } else {
        say(script.trim_end())?;
    }
    Ok(Exit::Done)
}
