//! Panics become text: a handler's panic is an error like any other (hazard 22).

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, UnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Runs a future; a panic inside of it becomes its message.
pub(crate) async fn catch<F: Future + UnwindSafe>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        // Whatever the panic left half done inside the future is dropped with it.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(message(&*panic))),
        }
    })
    .await
}

/// The message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
