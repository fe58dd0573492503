//! What can be wrong with a configuration, in the shape that the program prints.

use std::fmt;
use std::path::PathBuf;

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
    Env(&'static str),
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

/// The stable codes of configuration errors, for scripts and `postbox explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// A value, or a combination of values, that cannot work.
    Invalid,
    /// A key or variable that no setting has.
    UnknownKey,
    /// A setting of the contract that this version does not have yet.
    Unsupported,
    /// The configuration file cannot be read.
    File,
    /// A command needs a setting that nobody gave.
    Missing,
}

impl Code {
    /// The code as users see it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "OUTBOX_CONFIG_INVALID",
            Self::UnknownKey => "OUTBOX_CONFIG_UNKNOWN_KEY",
            Self::Unsupported => "OUTBOX_CONFIG_UNSUPPORTED",
            Self::File => "OUTBOX_CONFIG_FILE",
            Self::Missing => "OUTBOX_CONFIG_MISSING",
        }
    }

    /// What it means, in one line of Markdown.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Invalid => "A value, or a combination of values, cannot work.",
            Self::UnknownKey => "No setting has this key or variable: most often a slip of the finger.",
            Self::Unsupported => "The setting or value is planned, but not in this version.",
            Self::File => "The configuration file cannot be read, or is not TOML.",
            Self::Missing => "The command needs a setting that nobody gave.",
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
