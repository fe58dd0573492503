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

/// Which file it is, whatever its name; another one cannot have the same while somebody has this one open.
pub(super) type Identity = (u64, u64);

/// The file that has this name now; none if there is none, or nobody says.
#[cfg(unix)]
pub(super) fn identity(file: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(file).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
pub(super) fn identity(_file: &Path) -> Option<Identity> {
    None
}

#[cfg(not(unix))]
pub(super) fn free(_folder: &Path) -> Option<u64> {
    None
}

/// Why this user may not read it, if so. Asked without opening it: to close it again would give up every lock that
/// SQLite has on it in this process.
#[cfg(unix)]
pub(super) fn refused(path: &Path) -> Option<std::io::Error> {
    rustix::fs::access(path, rustix::fs::Access::READ_OK).err().map(std::io::Error::from)
}

#[cfg(not(unix))]
pub(super) fn refused(path: &Path) -> Option<std::io::Error> {
    std::fs::File::open(path).err()
}

#[cfg(not(unix))]
pub(super) fn may_write(_path: &Path) -> bool {
    true
}
