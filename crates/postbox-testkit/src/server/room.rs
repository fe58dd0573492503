//! Where private servers keep their data.

use std::path::PathBuf;

use rustix::fs::statvfs;

use super::options::ServerOptions;

/// A file system in memory, where Linux has one.
const MEMORY: &str = "/dev/shm";

/// So many bytes must be free there: what all servers of a run write at a time is a fraction of it.
const ENOUGH: u64 = 8 << 30;

/// In the folder for temporary files.
pub(crate) fn on_disk(_: &ServerOptions) -> PathBuf {
    std::env::temp_dir()
}

/// In memory, if there is plenty: for databases that do not wait for the disk. Each test makes and drops one, of hundreds of small
/// files, which costs a file system with a journal more than all else that the server does for the test.
pub(crate) fn in_memory() -> Option<PathBuf> {
    let room = statvfs(MEMORY).ok()?;
    (room.f_bavail.saturating_mul(room.f_frsize) >= ENOUGH).then(|| PathBuf::from(MEMORY))
}
