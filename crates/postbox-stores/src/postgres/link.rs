//! [`Link`]: one dedicated connection of a relay, made anew when it breaks.
//!
//! A relay does not take its connections from a pool: the claim's connection carries the session lock, both have
//! planner settings of their own, and neither may be handed to others half-way through a statement (hazard 24).

use std::time::Duration;

use postbox_core::StoreError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection, Row as _};
use tokio::sync::{Mutex, MutexGuard};

use super::error::{classify, within};

/// How long a relay waits for an answer before it gives the connection up.
pub(super) const OPERATION_LIMIT: Duration = Duration::from_secs(10);

/// Plans must not depend on statistics that lag behind a table which fills and empties all day: rows are found by
/// index, and updates walk them in the order of the array (which is also the order of locking, hazard 18).
const SESSION: &str = "SET default_transaction_isolation = 'read committed';
    SET plan_cache_mode = force_generic_plan; SET jit = off; SET max_parallel_workers_per_gather = 0;
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET lock_timeout = '500ms'; SET idle_in_transaction_session_timeout = '30s';
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';";

#[derive(Debug)]
pub(super) struct Link {
    options: PgConnectOptions,
    slot: Mutex<Option<PgConnection>>,
}

impl Link {
    /// A link that connects when it is first used.
    pub(super) fn new(options: PgConnectOptions) -> Self {
        // A relay's polling does not belong into the log of slow or executed statements.
        Self { options: options.disable_statement_logging(), slot: Mutex::default() }
    }

    /// Whether a transaction pooler stands between: two clients share one server process, or one client has several
    /// (hazard 6). Looked at before anything is set, since what is set on a shared session would hit others.
    pub(super) async fn is_pooled(&self) -> Result<bool, StoreError> {
        let mut clients = [self.raw().await?, self.raw().await?];
        let mut pids = [Vec::new(), Vec::new()];
        for _ in 0..3 {
            for (client, pids) in clients.iter_mut().zip(&mut pids) {
                // Without a prepared statement, which may be gone at the next server process.
                let pid = sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(client);
                pids.push(within(OPERATION_LIMIT, pid).await?.try_get::<i32, _>(0).map_err(classify)?);
            }
        }
        let moved = pids.iter().any(|pids| pids.iter().any(|pid| *pid != pids[0]));
        Ok(moved || pids[0][0] == pids[1][0])
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

    async fn raw(&self) -> Result<PgConnection, StoreError> {
        within(OPERATION_LIMIT, self.options.connect()).await
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        let mut connection = self.raw().await?;
        within(OPERATION_LIMIT, sqlx::raw_sql(SESSION).execute(&mut connection)).await?;
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
