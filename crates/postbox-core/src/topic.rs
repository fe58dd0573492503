//! [`Topic`]: what an event is, as a name that routes can match.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::code::Code;

/// The name of a kind of event: `<module>.<aggregate>.<event>.vN`, such as `org.organization.created.v1`.
///
/// Lower case, characters `[a-z0-9.-]`, fewer than 128 of them. A breaking change of the payload gets a new `vN`.
///
/// ```
/// use postbox_core::Topic;
///
/// const CREATED: Topic = Topic::from_static("org.organization.created.v1"); // checked at compile time
/// assert_eq!(CREATED.version(), Some(1));
/// assert!(Topic::parse("Org.Created").is_err());
/// assert!(Topic::lenient("Org.Created").is_ok()); // names of another system
/// ```
#[derive(Clone)]
pub struct Topic(Text);

/// Its name; many events share one, and each is cloned several times on its way.
#[derive(Clone)]
enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

/// Why a text is not a topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: topic {shown:?}: {problem}", Code::TopicInvalid)]
pub struct TopicError {
    shown: String,
    problem: &'static str,
}

const STRICT_LIMIT: usize = 128;
const LENIENT_LIMIT: usize = 255;

impl Topic {
    /// Parses a topic of the standard form.
    ///
    /// # Errors
    /// When the text does not have the form `<module>.<aggregate>.<event>.vN`.
    pub fn parse(text: impl AsRef<str> + Into<Arc<str>>) -> Result<Self, TopicError> {
        match strict_problem(text.as_ref().as_bytes()) {
            None => Ok(Self(Text::Shared(text.into()))),
            Some(problem) => Err(TopicError::new(text.as_ref(), problem)),
        }
    }

    /// A topic known when the program is built; a wrong one does not compile when used in a `const`.
    ///
    /// # Panics
    /// When the text is not a topic of the standard form.
    pub const fn from_static(text: &'static str) -> Self {
        match strict_problem(text.as_bytes()) {
            None => Self(Text::Static(text)),
            Some(problem) => panic!("{}", problem),
        }
    }

    /// Accepts names of existing systems: anything of 1 to 255 bytes without control characters.
    ///
    /// # Errors
    /// When the text is empty, too long or holds a control character.
    pub fn lenient(text: impl AsRef<str> + Into<Arc<str>>) -> Result<Self, TopicError> {
        let name = text.as_ref();
        let problem = if name.is_empty() {
            "it is empty"
        } else if name.len() > LENIENT_LIMIT {
            "it is longer than 255 bytes"
        } else if name.chars().any(char::is_control) {
            "it holds a control character"
        } else {
            return Ok(Self(Text::Shared(text.into())));
        };
        Err(TopicError::new(name, problem))
    }

    /// The topic as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }

    /// Refuses to compile an enum of events with a topic twice. What `#[derive(Event)]` writes calls it in a constant.
    #[doc(hidden)]
    pub const fn all_different(topics: &[Self]) {
        let mut i = 0;
        while i < topics.len() {
            let mut k = 0;
            while k < i {
                assert!(!topics[i].is(&topics[k]), "two variants hold events of the same topic");
                k += 1;
            }
            i += 1;
        }
    }

    const fn is(&self, other: &Self) -> bool {
        let (a, b) = (self.bytes(), other.bytes());
        let mut i = 0;
        while i < a.len() && i < b.len() && a[i] == b[i] {
            i += 1;
        }
        i == a.len() && i == b.len()
    }

    const fn bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Static(text) => text.as_bytes(),
            Text::Shared(_) => {
                panic!("only topics that are known when the program is built are compared here")
            }
        }
    }

    /// The `N` of the last segment `vN`; none for a lenient topic without one.
    pub fn version(&self) -> Option<u32> {
        self.as_str().rsplit('.').next()?.strip_prefix('v')?.parse().ok()
    }
}

/// What is wrong with a topic of the standard form. `const`, so that `from_static` can run in the compiler.
const fn strict_problem(text: &[u8]) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() >= STRICT_LIMIT {
        return Some("it has 128 characters or more");
    }
    let (mut i, mut start, mut segments) = (0, 0, 0);
    while i <= text.len() {
        if i == text.len() || text[i] == b'.' {
            if i == start {
                return Some("it has an empty segment");
            }
            segments += 1;
            if i == text.len() {
                if !is_version(text, start) {
                    return Some("its last segment is not a version such as v1");
                }
                break;
            }
            start = i + 1;
        } else if !matches!(text[i], b'a'..=b'z' | b'0'..=b'9' | b'-') {
            return Some("only lower case letters, digits, dots and hyphens may occur");
        }
        i += 1;
    }
    if segments < 4 { Some("it needs the form <module>.<aggregate>.<event>.vN") } else { None }
}

const fn is_version(text: &[u8], start: usize) -> bool {
    if text[start] != b'v' || start + 1 >= text.len() || text[start + 1] == b'0' || text.len() - start > 9 {
        return false;
    }
    let mut i = start + 1;
    while i < text.len() {
        if !text[i].is_ascii_digit() {
            return false;
        }
        i += 1;
    }
    true
}

impl TopicError {
    fn new(text: &str, problem: &'static str) -> Self {
        let mut shown: String = text.chars().take(64).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Self { shown, problem }
    }

    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::TopicInvalid
    }
}

impl PartialEq for Topic {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Topic {}

impl Hash for Topic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for Topic {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Topic {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Topic").field(&self.as_str()).finish()
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AsRef<str> for Topic {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl FromStr for Topic {
    type Err = TopicError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::parse(s)
    }
}

impl TryFrom<&str> for Topic {
    type Error = TopicError;
    fn try_from(s: &str) -> Result<Self, Self::Error> {
        Self::parse(s)
    }
}

impl Serialize for Topic {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Topic {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::lenient(String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::Topic;
    use proptest::prelude::*;

    #[test]
    fn accepts_the_standard_form() {
        for good in ["org.organization.created.v1", "a.b.c.v12", "org.sub-unit.member.added.v3", "1.2.3.v4"] {
            assert!(Topic::parse(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn refuses_everything_else_and_says_why() {
        let long = format!("a.b.{}.v1", "c".repeat(121));
        for bad in [
            "",
            "org",
            "a.b.v1",
            "a.b.c.d",
            "A.b.c.v1",
            "a..c.v1",
            "a.b.c.v",
            "a.b.c.v0",
            "a.b.c.v1 ",
            "a b.c.d.v1",
            "ä.b.c.v1",
            "a.b.c.v1\n",
            &long,
        ] {
            let error = Topic::parse(bad).unwrap_err().to_string();
            assert!(error.starts_with("OUTBOX_TOPIC_INVALID: topic "), "{error}");
        }
        assert_eq!(format!("a.b.{}.v1", "c".repeat(120)).len(), 127);
        assert!(Topic::parse(format!("a.b.{}.v1", "c".repeat(120))).is_ok());
    }

    proptest! {
        #[test]
        fn parse_never_panics_and_keeps_its_promise(text in "\\PC{0,140}") {
            if let Ok(topic) = Topic::parse(text.clone()) {
                prop_assert!(topic.as_str().len() < 128);
                prop_assert!(topic.as_str().bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-')));
                prop_assert!(topic.version().is_some());
                prop_assert!(topic.as_str().split('.').count() >= 4);
            }
            let _ = Topic::lenient(text);
        }

        #[test]
        fn every_topic_of_the_form_is_accepted(m in "[a-z0-9-]{1,20}", a in "[a-z0-9-]{1,20}", e in "[a-z0-9-]{1,20}", v in 1u32..9999) {
            let text = format!("{m}.{a}.{e}.v{v}");
            prop_assert!(Topic::parse(text).is_ok());
        }
    }
}
