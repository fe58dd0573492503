//! Any of the databases, chosen by a URL at run time: what the program works with. A service that knows its database
//! uses that database's own types.
//!
//! [`AnyDatabase`] is where to connect, [`AnyConnection`] migrates and enqueues, [`AnyStore`] is for relays,
//! [`AnyAdmin`] for operators.

mod admin;
mod connection;
mod idempotency;
mod store;

use std::net::IpAddr;
use std::time::Duration;

use postbox_core::store::Tenants;
use postbox_core::{Code, History, Order, StoreError, StoreErrorKind, TableName};
use sqlx::ConnectOptions as _;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::SqliteConnectOptions;

use crate::builder::StoreBuilder;
use crate::mysql::{self, MySqlAdmin, MySqlStore};
pub use crate::plan::{Extras, Held};
use crate::postgres::{self, PgAdmin, PgStore};
use crate::print::Format;
use crate::sqlite::{self, SqliteAdmin, SqliteStore};
pub use crate::strategy::Strategy;

pub use admin::AnyAdmin;
pub use connection::AnyConnection;
pub use idempotency::AnyIdempotency;
pub use store::AnyStore;

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A database that a URL names; nothing is connected.
#[derive(Debug, Clone)]
pub struct AnyDatabase(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Postgres { options: Box<PgConnectOptions>, direct: Option<Box<PgConnectOptions>> },
    Sqlite(Box<SqliteConnectOptions>),
    MySql(Box<MySqlConnectOptions>),
}

/// A kind of database, whose SQL can be printed without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
    /// MySQL and MariaDB.
    MySql,
}

/// What a relay's store is told, whatever the database.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Whether only one relay works on the table at a time.
    pub single_active: bool,
    /// The relay's name, for people.
    pub name: String,
    /// How rows are claimed.
    pub strategy: Strategy,
    /// In what order events are delivered.
    pub order: Order,
    /// What becomes of the rows of delivered events.
    pub history: History,
    /// Whose events the relay is for.
    pub tenants: Tenants,
}

impl StoreSettings {
    /// Tells a store all that every database knows of.
    fn tell<O>(self, store: StoreBuilder<O>) -> StoreBuilder<O> {
        let Self { single_active, name, strategy: _, order, history, tenants } = self;
        store.single_active(single_active).name(name).order(order).history(history).tenants(tenants)
    }
}

impl AnyDatabase {
    /// Reads a URL; the error shows no password.
    ///
    /// # Errors
    /// When it is the URL of no database that this build knows.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        match url.split_once(':').map_or("", |(scheme, _)| scheme) {
            "postgres" | "postgresql" => {
                let options = Box::new(postgres::connect_options(url)?);
                Ok(Self(Kind::Postgres { options, direct: None }))
            }
            "sqlite" => Ok(Self(Kind::Sqlite(Box::new(sqlite::connect_options(url)?)))),
            "mysql" | "mariadb" => Ok(Self(Kind::MySql(Box::new(mysql::connect_options(url)?)))),
            scheme => {
                let shown: String = scheme.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
                let message = format!(
                    "the URL's scheme is {shown:?}, this build knows postgres://, mysql://, mariadb:// and sqlite:"
                );
                Err(StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, message))
            }
        }
    }

    /// The same database, past a transaction pooler.
    ///
    /// # Errors
    /// When the URL is none, or the database is a file, which has no pooler, or MySQL or MariaDB.
    pub fn direct(self, url: &str) -> Result<Self, StoreError> {
        match self.0 {
            Kind::Postgres { options, .. } => {
                let direct = Some(Box::new(postgres::connect_options(url)?));
                Ok(Self(Kind::Postgres { options, direct }))
            }
            Kind::Sqlite(_) => {
                let message = "a direct URL leads past a pooler, and a database file has none: leave it out";
                Err(StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, message))
            }
            Kind::MySql(_) => {
                let message = "a direct URL leads past a pooler of PostgreSQL: name the server itself as the database, and leave \
                               it out";
                Err(StoreError::new(Code::DatabaseUrl, StoreErrorKind::Refused, message))
            }
        }
    }

    /// What SQL it understands.
    pub fn dialect(&self) -> Dialect {
        match &self.0 {
            Kind::Postgres { .. } => Dialect::Postgres,
            Kind::Sqlite(_) => Dialect::Sqlite,
            Kind::MySql(_) => Dialect::MySql,
        }
    }

    /// Where it is, for people: host and name, or the file.
    pub fn place(&self) -> String {
        match &self.0 {
            Kind::Postgres { options, .. } => format!("{}/{}", options.get_host(), self.name()),
            Kind::Sqlite(options) => options.get_filename().display().to_string(),
            Kind::MySql(options) => format!("{}/{}", options.get_host(), self.name()),
        }
    }

    /// The database's name.
    pub fn name(&self) -> String {
        match &self.0 {
            Kind::Postgres { options, .. } => {
                options.get_database().unwrap_or(options.get_username()).to_owned()
            }
            Kind::Sqlite(options) => {
                let file = options.get_filename();
                file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
            }
            Kind::MySql(options) => options.get_database().unwrap_or_default().to_owned(),
        }
    }

    /// Whether it is on this machine: a file, a socket, or the loopback.
    pub fn is_local(&self) -> bool {
        match &self.0 {
            Kind::Postgres { options, .. } => {
                let host = options.get_host();
                options.get_socket().is_some() || host.starts_with('/') || is_loopback(host)
            }
            Kind::Sqlite(_) => true,
            Kind::MySql(options) => options.get_socket().is_some() || is_loopback(options.get_host()),
        }
    }

    /// Whether it is a file that is not there.
    pub fn is_missing_file(&self) -> bool {
        // One that may not be looked for is not missing.
        let gone = |options: &SqliteConnectOptions| matches!(options.get_filename().try_exists(), Ok(false));
        matches!(&self.0, Kind::Sqlite(options) if gone(options))
    }

    /// One connection, past a pooler where there is a way. Who cannot get one hears so at once; a pool would try in
    /// silence until its limit and then blame itself.
    ///
    /// # Errors
    /// When there is no database, or it refuses.
    ///
    /// # Cancel safety
    /// Dropped, nothing is connected.
    pub async fn connect(&self) -> Result<AnyConnection, StoreError> {
        match &self.0 {
            Kind::Postgres { options, direct } => {
                let options = direct.as_ref().unwrap_or(options).as_ref().clone().disable_statement_logging();
                let error = match tokio::time::timeout(CONNECT_LIMIT, options.connect()).await {
                    Ok(Ok(connection)) => return Ok(AnyConnection::postgres(connection, options)),
                    Ok(Err(error)) => postgres::classify(error),
                    Err(_) => unanswered(),
                };
                Err(with_place(error, options.get_host(), options.get_port()))
            }
            Kind::MySql(options) => {
                let options = options.as_ref().clone().disable_statement_logging();
                let opened = tokio::time::timeout(CONNECT_LIMIT, Box::pin(mysql::open(&options))).await;
                let opened = opened.unwrap_or_else(|_| Err(unanswered())).map(AnyConnection::mysql);
                opened.map_err(|error| with_place(error, options.get_host(), options.get_port()))
            }
            Kind::Sqlite(options) => {
                let options =
                    options.as_ref().clone().busy_timeout(CONNECT_LIMIT).disable_statement_logging();
                let opened = tokio::time::timeout(CONNECT_LIMIT, sqlite::open(&options)).await;
                // A file answers at once, unless somebody has it for himself.
                let locked = |_| {
                    let place = self.place();
                    let message = format!("{place}: somebody kept it locked for all of {CONNECT_LIMIT:?}");
                    StoreError::new(Code::DatabaseLocked, StoreErrorKind::Connection, message)
                };
                opened.map_err(locked)?.map(AnyConnection::sqlite)
            }
        }
    }

    /// The same, but a file that is not there is made.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropped, nothing is connected; a file may have been made.
    pub async fn connect_or_create(&self) -> Result<AnyConnection, StoreError> {
        match &self.0 {
            Kind::Sqlite(options) => {
                Self(Kind::Sqlite(Box::new(options.as_ref().clone().create_if_missing(true)))).connect().await
            }
            Kind::Postgres { .. } | Kind::MySql(_) => self.connect().await,
        }
    }

    /// An empty database of the same kind in memory, to find out what would be done to a file that is not there.
    ///
    /// # Errors
    /// When there is no memory left.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn pretend(&self) -> Result<AnyConnection, StoreError> {
        let options = SqliteConnectOptions::new().in_memory(true);
        Ok(AnyConnection::sqlite(sqlite::open(&options).await?))
    }

    /// A table for operators; connects when it is first used. `max_attempts` and `lock_ttl` are the relay's.
    pub fn admin(&self, table: &TableName, max_attempts: i32, lock_ttl: Duration) -> AnyAdmin {
        match &self.0 {
            Kind::Postgres { options, .. } => pg_admin(options, table, max_attempts, lock_ttl),
            Kind::Sqlite(options) => {
                AnyAdmin::Sqlite(SqliteAdmin::connect(options.as_ref().clone(), table.clone()))
            }
            Kind::MySql(options) => {
                AnyAdmin::MySql(MySqlAdmin::connect(options.as_ref().clone(), table.clone()))
            }
        }
    }

    /// Tables for whoever looks at them all the time: for each one to ask, and one to look again and again, which are not in
    /// each other's way. They share three connections to a server, and have one each to a file or to MySQL; no statement takes
    /// longer than `limit`, where the server can be told so.
    pub fn admins(
        &self,
        tables: &[TableName],
        max_attempts: i32,
        lock_ttl: Duration,
        limit: Duration,
    ) -> Vec<(AnyAdmin, AnyAdmin)> {
        match &self.0 {
            Kind::Postgres { options, .. } => {
                let options = options.as_ref().clone().disable_statement_logging();
                let pool = PgPoolOptions::new().max_connections(3).acquire_timeout(Duration::from_secs(5));
                let pool = pool.idle_timeout(Duration::from_mins(1)).connect_lazy_with(options);
                let admin = |table: &TableName| {
                    let admin = PgAdmin::new(pool.clone(), table.clone()).statement_timeout(limit);
                    AnyAdmin::Postgres(Box::new(admin.max_attempts(max_attempts).lock_ttl(lock_ttl)))
                };
                tables.iter().map(|table| (admin(table), admin(table))).collect()
            }
            Kind::Sqlite(_) | Kind::MySql(_) => {
                let admin = |table: &TableName| self.admin(table, max_attempts, lock_ttl);
                tables.iter().map(|table| (admin(table), admin(table))).collect()
            }
        }
    }

    /// The same past a pooler, where there is a way: for whoever looks at the way itself.
    pub fn direct_admin(&self, table: &TableName, max_attempts: i32, lock_ttl: Duration) -> AnyAdmin {
        match &self.0 {
            Kind::Postgres { direct: Some(direct), .. } => pg_admin(direct, table, max_attempts, lock_ttl),
            Kind::Postgres { direct: None, .. } | Kind::Sqlite(_) | Kind::MySql(_) => {
                self.admin(table, max_attempts, lock_ttl)
            }
        }
    }

    /// A table for a relay; connects when it is opened.
    pub fn store(&self, table: &TableName, settings: StoreSettings) -> AnyStore {
        let strategy = settings.strategy;
        match &self.0 {
            Kind::Postgres { options, direct } => {
                let options = direct.as_ref().unwrap_or(options).as_ref().clone();
                let store = PgStore::builder(options, table.clone()).strategy(strategy);
                AnyStore::Postgres(settings.tell(store).build())
            }
            Kind::Sqlite(options) => {
                let store = SqliteStore::builder(options.as_ref().clone(), table.clone());
                AnyStore::Sqlite(settings.tell(store).build())
            }
            Kind::MySql(options) => {
                let store = MySqlStore::builder(options.as_ref().clone(), table.clone()).strategy(strategy);
                AnyStore::MySql(settings.tell(store).build())
            }
        }
    }
}

impl Dialect {
    /// The table as SQL, for tools that apply it themselves.
    ///
    /// # Errors
    /// When the table's name does not fit the database.
    pub fn print_up(self, table: &TableName, format: Format, extras: Extras) -> Result<String, StoreError> {
        match self {
            Self::Postgres => Ok(postgres::migrate::print_up_with(table, format, extras)),
            Self::Sqlite => sqlite::migrate::print_up_with(table, format, extras),
            Self::MySql => mysql::migrate::print_up_with(table, format, extras),
        }
    }

    /// The way back as SQL.
    ///
    /// # Errors
    /// As [`print_up`](Self::print_up).
    pub fn print_down(self, table: &TableName, extras: Extras) -> Result<String, StoreError> {
        match self {
            Self::Postgres => Ok(postgres::migrate::print_down_with(table, extras)),
            Self::Sqlite => sqlite::migrate::print_down_with(table, extras),
            Self::MySql => mysql::migrate::print_down_with(table, extras),
        }
    }
}

fn pg_admin(
    options: &PgConnectOptions,
    table: &TableName,
    max_attempts: i32,
    lock_ttl: Duration,
) -> AnyAdmin {
    let options = options.clone().disable_statement_logging();
    let admin = PgAdmin::connect(options, table.clone());
    AnyAdmin::Postgres(Box::new(admin.max_attempts(max_attempts).lock_ttl(lock_ttl)))
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Where it is that does not answer.
fn with_place(error: StoreError, host: &str, port: u16) -> StoreError {
    if error.code() != Code::DatabaseUnreachable {
        return error;
    }
    let message = format!("{host}:{port}: {}", error.message());
    StoreError::new(error.code(), error.kind(), message).caused_by(error)
}

fn unanswered() -> StoreError {
    let message = format!("no answer within {CONNECT_LIMIT:?}");
    StoreError::new(Code::DatabaseUnreachable, StoreErrorKind::Connection, message)
}

#[cfg(test)]
mod tests;
