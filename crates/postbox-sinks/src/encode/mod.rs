//! The forms that an event takes outside: a line of JSON for files and pipes, a message for brokers and webhooks.
//!
//! - [`encode_line`]: one JSON object on one line.
//! - [`standard_headers`]: what every message says about its event beside the payload.
//! - [`Encoding`]: a whole [`Message`], as CloudEvents where that is asked for.

mod cloudevents;
mod headers;
mod line;
mod message;

pub use cloudevents::{Binding, CloudEvents};
#[cfg(feature = "http")]
pub(crate) use headers::is_standard;
pub use headers::{Header, standard_headers};
pub(crate) use line::LINE_START;
pub use line::encode_line;
pub use message::{Encoding, Message};
