//! [`Token`]: what tells one claim from all others.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A claim's token: a text that all its rows share. Made of any text with `into()`, read as a `str`.
#[derive(Clone)]
pub struct Token {
    text: Arc<str>,
    /// Hash of the text. A relay tells claims apart several times for each event; to compare texts would touch the allocation whose
    /// reference count all tasks change.
    hash: u64,
}

impl Token {
    /// The same for the same text, and hardly ever for another.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        Self { text: text.into(), hash: crate::hash::of(text.as_bytes()) }
    }
}

impl From<String> for Token {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl Deref for Token {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.text, &other.text) || self.text == other.text)
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn tokens_are_their_text() {
        let token = Token::from("own/1");
        assert_eq!(&*token, "own/1");
        assert_eq!(format!("{token:?}"), r#""own/1""#);
        assert_eq!((&token, token.hash()), (&Token::from("own/1".to_owned()), token.clone().hash()));
        assert_ne!(token, Token::from("own/2"));
    }
}
