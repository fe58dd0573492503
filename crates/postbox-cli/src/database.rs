//! [`Database`]: where the tables are, by whatever URL it is named.

use std::path::Path;
use std::time::Duration;

use postbox_core::{Code, StoreError, StoreErrorKind, TableName};
use postbox_stores::any::{
    AnyAdmin, AnyConnection, AnyDatabase, AnyIdempotency, AnyStore, Dialect, StoreSettings,
};

use crate::assemble::max_attempts;
use crate::config::{Config, Origin};
use crate::report::{Failure, Problem};

/// What a dashboard asks may not take longer.
const LONGEST_STATEMENT: Duration = Duration::from_secs(10);

/// The database that the configuration names, or the file that stands in for one.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    inner: AnyDatabase,
    /// Its name, where there are several.
    label: Option<String>,
    /// Nobody named a database.
    by_default: bool,
}

impl Database {
    /// Reads the URLs; nothing is connected yet.
    pub(crate) fn of(config: &Config) -> Result<Self, Failure> {
        let refused = |error: StoreError| {
            let message = match &config.database {
                Some(name) => format!("{name}: {}", error.message()),
                None => error.message().to_owned(),
            };
            Failure::from(Problem::new(error.code(), message))
        };
        let url = &config.general.database_url;
        let mut inner = AnyDatabase::from_url(url.reveal()).map_err(refused)?;
        if let Some(direct) = &config.general.direct_url {
            inner = inner.direct(direct.reveal()).map_err(refused)?;
        }
        let by_default = matches!(config.origin("database_url"), Some(Origin::Default));
        Ok(Self { inner, label: config.database.clone(), by_default })
    }

    /// Another file, which is made when somebody connects.
    pub(crate) fn at_file(file: &Path) -> Result<Self, Failure> {
        // As a URL has it: these two mean something else there.
        let path = file.display().to_string().replace('%', "%25").replace('?', "%3F");
        let inner = AnyDatabase::from_url(&format!("sqlite:{path}?mode=rwc"));
        let inner = inner.map_err(|error| Problem::new(error.code(), error.message()))?;
        Ok(Self { inner, label: None, by_default: false })
    }

    /// Host and name, or the file, for questions to people.
    pub(crate) fn place(&self) -> String {
        match &self.label {
            Some(name) => format!("{name} ({})", self.inner.place()),
            None => self.inner.place(),
        }
    }

    /// What it is called in the configuration, where there are several.
    pub(crate) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The database's name, and whether it is on this machine.
    pub(crate) fn name(&self) -> (String, bool) {
        (self.inner.name(), self.inner.is_local())
    }

    /// What SQL it understands.
    pub(crate) fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    /// Whether nobody named a database.
    pub(crate) fn is_default(&self) -> bool {
        self.by_default
    }

    /// Whether it is a file that is not there yet.
    pub(crate) fn is_missing_file(&self) -> bool {
        self.inner.is_missing_file()
    }

    /// One connection; a command that cannot get one says so at once.
    pub(crate) async fn connect(&self) -> Result<AnyConnection, Failure> {
        self.inner.connect().await.map_err(|error| self.problem(&error).into())
    }

    /// The same, but a file that is not there is made.
    pub(crate) async fn connect_or_create(&self) -> Result<AnyConnection, Failure> {
        self.inner.connect_or_create().await.map_err(|error| self.problem(&error).into())
    }

    /// An empty database of the same kind, to find out what would be done to a file that is not there.
    pub(crate) async fn pretend(&self) -> Result<AnyConnection, Failure> {
        self.inner.pretend().await.map_err(|error| self.problem(&error).into())
    }

    /// Refuses to go on where the database is a file that is not there.
    pub(crate) fn expect_file(&self) -> Result<(), Failure> {
        if !self.is_missing_file() {
            return Ok(());
        }
        let message = format!("{}: it does not exist", self.place());
        Err(self.problem(&StoreError::new(Code::DatabaseFile, StoreErrorKind::Refused, message)).into())
    }

    /// Why there is no connection.
    fn problem(&self, error: &StoreError) -> Problem {
        let problem = Problem::new(error.code(), error.message());
        if error.code() != Code::DatabaseFile || !self.is_missing_file() {
            return problem;
        }
        let problem = problem.next("make it: postbox migrate up --table <name>; its directory must exist");
        if self.by_default {
            problem.after("no database is named, so this file is meant").next(
                "name one: DATABASE_URL=postgres://…, or make the file: postbox migrate up --table <name>",
            )
        } else {
            problem
        }
    }

    /// An error about a table; where nobody named a database, it may be about the wrong one.
    pub(crate) fn about(&self, table: &TableName, error: &StoreError) -> Problem {
        let problem = Problem::about(table, error);
        if self.by_default && error.code() == Code::TableNameInvalid {
            let next =
                format!("name one: DATABASE_URL=postgres://…, or the table: --table {}", table.table());
            return problem.after(&format!("no database is named, so {} is meant", self.place())).next(next);
        }
        problem
    }

    /// What a relay works with; connects when it is first used.
    pub(crate) fn store(&self, table: &TableName, settings: StoreSettings) -> AnyStore {
        self.inner.store(table, settings)
    }

    /// What operators do with a table; connects when it is first used.
    pub(crate) fn admin(&self, table: &TableName, config: &Config) -> AnyAdmin {
        self.inner.admin(table, max_attempts(config), config.relay.lock_ttl)
    }

    /// The calls by idempotency key of a table's module, if it has some; connects when it is first used.
    pub(crate) fn calls(&self, table: &TableName) -> AnyIdempotency {
        self.inner.idempotency(table)
    }

    /// Tables for whoever looks at them all the time, each with one to ask and one to look: few connections, and none that is
    /// busy for long.
    pub(crate) fn admins(
        &self,
        tables: &[TableName],
        max_attempts: i32,
        lock_ttl: Duration,
    ) -> Vec<(AnyAdmin, AnyAdmin)> {
        self.inner.admins(tables, max_attempts, lock_ttl, LONGEST_STATEMENT)
    }

    /// As [`direct_admin`](Self::direct_admin), for who has no configuration at hand.
    pub(crate) fn direct(&self, table: &TableName, max_attempts: i32, lock_ttl: Duration) -> AnyAdmin {
        self.inner.direct_admin(table, max_attempts, lock_ttl).statement_timeout(LONGEST_STATEMENT)
    }

    /// Where it is, without its name in the configuration.
    pub(crate) fn address(&self) -> String {
        self.inner.place()
    }

    /// Past a pooler, where there is a way: for whoever looks at the way itself.
    pub(crate) fn direct_admin(&self, table: &TableName, config: &Config) -> AnyAdmin {
        self.inner.direct_admin(table, max_attempts(config), config.relay.lock_ttl)
    }
}
