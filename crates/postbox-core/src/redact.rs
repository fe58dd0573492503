//! [`Summary`]: what may be said about an error in a table, a log or a dashboard (hazard 49).

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::event::Payload;

/// The default of `OUTBOX_LAST_ERROR_MAX_BYTES`.
pub(crate) const LAST_ERROR_MAX_BYTES: usize = 2048;

/// A short, clean account of an error: cut on a character boundary, control characters escaped, credentials in
/// URLs masked, and nothing from the payload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary(Box<str>);

impl Summary {
    /// Cleans a text and cuts it to `max_bytes`.
    pub fn new(text: &str, max_bytes: usize) -> Self {
        // Cleaning is linear, but an error may be megabytes long: look only at what can survive the cut.
        let head = cut(text, max_bytes.saturating_mul(2).max(256));
        let clean = escape_controls(&mask_credentials(head));
        Self(cut(&clean, max_bytes).into())
    }

    /// Cleans a text and takes out every value of the payload that occurs in it.
    pub fn without_payload(text: &str, payload: &Payload, max_bytes: usize) -> Self {
        Self::new(&scrub(cut(text, max_bytes.saturating_mul(4).max(1024)), payload), max_bytes)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error with all its causes in one line, without saying the same twice.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    // One of a user's own may even panic when it is shown.
    let text = catch_unwind(AssertUnwindSafe(|| whole_chain(error)));
    text.unwrap_or_else(|_| "an error whose text panicked".to_owned())
}

fn whole_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let next = cause.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = cause.source();
    }
    text
}

/// What is wrong with JSON and where, in words that hold no value of it, as serde's own may.
pub fn json_problem(error: &serde_json::Error) -> String {
    use serde_json::error::Category;

    let kind = match error.classify() {
        Category::Data => "a field is missing or of another type",
        Category::Syntax => "it is not JSON",
        Category::Eof => "it ends early",
        Category::Io => "it cannot be read",
    };
    format!("{kind} at line {} column {}", error.line(), error.column())
}

/// Masks `user:password@` in URLs and the value of `password=` in connection strings.
pub fn mask_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end =
            after.find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '<' | '>' | '?' | '#'));
        // A password may itself hold a slash that nobody encoded: the last @ before white space counts.
        let hard_end = after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>'));
        let authority = &after[..end.unwrap_or(after.len())];
        let user_end = authority.rfind('@').or_else(|| {
            let candidate = &after[..hard_end.unwrap_or(after.len())];
            candidate.find('@').filter(|at| candidate[..*at].contains(':'))
        });
        match user_end {
            Some(at) => {
                out.push_str("***");
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    out.push_str(rest);
    mask_assignments(&out)
}

/// Words that make the name of an option or a query parameter that of a secret.
const SECRET_WORDS: [&str; 9] = ["pass", "pwd", "secret", "token", "key", "sig", "auth", "cred", "private"];

/// Whether an option or a query parameter of this name may hold a secret. Rather hides too much than too little.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

fn mask_assignments(text: &str) -> String {
    const NAMES: [&str; 5] = ["password=", "passwd=", "pwd=", "token=", "secret="];
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    while let Some((at, name)) = NAMES.iter().filter_map(|n| Some((lower[from..].find(n)? + from, n))).min() {
        let value = at + name.len();
        out.push_str(&text[from..value]);
        out.push_str("***");
        from = end_of_value(&text[value..]).map_or(text.len(), |n| value + n);
    }
    out.push_str(&text[from..]);
    out
}

/// Where the value ends that a text begins with. One in quotes may hold spaces, and quotes behind a backslash.
fn end_of_value(text: &str) -> Option<usize> {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return text.find(|c: char| c.is_whitespace() || matches!(c, '&' | ';' | ',' | '"' | '\''));
    };
    let mut escaped = false;
    let mut rest = text.char_indices().skip(1);
    let closing = rest.find(|(_, c)| {
        let closes = *c == quote && !escaped;
        escaped = *c == '\\' && !escaped;
        closes
    });
    closing.map(|(at, quote)| at + quote.len_utf8())
}

fn escape_controls(text: &str) -> String {
    // Besides control characters: those that reorder or hide text, with which a log line can lie.
    let lies = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || lies(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// The longest prefix of at most `max` bytes that ends on a character boundary.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Shorter values occur by chance (`404`, `a`): taking them out would spoil the message and hide nothing.
const SHORTEST_SECRET: usize = 4;
const HIDDEN: &str = "[payload]";

/// Replaces the payload, and every string or long number in it, wherever it occurs in the text.
fn scrub(text: &str, payload: &Payload) -> String {
    let json = match payload {
        Payload::Json(json) => json.as_str(),
        Payload::Bytes { bytes, .. } => {
            return match std::str::from_utf8(bytes) {
                Ok(whole) if whole.len() >= SHORTEST_SECRET => text.replace(whole, HIDDEN),
                _ => text.to_owned(),
            };
        }
    };
    // Marked first and replaced once: the word for what is hidden may itself be a value of the payload.
    let mut hidden = vec![false; text.len()];
    for value in std::iter::once(json.to_owned()).chain(leaves(json)) {
        for (at, _) in text.match_indices(&value) {
            hidden[at..at + value.len()].fill(true);
        }
    }
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        if !hidden[at] {
            out.push(c);
        } else if at == 0 || !hidden[at - 1] {
            out.push_str(HIDDEN);
        }
    }
    out
}

/// An error does not quote thousands of values; looking for them all would take longer than the dispatch.
const MOST_LEAVES: usize = 2000;

/// String values (unescaped) and numbers of a JSON text, the longest first, so that no part of one is left over.
fn leaves(json: &str) -> Vec<String> {
    let bytes = json.as_bytes();
    let (mut i, mut found) = (0, Vec::new());
    while i < bytes.len() {
        let start = i;
        match bytes[i] {
            b'"' => {
                i += 1;
                while i < bytes.len() && bytes[i] != b'"' {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                i = (i + 1).min(bytes.len());
                let is_key = json[i..].trim_start().starts_with(':');
                if !is_key && let Ok(value) = serde_json::from_str::<String>(&json[start..i]) {
                    found.push(value);
                }
            }
            b'-' | b'0'..=b'9' => {
                while i < bytes.len() && matches!(bytes[i], b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9') {
                    i += 1;
                }
                found.push(json[start..i].to_owned());
            }
            _ => i += 1,
        }
    }
    found.retain(|value| value.len() >= SHORTEST_SECRET);
    found.sort_unstable_by(|a, b| (b.len(), b).cmp(&(a.len(), a)));
    found.dedup();
    found.truncate(MOST_LEAVES);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;
    use proptest::prelude::*;

    fn summary(text: &str) -> String {
        Summary::new(text, LAST_ERROR_MAX_BYTES).to_string()
    }

    #[test]
    fn hazard_49_credentials_are_masked() {
        for (dirty, clean) in [
            ("postgres://app:s3cret@db/x failed", "postgres://***@db/x failed"),
            ("amqp://u:p/w@h:5672/v", "amqp://***@h:5672/v"),
            ("at https://h/a?x=1 and http://u@h/", "at https://h/a?x=1 and http://***@h/"),
            ("host=h password=abc user=u", "host=h password=*** user=u"),
            (r"host=h password='it\'s s3cret' user=u", "host=h password=*** user=u"),
            (r#"host=h password="a b" user=u"#, "host=h password=*** user=u"),
            ("host=h password='left open", "host=h password=***"),
            ("https://h/?token=abc&x=1", "https://h/?token=***&x=1"),
            ("mail a@b.c", "mail a@b.c"),
        ] {
            assert_eq!(summary(dirty), clean);
        }
    }

    #[test]
    fn control_characters_cannot_forge_log_lines() {
        assert_eq!(summary("a\nERROR b\r\u{1b}[31m\0\u{202e}"), "a\\nERROR b\\r\\u{1b}[31m\\u{0}\\u{202e}");
    }

    #[test]
    fn values_of_the_payload_are_taken_out() {
        let payload = Payload::Json(
            Json::from_text(r#"{"card":"4111111111111111","n":[987654321,7],"name":"Zoë \"X\""}"#).unwrap(),
        );
        let text = r#"card 4111111111111111 of Zoë "X", 987654321 refused (7), card unknown"#;
        let clean = Summary::without_payload(text, &payload, 2048);
        assert_eq!(clean.as_str(), "card [payload] of [payload], [payload] refused (7), card unknown");
        let whole = Summary::without_payload(
            r#"bad: {"card":"4111111111111111","n":[987654321,7],"name":"Zoë \"X\""}"#,
            &payload,
            2048,
        );
        assert_eq!(whole.as_str(), "bad: [payload]");
    }

    #[test]
    fn chains_name_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("inner"));
        assert_eq!(chain(&error), "outer: inner");
    }

    #[test]
    fn an_error_that_panics_when_it_is_shown_is_one_all_the_same() {
        #[derive(Debug)]
        struct Sick;
        impl fmt::Display for Sick {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                panic!("on purpose")
            }
        }
        impl Error for Sick {}
        assert_eq!(chain(&Sick), "an error whose text panicked");
    }

    proptest! {
        #[test]
        fn a_summary_is_short_clean_and_never_panics(text in any::<String>(), max in 0usize..300) {
            let summary = Summary::new(&text, max);
            prop_assert!(summary.as_str().len() <= max);
            prop_assert!(!summary.as_str().chars().any(char::is_control));
        }

        #[test]
        fn a_password_in_a_url_never_survives(user in "[a-z]{1,8}", password in "[A-Z0-9/?#]{6,12}", tail in "[a-z /]{0,20}") {
            let text = format!("cannot reach postgres://{user}:{password}@host/db {tail}");
            prop_assert!(!summary(&text).contains(&password));
        }

        #[test]
        fn no_string_of_the_payload_survives(secret in "[a-z]{6,20}", prefix in "[A-Z :]{0,30}") {
            let payload = Payload::Json(Json::from_value(&serde_json::json!({"k": secret})).unwrap());
            let summary = Summary::without_payload(&format!("{prefix}{secret}!"), &payload, 2048);
            prop_assert!(!summary.as_str().contains(&secret));
        }
    }
}
