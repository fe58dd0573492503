//! [`AnyConnection`]: one connection to any of the databases, for what is done once: migrations, an event by hand.

use postbox_core::{Code, EnqueueError, IntoRecord, Outbox, Receipt, StoreError, StoreErrorKind, TableName};
use sqlx::postgres::PgConnectOptions;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, PgConnection, SqliteConnection,
};

use crate::plan::{Extras, Held, Plan, Step};
use crate::postgres::migrate::Grants;
use crate::{mysql, postgres, sqlite};

/// An open connection.
#[derive(Debug)]
pub struct AnyConnection(Kind);

#[derive(Debug)]
enum Kind {
    /// With where it leads, for those who need another one.
    Postgres(PgConnection, Box<PgConnectOptions>),
    Sqlite(SqliteConnection),
    MySql(MySqlConnection),
}

impl AnyConnection {
    pub(super) fn postgres(connection: PgConnection, options: PgConnectOptions) -> Self {
        Self(Kind::Postgres(connection, Box::new(options)))
    }

    pub(super) fn sqlite(connection: SqliteConnection) -> Self {
        Self(Kind::Sqlite(connection))
    }

    pub(super) fn mysql(connection: MySqlConnection) -> Self {
        Self(Kind::MySql(connection))
    }

    /// Finds out what [`migrate_up`](Self::migrate_up) would do. SQLite needs none of the options: it has one writer at a time.
    ///
    /// # Errors
    /// When the table exists with other columns, or the database fails.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn plan(&mut self, table: &TableName, extras: Extras) -> Result<Plan, StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => postgres::migrate::plan_with(connection, table, extras).await,
            Kind::Sqlite(connection) => sqlite::migrate::plan_with(connection, table, extras).await,
            Kind::MySql(connection) => Box::pin(mysql::migrate::plan_with(connection, table, extras)).await,
        }
    }

    /// Brings a table to the state that this version wants; calls `progress` before each step.
    ///
    /// # Errors
    /// When the table has other columns, a transaction pooler stands between, or the database refuses.
    ///
    /// # Cancel safety
    /// As `up` of the database's own `migrate`: what was done stays, and the connection is not to be used again.
    pub async fn migrate_up(
        &mut self,
        table: &TableName,
        extras: Extras,
        progress: impl FnMut(&Step),
    ) -> Result<Plan, StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, options) => {
                // Who cannot have a second connection has no pooler in between: those are for having many.
                if let Ok(mut other) = options.connect().await {
                    postgres::migrate::expect_sessions(connection, &mut other).await?;
                    let _ = other.close().await;
                }
                postgres::migrate::up_with(connection, table, extras, progress).await
            }
            Kind::Sqlite(connection) => sqlite::migrate::up_with(connection, table, extras, progress).await,
            Kind::MySql(connection) => {
                Box::pin(mysql::migrate::up_with(connection, table, extras, progress)).await
            }
        }
    }

    /// Removes a table; refuses while it holds events that were not published, unless they are to be lost on purpose. The audit
    /// log, where there is one, gets a row with who did it and what [`held`](Self::held) had counted.
    ///
    /// # Errors
    /// When unpublished events exist, the table does not exist, or the database fails.
    ///
    /// # Cancel safety
    /// As `down` of the database's own `migrate`; the connection is not to be used again.
    pub async fn migrate_down(
        &mut self,
        table: &TableName,
        discard_unpublished: bool,
        by: Option<(&str, Held)>,
    ) -> Result<(), StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => {
                postgres::migrate::down_by(connection, table, discard_unpublished, by).await
            }
            Kind::Sqlite(connection) => {
                sqlite::migrate::down_by(connection, table, discard_unpublished, by).await
            }
            Kind::MySql(connection) => {
                Box::pin(mysql::migrate::down_by(connection, table, discard_unpublished, by)).await
            }
        }
    }

    /// What a table and its history hold: what [`migrate_down`](Self::migrate_down) would remove with them. Reads all of it.
    ///
    /// # Errors
    /// When the table does not exist or is no outbox, or the database fails.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn held(&mut self, table: &TableName) -> Result<Held, StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => postgres::migrate::held(connection, table).await,
            Kind::Sqlite(connection) => sqlite::migrate::held(connection, table).await,
            Kind::MySql(connection) => Box::pin(mysql::migrate::held(connection, table)).await,
        }
    }

    /// Whether the table has a history that is ours: what is removed with it.
    ///
    /// # Errors
    /// When the database fails.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn has_history(&mut self, table: &TableName) -> Result<bool, StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => postgres::migrate::has_history(connection, table).await,
            Kind::Sqlite(connection) => sqlite::migrate::has_history(connection, table).await,
            Kind::MySql(connection) => Box::pin(mysql::migrate::has_history(connection, table)).await,
        }
    }

    /// Whether the module of the table has an inbox that is ours: what is removed with it.
    ///
    /// # Errors
    /// When the database fails.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn has_inbox(&mut self, table: &TableName) -> Result<bool, StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => postgres::migrate::has_inbox(connection, table).await,
            Kind::Sqlite(connection) => sqlite::migrate::has_inbox(connection, table).await,
            Kind::MySql(connection) => Box::pin(mysql::migrate::has_inbox(connection, table)).await,
        }
    }

    /// Whether the table's module has a table of calls by idempotency key that is ours: what is removed with it.
    ///
    /// # Errors
    /// When the database fails.
    ///
    /// # Cancel safety
    /// Only looks: it can be dropped at any time.
    pub async fn has_idempotency(&mut self, table: &TableName) -> Result<bool, StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => postgres::migrate::has_idempotency(connection, table).await,
            Kind::Sqlite(connection) => sqlite::migrate::has_idempotency(connection, table).await,
            Kind::MySql(connection) => Box::pin(mysql::migrate::has_idempotency(connection, table)).await,
        }
    }

    /// Gives roles what they need of a table, and of what else its module has.
    ///
    /// # Errors
    /// When a role does not exist, or the database has none.
    ///
    /// # Cancel safety
    /// Dropped, all of it is granted, or nothing. The connection is not to be used again.
    pub async fn grant(&mut self, table: &TableName, grants: &Grants) -> Result<(), StoreError> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => {
                let history = postgres::migrate::has_history(connection, table).await?;
                let inbox = postgres::migrate::has_inbox(connection, table).await?;
                let idempotency = postgres::migrate::has_idempotency(connection, table).await?;
                let extras = Extras { history, inbox, idempotency, ..Extras::default() };
                let sql = postgres::migrate::print_grants_with(table, grants, extras);
                let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await;
                done.map(drop).map_err(postgres::classify)
            }
            Kind::Sqlite(_) => {
                let message = "SQLite has no roles: whoever may write the file may write every table";
                Err(StoreError::new(Code::ConfigInvalid, StoreErrorKind::Refused, message))
            }
            Kind::MySql(_) => {
                let message = "grants are only known for PostgreSQL: give them with GRANT";
                Err(StoreError::new(Code::ConfigUnsupported, StoreErrorKind::Refused, message))
            }
        }
    }

    /// Writes one event in a transaction of its own.
    ///
    /// # Errors
    /// As [`Outbox::enqueue`]; the result is unknown if the connection is lost.
    ///
    /// # Cancel safety
    /// Dropped, the event is written, or it is not. The connection is not to be used again.
    pub async fn enqueue(
        &mut self,
        outbox: &Outbox,
        event: impl IntoRecord,
    ) -> Result<Receipt, EnqueueError<StoreError>> {
        match &mut self.0 {
            Kind::Postgres(connection, _) => {
                let failed = |error| EnqueueError::Database(postgres::classify(error));
                let mut tx = connection.begin().await.map_err(failed)?;
                // Once: to keep a statement prepared is of no use, and behind a pooler in others' way.
                let receipt = outbox.clone().unprepared().enqueue(&mut tx, event).await;
                let receipt = receipt.map_err(|error| error.map_database(postgres::classify))?;
                tx.commit().await.map_err(failed)?;
                Ok(receipt)
            }
            Kind::Sqlite(connection) => {
                let failed = |error| EnqueueError::Database(sqlite::classify(error));
                let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
                let receipt = outbox.enqueue(&mut tx, event).await;
                let receipt = receipt.map_err(|error| error.map_database(sqlite::classify))?;
                tx.commit().await.map_err(failed)?;
                Ok(receipt)
            }
            Kind::MySql(connection) => {
                let written = async {
                    let failed = |error| EnqueueError::Database(mysql::classify(error));
                    let mut tx = connection.begin().await.map_err(failed)?;
                    let receipt = outbox.enqueue(&mut tx, event).await;
                    let receipt = receipt.map_err(|error| error.map_database(mysql::classify))?;
                    tx.commit().await.map_err(failed)?;
                    Ok(receipt)
                };
                Box::pin(written).await
            }
        }
    }
}
