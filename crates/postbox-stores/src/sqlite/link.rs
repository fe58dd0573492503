//! [`Link`]: one dedicated connection, made anew when it breaks.
//!
//! Connections are not taken from a pool: they have settings of their own, and none may be handed to others half-way
//! through a statement (hazard 24).

use std::path::Path;
use std::time::{Duration, Instant};

use postbox_core::{Code, StoreError};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Sqlite, SqliteConnection};
use tokio::sync::{Mutex, MutexGuard};

use super::clock::now;
use super::disk::{Identity, identity, may_write, refused};
use super::error::{classify, is_busy, within};

#[derive(Debug)]
pub(super) struct Link {
    options: SqliteConnectOptions,
    slot: Mutex<Option<Open>>,
}

/// An open connection, and the file behind it.
#[derive(Debug)]
struct Open {
    connection: SqliteConnection,
    file: Option<Identity>,
}

impl Link {
    /// A link that connects when it is first used.
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            // A commit of ours also makes what it has seen durable, however its writer had committed that: nothing is
            // delivered that a loss of power can take back (hazard 33).
            .synchronous(SqliteSynchronous::Full)
            // What a long reader made the log grow to is given back once it has gone.
            .pragma("journal_size_limit", "67108864")
            // Fewer turns of two threads at one row each; what is asked for is bounded in bytes.
            .row_buffer_size(1000)
            // `Patience` waits instead.
            .busy_timeout(std::time::Duration::ZERO)
            // The table must be there, so the file must be: one that vanished is not made anew, and empty.
            .create_if_missing(false)
            // A relay's polling does not belong into the log of slow or executed statements.
            .disable_statement_logging();
        Self { options, slot: Mutex::default() }
    }

    /// The file, by the name that it was given by.
    pub(super) fn path(&self) -> &Path {
        self.options.get_filename()
    }

    /// Takes the connection for one operation, connecting if there is none, or if the file is another one now: a backup
    /// that was put back, or one that was made anew. SQLite would go on with the old file, which nobody else can see.
    pub(super) async fn take(&self) -> Result<Taken<'_>, StoreError> {
        let mut slot = self.slot.lock().await;
        // Before it is opened: should it be replaced in between, that is seen the next time.
        let file = identity(self.path());
        match slot.take() {
            Some(Open { connection, file: behind }) if behind.is_none() || behind == file => {
                Ok(Taken { slot, connection, file, fresh: false })
            }
            _ => Ok(Taken { connection: open(&self.options).await?, slot, file, fresh: true }),
        }
    }

    /// Takes the connection for a transaction that writes: the lock is taken at once, so that nothing in it can fail
    /// for want of it (hazard 42).
    pub(super) async fn begin(&self) -> Result<Taken<'_>, StoreError> {
        let mut taken = self.take().await?;
        let mut patience = Patience::new();
        loop {
            match sqlx::query("BEGIN IMMEDIATE").execute(&mut taken.connection).await {
                Ok(_) => return Ok(taken),
                Err(error) => {
                    if let Err(error) = patience.pause(error).await {
                        return Err(given_up(taken, error));
                    }
                }
            }
        }
    }

    /// Runs one statement that writes, which is a transaction of its own: it asks for the lock before anything else, as
    /// [`begin`](Self::begin) does. It is made for the time at which it is tried.
    pub(super) async fn execute<'q>(
        &self,
        statement: impl Fn(i64) -> Query<'q, Sqlite, SqliteArguments>,
    ) -> Result<Executed<'_>, StoreError> {
        let mut taken = self.take().await?;
        let mut patience = Patience::new();
        loop {
            let at = now();
            match statement(at).execute(&mut taken.connection).await {
                Ok(done) => return Ok(Executed { taken, at, changed: done.rows_affected() }),
                Err(error) => {
                    if let Err(error) = patience.pause(error).await {
                        return Err(given_up(taken, error));
                    }
                }
            }
        }
    }

    /// A file that cannot be written says so now, and not at the first event. One that somebody else writes at the
    /// moment can be.
    pub(super) async fn expect_writable(&self) -> Result<(), StoreError> {
        let mut taken = self.take().await?;
        // Changes nothing, but asks for the lock; BEGIN IMMEDIATE is content with less where the file is read-only.
        let probe = sqlx::query("UPDATE postbox_relay SET epoch = epoch WHERE 0");
        match probe.execute(&mut taken.connection).await {
            Err(error) if !is_busy(&error) => Err(self.explain(classify(error))),
            _ => {
                taken.keep();
                Ok(())
            }
        }
    }

    /// Which file, and why it cannot be opened or written.
    pub(super) fn explain(&self, error: StoreError) -> StoreError {
        explain(self.path(), error)
    }

    /// Closes the connection.
    pub(super) async fn close(&self) {
        if let Some(open) = self.slot.lock().await.take() {
            use sqlx::Connection as _;
            let _ = within(OPERATION_LIMIT, open.connection.close()).await;
        }
    }
}

/// The lock was waited for in vain. Nothing was begun: the connection is as good as before.
fn given_up(taken: Taken<'_>, error: sqlx::Error) -> StoreError {
    let error = classify(error);
    if error.code() == Code::DatabaseLocked {
        taken.keep();
    }
    error
}

/// Opens the file; what is in the way is said in words.
pub(crate) async fn open(options: &SqliteConnectOptions) -> Result<SqliteConnection, StoreError> {
    let mut patience = Patience::new();
    loop {
        match options.connect().await {
            Ok(connection) => return Ok(connection),
            Err(error) => patience
                .pause(error)
                .await
                .map_err(|error| explain(options.get_filename(), classify(error)))?,
        }
    }
}

/// SQLite says only that a file cannot be opened or written; people want to know which, and why.
fn explain(file: &Path, error: StoreError) -> StoreError {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let why = match error.code() {
        Code::DatabaseFile => match file.try_exists() {
            Err(problem) => problem.to_string(),
            Ok(false) if !folder.exists() => "its directory does not exist".to_owned(),
            Ok(false) if !may_write(folder) => {
                "it does not exist, and its directory cannot be written".to_owned()
            }
            Ok(false) => "it does not exist".to_owned(),
            Ok(true) if file.is_dir() => "it is a directory".to_owned(),
            Ok(true) => match refused(file) {
                Some(problem) => problem.to_string(),
                None => error.message().to_owned(),
            },
        },
        Code::DatabaseReadOnly if !may_write(folder) => {
            format!("its directory cannot be written: {}", error.message())
        }
        Code::DatabaseReadOnly if !may_write(file) => {
            format!("the file cannot be written: {}", error.message())
        }
        Code::DatabaseReadOnly => format!("it was opened to be read only: {}", error.message()),
        _ => return error,
    };
    StoreError::new(error.code(), error.kind(), format!("{}: {why}", file.display())).caused_by(error)
}

/// What [`Link::execute`] did.
pub(super) struct Executed<'a> {
    pub(super) taken: Taken<'a>,
    /// When.
    pub(super) at: i64,
    /// To how many rows.
    pub(super) changed: u64,
}

/// A connection taken for one operation. Dropped without [`keep`](Self::keep) or [`commit`](Self::commit) it is closed,
/// and what it had begun is rolled back.
pub(super) struct Taken<'a> {
    slot: MutexGuard<'a, Option<Open>>,
    pub(super) connection: SqliteConnection,
    file: Option<Identity>,
    /// Whether it was made just now.
    pub(super) fresh: bool,
}

impl Taken<'_> {
    /// The database file, by its full name, whatever name it was given by.
    ///
    /// # Errors
    /// When the database is not in a file: then nobody else can see it.
    pub(super) async fn file(&mut self) -> Result<String, StoreError> {
        let file = "SELECT file FROM pragma_database_list WHERE name = 'main'";
        let file = sqlx::query_scalar::<_, Option<String>>(file).fetch_one(&mut self.connection);
        let file = within(OPERATION_LIMIT, file).await?.filter(|file| !file.is_empty());
        file.ok_or_else(super::in_memory)
    }

    /// Puts the connection back for the next operation.
    pub(super) fn keep(mut self) {
        *self.slot = Some(Open { connection: self.connection, file: self.file });
    }

    /// Ends what [`Link::begin`] began.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        // With a write-ahead log nobody can be in the way; without one, readers are for a moment.
        let mut patience = Patience::new();
        while let Err(error) = sqlx::query("COMMIT").execute(&mut self.connection).await {
            patience.pause(error).await.map_err(classify)?;
        }
        self.keep();
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use postbox_core::StoreErrorKind;

    use super::*;

    /// A process that opens and closes a file gives up all its locks on it, those of SQLite too: another process would
    /// take itself for the last one and remove the log.
    #[tokio::test]
    async fn to_explain_an_error_gives_up_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.db");
        let options = crate::sqlite::connect_options(&format!("sqlite:{}?mode=rwc", file.display())).unwrap();
        let mut connection = options.connect().await.unwrap();
        sqlx::query("CREATE TABLE a (a)").execute(&mut connection).await.unwrap();
        let inode = format!(":{} ", std::fs::metadata(&file).unwrap().ino());
        let locks = || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            locks.lines().filter(|line| line.contains(&inode)).count()
        };
        assert_eq!(locks(), 1, "SQLite has its lock");
        let error = StoreError::new(Code::DatabaseFile, StoreErrorKind::Refused, "corrupt");
        assert!(explain(&file, error).message().ends_with("a.db: corrupt"));
        assert_eq!(locks(), 1, "and keeps it");
    }
}

/// How long an operation waits for a lock before it is an error.
pub(super) const OPERATION_LIMIT: Duration = Duration::from_secs(10);

/// The longest pause: who waits long shall not lose too much when the lock is free at last.
const LONGEST: u64 = 3_000;

/// Waiting for the write lock so that everybody gets it: SQLite lets one connection write at a time and keeps no queue. Its own
/// `busy_timeout` sleeps longer and longer, so that of two busy processes one gets everything and the other nothing. Short random
/// pauses share the lock evenly.
#[derive(Debug)]
pub(super) struct Patience {
    until: Instant,
    tries: u64,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self::of(OPERATION_LIMIT)
    }

    pub(super) fn of(limit: Duration) -> Self {
        Self { until: Instant::now() + limit, tries: 0 }
    }

    /// Pauses if the error is a lock that somebody holds and there is time left; any other error is handed back.
    pub(super) async fn pause(&mut self, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if !is_busy(&error) || Instant::now() >= self.until {
            return Err(error);
        }
        let micros = fastrand::u64(50..=310) + (10 * self.tries).min(LONGEST);
        self.tries += 1;
        let pause = Duration::from_micros(micros);
        if micros < 1000 {
            // The runtime's timers have a grain of a millisecond.
            let _ = tokio::task::spawn_blocking(move || std::thread::sleep(pause)).await;
        } else {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}
