//! Where a bench works: a place of its own in the user's database, or beside it.

use std::time::Duration;

use postbox_core::{Code, History, StoreError, TableName};
use postbox_stores::any::{Dialect, Extras};
use postbox_stores::postgres::{self, migrate::Ordered};
use postbox_stores::sqlite;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use uuid::Uuid;

use super::facts::Facts;
use super::folder::{self, Folder};
use super::schema::{self, Schema};
use super::writer::Writer;
use crate::config::{Config, Ordering};
use crate::database::Database;
use crate::report::{Failure, Problem};

const TABLE: &str = "outbox";
/// How long a connection may take, and what is asked only by the way.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A number that nobody else has, for a name.
pub(super) fn number() -> u32 {
    Uuid::new_v4().as_fields().0
}

/// How the user's database is reached.
pub(super) enum Target {
    Postgres(Box<PgConnectOptions>),
    Sqlite(Box<SqliteConnectOptions>),
}

impl Target {
    /// Past a pooler, where there is a way: tables cannot be made through one.
    pub(super) fn of(config: &Config, database: &Database) -> Result<Self, Failure> {
        let url = config.general.direct_url.as_ref().unwrap_or(&config.general.database_url).reveal();
        let refused = |error: StoreError| Failure::from(Problem::new(error.code(), error.message()));
        Ok(match database.dialect() {
            Dialect::Postgres => {
                let options = postgres::connect_options(url).map_err(refused)?;
                Self::Postgres(Box::new(options.disable_statement_logging()))
            }
            Dialect::Sqlite => {
                let options = sqlite::connect_options(url).map_err(refused)?;
                Self::Sqlite(Box::new(options.disable_statement_logging()))
            }
            Dialect::MySql => {
                let message = "postbox bench knows PostgreSQL and SQLite";
                let problem = Problem::new(Code::ConfigUnsupported, message);
                return Err(problem.next("name another database: --database-url postgres://…").into());
            }
        })
    }

    /// What benches left behind which are no more, by name.
    pub(super) async fn leftovers(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::Postgres(options) => schema::leftovers(options).await,
            Self::Sqlite(options) => Ok(names(folder::leftovers(options))),
        }
    }

    /// Removes that; answers the names.
    pub(super) async fn clean_up(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::Postgres(options) => schema::clean_up(options).await,
            Self::Sqlite(options) => folder::clean_up(options).map(names),
        }
    }
}

fn names(paths: Vec<std::path::PathBuf>) -> Vec<String> {
    paths.into_iter().map(|path| path.display().to_string()).collect()
}

/// What was made, and how to get there.
pub(super) struct Site {
    pub(super) database: Database,
    pub(super) table: TableName,
    own: Own,
}

enum Own {
    Schema(Box<Schema>, Box<PgConnectOptions>),
    Folder(Box<Folder>),
}

impl Site {
    pub(super) async fn make(target: &Target, database: &Database) -> Result<Self, Failure> {
        let parse = |name: &str| name.parse::<TableName>().map_err(|error| Problem::new(error.code(), error));
        Ok(match target {
            Target::Postgres(options) => {
                let schema = Schema::make(options).await?;
                let table = parse(&format!("{}.{TABLE}", schema.name()))?;
                Self {
                    database: database.clone(),
                    table,
                    own: Own::Schema(Box::new(schema), options.clone()),
                }
            }
            Target::Sqlite(options) => {
                let folder = Folder::make(options)?;
                let database = Database::at_file(&folder.file())?;
                Self { database, table: parse(TABLE)?, own: Own::Folder(Box::new(folder)) }
            }
        })
    }

    /// What was made, in words.
    pub(super) fn describe(&self) -> String {
        match &self.own {
            Own::Schema(schema, _) => format!("a schema of its own, {}", schema.name()),
            Own::Folder(folder) => format!("a folder of its own, {}", folder.name()),
        }
    }

    /// Removes all that was made.
    pub(super) async fn remove(self) -> Result<(), Failure> {
        match self.own {
            Own::Schema(schema, _) => schema.remove().await,
            Own::Folder(folder) => folder.remove().await,
        }
    }

    /// What its figures have to be read with; `place` is that of the user's database.
    pub(super) async fn facts(&mut self, place: String) -> Result<Facts, Failure> {
        let failed = |error: StoreError| Failure::from(Problem::new(error.code(), error.message()));
        if let Own::Schema(schema, _) = &mut self.own {
            return Facts::of_postgres(schema.keeper(), place).await.map_err(failed);
        }
        match self.writers(1).await?.first() {
            Some(Writer::Sqlite(pool)) => Facts::of_sqlite(pool, place).await.map_err(failed),
            _ => unreachable!("a file is opened by SQLite"),
        }
    }

    /// How much the server has ever written to its log, if it has one and says.
    pub(super) async fn wal(&mut self) -> Option<u64> {
        let Own::Schema(schema, _) = &mut self.own else { return None };
        let bytes = sqlx::query_scalar::<_, i64>("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint");
        let bytes = tokio::time::timeout(CONNECT_LIMIT, bytes.fetch_one(schema.keeper())).await;
        bytes.ok()?.ok().and_then(|bytes| u64::try_from(bytes).ok())
    }

    /// A fresh table, as a relay of this configuration needs it.
    pub(super) async fn table_up(&self, config: &Config) -> Result<(), Failure> {
        let ordered = match config.relay.ordering {
            Ordering::Aggregate => Ordered::Writers,
            Ordering::None => Ordered::AsItIs,
        };
        let history = config.relay.history == History::Move;
        let extras = Extras { history, ordered, tenants: config.relay.fair_tenants, ..Extras::default() };
        let mut connection = self.database.connect().await?;
        let made = connection.migrate_up(&self.table, extras, |_| {}).await;
        made.map(drop).map_err(|error| self.problem(&error))
    }

    /// Removes the table, with all events.
    pub(super) async fn table_down(&self) -> Result<(), Failure> {
        let mut connection = self.database.connect().await?;
        connection.migrate_down(&self.table, true, None).await.map_err(|error| self.problem(&error))
    }

    /// Lets the database get over what was written: a backlog that is drained is seldom a second old.
    pub(super) async fn settle_down(&mut self) -> Result<(), Failure> {
        let Own::Schema(schema, _) = &mut self.own else { return Ok(()) };
        let sql = format!("VACUUM ANALYZE {}", self.table.quoted('"'));
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(schema.keeper()).await;
        done.map(drop).map_err(|error| Problem::about(&self.table, &postgres::classify(error)).into())
    }

    /// So many connections; one by one, so that the first that is refused is known.
    pub(super) async fn writers(&self, count: u64) -> Result<Vec<Writer>, Failure> {
        let mut writers = Vec::new();
        for number in 1..=count {
            let opened = match &self.own {
                Own::Schema(_, options) => {
                    tokio::time::timeout(CONNECT_LIMIT, Writer::postgres(options)).await
                }
                Own::Folder(folder) => {
                    tokio::time::timeout(CONNECT_LIMIT, Writer::sqlite(folder.options())).await
                }
            };
            let opened = opened.unwrap_or_else(|_| Err(unanswered()));
            writers.push(opened.map_err(|error| {
                let message = format!("connection {number} of {count}: {}", error.message());
                let problem = Problem::new(error.code(), message);
                if number == 1 {
                    problem
                } else {
                    problem.next("give fewer by --connections, or let the server have more (max_connections)")
                }
            })?);
        }
        Ok(writers)
    }

    /// What went wrong with its table.
    pub(super) fn problem(&self, error: &StoreError) -> Failure {
        Problem::about(&self.table, error).into()
    }
}

fn unanswered() -> StoreError {
    let message = format!("no answer within {CONNECT_LIMIT:?}");
    StoreError::new(
        postbox_core::Code::DatabaseUnreachable,
        postbox_core::StoreErrorKind::Connection,
        message,
    )
}
