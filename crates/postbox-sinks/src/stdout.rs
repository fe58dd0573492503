//! [`StdoutSink`] and [`NullSink`]: the sinks that keep nothing.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use postbox_core::{Delivery, DispatchError, Dispatcher, Receipts};
use tokio::sync::Mutex;

use crate::encode::encode_line;
use crate::record_all;

/// Writes events to standard output, one JSON line each (see [`encode_line`]); for pipes and for looking on.
///
/// An event counts as delivered when the operating system took it; whether the reader behind a pipe worked on it is
/// not known here. A closed pipe is an outage: the events wait.
///
/// ```
/// use postbox_core::{Dispatcher as _, testing::delivery};
/// use postbox_sinks::StdoutSink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), postbox_core::DispatchError> {
/// StdoutSink::new().dispatch(&delivery("org.organization.created.v1", r#"{"name":"Acme"}"#)).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
/// A dispatch that is dropped while it writes goes on to its end in the background; its events come again.
#[derive(Debug, Clone, Default)]
pub struct StdoutSink {
    // Held while a batch is written. A lock that can be waited for without a thread: when a reader stalls, one
    // thread hangs, not one for every batch.
    line: Arc<Mutex<Line>>,
}

/// Whether the last write broke off in the middle of a line.
#[derive(Debug, Default)]
struct Line {
    torn: bool,
}

impl StdoutSink {
    /// A sink to this process's standard output.
    pub fn new() -> Self {
        Self::default()
    }

    async fn write(&self, batch: &[Delivery]) -> Result<(), io::Error> {
        let mut lines = Vec::new();
        for delivery in batch {
            encode_line(delivery, &mut lines);
        }
        let mut line = Arc::clone(&self.line).lock_owned().await;
        tokio::task::spawn_blocking(move || line.write(&lines, &mut io::stdout().lock()))
            .await
            .unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
    }
}

impl Line {
    fn write(&mut self, lines: &[u8], out: &mut impl Write) -> io::Result<()> {
        if self.torn {
            // End the broken line, so that only that one is spoilt for the reader.
            write_counted(b"\n", out).1?;
            self.torn = false;
        }
        let (written, result) = write_counted(lines, out);
        self.torn = written > 0 && lines[written - 1] != b'\n';
        result?;
        out.flush()
    }
}

/// Like `write_all`, but says how far it came.
fn write_counted(bytes: &[u8], out: &mut impl Write) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match out.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

fn unavailable(error: io::Error) -> DispatchError {
    DispatchError::unavailable(StdoutError(error))
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
struct StdoutError(#[source] io::Error);

impl fmt::Display for StdoutSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stdout:")
    }
}

impl Dispatcher for StdoutSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        self.write(std::slice::from_ref(delivery)).await.map_err(unavailable)
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        record_all(self.write(batch).await.map_err(unavailable), receipts);
    }

    fn batch_limit(&self) -> usize {
        1000
    }
}

/// Discards every event and says that it arrived; for measuring the relay itself.
///
/// ```
/// use postbox_core::testing::MemoryOutbox;
/// use postbox_sinks::NullSink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let drained = MemoryOutbox::new().drain(NullSink).await;
/// assert_eq!(drained.delivered(), 0);
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct NullSink;

impl fmt::Display for NullSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("null:")
    }
}

impl Dispatcher for NullSink {
    async fn dispatch(&self, _: &Delivery) -> Result<(), DispatchError> {
        Ok(())
    }

    async fn dispatch_batch(&self, _: &[Delivery], receipts: &mut Receipts) {
        receipts.all_delivered();
    }

    fn batch_limit(&self) -> usize {
        10_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postbox_core::testing::delivery;

    /// Takes so many bytes, three at a time, then is full.
    struct Pipe {
        room: usize,
        got: Vec<u8>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(3).min(self.room);
            if n == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.room -= n;
            self.got.extend_from_slice(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_broke_off_is_ended_before_the_next() {
        let (mut line, mut pipe) = (Line::default(), Pipe { room: 10, got: Vec::new() });
        assert!(line.write(b"first\nsecond\n", &mut pipe).is_err());
        assert!(line.write(b"second\n", &mut pipe).is_err());
        pipe.room = 100;
        line.write(b"second\n", &mut pipe).unwrap();
        line.write(b"third\n", &mut pipe).unwrap();
        assert_eq!(String::from_utf8(pipe.got).unwrap(), "first\nseco\nsecond\nthird\n");
    }

    #[test]
    fn a_line_that_was_not_begun_leaves_no_trace() {
        let (mut line, mut pipe) = (Line::default(), Pipe { room: 6, got: Vec::new() });
        assert!(line.write(b"first\nsecond\n", &mut pipe).is_err());
        pipe.room = 100;
        line.write(b"second\n", &mut pipe).unwrap();
        assert_eq!(String::from_utf8(pipe.got).unwrap(), "first\nsecond\n");
    }

    #[test]
    fn a_closed_pipe_is_an_outage_that_says_what_it_is() {
        let error = unavailable(io::ErrorKind::BrokenPipe.into());
        assert_eq!(error.kind(), postbox_core::DispatchErrorKind::Unavailable);
        assert_eq!(error.to_string(), "OUTBOX_UNAVAILABLE: cannot write to standard output: broken pipe");
    }

    #[tokio::test]
    async fn null_says_that_all_arrived() {
        let batch = [delivery("a.b.c.v1", "1"), delivery("a.b.c.v1", "2")];
        let mut receipts = Receipts::new(2);
        NullSink.dispatch_batch(&batch, &mut receipts).await;
        assert_eq!(receipts.take().into_iter().filter(|(_, outcome)| outcome.is_ok()).count(), 2);
        NullSink.dispatch(&batch[0]).await.unwrap();
    }
}
