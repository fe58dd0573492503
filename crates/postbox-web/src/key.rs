//! The header field: a string in quotes, as the IETF draft has it, or a bare word, as most clients send it.

use std::ops::RangeInclusive;

use axum::http::{HeaderMap, HeaderName};

use crate::problem::{Problem, ProblemKind};

/// Reads the key of a request; none if it has none.
pub(crate) fn read(
    headers: &HeaderMap,
    name: &HeaderName,
    lengths: &RangeInclusive<usize>,
) -> Result<Option<String>, Problem> {
    let refuse = |why: String| Err(Problem::new(ProblemKind::KeyInvalid, format!("{name}: {why}")));
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return refuse("the field is there more than once".to_owned());
    }
    match parse(value.as_bytes()) {
        Err(why) => refuse(why.to_owned()),
        Ok(key) if !lengths.contains(&key.len()) => {
            let (least, most) = (lengths.start(), lengths.end());
            refuse(format!("the key has {} characters, {least} to {most} are allowed", key.len()))
        }
        Ok(key) => Ok(Some(key)),
    }
}

fn parse(value: &[u8]) -> Result<String, &'static str> {
    let value = value.trim_ascii();
    match value.split_first() {
        None => Err("it is empty"),
        Some((b'"', rest)) => quoted(rest),
        Some(_) => bare(value),
    }
}

/// What follows the opening quote of a string as in RFC 9651.
fn quoted(rest: &[u8]) -> Result<String, &'static str> {
    let mut key = String::with_capacity(rest.len());
    let mut bytes = rest.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if bytes.len() == 0 && !key.is_empty() => return Ok(key),
            b'"' if key.is_empty() => return Err("the key is empty"),
            b'"' => return Err("something follows the closing quote"),
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => key.push(char::from(escaped)),
                _ => return Err("a backslash may only stand before a quote or a backslash"),
            },
            0x20..=0x7e => key.push(char::from(byte)),
            _ => return Err("only printable ASCII characters may occur"),
        }
    }
    Err("the closing quote is missing")
}

/// A word without quotes: ids of every kind, but nothing that separates or quotes.
fn bare(value: &[u8]) -> Result<String, &'static str> {
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:+/=@!#$%&'*^`|".contains(byte);
    if !value.iter().all(good) {
        return Err("a key with such characters must stand in quotes");
    }
    Ok(value.iter().copied().map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use postbox_core::idempotency::Call;
    use proptest::prelude::*;

    fn read_one(value: &[u8]) -> Result<Option<String>, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_bytes(value).unwrap());
        read(&headers, &HeaderName::from_static("idempotency-key"), &(1..=Call::KEY_LIMIT))
    }

    #[test]
    fn keys_come_in_quotes_or_bare() {
        for (value, key) in [
            (&br#""8e03978e-40d5-43e8-bc93-6894a57f9324""#[..], "8e03978e-40d5-43e8-bc93-6894a57f9324"),
            (b"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
            (b" order:7/a=b ", "order:7/a=b"),
            (br#""two words, \"quoted\" \\ ""#, r#"two words, "quoted" \ "#),
        ] {
            assert_eq!(read_one(value).unwrap().as_deref(), Some(key));
        }
        for bad in [
            &b""[..],
            b"  ",
            br#""""#,
            br#"""#,
            br#""open"#,
            br#""a"b"#,
            br#""a";p=1"#,
            br#""a", "b""#,
            br#""a\b""#,
            b"\"\xc3\xa4\"",
            b"a b",
            b"a,b",
            b"a\"b",
            "k".repeat(256).as_bytes(),
        ] {
            let problem = read_one(bad).unwrap_err();
            assert_eq!(problem.kind(), ProblemKind::KeyInvalid, "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn two_keys_are_none() {
        let mut headers = HeaderMap::new();
        let name = HeaderName::from_static("idempotency-key");
        assert!(read(&headers, &name, &(1..=Call::KEY_LIMIT)).unwrap().is_none());
        headers.append(&name, HeaderValue::from_static("a"));
        assert_eq!(
            read(&headers, &name, &(2..=Call::KEY_LIMIT)).unwrap_err().kind(),
            ProblemKind::KeyInvalid
        );
        headers.append(&name, HeaderValue::from_static("a"));
        assert_eq!(
            read(&headers, &name, &(1..=Call::KEY_LIMIT)).unwrap_err().kind(),
            ProblemKind::KeyInvalid
        );
    }

    proptest! {
        #[test]
        fn every_printable_key_survives_its_quotes(key in "[ -~]{1,255}") {
            let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
            prop_assert_eq!(read_one(quoted.as_bytes()).unwrap(), Some(key));
        }
    }
}
