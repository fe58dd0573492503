//! [`RelayError`]: why a relay cannot be built, started or used.

use crate::code::Code;
use crate::dispatcher::DispatchError;
use crate::route::PatternError;
use crate::store::StoreError;
use crate::template::TemplateError;

/// Why a relay cannot be built, started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// A setting, or a combination, cannot work.
    #[error("{code}: {0}", code = Code::ConfigInvalid)]
    Settings(String),
    /// A route's pattern is malformed.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A route's destination is malformed.
    #[error(transparent)]
    Destination(#[from] TemplateError),
    /// A route leads to a sink that does not exist.
    #[error("{}: the route {pattern:?} leads to the sink {name:?}, which does not exist", Code::RouteInvalid)]
    UnknownSink {
        /// The route's pattern.
        pattern: String,
        /// The sink's name.
        name: String,
    },
    /// A route names a sink twice.
    #[error("{}: the route {pattern:?} names the sink {name:?} twice", Code::RouteInvalid)]
    RepeatedSink {
        /// The route's pattern.
        pattern: String,
        /// The sink's name.
        name: String,
    },
    /// Two sinks have one name: which of them has confirmed an event could not be told.
    #[error("{}: two sinks are named {name:?}: give each its own name", Code::RouteInvalid)]
    DuplicateSink {
        /// The name.
        name: String,
    },
    /// A dispatcher is not put together right.
    #[error(transparent)]
    Dispatcher(DispatchError),
    /// It was closed before.
    #[error("{}: the relay was closed", Code::Closed)]
    Closed,
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The relay's own task panicked.
    #[error("the relay panicked: {0}")]
    Panicked(String),
}

impl RelayError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Settings(_) => Code::ConfigInvalid,
            Self::Pattern(_)
            | Self::Destination(_)
            | Self::UnknownSink { .. }
            | Self::RepeatedSink { .. }
            | Self::DuplicateSink { .. } => Code::RouteInvalid,
            Self::Dispatcher(error) => error.code(),
            Self::Closed => Code::Closed,
            Self::Store(error) => error.code(),
            Self::Panicked(_) => Code::Panicked,
        }
    }
}
