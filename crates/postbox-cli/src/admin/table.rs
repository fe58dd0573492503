//! A table as the API has it: its name, the way to it, and what was last seen of it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postbox_core::{History, StoreError, TableName};
use postbox_stores::any::{AnyAdmin, Dialect};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::answer::Refusal;
use super::sample::Seen;
use crate::database::Database;
use crate::http::Watched;

/// No request about a table takes longer.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long a request waits for its turn.
const TURN: Duration = Duration::from_secs(3);

/// So many requests ask databases at a time; connections are fewer still.
pub(super) const AT_A_TIME: usize = 16;

/// What a table is looked at with.
#[derive(Debug, Clone)]
pub(crate) struct TableSetup {
    pub(crate) table: TableName,
    /// The relay of this process, if it has one for the table.
    pub(crate) watched: Option<Arc<Watched>>,
}

/// A database and its tables.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseSetup {
    pub(crate) database: Database,
    pub(crate) tables: Vec<TableSetup>,
    /// What the relays of this process are called.
    pub(crate) relay_name: String,
    pub(crate) max_attempts: i32,
    pub(crate) lock_ttl: Duration,
    pub(crate) single_active: bool,
    pub(crate) history: History,
}

/// A table.
pub(super) struct Table {
    /// What paths have.
    pub(super) id: String,
    pub(super) name: TableName,
    /// With statements that end in time, for requests and jobs.
    pub(super) admin: AnyAdmin,
    /// The same for who looks again and again: a slow request holds it up no more than that.
    pub(super) watch: AnyAdmin,
    pub(super) watched: Option<Arc<Watched>>,
    pub(super) site: Arc<DatabaseSetup>,
    pub(super) seen: Mutex<Seen>,
    turns: Arc<Semaphore>,
}

impl Table {
    /// The tables of databases; connects when they are first looked at. Within the runtime that shall do it.
    pub(super) fn all(databases: Vec<DatabaseSetup>) -> Vec<Arc<Self>> {
        let turns = Arc::new(Semaphore::new(AT_A_TIME));
        let mut tables = Vec::new();
        for site in databases {
            let site = Arc::new(site);
            let names: Vec<TableName> = site.tables.iter().map(|setup| setup.table.clone()).collect();
            let admins = site.database.admins(&names, site.max_attempts, site.lock_ttl);
            for (setup, (admin, watch)) in site.tables.iter().zip(admins) {
                let id = match site.database.label() {
                    Some(label) => format!("{label}:{}", setup.table),
                    None => setup.table.to_string(),
                };
                tables.push(Arc::new(Self {
                    id,
                    name: setup.table.clone(),
                    admin,
                    watch,
                    watched: setup.watched.clone(),
                    site: Arc::clone(&site),
                    seen: Mutex::default(),
                    turns: Arc::clone(&turns),
                }));
            }
        }
        tables
    }

    /// Asks the database, in turn and in time.
    pub(super) async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Refusal> {
        self.in_time(question).await?.map_err(|error| Refusal::store(&self.name, &error))
    }

    /// Does something with the database, in turn and in time.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, Refusal> {
        let Ok(Ok(_turn)) = tokio::time::timeout(TURN, self.turns.acquire()).await else {
            return Err(Refusal::busy(format!("{AT_A_TIME} requests ask databases already")));
        };
        tokio::time::timeout(PATIENCE, work).await.map_err(|_| Refusal::too_late(&self.name))
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        // What is in it is replaced as a whole.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command line about this table.
    pub(super) fn command(&self, words: &str) -> Command {
        let database = self.site.database.label().map(|label| format!(" --database {label}"));
        Command(format!("postbox {words}{} --table {}", database.unwrap_or_default(), self.name))
    }

    /// What somebody has to type before much is changed: nothing on this machine, else the database's name, as the program
    /// asks for it.
    pub(super) fn confirmation(&self) -> Option<String> {
        let (name, local) = self.site.database.name();
        (!local).then_some(name)
    }

    /// What is known of it without asking.
    pub(super) fn to_json(&self) -> Value {
        let dialect = match self.site.database.dialect() {
            Dialect::Postgres => "postgres",
            Dialect::Sqlite => "sqlite",
            Dialect::MySql => "mysql",
        };
        let database = &self.site.database;
        let cli = self.command("").0;
        json!({
            "id": self.id,
            "table": self.name.to_string(),
            "database": database.label(),
            "place": database.address(),
            "dialect": dialect,
            "relayed": self.watched.is_some(),
            "single_active": self.site.single_active,
            "cli": cli.trim_start_matches("postbox").trim(),
        })
    }
}

/// A command line that does the same as a request, for people to copy.
#[derive(Debug, Clone)]
pub(super) struct Command(String);

impl Command {
    /// With one more flag, if there is something to say by it.
    pub(super) fn flag(mut self, name: &str, value: Option<impl std::fmt::Display>) -> Self {
        if let Some(value) = value {
            self.0 = format!("{} --{name} {}", self.0, quoted(&value.to_string()));
        }
        self
    }

    /// With the aggregates that a filter names.
    pub(super) fn aggregate(self, kind: Option<&str>, id: Option<&str>) -> Self {
        let both = match (kind, id) {
            (Some(kind), Some(id)) => Some(format!("{kind}/{id}")),
            (Some(kind), None) => Some(kind.to_owned()),
            // The command has no way to ask for an id without its type.
            (None, _) => None,
        };
        self.flag("aggregate", both)
    }

    /// With a switch, if it is on.
    pub(super) fn switch(mut self, name: &str, on: bool) -> Self {
        if on {
            self.0 = format!("{} --{name}", self.0);
        }
        self
    }

    /// With one more word.
    pub(super) fn word(mut self, word: &str) -> Self {
        self.0 = format!("{} {}", self.0, quoted(word));
        self
    }

    pub(super) fn line(self) -> String {
        self.0
    }
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:@,+=-".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_stays_one_word_in_a_shell() {
        for (word, text) in [
            ("org.a.v1", "org.a.v1"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(rm -rf /)", "'$(rm -rf /)'"),
            ("", "''"),
            ("-x", "'-x'"),
        ] {
            assert_eq!(quoted(word), text);
        }
    }
}
