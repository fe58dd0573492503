//! A table with events of every kind, in PostgreSQL or in a file, and relays with the dashboard on it.

use std::process::Command;

use postbox_stores::sqlite;
use postbox_testkit::{MariaDb, MariaDbServer, PgServer, Program, TestDb};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _, SqlitePool};
use tempfile::TempDir;

use crate::client::Client;
use crate::common::{LONG, finish};

/// What is delivered, and what nothing is configured for.
pub(crate) const SENT: &str = "org.member.added.v1";
pub(crate) const LOST: &str = "lost.letter.written.v1";

pub(crate) const OPERATOR: &str = "0123456789abcdef-operator";
pub(crate) const VIEWER: &str = "0123456789abcdef-viewer";

/// Tokens for both.
pub(crate) const TOKENS: [(&str, &str); 2] = [
    ("OUTBOX_ADMIN_OPERATOR_TOKENS", "alice:0123456789abcdef-operator"),
    ("OUTBOX_ADMIN_VIEWER_TOKENS", "0123456789abcdef-viewer"),
];

/// Where everything is.
pub(crate) struct Site {
    pub(crate) dir: TempDir,
    pub(crate) db: Option<TestDb>,
    mariadb: Option<MariaDb>,
    pub(crate) table: &'static str,
}

impl Site {
    pub(crate) fn postgres() -> Self {
        let db = Some(PgServer::shared().database());
        Self { dir: tempfile::tempdir().unwrap(), db, mariadb: None, table: "public.org_outbox" }
    }

    pub(crate) fn sqlite() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), db: None, mariadb: None, table: "org_outbox" }
    }

    pub(crate) fn mariadb() -> Self {
        let mariadb = Some(MariaDbServer::shared().database());
        Self { mariadb, ..Self::sqlite() }
    }

    /// Both kinds, each with its table.
    pub(crate) fn both() -> [Self; 2] {
        let both = [Self::sqlite(), Self::postgres()];
        for site in &both {
            site.ok(&["migrate", "up", "--inbox", "--table", site.table]);
        }
        both
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.dir.path()).env_clear();
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost")]);
        if let Some(db) = &self.db {
            command.env("DATABASE_URL", &db.url);
        }
        if let Some(db) = &self.mariadb {
            command.env("DATABASE_URL", &db.url);
        }
        command
    }

    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let done = finish(self.command(args), "");
        assert_eq!(done.code, 0, "{args:?}: {done:#?}");
        done.stdout
    }

    /// One statement's first value, as text.
    pub(crate) fn sql(&self, text: &str) -> String {
        if let Some(db) = &self.db {
            return db.psql(text);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let url = format!("sqlite:{}", self.dir.path().join("postbox.db").display());
            let pool = SqlitePool::connect_with(sqlite::connect_options(&url).unwrap()).await.unwrap();
            let row = sqlx::query(AssertSqlSafe(text)).fetch_optional(&pool).await.unwrap();
            pool.close().await;
            row.map(|row| row.try_get_unchecked::<String, _>(0).unwrap()).unwrap_or_default()
        })
    }

    /// A number that SQL counts.
    pub(crate) fn count(&self, from: &str) -> u64 {
        self.sql(&format!("SELECT CAST(count(*) AS TEXT) FROM {from}")).parse().unwrap()
    }

    /// An event of a topic; its id.
    pub(crate) fn enqueue(&self, topic: &str, aggregate: &str, payload: &str) -> String {
        let args = ["enqueue", "--table", self.table, "--topic", topic, "--aggregate", aggregate];
        let args = [&args[..], &["--payload", payload, "--header", "trace=<b>x</b>", "--json"]].concat();
        let said: Value = serde_json::from_str(&self.ok(&args)).unwrap();
        said["event_id"].as_str().unwrap().to_owned()
    }

    /// Relays that have a way for some topics only: the others die at once.
    pub(crate) fn some_routes(&self) {
        let text = "[[route]]\ntopic = \"org.**\"\nsink = \"file:out.jsonl\"\n";
        std::fs::write(self.dir.path().join("postbox.toml"), text).unwrap();
    }

    /// Relays that have a way for all of them.
    pub(crate) fn all_routes(&self) {
        std::fs::write(self.dir.path().join("postbox.toml"), "sink = \"file:out.jsonl\"\n").unwrap();
    }

    /// A relay with the dashboard, and the way to it.
    pub(crate) fn relay(&self, more: &[&str], env: &[(&str, &str)]) -> (Program, Client) {
        let args = ["relay", "--table", self.table, "--poll-interval", "50ms", "--dashboard"];
        let args = [&args[..], &["--admin-listen", "127.0.0.1:0"], more].concat();
        let mut command = self.command(&args);
        command.envs(env.iter().copied());
        let relay = Program::from_command(command);
        let line = relay.wait_for_line("dashboard on http://", LONG);
        let url = line.split("dashboard on ").nth(1).unwrap().trim().to_owned();
        relay.wait_for_line("relaying ", LONG);
        (relay, Client::new(&url))
    }

    /// The path of the table in the API.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/tables/{}{rest}", self.table)
    }
}
