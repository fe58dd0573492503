//! [`Json`]: JSON carried as text, digit for digit, never through a floating point number.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON value as the text that was written.
///
/// Serialised once when an event is built, and handed on as it is:
///
/// ```
/// use postbox_core::Json;
///
/// let json = Json::from_text("12345678901234567890.50")?;
/// assert_eq!(json.as_str(), "12345678901234567890.50");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Box<str>);

impl Json {
    /// Serialises any serde value.
    ///
    /// # Errors
    /// When the value refuses to be serialised.
    pub fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(|text| Self(text.into_boxed_str()))
    }

    /// Takes text that is JSON already.
    ///
    /// # Errors
    /// When the text is not one JSON value.
    pub fn from_text(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        serde_json::from_str::<&RawValue>(&text)?;
        Ok(Self(text.into_boxed_str()))
    }

    /// Takes text that a database has already checked to be JSON, such as the output of a JSONB column.
    pub fn trusted(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Decodes it into a type.
    ///
    /// # Errors
    /// When the value does not have the type's shape.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

impl fmt::Debug for Json {
    // Payloads do not belong into logs, and `{:?}` is how they would get there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(s)
    }
}

/// What makes valid JSON unfit for some database (hazard 43).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("it is nested deeper than {limit} levels")]
    TooDeep { limit: usize },
    #[error("a string holds \\u0000, which PostgreSQL cannot store")]
    Nul,
    #[error("a string holds half of a surrogate pair")]
    LoneSurrogate,
    #[error("a number takes more than {limit} bytes when written out")]
    HugeNumber { limit: usize },
}

/// Walks over valid JSON text once and looks for what databases refuse, change or inflate.
pub(crate) fn check(text: &str, max_depth: usize, max_bytes: usize) -> Result<(), Unfit> {
    let bytes = text.as_bytes();
    let (mut i, mut depth, mut inflated) = (0, 0_usize, 0_usize);
    while i < bytes.len() {
        match bytes[i] {
            b'{' | b'[' => {
                depth += 1;
                if depth > max_depth {
                    return Err(Unfit::TooDeep { limit: max_depth });
                }
                i += 1;
            }
            b'}' | b']' => {
                depth -= 1;
                i += 1;
            }
            b'"' => i = check_string(bytes, i + 1)?,
            b'-' | b'0'..=b'9' => {
                let end = bytes[i..].iter().position(|b| !is_number_byte(*b)).map_or(bytes.len(), |n| i + n);
                inflated = inflated.saturating_add(written_out(&text[i..end]));
                if inflated > max_bytes {
                    return Err(Unfit::HugeNumber { limit: max_bytes });
                }
                i = end;
            }
            _ => i += 1,
        }
    }
    Ok(())
}

fn is_number_byte(b: u8) -> bool {
    matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
}

/// How long a number with an exponent becomes when it is stored as a decimal: `1e131071` is 131,072 digits.
fn written_out(number: &str) -> usize {
    let Some((digits, exponent)) = number.split_once(['e', 'E']) else { return 0 };
    let magnitude = exponent.trim_start_matches(['+', '-']).parse::<usize>().unwrap_or(usize::MAX);
    digits.len().saturating_add(magnitude)
}

/// Checks one string from behind its opening quote; answers the place behind its closing one.
fn check_string(bytes: &[u8], mut i: usize) -> Result<usize, Unfit> {
    let unit = |at: usize| -> Option<u16> {
        let hex = std::str::from_utf8(bytes.get(at..at + 4)?).ok()?;
        u16::from_str_radix(hex, 16).ok()
    };
    while i < bytes.len() {
        match bytes[i] {
            b'"' => return Ok(i + 1),
            b'\\' if bytes.get(i + 1) == Some(&b'u') => match unit(i + 2) {
                Some(0) => return Err(Unfit::Nul),
                Some(0xD800..=0xDBFF) => {
                    let low = (bytes.get(i + 6..i + 8) == Some(b"\\u")).then(|| unit(i + 8)).flatten();
                    if !matches!(low, Some(0xDC00..=0xDFFF)) {
                        return Err(Unfit::LoneSurrogate);
                    }
                    i += 12;
                }
                Some(0xDC00..=0xDFFF) => return Err(Unfit::LoneSurrogate),
                _ => i += 6,
            },
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
    Ok(i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(text: &str) -> Result<(), Unfit> {
        Json::from_text(text).expect("valid JSON");
        check(text, 128, 1 << 20)
    }

    #[test]
    fn hazard_43_what_databases_refuse_or_inflate_is_found() {
        assert_eq!(verdict(r#"{"a":"\u0000"}"#), Err(Unfit::Nul));
        assert_eq!(verdict(r#"{"\u0000":1}"#), Err(Unfit::Nul));
        assert_eq!(verdict(r#"["\\u0000"]"#), Ok(()));
        assert_eq!(verdict(r#"["\ud800"]"#), Err(Unfit::LoneSurrogate));
        assert_eq!(verdict(r#"["\udc00\ud800"]"#), Err(Unfit::LoneSurrogate));
        assert_eq!(verdict(r#"["\ud83d\ude00"]"#), Ok(()));
        assert_eq!(verdict(&format!("{}1{}", "[".repeat(128), "]".repeat(128))), Ok(()));
        let deep = format!("{}1{}", "[".repeat(129), "]".repeat(129));
        assert_eq!(check(&deep, 128, 1 << 20), Err(Unfit::TooDeep { limit: 128 }));
        assert_eq!(verdict("1e9999999"), Err(Unfit::HugeNumber { limit: 1 << 20 }));
        assert_eq!(verdict("[1e5, -2.5E-3, 12345678901234567890.5]"), Ok(()));
        assert_eq!(verdict(r#"{"quoted \" [[[": "1e99999999"}"#), Ok(()));
    }

    #[test]
    fn debug_shows_no_content() {
        let json = Json::from_value("secret").unwrap();
        assert_eq!(format!("{json:?}"), "Json(8 bytes)");
    }

    proptest! {
        #[test]
        fn any_string_that_serde_writes_passes_unless_it_holds_nul(s in any::<String>()) {
            let json = Json::from_value(&s).unwrap();
            prop_assert_eq!(check(json.as_str(), 128, 1 << 20).is_err(), s.contains('\0'));
        }
    }
}
