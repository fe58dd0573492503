//! Where Postbox delivers events outside of the process: files, standard output, nowhere.
//!
//! A sink is a [`Dispatcher`](postbox_core::Dispatcher). The program chooses one by its URL ([`AnySink::from_url`]);
//! a service takes one by its type.
//!
//! - [`mod@file`] – JSON lines in a file: durable, safe with several writers, repairs what a crash left behind.
//! - [`stdout`] – JSON lines to a pipe, and [`NullSink`], which discards.
//! - [`encode`] – the form of a line.
//! - [`url`] – which sink a URL means.

use std::sync::Arc;

use postbox_core::{DispatchError, Receipts};

pub mod encode;
pub mod file;
pub mod stdout;
pub mod url;

pub use encode::encode_line;
pub use file::FileSink;
pub use stdout::{NullSink, StdoutSink};
pub use url::{AnySink, SinkUrlError};

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
