//! A connection that writes events as a service would: the outbox in a transaction of the driver's own.

use std::time::{Duration, Instant};

use postbox_core::{Code, EnqueueError, Outbox, RecordBuilder, StoreError};
use postbox_stores::{postgres, sqlite};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, SqlitePool};

/// How soon a file that somebody is closing is tried again.
const CLOSING: Duration = Duration::from_millis(10);

/// How long a writer waits for its turn on a file, while others have theirs.
const LOCKED: Duration = Duration::from_mins(1);

/// One connection.
pub(super) enum Writer {
    Postgres(Box<PgConnection>),
    /// A pool of one, since that is what waits in turn for the write lock.
    Sqlite(SqlitePool),
}

impl Writer {
    pub(super) async fn postgres(options: &PgConnectOptions) -> Result<Self, StoreError> {
        let connection = options.connect().await.map_err(postgres::classify)?;
        Ok(Self::Postgres(Box::new(connection)))
    }

    pub(super) async fn sqlite(options: &SqliteConnectOptions) -> Result<Self, StoreError> {
        let pool = loop {
            let pool = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
            match pool.connect_with(options.clone()).await.map_err(sqlite::classify) {
                // Whoever is just closing the file has it for itself, and SQLite does not always wait then.
                Err(error) if error.code() == Code::DatabaseLocked => tokio::time::sleep(CLOSING).await,
                opened => break opened?,
            }
        };
        // Who waits inside of SQLite waits longer than others.
        sqlx::query("PRAGMA busy_timeout = 0").execute(&pool).await.map_err(sqlite::classify)?;
        Ok(Self::Sqlite(pool))
    }

    /// Writes events in one transaction; answers when its commit was called.
    pub(super) async fn write(
        &mut self,
        outbox: &Outbox,
        events: impl IntoIterator<Item = RecordBuilder>,
    ) -> Result<Instant, EnqueueError<StoreError>> {
        match self {
            Self::Postgres(connection) => {
                let failed = |error| EnqueueError::Database(postgres::classify(error));
                let mut tx = connection.begin().await.map_err(failed)?;
                let written = outbox.enqueue_all(&mut tx, events).await;
                written.map_err(|error| error.map_database(postgres::classify))?;
                let called = Instant::now();
                tx.commit().await.map_err(failed)?;
                Ok(called)
            }
            Self::Sqlite(pool) => {
                let failed = |error| EnqueueError::Database(sqlite::classify(error));
                let asked = Instant::now();
                let mut tx = loop {
                    match sqlite::begin(pool).await.map_err(sqlite::classify) {
                        // Others write all the time here, and a slow disk makes each of them slow: that is what is measured.
                        Err(error) if error.code() == Code::DatabaseLocked && asked.elapsed() < LOCKED => {}
                        begun => break begun.map_err(EnqueueError::Database)?,
                    }
                };
                let written = outbox.enqueue_all(&mut tx, events).await;
                written.map_err(|error| error.map_database(sqlite::classify))?;
                let called = Instant::now();
                tx.commit().await.map_err(failed)?;
                Ok(called)
            }
        }
    }
}
