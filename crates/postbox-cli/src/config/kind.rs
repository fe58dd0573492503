//! Kinds of values: how each is written, read and checked. A kind with its bounds is part of a setting's one entry.

use std::time::Duration;

use postbox_core::TenantId;
use postbox_core::notation::{self, digits};
use uuid::Uuid;

use super::text::{Hidden, Secret, shown};

mod places;

pub(super) use places::*;
pub(super) use postbox_core::notation::{DAY_MS, GIB, HOUR_MS, KIB, show_duration};

/// The longest duration that is accepted: ten years, so that no clock overflows.
pub(super) const LONGEST_MS: u64 = 3_650 * DAY_MS;
/// How a value is written in TOML and shown in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A string.
    Text,
    /// An integer.
    Number,
    /// `true` or `false`.
    Switch,
    /// A string such as `"500ms"`; the integer `0` needs no unit.
    Duration,
    /// A string such as `"16MiB"`, or an integer of bytes.
    Size,
    /// An array of strings; comma separated elsewhere.
    List,
}

/// How one kind of value is read. A value is a list of items: none when unset, one for all but [`Shape::List`].
pub(super) struct Kind<T> {
    /// How it is written.
    pub(super) shape: Shape,
    /// Whether it is masked as a whole when it is not even a URL.
    pub(super) secret: bool,
    /// What is accepted, to follow "set … to".
    pub(super) accepts: fn() -> String,
    /// Reads it; the error follows the value, as in `"x" is not a number`.
    pub(super) parse: fn(&[String]) -> Result<T, String>,
    /// How `config show` writes it, given what was read and what was written.
    pub(super) canonical: fn(&T, &[String]) -> Vec<String>,
}

fn as_written<T>(_: &T, written: &[String]) -> Vec<String> {
    written.to_vec()
}

fn as_read<T: ToString>(value: &T, _: &[String]) -> Vec<String> {
    vec![value.to_string()]
}

fn one(items: &[String]) -> Result<&str, String> {
    match items {
        [item] if !item.is_empty() => Ok(item),
        [] | [_] => Err("is empty".to_owned()),
        _ => Err("is more than one value".to_owned()),
    }
}

/// `true` or `false`.
pub(super) const fn switch() -> Kind<bool> {
    Kind {
        shape: Shape::Switch,
        secret: false,
        accepts: || "true or false (or 1 or 0)".to_owned(),
        parse: |items| match one(items)? {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err("is neither true nor false".to_owned()),
        },
        canonical: as_read,
    }
}

/// A whole number within bounds.
pub(super) const fn count<T: TryFrom<u64> + ToString, const MIN: u64, const MAX: u64>() -> Kind<T> {
    Kind {
        shape: Shape::Number,
        secret: false,
        accepts: || format!("a whole number from {MIN} to {MAX}"),
        parse: |items| {
            let text = one(items)?;
            let number = digits(text).ok_or("is not a whole number")?;
            let within = (MIN..=MAX).contains(&number).then(|| T::try_from(number).ok()).flatten();
            within.ok_or_else(|| "is out of range".to_owned())
        },
        canonical: as_read,
    }
}

/// A duration with its unit, within bounds given in milliseconds.
pub(super) const fn duration<const MIN: u64, const MAX: u64>() -> Kind<Duration> {
    Kind {
        shape: Shape::Duration,
        secret: false,
        accepts: || notation::accepted_durations(MIN, MAX),
        parse: |items| notation::duration(one(items)?, MIN, MAX),
        canonical: as_written,
    }
}

/// A duration, or `0` for "never".
pub(super) const fn duration_or_never<const MIN: u64, const MAX: u64>() -> Kind<Option<Duration>> {
    Kind {
        shape: Shape::Duration,
        secret: false,
        accepts: || format!("0, or {}", notation::accepted_durations(MIN, MAX)),
        parse: |items| match notation::duration(one(items)?, 0, MAX)? {
            Duration::ZERO => Ok(None),
            _ => notation::duration(one(items)?, MIN, MAX).map(Some),
        },
        canonical: as_written,
    }
}

/// A wait that a flag gives, such as `5s`.
pub(crate) fn parse_delay(text: &str) -> Result<Duration, String> {
    notation::duration(text, 0, LONGEST_MS)
}

/// A number of bytes, within bounds.
pub(super) const fn size<const MIN: u64, const MAX: u64>() -> Kind<usize> {
    Kind {
        shape: Shape::Size,
        secret: false,
        accepts: || notation::accepted_sizes(MIN, MAX),
        parse: |items| notation::size(one(items)?, MIN, MAX),
        canonical: as_written,
    }
}

/// A set of words, each of which is a variant.
pub(crate) trait Choice: Copy + 'static {
    /// Each word with its variant.
    const WORDS: &'static [(&'static str, Self)];
}

/// The word for a variant.
pub(crate) fn word<T: Choice + PartialEq>(chosen: T) -> &'static str {
    T::WORDS.iter().find(|(_, variant)| *variant == chosen).map_or("", |(word, _)| *word)
}

/// One word of a [`Choice`].
pub(super) const fn choice<T: Choice>() -> Kind<T> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || {
            let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
            format!("one of {}", words.join(", "))
        },
        parse: |items| {
            let text = one(items)?;
            let found = T::WORDS.iter().find(|(word, _)| *word == text);
            found.map(|(_, choice)| *choice).ok_or_else(|| "is not one of the choices".to_owned())
        },
        canonical: as_written,
    }
}

/// Names, each once, such as tables.
pub(super) const fn names() -> Kind<Vec<String>> {
    Kind {
        shape: Shape::List,
        secret: false,
        accepts: || "names, each once, with a comma between two".to_owned(),
        parse: |items| {
            for (at, item) in items.iter().enumerate() {
                if item.is_empty() {
                    return Err("has an empty name in it".to_owned());
                }
                if items[..at].contains(item) {
                    return Err(format!("names {} twice", shown(item)));
                }
            }
            Ok(items.to_vec())
        },
        canonical: as_written,
    }
}

/// A tenant: its id, or the name that its id is made of.
pub(crate) fn tenant(given: &str) -> TenantId {
    Uuid::try_parse(given).map_or_else(|_| TenantId::from_name(given), TenantId)
}

/// Tenants.
pub(super) const fn tenants() -> Kind<Vec<TenantId>> {
    Kind {
        shape: Shape::List,
        secret: false,
        accepts: || "UUIDs or names of tenants, each once, with a comma between two".to_owned(),
        parse: |items| {
            let mut tenants = Vec::new();
            for item in items {
                if item.is_empty() {
                    return Err("has an empty name in it".to_owned());
                }
                if tenants.contains(&tenant(item)) {
                    return Err(format!("names {} twice", shown(item)));
                }
                tenants.push(tenant(item));
            }
            Ok(tenants)
        },
        canonical: as_written,
    }
}

/// A tenant's id.
pub(super) const fn uuid() -> Kind<Uuid> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "a UUID such as 0198a6f0-5f3c-7c1e-9d5e-3f0b8a7c6d5e".to_owned(),
        parse: |items| Uuid::try_parse(one(items)?).map_err(|_| "is not a UUID".to_owned()),
        canonical: as_read,
    }
}

/// The start of metric names.
pub(super) const fn metric_prefix() -> Kind<String> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "letters, digits and _, not starting with a digit, at most 64".to_owned(),
        parse: |items| {
            let text = one(items)?;
            let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            let valid = starts && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let valid = valid && text.len() <= 64;
            valid
                .then(|| text.to_owned())
                .ok_or_else(|| "cannot start the name of a Prometheus metric".to_owned())
        },
        canonical: as_written,
    }
}

/// Tokens, each with the name of who has it or without. Errors never repeat one.
pub(super) const fn tokens() -> Kind<Vec<Hidden>> {
    Kind {
        shape: Shape::List,
        secret: true,
        accepts: || {
            "tokens of at least 16 characters, or name:token, such as alice:$(openssl rand -hex 32), with a comma between two"
                .to_owned()
        },
        parse: |items| Ok(items.iter().map(|item| Hidden::new(item.as_str())).collect()),
        canonical: as_written,
    }
}

/// The name of a file, or nothing.
pub(super) const fn file() -> Kind<Option<Secret>> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "the name of a file".to_owned(),
        parse: |items| {
            if items.is_empty() { Ok(None) } else { one(items).map(|name| Some(Secret::new(name))) }
        },
        canonical: as_written,
    }
}
