//! [`Call`]: what makes two requests one.

use std::fmt;

use crate::code::Code;

/// A call that may come again: who calls what, by which key, with which content.
///
/// ```
/// use postbox_core::idempotency::{Call, Fingerprint};
///
/// let call = Call::new("acme", "POST /orders", "8e03978e-40d5-43e8-bc93-6894a57f9324", Fingerprint::new([7; 32]))?;
/// assert_eq!(call.route(), "POST /orders");
/// # Ok::<(), postbox_core::idempotency::CallError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    principal: String,
    route: String,
    key: String,
    fingerprint: Fingerprint,
}

/// A SHA-256 of everything in a request that must be equal for it to be the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// From the digest.
    pub const fn new(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The digest.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("…")
    }
}

/// Why there is no such call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: the {part} of a call {problem}", Code::FieldInvalid)]
pub struct CallError {
    part: &'static str,
    problem: String,
}

impl Call {
    /// The longest principal, in bytes: with the others, what fits into the key of every database's table.
    pub const PRINCIPAL_LIMIT: usize = 256;
    /// The longest route.
    pub const ROUTE_LIMIT: usize = 512;
    /// The longest key.
    pub const KEY_LIMIT: usize = 255;

    /// A call. Keys of one principal and route are apart from those of all others; a principal may be empty where there is only
    /// one.
    ///
    /// # Errors
    /// When a part is too long or has control characters, or the key is empty.
    pub fn new(
        principal: impl Into<String>,
        route: impl Into<String>,
        key: impl Into<String>,
        fingerprint: Fingerprint,
    ) -> Result<Self, CallError> {
        let call = Self { principal: principal.into(), route: route.into(), key: key.into(), fingerprint };
        for (part, text, limit) in [
            ("principal", &call.principal, Self::PRINCIPAL_LIMIT),
            ("route", &call.route, Self::ROUTE_LIMIT),
            ("key", &call.key, Self::KEY_LIMIT),
        ] {
            let refuse = |problem: String| Err(CallError { part, problem });
            if text.len() > limit {
                return refuse(format!("has {} bytes, the limit is {limit}", text.len()));
            }
            if text.chars().any(char::is_control) {
                return refuse("has control characters".to_owned());
            }
        }
        if call.key.is_empty() {
            return Err(CallError { part: "key", problem: "is empty".to_owned() });
        }
        Ok(call)
    }

    /// Who calls.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// What is called.
    pub fn route(&self) -> &str {
        &self.route
    }

    /// The key that the caller chose.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What it contains.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl CallError {
    /// The stable code.
    pub const fn code(&self) -> Code {
        Code::FieldInvalid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_table_could_hold_is_refused() {
        let call = |principal: &str, route: &str, key: &str| {
            Call::new(principal, route, key, Fingerprint::new([0; 32])).map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(call("", "POST /", "k"), Ok(()));
        assert_eq!(call(&"p".repeat(256), &"r".repeat(512), &"k".repeat(255)), Ok(()));
        for (refused, word) in [
            (call("", "POST /", ""), "empty"),
            (call("a\0b", "POST /", "k"), "control"),
            (call("", "POST /", &"k".repeat(256)), "the limit is 255"),
            (call(&"p".repeat(257), "POST /", "k"), "principal"),
            (call("", &"r".repeat(513), "k"), "route"),
        ] {
            let error = refused.unwrap_err();
            assert!(error.starts_with("OUTBOX_FIELD_INVALID") && error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_fingerprint_is_shown_by_its_beginning() {
        assert_eq!(format!("{:?}", Fingerprint::new([0xab; 32])), "abababab…");
    }
}
