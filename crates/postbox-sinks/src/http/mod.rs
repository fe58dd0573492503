//! The webhook sink: a request for each event.
//!
//! - **Confirmed** by a `2xx` answer; what every other answer means is listed in `error.rs` and in the book.
//! - **Signed** as [Standard Webhooks](https://www.standardwebhooks.com) says, with one key or several.
//! - **Guarded.** Only addresses of the public internet are sent to, unless others are allowed; every address that a name
//!   resolves to is judged, and those are the ones that are connected to. Redirects are not followed, proxies of the
//!   environment not used.
//! - **In order** for events of one message key within a batch; different keys go side by side.
//! - **Outages.** A receiver that cannot be reached is "unavailable": its events wait and spend no attempt.

mod client;
mod config;
mod error;
mod guard;
mod headers;
mod request;
mod resolve;
mod retry_after;
mod sign;
mod sink;
mod target;
#[cfg(test)]
mod tests;

pub use sink::HttpSink;
