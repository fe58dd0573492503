//! [`Link`]: one dedicated connection, made anew when it breaks; and [`Tries`], for locks that others have.
//!
//! Connections are not taken from a pool: they have settings of their own, one holds the lock of the active relay, and none
//! may be handed to others half-way through a statement (hazard 24).

use std::time::{Duration, Instant};

use postbox_core::{StoreError, StoreErrorKind};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions as _, MySqlConnection};
use tokio::sync::{Mutex, MutexGuard};

use super::error::within;

/// How long an operation may take before its connection is given up.
pub(super) const OPERATION_LIMIT: Duration = Duration::from_secs(10);

/// What a session of ours is told once. Statements see what is committed and lock no gaps (hazards 17, 41); a lock is not
/// waited for as long as the server would (50 s); times are UTC, text is UTF-8, and what does not fit is an error; a list of sinks
/// is not cut at 1024 bytes, as MySQL would. A process that is stopped in the middle of a transaction shall not keep its rows for as
/// long as the server would wait (8 h): MariaDB ends such a session soon (MySQL takes that for a comment), every server after a minute.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET NAMES utf8mb4;
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION time_zone = '+00:00',
        SESSION innodb_lock_wait_timeout = 3, SESSION lock_wait_timeout = 5, SESSION autocommit = 1, SESSION wait_timeout = 60,
        SESSION group_concat_max_len = 1048576
        /*M! , SESSION idle_transaction_timeout = 10 */";

/// A connection that nobody has used for so long may be closed by now: a new one costs less than to find out.
const IDLE: Duration = Duration::from_secs(30);

/// Statements with lists come in several lengths, each prepared by itself.
const STATEMENTS: usize = 256;

#[derive(Debug)]
pub(super) struct Link {
    options: MySqlConnectOptions,
    slot: Mutex<Option<Open>>,
    /// After so long without use it is made anew; never, where its session has a lock.
    idle: Option<Duration>,
}

/// An open connection, and when it was last used.
type Open = (MySqlConnection, Instant);

impl Link {
    /// A link that connects when it is first used.
    pub(super) fn new(options: MySqlConnectOptions) -> Self {
        // A relay's polling does not belong into the log of slow or executed statements.
        let options = options.statement_cache_capacity(STATEMENTS).disable_statement_logging();
        Self { options, slot: Mutex::default(), idle: Some(IDLE) }
    }

    /// The same, whose session stays what it is: it holds a lock, and is used often enough.
    pub(super) fn lasting(options: MySqlConnectOptions) -> Self {
        Self { idle: None, ..Self::new(options) }
    }

    /// Takes the connection for one operation, connecting if there is none.
    pub(super) async fn take(&self) -> Result<Taken<'_>, StoreError> {
        let mut slot = self.slot.lock().await;
        let is_fit = |(_, used): &Open| self.idle.is_none_or(|idle| used.elapsed() < idle);
        match slot.take().filter(is_fit) {
            Some((connection, _)) => Ok(Taken { slot, connection, fresh: false }),
            None => Ok(Taken { connection: open(&self.options).await?, slot, fresh: true }),
        }
    }

    /// Takes the connection if there is one.
    pub(super) async fn take_open(&self) -> Option<Taken<'_>> {
        let mut slot = self.slot.lock().await;
        let (connection, _) = slot.take()?;
        Some(Taken { slot, connection, fresh: false })
    }

    /// Closes the connection, and with it gives up every lock of its session.
    pub(super) async fn close(&self) {
        if let Some((connection, _)) = self.slot.lock().await.take() {
            use sqlx::Connection as _;
            let _ = within(Duration::from_secs(2), connection.close()).await;
        }
    }
}

/// A connection of ours.
pub(crate) async fn open(options: &MySqlConnectOptions) -> Result<MySqlConnection, StoreError> {
    // On the heap: whoever may have to connect would carry all of the handshake with it.
    let mut connection = within(OPERATION_LIMIT, Box::pin(options.connect())).await?;
    say(&mut connection, SESSION).await?;
    Ok(connection)
}

/// Sends statements whose answer is of no interest.
pub(super) async fn say(connection: &mut MySqlConnection, sql: &'static str) -> Result<(), StoreError> {
    within(OPERATION_LIMIT, sqlx::raw_sql(sql).execute(connection)).await.map(|_| ())
}

/// A connection taken for one operation. Dropped without [`keep`](Self::keep) it is closed, and what it had begun is rolled
/// back: whatever was under way has an unknown end.
pub(super) struct Taken<'a> {
    slot: MutexGuard<'a, Option<Open>>,
    pub(super) connection: MySqlConnection,
    /// Whether it was made just now: locks of the session before it are gone.
    pub(super) fresh: bool,
}

impl Taken<'_> {
    /// Puts the connection back for the next operation.
    pub(super) fn keep(mut self) {
        *self.slot = Some((self.connection, Instant::now()));
    }

    /// Begins a transaction of several statements.
    pub(super) async fn begin(&mut self) -> Result<(), StoreError> {
        say(&mut self.connection, "START TRANSACTION").await
    }

    /// Commits what [`begin`](Self::begin) began.
    pub(super) async fn commit(&mut self) -> Result<(), StoreError> {
        say(&mut self.connection, "COMMIT").await
    }
}

/// Deadlocks, and locks that others keep for too long: what failed so is done again, and nobody hears of it.
#[derive(Debug)]
pub(super) struct Tries {
    until: Instant,
    count: u64,
}

impl Tries {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() + OPERATION_LIMIT, count: 0 }
    }

    /// Rolls back, also where the server has undone a statement alone, and pauses, if it is worth another try. Any other error
    /// is handed back, and its connection closed.
    pub(super) async fn again(&mut self, mut taken: Taken<'_>, error: StoreError) -> Result<(), StoreError> {
        if !self.is_worth_another(&error) {
            return Err(error);
        }
        say(&mut taken.connection, "ROLLBACK").await?;
        taken.keep();
        self.pause(error).await
    }

    fn is_worth_another(&self, error: &StoreError) -> bool {
        error.kind() == StoreErrorKind::Conflict && Instant::now() < self.until
    }

    /// The same where nothing is left to be rolled back: a statement was a transaction of its own.
    pub(super) async fn pause(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !self.is_worth_another(&error) {
            return Err(error);
        }
        self.count += 1;
        tracing::debug!(%error, tries = self.count, "once more");
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=4) * self.count.min(20))).await;
        Ok(())
    }
}
