//! [`Link`]: one dedicated connection of a relay, made anew when it breaks.
//!
//! A relay does not take its connections from a pool: the claim's connection carries the session lock, both have
//! planner settings of their own, and neither may be handed to others half-way through a statement (hazard 24).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::StoreError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};
use tokio::sync::{Mutex, MutexGuard};

use super::error::within;

/// How long a relay waits for an answer before it gives the connection up.
pub(super) const OPERATION_LIMIT: Duration = Duration::from_secs(10);

/// Plans must not depend on statistics that lag behind a table which fills and empties all day: rows are found by
/// index, and updates walk them in the order of the array (which is also the order of locking, hazard 18).
const SESSION: &str = "SET default_transaction_isolation = 'read committed';
    SET plan_cache_mode = force_generic_plan; SET jit = off;
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET lock_timeout = '500ms'; SET idle_in_transaction_session_timeout = '30s';
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';";

#[derive(Debug)]
pub(super) struct Link {
    options: PgConnectOptions,
    slot: Mutex<Option<PgConnection>>,
    /// A session behind a transaction pooler is shared: what is set there would hit others.
    pooled: AtomicBool,
    idle_timeout: Option<Duration>,
}

impl Link {
    /// A link that connects when it is first used. With an idle timeout the server ends the session of a client that
    /// has gone silent, and with it the locks that the session holds (hazard 9).
    pub(super) fn new(options: PgConnectOptions, idle_timeout: Option<Duration>) -> Self {
        // A relay's polling does not belong into the log of slow or executed statements.
        let options = options.disable_statement_logging();
        Self { options, slot: Mutex::default(), pooled: AtomicBool::new(false), idle_timeout }
    }

    pub(super) fn set_pooled(&self) {
        self.pooled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Relaxed)
    }

    /// Takes the connection for one operation, connecting if there is none.
    pub(super) async fn take(&self) -> Result<Taken<'_>, StoreError> {
        let mut slot = self.slot.lock().await;
        match slot.take() {
            Some(connection) => Ok(Taken { slot, connection, fresh: false }),
            None => Ok(Taken { connection: self.connect().await?, slot, fresh: true }),
        }
    }

    /// Closes the connection, and with it gives up every lock of its session.
    pub(super) async fn close(&self) {
        if let Some(connection) = self.slot.lock().await.take() {
            use sqlx::Connection as _;
            let _ = within(Duration::from_secs(2), connection.close()).await;
        }
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        let mut connection = within(OPERATION_LIMIT, self.options.connect()).await?;
        if !self.is_pooled() {
            let idle = self.idle_timeout.map_or(0, |idle| idle.as_millis());
            let setup = format!("{SESSION} SET idle_session_timeout = {idle};");
            within(OPERATION_LIMIT, sqlx::raw_sql(AssertSqlSafe(setup)).execute(&mut connection)).await?;
        }
        Ok(connection)
    }
}

/// A connection taken for one operation. Dropped without [`keep`](Self::keep) it is closed, since whatever was under
/// way has an unknown end.
pub(super) struct Taken<'a> {
    slot: MutexGuard<'a, Option<PgConnection>>,
    pub(super) connection: PgConnection,
    /// Whether it was made just now: locks of the session before it are gone.
    pub(super) fresh: bool,
}

impl Taken<'_> {
    /// Puts the connection back for the next operation.
    pub(super) fn keep(mut self) {
        *self.slot = Some(self.connection);
    }
}
