//! [`Reader`]: takes options one by one, each by its type, and reports all that is wrong at once.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use postbox_core::{Template, notation};

use super::{Options, Secret, Value, shown};
use crate::url::SinkError;

/// Reads the options of one sink. What is wrong is remembered until [`finish`](Self::finish), so that all of it is told;
/// so are options that nobody asked for.
///
/// ```
/// use std::time::Duration;
/// use postbox_sinks::options::{Options, Reader};
///
/// let mut options = Reader::new("nats://broker", Options::new().set("timeout", "5s").set("tiemout", "1s"));
/// let timeout = options.duration("timeout", 1, 60_000).unwrap_or(Duration::from_secs(10));
/// assert_eq!(timeout, Duration::from_secs(5));
/// let error = options.finish().unwrap_err().to_string();
/// assert!(error.contains("has no option tiemout; there is timeout"), "{error}");
/// ```
#[derive(Debug)]
pub struct Reader {
    url: String,
    options: Options,
    known: Vec<&'static str>,
    problems: Vec<String>,
}

impl Reader {
    /// For the sink of this URL.
    pub fn new(url: impl Into<String>, options: Options) -> Self {
        Self { url: url.into(), options, known: Vec::new(), problems: Vec::new() }
    }

    /// Reports what is wrong with an option: `problem` follows its name and value, `accepted` says what would be right.
    pub fn problem(&mut self, name: &str, problem: &str, accepted: &str) {
        self.problems.push(format!("option {name} {problem}: {accepted}"));
    }

    /// A text that is not empty.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        self.read(name, || "a text".to_owned(), |text| Ok(text.to_owned()))
    }

    /// A password or the like.
    pub fn secret(&mut self, name: &'static str) -> Option<Secret> {
        self.text(name).map(Secret::new)
    }

    /// The path of a file that is there and can be read.
    pub fn file(&mut self, name: &'static str) -> Option<PathBuf> {
        let path = self.read(name, || "the path of a file".to_owned(), |text| Ok(PathBuf::from(text)))?;
        // The path itself is no secret, whatever the option's name sounds like.
        if let Err(error) = std::fs::File::open(&path) {
            let problem = format!("names {}, which cannot be read: {error}", path.display());
            self.problem(name, &problem, "name a file that exists and that this user may read");
            return None;
        }
        Some(path)
    }

    /// `true` or `false`.
    pub fn switch(&mut self, name: &'static str) -> Option<bool> {
        self.read(
            name,
            || "true or false".to_owned(),
            |text| match text {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                _ => Err("is neither true nor false".to_owned()),
            },
        )
    }

    /// A whole number within bounds.
    pub fn number(&mut self, name: &'static str, bounds: RangeInclusive<u64>) -> Option<u64> {
        let accepted = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        self.read(
            name,
            || accepted,
            |text| {
                let number = notation::digits(text).ok_or("is not a whole number")?;
                bounds.contains(&number).then_some(number).ok_or_else(|| "is out of range".to_owned())
            },
        )
    }

    /// A duration such as `500ms`, within bounds in milliseconds.
    pub fn duration(&mut self, name: &'static str, min_ms: u64, max_ms: u64) -> Option<Duration> {
        let accepted = || notation::accepted_durations(min_ms, max_ms);
        self.read(name, accepted, |text| notation::duration(text, min_ms, max_ms))
    }

    /// A size such as `16MiB`, within bounds in bytes.
    pub fn size(&mut self, name: &'static str, min: u64, max: u64) -> Option<usize> {
        self.read(name, || notation::accepted_sizes(min, max), |text| notation::size(text, min, max))
    }

    /// One of several words.
    pub fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        let accepted = || {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            format!("one of {}", words.join(", "))
        };
        self.read(name, accepted, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|(_, choice)| *choice).ok_or_else(|| "is not one of the choices".to_owned())
        })
    }

    /// A template such as `events.{topic}`.
    pub fn template(&mut self, name: &'static str) -> Option<Template> {
        self.read(
            name,
            || "a template such as events.{topic}".to_owned(),
            |text| {
                text.parse::<Template>().map_err(|error| format!("cannot be a template: {}", error.problem()))
            },
        )
    }

    /// Several texts: an array in a table, comma separated in a URL.
    pub fn list(&mut self, name: &'static str) -> Vec<String> {
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(items)) if items.is_empty() => {
                self.problem(name, "is an empty list", "leave it out, if there is nothing to list");
                Vec::new()
            }
            Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
                items.iter().filter_map(Value::as_str).map(|item| item.trim().to_owned()).collect()
            }
            Some(Value::String(text)) => text.split(',').map(|item| item.trim().to_owned()).collect(),
            Some(other) => {
                self.refuse(name, &other, "is no list of texts", "an array of texts");
                Vec::new()
            }
        }
    }

    /// Names with texts: a table. There is no form of it for URLs.
    pub fn map(&mut self, name: &'static str) -> BTreeMap<String, String> {
        match self.take(name) {
            None => BTreeMap::new(),
            Some(Value::Object(map)) if map.values().all(|value| scalar(value).is_some()) => {
                map.into_iter().filter_map(|(name, value)| Some((name, scalar(&value)?))).collect()
            }
            Some(other) => {
                self.refuse(name, &other, "is no table of texts", "a table, { name = \"value\" }");
                BTreeMap::new()
            }
        }
    }

    /// Whether an option was given.
    pub fn has(&self, name: &str) -> bool {
        self.options.0.contains_key(name)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// With all that was wrong, and what nobody asked for.
    pub fn finish(mut self) -> Result<(), SinkError> {
        let unknown: Vec<String> = self.options.0.keys().cloned().collect();
        if !unknown.is_empty() {
            let names = unknown.join(", ");
            self.problems.push(match self.known.as_slice() {
                [] => format!("it has no option {names}; it takes none"),
                known => format!("it has no option {names}; there is {}", known.join(", ")),
            });
        }
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(SinkError::new(&self.url, self.problems.join("; ")))
        }
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.options.0.remove(name)
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        accepted: impl FnOnce() -> String,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.take(name)?;
        let parsed = match scalar(&value) {
            Some(text) if text.is_empty() => Err("is empty".to_owned()),
            Some(text) => parse(&text),
            None => Err("has the wrong type".to_owned()),
        };
        match parsed {
            Ok(parsed) => Some(parsed),
            Err(problem) => {
                self.refuse(name, &value, &problem, &accepted());
                None
            }
        }
    }

    fn refuse(&mut self, name: &str, value: &Value, problem: &str, accepted: &str) {
        let value: String = shown(name, value).chars().take(80).collect();
        self.problem(name, &format!("= {value:?} {problem}"), &format!("use {accepted}"));
    }
}

/// A single value as the text that a URL would have.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reader(value: Value) -> Reader {
        let Value::Object(map) = value else { panic!("an object") };
        Reader::new("nats://app:hunter2@broker", map.into_iter().collect())
    }

    #[test]
    fn every_type_is_read_from_tables_and_from_queries() {
        let mut options = reader(json!({
            "a": 5, "b": "5", "c": true, "d": "0", "e": "1m", "f": "2KiB", "g": 2048, "h": ["x", " y"], "i": "x,y",
            "j": {"n": "v", "m": 1}, "k": "two", "l": "x.{topic}", "m": " text ",
        }));
        assert_eq!((options.number("a", 0..=9), options.number("b", 0..=9)), (Some(5), Some(5)));
        assert_eq!((options.switch("c"), options.switch("d")), (Some(true), Some(false)));
        assert_eq!(options.duration("e", 1, 100_000), Some(Duration::from_mins(1)));
        assert_eq!((options.size("f", 1, 9999), options.size("g", 1, 9999)), (Some(2048), Some(2048)));
        assert_eq!(
            (options.list("h"), options.list("i")),
            (vec!["x".into(), "y".into()], vec!["x".into(), "y".into()])
        );
        assert_eq!(options.map("j").into_iter().collect::<Vec<_>>().len(), 2);
        assert_eq!(options.choice("k", &[("one", 1), ("two", 2)]), Some(2));
        assert_eq!(options.template("l").unwrap().as_str(), "x.{topic}");
        assert_eq!(options.text("m").as_deref(), Some("text"));
        assert_eq!(options.text("n"), None);
        options.finish().unwrap();
    }

    #[test]
    fn everything_wrong_is_told_at_once_and_no_secret() {
        let mut options = reader(json!({
            "timeout": 5, "maxlen": "many", "tls": "yes", "password": {"x": "Zq9"}, "mode": "three",
            "destination": "{tpoic}", "api_key": "", "tls_ca": "/no/such/file", "typo": 1, "limit": 11,
        }));
        options.duration("timeout", 1, 1000);
        options.number("maxlen", 1..=10);
        options.number("limit", 1..=10);
        options.switch("tls");
        options.secret("password");
        options.choice("mode", &[("one", 1), ("two", 2)]);
        options.template("destination");
        options.secret("api_key");
        options.file("tls_ca");
        let text = options.finish().unwrap_err().to_string();
        for part in [
            "OUTBOX_SINK_INVALID: sink \"nats://***@broker\": ",
            "option timeout = \"5\" has no unit",
            "option maxlen = \"many\" is not a whole number: use a whole number from 1 to 10",
            "option limit = \"11\" is out of range",
            "option tls = \"yes\" is neither true nor false: use true or false",
            "option password = \"***\" has the wrong type",
            "use one of one, two",
            "{tpoic} is not known",
            "option api_key = \"***\" is empty",
            "/no/such/file, which cannot be read",
            "it has no option typo; there is timeout, maxlen, limit, tls,",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("Zq9") && !text.contains("hunter2"), "{text}");
    }
}
