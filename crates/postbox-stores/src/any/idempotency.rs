//! [`AnyIdempotency`]: the calls of a module in any of the databases, for cleaners.

use std::time::Duration;

use postbox_core::cleaner::{Due, Sweep, SweepCount, SweepRequest, Swept};
use postbox_core::{StoreError, TableName};
use sqlx::ConnectOptions as _;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;

use super::{AnyDatabase, Kind};
use crate::mysql::{self, MySqlIdempotency};
use crate::postgres::{self, PgIdempotency};
use crate::sqlite::{self, SqliteIdempotency};

/// Calls by idempotency key, where a module has some; sweeps do nothing where it has none.
#[derive(Debug, Clone)]
pub struct AnyIdempotency(Calls);

#[derive(Debug, Clone)]
enum Calls {
    Postgres { pool: sqlx::PgPool, outbox: TableName, calls: PgIdempotency },
    Sqlite { pool: sqlx::SqlitePool, outbox: TableName, calls: SqliteIdempotency },
    MySql { pool: sqlx::MySqlPool, outbox: TableName, calls: MySqlIdempotency },
}

/// One connection does for a cleaner.
const LIMIT: Duration = Duration::from_secs(10);

impl AnyDatabase {
    /// The calls by idempotency key of the module that has this outbox table; connects when it is first used.
    pub fn idempotency(&self, outbox: &TableName) -> AnyIdempotency {
        let outbox = outbox.clone();
        AnyIdempotency(match &self.0 {
            Kind::Postgres { options, .. } => {
                let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(LIMIT);
                let pool = pool.connect_lazy_with(options.as_ref().clone().disable_statement_logging());
                let calls = PgIdempotency::new(pool.clone(), outbox.clone()).unprepared();
                Calls::Postgres { pool, outbox, calls }
            }
            Kind::Sqlite(options) => {
                let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(LIMIT);
                let pool = pool.connect_lazy_with(options.as_ref().clone().disable_statement_logging());
                let calls = SqliteIdempotency::new(pool.clone(), outbox.clone());
                Calls::Sqlite { pool, outbox, calls }
            }
            Kind::MySql(options) => {
                let pool = MySqlPoolOptions::new().max_connections(1).acquire_timeout(LIMIT);
                let pool = pool.connect_lazy_with(options.as_ref().clone().disable_statement_logging());
                let calls = MySqlIdempotency::new(pool.clone(), outbox.clone());
                Calls::MySql { pool, outbox, calls }
            }
        })
    }
}

impl AnyIdempotency {
    /// Whether the module has some.
    ///
    /// # Errors
    /// When the database fails.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn is_there(&self) -> Result<bool, StoreError> {
        match &self.0 {
            Calls::Postgres { pool, outbox, .. } => {
                let mut connection = pool.acquire().await.map_err(postgres::classify)?;
                postgres::migrate::has_idempotency(&mut connection, outbox).await
            }
            Calls::Sqlite { pool, outbox, .. } => {
                let mut connection = pool.acquire().await.map_err(sqlite::classify)?;
                sqlite::migrate::has_idempotency(&mut connection, outbox).await
            }
            Calls::MySql { pool, outbox, .. } => {
                let mut connection = pool.acquire().await.map_err(mysql::classify)?;
                mysql::migrate::has_idempotency(&mut connection, outbox).await
            }
        }
    }
}

impl Sweep for AnyIdempotency {
    fn table(&self) -> &str {
        match &self.0 {
            Calls::Postgres { calls, .. } => Sweep::table(calls),
            Calls::Sqlite { calls, .. } => Sweep::table(calls),
            Calls::MySql { calls, .. } => Sweep::table(calls),
        }
    }

    async fn sweep(&self, request: &SweepRequest) -> Result<Swept, StoreError> {
        // Asked each time: it may be made while a cleaner runs.
        if !self.is_there().await? {
            return Ok(Swept::Deleted(0));
        }
        match &self.0 {
            Calls::Postgres { calls, .. } => calls.sweep(request).await,
            Calls::Sqlite { calls, .. } => calls.sweep(request).await,
            Calls::MySql { calls, .. } => calls.sweep(request).await,
        }
    }
}

impl SweepCount for AnyIdempotency {
    async fn due(&self, request: &SweepRequest) -> Result<Due, StoreError> {
        if !self.is_there().await? {
            return Ok(Due::default());
        }
        match &self.0 {
            Calls::Postgres { calls, .. } => calls.due(request).await,
            Calls::Sqlite { calls, .. } => calls.due(request).await,
            Calls::MySql { calls, .. } => calls.due(request).await,
        }
    }
}
