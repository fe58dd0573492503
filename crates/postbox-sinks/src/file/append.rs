//! [`Appender`]: whole lines at the end of a file that others write to as well. Blocking.

use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::encode::LINE_START;

/// How long another writer may hold the file. A stopped process would else hold this one's shutdown up for ever.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// How often a file may be rotated away while it is being opened.
const OPENINGS: usize = 5;
const BLOCK: usize = 64 << 10;

/// What the operating system refused to do with the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub(super) struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl FileError {
    pub(super) fn new(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self { action, path: path.to_owned(), source }
    }
}

/// One writer to the end of a file.
#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    /// Taken out while it is used: after an error it is closed, which also gives its lock back, and opened anew.
    file: Option<File>,
    lock_wait: Duration,
}

impl Appender {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, lock_wait: LOCK_WAIT }
    }

    /// Opens the file if it is not open.
    pub(super) fn check(&mut self) -> Result<(), FileError> {
        if self.file.is_none() {
            self.file = Some(self.open()?);
        }
        Ok(())
    }

    /// Appends lines, which end with a newline. They are on disk when this answers `Ok`; otherwise the file is as
    /// it was, as far as the operating system allows.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), FileError> {
        let mut file = self.lock()?;
        let metadata = file.metadata().map_err(|e| self.error("look at", e))?;
        if metadata.is_file() {
            let end = self.mend(&mut file, metadata.len())?;
            if let Err(error) = write_durably(&mut file, &end, lines) {
                take_back(&file, end.at);
                return Err(self.error("write to", error));
            }
        } else {
            // A device such as /dev/full: there is nothing to mend, sync or take back.
            file.write_all(lines).map_err(|e| self.error("write to", e))?;
        }
        file.unlock().map_err(|e| self.error("unlock", e))?;
        self.file = Some(file);
        Ok(())
    }

    /// The file at the path, with its lock held.
    fn lock(&mut self) -> Result<File, FileError> {
        for _ in 0..OPENINGS {
            let file = match self.file.take() {
                Some(file) => file,
                None => self.open()?,
            };
            wait_for_lock(&file, self.lock_wait).map_err(|e| self.error("lock", e))?;
            // Only now: it may have been rotated away while this writer waited.
            if is_at(&file, &self.path).map_err(|e| self.error("look at", e))? {
                return Ok(file);
            }
        }
        Err(self.error("hold on to", io::Error::other("it is replaced again and again")))
    }

    fn open(&self) -> Result<File, FileError> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(&self.path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.error("find the directory of", error),
            _ => self.error("open", error),
        })?;
        let kind = file.metadata().map_err(|e| self.error("look at", e))?.file_type();
        if !is_writable_kind(kind) {
            let problem = "it is neither a file nor a device; for a pipe use stdout:";
            return Err(self.error("write to", io::Error::new(io::ErrorKind::InvalidInput, problem)));
        }
        if kind.is_file() {
            // Also where it existed: the one who made it may not have come to this point.
            sync_directory(&self.path).map_err(|e| self.error("sync the directory of", e))?;
        }
        Ok(file)
    }

    /// Finds out where to write, after cutting off a line that a crash left half written.
    fn mend(&self, file: &mut File, len: u64) -> Result<End, FileError> {
        let read = |e| self.error("read the end of", e);
        let start = last_line(file, len).map_err(read)?;
        if start == len {
            return Ok(End { at: len, needs_newline: false });
        }
        if !is_torn(file, start).map_err(read)? {
            // Somebody else's text without a newline at its end: not ours to cut.
            return Ok(End { at: len, needs_newline: true });
        }
        file.set_len(start).map_err(|e| self.error("cut the torn last line off", e))?;
        Ok(End { at: start, needs_newline: false })
    }

    fn error(&self, action: &'static str, source: io::Error) -> FileError {
        FileError::new(action, &self.path, source)
    }
}

/// The end of the file, to write at and to return to.
struct End {
    at: u64,
    needs_newline: bool,
}

fn write_durably(file: &mut File, end: &End, lines: &[u8]) -> io::Result<()> {
    if end.needs_newline {
        file.write_all(b"\n")?;
    }
    file.write_all(lines)?;
    file.sync_data()
}

/// Removes what a failed write left, also after a failed sync: the system may have dropped those pages and would
/// call the next sync a success. If this fails too, the next writer finds the torn line and cuts it off.
fn take_back(file: &File, end: u64) {
    if file.metadata().is_ok_and(|now| now.len() > end) {
        let _ = file.set_len(end);
    }
}

/// Where the text behind the last newline begins: the length, if the file ends with one.
fn last_line(file: &mut File, len: u64) -> io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut end = len;
    // Nearly always the last byte is a newline: look at that alone first.
    let mut size = 1;
    while end > 0 {
        let start = end.saturating_sub(size);
        let part = &mut block[..usize::try_from(end - start).unwrap_or(BLOCK)];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(newline) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + newline as u64 + 1);
        }
        (end, size) = (start, BLOCK as u64);
    }
    Ok(0)
}

/// Whether the unfinished line at `start` is one of ours, or the zeros that a power cut leaves.
fn is_torn(file: &mut File, start: u64) -> io::Result<bool> {
    let mut head = Vec::with_capacity(LINE_START.len());
    file.seek(SeekFrom::Start(start))?;
    file.take(LINE_START.len() as u64).read_to_end(&mut head)?;
    Ok(head.first() == Some(&0) || LINE_START.as_bytes().starts_with(&head))
}

/// Waits for the exclusive lock. By asking again and again, since a wait in the kernel could not be ended.
fn wait_for_lock(file: &File, at_most: Duration) -> io::Result<()> {
    let deadline = Instant::now() + at_most;
    let mut pause = Duration::from_micros(100);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "another process does not let go of it"));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether the path still names the open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(there) => Ok(same_file(&file.metadata()?, &there)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Elsewhere an open file cannot be renamed or deleted.
#[cfg(not(unix))]
fn same_file(_: &Metadata, _: &Metadata) -> bool {
    true
}

#[cfg(unix)]
fn is_writable_kind(kind: FileType) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    kind.is_file() || kind.is_char_device()
}

#[cfg(not(unix))]
fn is_writable_kind(kind: FileType) -> bool {
    kind.is_file()
}

#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(parent.unwrap_or(Path::new(".")))?.sync_all() {
        // Some file systems keep directories in another way and know no sync for them.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        result => result,
    }
}

/// Elsewhere directories cannot be opened for a sync.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_does_not_let_go_is_not_waited_for_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.jsonl");
        let holder = File::create(&path).unwrap();
        holder.lock().unwrap();
        let mut appender = Appender::new(path.clone());
        appender.lock_wait = Duration::from_millis(20);
        let error = appender.append(b"line\n").unwrap_err();
        assert_eq!(error.to_string(), format!("cannot lock {}", path.display()));
        assert_eq!(error.source.kind(), io::ErrorKind::TimedOut);
        drop(holder);
        appender.append(b"line\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"line\n");
    }

    #[test]
    fn the_last_line_is_found_across_blocks() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(last_line(&mut file, 0).unwrap(), 0);
        for (before, after) in
            [(0, 1), (1, BLOCK - 1), (1, BLOCK), (BLOCK, BLOCK + 1), (7, 3 * BLOCK), (9, 0)]
        {
            let text = [vec![b'x'; before], vec![b'\n'], vec![b'y'; after]].concat();
            file.set_len(0).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(&text).unwrap();
            assert_eq!(last_line(&mut file, text.len() as u64).unwrap(), before as u64 + 1);
        }
    }
}
