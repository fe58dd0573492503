//! What the operating system knows of the disk that a database stands on.

use std::path::Path;

/// How many bytes can still be written there; none if nobody says.
#[cfg(unix)]
pub(super) fn free(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Whether this user may write it; yes, if nobody says otherwise.
#[cfg(unix)]
pub(super) fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(not(unix))]
pub(super) fn free(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(not(unix))]
pub(super) fn may_write(_path: &Path) -> bool {
    true
}
