//! [`StoreError`]: why a store could not do what it was asked, and what can be done about it.

use std::fmt;

use crate::code::Code;

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct StoreError {
    code: Code,
    kind: StoreErrorKind,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of failure it is: what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The connection was lost or could not be made; the result is unknown.
    Connection,
    /// A deadlock or a serialisation failure: the same again may work.
    Conflict,
    /// It will fail again until someone changes something.
    Refused,
}

impl StoreError {
    /// An error with a code, a kind and a message for people.
    pub fn new(code: Code, kind: StoreErrorKind, message: impl fmt::Display) -> Self {
        Self { code, kind, message: message.to_string(), source: None }
    }

    /// The same with its cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What can be done about it.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// The message, without the code in front.
    pub fn message(&self) -> &str {
        &self.message
    }
}
