//! [`ConsumerName`]: who has a memory of its own.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::code::Code;

/// The name of a consumer: each has a memory of its own, so that a message can have one effect in each of them.
///
/// Lower case letters, digits, dots, hyphens and underscores, at most 127, with a letter or digit in front. It is part of the key
/// of what was seen: a consumer that is renamed has seen nothing.
///
/// ```
/// use postbox_core::ConsumerName;
///
/// static STOCK: ConsumerName = ConsumerName::from_static("warehouse.stock"); // checked when it is compiled
/// assert_eq!(STOCK.as_str(), "warehouse.stock");
/// assert!("Stock Service".parse::<ConsumerName>().is_err());
/// # Ok::<(), postbox_core::ConsumerNameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerName(Cow<'static, str>);

/// Why a text is not the name of a consumer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: consumer {shown:?}: {problem}", Code::ConsumerInvalid)]
pub struct ConsumerNameError {
    shown: String,
    problem: &'static str,
}

const LIMIT: usize = 127;

impl ConsumerName {
    /// A name known when the program is built; a wrong one does not compile when used in a `static` or `const`.
    ///
    /// # Panics
    /// When the text is not a name of a consumer.
    pub const fn from_static(text: &'static str) -> Self {
        match problem(text.as_bytes()) {
            None => Self(Cow::Borrowed(text)),
            Some(problem) => panic!("{}", problem),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is wrong with a name. `const`, so that `from_static` can run in the compiler.
const fn problem(text: &[u8]) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > LIMIT {
        return Some("it is longer than 127 characters");
    }
    let mut i = 0;
    while i < text.len() {
        match text[i] {
            b'a'..=b'z' | b'0'..=b'9' => {}
            b'.' | b'-' | b'_' if i > 0 => {}
            b'.' | b'-' | b'_' => return Some("it does not start with a letter or a digit"),
            _ => return Some("only lower case letters, digits, dots, hyphens and underscores may occur"),
        }
        i += 1;
    }
    None
}

impl FromStr for ConsumerName {
    type Err = ConsumerNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match problem(text.as_bytes()) {
            None => Ok(Self(Cow::Owned(text.to_owned()))),
            Some(problem) => {
                let shown = text.chars().take(64).collect::<String>().escape_debug().to_string();
                Err(ConsumerNameError { shown, problem })
            }
        }
    }
}

impl ConsumerNameError {
    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::ConsumerInvalid
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::ConsumerName;

    #[test]
    fn names_are_checked() {
        for good in ["a", "stock", "warehouse.stock-2", "9_a", &"a".repeat(127)] {
            assert_eq!(good.parse::<ConsumerName>().unwrap().to_string(), good);
        }
        for bad in ["", ".a", "-a", "_a", "Stock", "a b", "a'b", "a\0", "ä", "a/b", &"a".repeat(128)] {
            let error = bad.parse::<ConsumerName>().unwrap_err().to_string();
            assert!(error.starts_with("OUTBOX_CONSUMER_INVALID: "), "{error}");
            assert!(!error.contains('\0') && error.len() < 300, "{error}");
        }
    }
}
