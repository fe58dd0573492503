//! A folder of the bench's own beside a SQLite file: the same disk and the same settings, and the file itself does not grow.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use postbox_core::Code;
use sqlx::sqlite::SqliteConnectOptions;

use crate::report::{Failure, Problem};

const PREFIX: &str = "postbox-bench-";
/// The file by which a folder is known to be a bench's. Locked while it runs: what nobody has locked is left over.
const MARK: &str = "made-by-postbox-bench";
/// The database; what SQLite and the relay keep beside it begins with its name.
const FILE: &str = "bench.db";
/// Who was just ending may still write a file.
const TRIES: u32 = 20;

pub(super) struct Folder {
    path: PathBuf,
    /// Holds the lock.
    _mark: File,
    options: SqliteConnectOptions,
}

impl Folder {
    pub(super) fn make(options: &SqliteConnectOptions) -> Result<Self, Failure> {
        Self::make_named(options, super::site::number())
    }

    fn make_named(options: &SqliteConnectOptions, number: u32) -> Result<Self, Failure> {
        let page_size = page_size(options.get_filename())?;
        let path = parent(options.get_filename()).join(format!("{PREFIX}{number:08x}"));
        let failed = |error: io::Error| {
            let what = format!("the bench cannot make its folder {}", path.display());
            Problem::system(&what, &error, "let this user write where the database is, and make room there")
        };
        // Refuses what exists.
        std::fs::create_dir(&path).map_err(failed)?;
        let mark = File::create_new(path.join(MARK)).and_then(|mark| mark.lock().map(|()| mark));
        let mark = mark.inspect_err(|_| drop(remove(&path))).map_err(failed)?;
        let mut options = options.clone().filename(path.join(FILE)).create_if_missing(true).read_only(false);
        if let Some(bytes) = page_size {
            options = options.page_size(bytes);
        }
        Ok(Self { path, _mark: mark, options })
    }

    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }

    /// How its file is opened, and made.
    pub(super) fn options(&self) -> &SqliteConnectOptions {
        &self.options
    }

    /// Deletes what is known to be its own, and the folder.
    pub(super) async fn remove(self) -> Result<(), Failure> {
        let mut result = remove(&self.path);
        for _ in 0..TRIES {
            if result.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            result = remove(&self.path);
        }
        result.map_err(|error| stays(&self.path, &error))
    }
}

/// The folders that benches left behind which are no more.
pub(super) fn leftovers(options: &SqliteConnectOptions) -> Vec<PathBuf> {
    let found = std::fs::read_dir(parent(options.get_filename())).into_iter().flatten().flatten();
    let named = found.filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        number.is_some_and(|number| number.len() == 8 && number.bytes().all(hex))
    });
    let free = |path: &PathBuf| File::open(path.join(MARK)).is_ok_and(|mark| mark.try_lock().is_ok());
    let mut found: Vec<PathBuf> = named.map(|entry| entry.path()).filter(free).collect();
    found.sort();
    found
}

/// Deletes what benches left behind; answers where it was.
pub(super) fn clean_up(options: &SqliteConnectOptions) -> Result<Vec<PathBuf>, Failure> {
    let found = leftovers(options);
    for path in &found {
        remove(path).map_err(|error| stays(path, &error))?;
    }
    Ok(found)
}

/// File by file: a folder with anything else in it stays. The mark goes last, so that an interrupted end can be made up for.
fn remove(path: &Path) -> io::Result<()> {
    let files = std::fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    for file in files.iter().filter(|file| file.file_name().to_string_lossy().starts_with(FILE)) {
        gone(std::fs::remove_file(file.path()))?;
    }
    if files
        .iter()
        .all(|file| file.file_name() == MARK || file.file_name().to_string_lossy().starts_with(FILE))
    {
        gone(std::fs::remove_file(path.join(MARK)))?;
    }
    std::fs::remove_dir(path)
}

/// SQLite may have deleted it first.
fn gone(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn stays(path: &Path, error: &io::Error) -> Failure {
    let what = format!("{} is left behind", path.display());
    Problem::system(&what, error, "look what is in it, and delete it by hand").into()
}

fn parent(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The size of its pages as the file's head has it; none while it is empty. Not by a connection: that would switch the file to a
/// write-ahead log, and a bench changes nothing.
fn page_size(file: &Path) -> Result<Option<u32>, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::from(Problem::new(Code::DatabaseFile, format!("{}: {why}", file.display())))
    };
    let mut head = Vec::new();
    File::open(file)
        .and_then(|file| file.take(18).read_to_end(&mut head))
        .map_err(|error| refused(&error))?;
    match head.as_slice() {
        [] => Ok(None),
        [magic @ .., high, low] if magic == b"SQLite format 3\0" => {
            // One stands for 65,536, which does not fit.
            let bytes = u32::from(u16::from_be_bytes([*high, *low]));
            Ok(Some(if bytes == 1 { 65_536 } else { bytes }))
        }
        _ => Err(refused(&"it is no SQLite database")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Folder, MARK, clean_up, leftovers};
    use sqlx::sqlite::SqliteConnectOptions;

    #[tokio::test]
    async fn a_folder_that_exists_is_refused_and_what_is_not_a_benchs_is_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(folder.path().join("app.db"));
        std::fs::write(options.get_filename(), "").unwrap();
        let mine = folder.path().join("postbox-bench-0000abcd");
        std::fs::create_dir(&mine).unwrap();
        std::fs::write(mine.join("bench.db"), "mine").unwrap();
        assert!(Folder::make_named(&options, 0xabcd).is_err());
        assert!(leftovers(&options).is_empty(), "it has no mark");

        let bench = Folder::make_named(&options, 1).unwrap();
        assert!(clean_up(&options).unwrap().is_empty(), "it runs");
        bench.remove().await.unwrap();

        // One that was killed, and in which somebody has kept something since.
        let left = folder.path().join("postbox-bench-00000002");
        std::fs::create_dir(&left).unwrap();
        for name in [MARK, "bench.db", "bench.db-wal", "notes.txt"] {
            std::fs::write(left.join(name), "").unwrap();
        }
        let (cause, _) = clean_up(&options).unwrap_err().first();
        assert!(cause.contains("postbox-bench-00000002 is left behind"), "{cause}");
        assert!(left.join("notes.txt").exists() && left.join(MARK).exists());
        std::fs::remove_file(left.join("notes.txt")).unwrap();
        assert_eq!(clean_up(&options).unwrap(), [left]);
        assert_eq!(std::fs::read(mine.join("bench.db")).unwrap(), b"mine");
    }
}
