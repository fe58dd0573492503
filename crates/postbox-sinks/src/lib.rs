//! Where Postbox delivers events outside of the process: brokers, webhooks, files, standard output, nowhere.
//!
//! A sink is a [`Dispatcher`](postbox_core::Dispatcher). The program chooses one by its URL and options
//! ([`AnySink::new`]); a service takes one by its type. Each sink that needs a client library is a cargo feature.
//!
//! - [`mod@file`] – JSON lines in a file: durable, safe with several writers, repairs what a crash left behind.
//! - [`stdout`] – JSON lines to a pipe, and [`NullSink`], which discards.
//! - [`encode`] – the form of a line, and of a message: headers, CloudEvents.
//! - [`options`] and [`address`] – what a sink is told, checked; [`destination`] – where at a broker an event goes.
//! - [`url`] – which sink a URL means.

use std::sync::Arc;

use postbox_core::{DispatchError, Receipts};

pub mod address;
pub mod destination;
pub mod encode;
pub mod file;
pub mod options;
pub mod stdout;
pub mod url;

pub use destination::Destination;
pub use encode::{CloudEvents, Encoding, Message, encode_line, standard_headers};
pub use file::FileSink;
pub use options::Options;
pub use stdout::{NullSink, StdoutSink};
pub use url::{AnySink, SinkError};

/// Gives all events of a batch the one outcome that their common write had.
fn record_all<E>(
    outcome: Result<(), Arc<E>>,
    to_error: impl Fn(Arc<E>) -> DispatchError,
    len: usize,
    receipts: &mut Receipts,
) {
    match outcome {
        Ok(()) => receipts.all_delivered(),
        Err(error) => {
            for index in 0..len {
                receipts.record(index, Err(to_error(Arc::clone(&error))));
            }
        }
    }
}
