//! Names and texts that come from outside: topics, tables, patterns, templates, ids, errors.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use postbox_core::redact::{Summary, mask_credentials};
use postbox_core::{ConsumerName, EventStatus, MessageId, Pattern, Record, TableName, Template, Topic};
use postbox_testkit::Fuzz;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// What is accepted says itself in a text that is accepted as the same.
fn round<T: FromStr + Display + PartialEq + Debug>(text: &str) -> String
where
    T::Err: Display,
{
    match text.parse::<T>() {
        Ok(value) => {
            let again = value.to_string().parse::<T>().map_err(|error| error.to_string());
            assert_eq!(again.as_ref(), Ok(&value), "{text:?}");
            "ok".to_owned()
        }
        Err(error) => error.to_string().chars().take(30).collect(),
    }
}

#[test]
fn fuzz_names() {
    Fuzz::new(PACKAGE, "names").words(&["${", "}", "topic", ".v1", "*", ">", "public.", "\"\""]).run(
        |input| {
            let text = String::from_utf8_lossy(input);
            let answers = [
                round::<Topic>(&text),
                round::<TableName>(&text),
                round::<ConsumerName>(&text),
                round::<MessageId>(&text),
                text.parse::<Pattern>().map_or_else(|error| error.to_string(), |_| String::new()),
                text.parse::<Template>().map_or_else(|error| error.to_string(), |_| String::new()),
                text.parse::<EventStatus>().is_ok().to_string(),
            ];
            answers.map(|answer| answer.chars().take(24).collect::<String>()).join("|")
        },
    );
}

/// An error is stored as few bytes, in one line, and without what looks like a password.
#[test]
fn fuzz_errors() {
    Fuzz::new(PACKAGE, "errors").words(&["://", "@", ":", "password=", "token=", "Bearer "]).run(|input| {
        let text = String::from_utf8_lossy(input);
        let summary = Summary::new(&text, 100);
        assert!(summary.as_str().len() <= 100, "{summary:?}");
        assert!(!summary.as_str().contains(char::is_control), "{summary:?}");
        let masked = mask_credentials(&text);
        format!("{}{}", masked.matches("***").count(), summary.as_str().len() / 10)
    });
}

/// Whatever a caller makes an event of: it is one, or an error says why not.
#[test]
fn fuzz_records() {
    Fuzz::new(PACKAGE, "records").words(&["traceparent", "event_id", "00-", "[[[[", "{\"a\":"]).run(
        |input| {
            let text = String::from_utf8_lossy(input);
            let mut parts = text.split('\n');
            let mut part = || parts.next().unwrap_or_default();
            let Ok(topic) = Topic::parse(part().to_owned()) else { return "topic".to_owned() };
            let mut builder = Record::builder(topic).header(part(), part()).aggregate(part(), part());
            builder = builder.routing_key(part());
            let rest = parts.collect::<Vec<_>>().join("\n");
            builder = if rest.starts_with('%') {
                builder.bytes(rest, "text/plain")
            } else {
                builder.raw_json(rest)
            };
            match builder.build() {
                Ok(record) => format!("ok {}", record.headers.len()),
                Err(error) => error.to_string().chars().take(40).collect(),
            }
        },
    );
}
