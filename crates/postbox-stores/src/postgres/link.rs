//! [`Link`]: one dedicated connection of a relay, made anew when it breaks.
//!
//! A relay does not take its connections from a pool: the claim's connection carries the session lock, both have
//! planner settings of their own, and neither may be handed to others half-way through a statement (hazard 24).

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::StoreError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};
use tokio::sync::{Mutex, MutexGuard};

use super::ask;
use super::error::within;

/// How long a relay waits for an answer before it gives the connection up.
pub(super) const OPERATION_LIMIT: Duration = Duration::from_secs(10);

/// Plans must not depend on statistics that lag behind a table which fills and empties all day: rows are found by
/// index, and updates walk them in the order of the array (which is also the order of locking, hazard 18).
///
/// That is not enough where a plan is made while the table is empty, as it is every night: to read all of nothing by an index is
/// cheaper then than to look a batch up, and the plan stays when the table has a million rows. So the statements leave no way
/// to read all of it: rows are named by `t.id = ANY (ARRAY[s.id])`, of which, unlike `t.id = s.id`, no planner infers that the order of an index
/// might help, and what else they must be is said so that no index serves it: `(… IS NULL) IS TRUE`, `coalesce(…) IS NULL`.
const SETTINGS: &[(&str, &str)] = &[
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("max_parallel_workers_per_gather", "0"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("lock_timeout", "500ms"),
    ("idle_in_transaction_session_timeout", "30s"),
];

/// Sets them for the session or, as one statement since it goes before every operation, for the transaction. What commits must
/// be on disk: a relay dispatches by it (hazard 33).
fn settings(local: bool) -> String {
    let set = |(name, value)| format!("set_config('{name}', '{value}', {local}), ");
    let settings: String = SETTINGS.iter().copied().map(set).collect();
    format!(
        "SELECT {settings}CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', {local}) END"
    )
}

/// What a session of the relay's own is told once.
fn session() -> String {
    format!("SET default_transaction_isolation = 'read committed'; {}", settings(false))
}

/// What a transaction is told on a session that is not the relay's own, and forgets at its end.
static TRANSACTION: LazyLock<String> =
    LazyLock::new(|| format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {}", settings(true)));

#[derive(Debug)]
pub(super) struct Link {
    options: PgConnectOptions,
    slot: Mutex<Option<PgConnection>>,
    /// Whether a transaction pooler stands between. Then each operation is a transaction of its own: nothing else is
    /// certain to reach one and the same server process.
    pooled: AtomicBool,
}

impl Link {
    /// A link that connects when it is first used.
    pub(super) fn new(options: PgConnectOptions) -> Self {
        // A relay's polling does not belong into the log of slow or executed statements.
        Self {
            options: options.disable_statement_logging(),
            slot: Mutex::default(),
            pooled: AtomicBool::new(false),
        }
    }

    /// Where it connects to.
    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Whether a transaction pooler stands between: two clients share one server process, or one client has several
    /// (hazard 6). Looked at before anything is set, since what is set on a shared session would hit others.
    pub(super) async fn is_pooled(&self) -> Result<bool, StoreError> {
        let mut clients = [self.raw().await?, self.raw().await?];
        within(OPERATION_LIMIT, ask::is_pooled(clients.each_mut())).await
    }

    /// From now on every operation is a transaction.
    pub(super) fn goes_through_a_pooler(&self) {
        self.pooled.store(true, Ordering::Relaxed);
    }

    fn is_shared(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// Takes the connection for one operation, connecting if there is none.
    pub(super) async fn take(&self) -> Result<Taken<'_>, StoreError> {
        let mut slot = self.slot.lock().await;
        let (mut connection, fresh) = match slot.take() {
            Some(connection) => (connection, false),
            None => (self.connect().await?, true),
        };
        if self.is_shared() {
            say(&mut connection, &TRANSACTION).await?;
        }
        Ok(Taken { link: self, slot, connection, fresh })
    }

    /// Takes the connection if there is one.
    pub(super) async fn take_open(&self) -> Option<Taken<'_>> {
        let mut slot = self.slot.lock().await;
        let connection = slot.take()?;
        Some(Taken { link: self, slot, connection, fresh: false })
    }

    /// Ends what was done so far, for better or worse, within an operation that goes on. A statement that failed takes its
    /// transaction with it; one of the relay's own session stands alone.
    pub(super) async fn turn_over(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        if self.is_shared() {
            say(connection, &format!("COMMIT; {}", *TRANSACTION)).await?;
        }
        Ok(())
    }

    /// Begins a transaction of several statements.
    pub(super) async fn begin(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        if self.is_shared() { self.turn_over(connection).await } else { say(connection, "BEGIN").await }
    }

    /// Commits what [`begin`](Self::begin) began.
    pub(super) async fn commit(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        if self.is_shared() { self.turn_over(connection).await } else { say(connection, "COMMIT").await }
    }

    /// Closes the connection, and with it gives up every lock of its session.
    pub(super) async fn close(&self) {
        if let Some(connection) = self.slot.lock().await.take() {
            use sqlx::Connection as _;
            let _ = within(Duration::from_secs(2), connection.close()).await;
        }
    }

    /// A connection without any settings, and without prepared statements: those may be gone at the next server process.
    async fn raw(&self) -> Result<PgConnection, StoreError> {
        let options = self.options.clone().statement_cache_capacity(0);
        within(OPERATION_LIMIT, options.connect()).await
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        if self.is_shared() {
            return self.raw().await;
        }
        let mut connection = within(OPERATION_LIMIT, self.options.connect()).await?;
        say(&mut connection, &session()).await?;
        Ok(connection)
    }
}

/// Sends statements whose answer is of no interest.
async fn say(connection: &mut PgConnection, sql: &str) -> Result<(), StoreError> {
    within(OPERATION_LIMIT, sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection)).await.map(|_| ())
}

/// A connection taken for one operation. Dropped without [`keep`](Self::keep) it is closed, since whatever was under
/// way has an unknown end.
pub(super) struct Taken<'a> {
    link: &'a Link,
    slot: MutexGuard<'a, Option<PgConnection>>,
    pub(super) connection: PgConnection,
    /// Whether it was made just now: locks of the session before it are gone.
    pub(super) fresh: bool,
}

impl Taken<'_> {
    /// Ends the operation and puts the connection back for the next one. What was written counts from here on.
    ///
    /// # Errors
    /// When its end is not known.
    pub(super) async fn keep(mut self) -> Result<(), StoreError> {
        if self.link.is_shared() {
            say(&mut self.connection, "COMMIT").await?;
        }
        *self.slot = Some(self.connection);
        Ok(())
    }
}
