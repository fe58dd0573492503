//! A file that stands in for a database, and the program beside it.

use std::process::Command;

use postbox_stores::sqlite;
use postbox_testkit::{Program, read_jsonl};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _, SqlitePool};
use tempfile::TempDir;

use crate::common::{Done, LONG, TOPIC, finish};

pub(crate) const TABLE: &str = "shop_outbox";

/// A directory with the file that stands in for a database.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn new() -> Self {
        let folder = Self::empty();
        folder.ok("migrate up");
        folder
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.0.path()).env_clear();
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost")]);
        command
    }

    pub(crate) fn run(&self, words: &str) -> Done {
        let args: Vec<&str> = words.split(' ').chain(["--table", TABLE]).collect();
        finish(self.command(&args), "")
    }

    #[track_caller]
    pub(crate) fn ok(&self, words: &str) -> String {
        let done = self.run(words);
        assert_eq!(done.code, 0, "{words}: {done:#?}");
        done.stdout
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("{words} --json"))).unwrap()
    }

    pub(crate) fn refuses(&self, words: &str, exit: i32, code: &str, says: &str) {
        let done = self.run(words);
        assert_eq!(done.code, exit, "{words}: {done:#?}");
        assert!(done.stderr.contains(&format!("error[{code}]: ")), "{words}: {done:#?}");
        assert!(done.stderr.contains(says), "{words}: no {says:?} in {done:#?}");
        assert!(!done.stderr.contains("panicked"), "{words}: {done:#?}");
    }

    /// A relay with short leases, so that what a kill leaves behind is soon taken up.
    pub(crate) fn relay(&self, more: &[&str]) -> Program {
        let args = ["relay", "--table", TABLE, "--sink", "file:out.jsonl", "--poll-interval", "50ms"];
        let args = [&args[..], &["--lock-ttl", "1500ms", "--dispatch-timeout", "1s"], more].concat();
        let relay = Program::from_command(self.command(&args));
        relay.wait_for_line("relaying shop_outbox in postbox.db (no database is named) → ", LONG);
        relay
    }

    pub(crate) fn delivered(&self) -> Vec<Value> {
        read_jsonl(self.0.path().join("out.jsonl"))
    }

    pub(crate) async fn pool(&self) -> SqlitePool {
        let url = format!("sqlite:{}", self.0.path().join("postbox.db").display());
        SqlitePool::connect_with(sqlite::connect_options(&url).unwrap()).await.unwrap()
    }

    /// One statement's first value, as text.
    pub(crate) fn sql(&self, text: &str) -> String {
        self.try_sql(text).unwrap()
    }

    fn try_sql(&self, text: &str) -> Result<String, sqlx::Error> {
        block_on(async {
            let pool = self.pool().await;
            let row = sqlx::query(AssertSqlSafe(text)).fetch_optional(&pool).await;
            pool.close().await;
            Ok(row?.map(|row| row.try_get_unchecked::<String, _>(0).unwrap()).unwrap_or_default())
        })
    }

    /// Stops a relay of this file between two of its writes: in the middle of one it would keep the file locked.
    pub(crate) fn stop_between_writes(&self, relay: &mut Program) {
        for _ in 0..10 {
            relay.sigstop();
            if self.try_sql("UPDATE postbox_relay SET paused_at = paused_at").is_ok() {
                return;
            }
            relay.sigcont();
        }
        panic!("the relay writes whenever it is stopped");
    }

    /// Events with numbers, of which some are changed afterwards.
    pub(crate) fn fill(&self, events: usize, change: &str) {
        self.sql(&format!(
            "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {events})
             SELECT zeroblob(16), '{TOPIC}', '1', randomblob(16) FROM n"
        ));
        self.sql(change);
    }
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Now, as the table has it.
pub(crate) const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
