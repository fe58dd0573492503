//! [`FileSink`]: the asynchronous face of the file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postbox_core::{Delivery, DispatchError, Dispatcher, Receipts};
use tokio::sync::Mutex;

use super::append::{Appender, FileError};
use crate::encode::encode_line;
use crate::record_all;

/// Appends events to a file, one JSON line each (see [`encode_line`]); what it acknowledges is on disk.
///
/// Clones share the open file. Several sinks may name the same file, also in several processes.
///
/// ```
/// use postbox_core::{Dispatcher as _, testing::delivery};
/// use postbox_sinks::FileSink;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let directory = tempfile::tempdir()?;
/// let sink = FileSink::open(directory.path().join("events.jsonl"));
/// sink.dispatch(&delivery("org.organization.created.v1", r#"{"name":"Acme"}"#)).await?;
/// assert!(std::fs::read_to_string(sink.path())?.ends_with("\"payload\":{\"name\":\"Acme\"}}\n"));
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// A dispatch that is dropped while it waits for its turn writes nothing. One that is dropped while it writes goes
/// on to its end in the background: its events may be in the file although nobody was told, and come again, which is
/// what at least once means.
#[derive(Debug, Clone)]
pub struct FileSink {
    path: PathBuf,
    // Held while a batch is written. A lock that can be waited for without a thread: when a disk hangs, one thread
    // hangs with it, not one for every batch.
    appender: Arc<Mutex<Appender>>,
}

impl FileSink {
    /// A sink to the file at this path, which is opened, and made where it does not exist, at the first delivery: a
    /// directory that is missing is an outage like any other and ends when somebody makes it.
    pub fn open(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { appender: Arc::new(Mutex::new(Appender::new(path.clone()))), path }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file now, to learn at start whether it can be written to.
    ///
    /// # Errors
    /// Unavailable, with the path and the operating system's words.
    ///
    /// # Cancel safety
    /// Cancel safe: the file may have been made, nothing else.
    pub async fn check(&self) -> Result<(), DispatchError> {
        self.run(Appender::check).await.map_err(DispatchError::unavailable)
    }

    async fn append(&self, batch: &[Delivery]) -> Result<(), FileError> {
        const ENVELOPE: usize = 512;
        let room = batch.iter().map(|delivery| ENVELOPE + delivery.payload.len()).sum();
        let mut lines = Vec::with_capacity(room);
        for delivery in batch {
            encode_line(delivery, &mut lines);
        }
        self.run(move |appender| appender.append(&lines)).await
    }

    async fn run(
        &self,
        work: impl FnOnce(&mut Appender) -> Result<(), FileError> + Send + 'static,
    ) -> Result<(), FileError> {
        let mut appender = Arc::clone(&self.appender).lock_owned().await;
        tokio::task::spawn_blocking(move || work(&mut appender))
            .await
            .unwrap_or_else(|stopped| Err(FileError::new("write to", &self.path, io::Error::other(stopped))))
    }
}

impl fmt::Display for FileSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file:{}", self.path().display())
    }
}

impl Dispatcher for FileSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        self.append(std::slice::from_ref(delivery)).await.map_err(DispatchError::unavailable)
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        record_all(self.append(batch).await.map_err(DispatchError::unavailable), receipts);
    }

    fn batch_limit(&self) -> usize {
        1000
    }
}
