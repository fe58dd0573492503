//! [`Options`]: what a sink is told beside its URL, and the [`Reader`] that checks it.
//!
//! A `[sinks.NAME]` table and the query of a URL say the same things: both end up here.

mod reader;

use std::collections::BTreeMap;
use std::fmt;

use postbox_core::redact::{is_secret_name, mask_credentials};
pub use serde_json::Value;

pub use reader::Reader;

const MASK: &str = "***";

/// The options of a sink by name. `Debug` hides what may be a secret.
///
/// ```
/// use postbox_sinks::Options;
///
/// let options = Options::new().set("password", "hunter2").set("timeout", "5s");
/// assert_eq!(format!("{options:?}"), r#"{"password": "***", "timeout": "5s"}"#);
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct Options(BTreeMap<String, Value>);

impl Options {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.insert(name, value);
        self
    }

    /// Adds one; answers whether it was there already, and then leaves it.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<Value>) -> bool {
        let mut there = true;
        self.0.entry(name.into()).or_insert_with(|| {
            there = false;
            value.into()
        });
        there
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each with its value as it may be shown: what may be a secret is masked.
    pub fn shown(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().map(|(name, value)| (name.as_str(), shown(name, value)))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

impl FromIterator<(String, Value)> for Options {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(options: I) -> Self {
        Self(options.into_iter().collect())
    }
}

/// The value of an option as it may be shown.
fn shown(name: &str, value: &Value) -> String {
    if is_secret_name(name) {
        return MASK.to_owned();
    }
    match value {
        // A header may be a login, whatever its name.
        Value::Object(map) if name == "headers" => {
            map.keys().map(|inner| format!("{inner}={MASK}")).collect::<Vec<_>>().join(",")
        }
        Value::String(_) if name == "headers" => MASK.to_owned(),
        Value::String(text) => mask_credentials(text),
        Value::Array(items) => items.iter().map(|item| shown(name, item)).collect::<Vec<_>>().join(","),
        Value::Object(map) => {
            let entries = map.iter().map(|(inner, value)| format!("{inner}={}", shown(inner, value)));
            entries.collect::<Vec<_>>().join(",")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A password or token. `Debug` and `Display` do not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for whoever connects with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}
