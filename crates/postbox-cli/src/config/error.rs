//! What can be wrong with a configuration, in the shape that the program prints.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use postbox_core::Code;
use serde_json::{Value, json};

/// Where a setting's value came from; the layers, lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody set it.
    Default,
    /// A line of the configuration file.
    File {
        /// The file, as it was named.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The environment variable of this name.
    Env(Cow<'static, str>),
    /// The command line flag of this name, without its dashes.
    Flag(&'static str),
}

impl Origin {
    /// The layer's name in JSON output.
    pub(crate) fn layer(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Env(_) => "env",
            Self::Flag(_) => "flag",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One thing that is wrong, with its cause and the next step.
#[derive(Debug)]
pub(crate) struct ConfigError {
    /// The stable code.
    pub(crate) code: Code,
    /// What is wrong, with the setting and its value, masked.
    pub(crate) cause: String,
    /// What to do about it.
    pub(crate) next: String,
    /// The layer at fault, where there is one.
    pub(crate) origin: Option<Origin>,
    /// The operating system's error. Never a TOML error: printing one repeats the line, and with it its secrets.
    pub(crate) source: Option<std::io::Error>,
}

impl ConfigError {
    /// An error without an operating system's error behind it.
    pub(crate) fn new(
        code: Code,
        origin: Option<Origin>,
        cause: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { code, cause: cause.into(), next: next.into(), origin, source: None }
    }

    /// What is wrong and where it came from, in one line.
    pub(crate) fn to_line(&self) -> String {
        let origin = self.origin.as_ref().map(|origin| format!(" (from {origin})")).unwrap_or_default();
        format!("{}{origin}", self.cause)
    }

    fn to_json(&self) -> Value {
        json!({
            "code": self.code.as_str(),
            "cause": self.cause,
            "next": self.next,
            "origin": self.origin.as_ref().map(ToString::to_string),
        })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code.as_str();
        write!(f, "error[{code}]: {}", self.cause)?;
        if let Some(origin) = &self.origin {
            write!(f, " (from {origin})")?;
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        write!(f, "\n  next: {}      more: postbox explain {code}", self.next)
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Everything that is wrong, so that one start is enough to see it all.
#[derive(Debug)]
pub(crate) struct ConfigErrors(pub(crate) Vec<ConfigError>);

impl ConfigErrors {
    /// The errors for `--json`.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "errors": self.0.iter().map(ConfigError::to_json).collect::<Vec<_>>() })
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
