//! What is under test: a PostgreSQL that may crash, a table in order, a receiver, and the way to each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_testkit::{Oracle, PgServer, Program, Proxy, TestDb, eventually_blocking};
use tempfile::TempDir;

use crate::receiver::Receiver;

pub(crate) const TABLE: &str = "public.org_outbox";
/// Longer than a backlog takes, with retries that wait for up to a minute, on a machine that has other things to do.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);
/// More than what is charged by a storm, so that only what cannot be delivered dies.
const MAX_ATTEMPTS: &str = "1000";

/// Beyond so many that wait, nobody writes.
const BACKLOG: usize = 3_000;

/// How relays get their events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claiming {
    Owner,
    Shared,
}

pub(crate) struct Scene {
    pub(crate) claiming: Claiming,
    pub(crate) history: &'static str,
    // Before the server: a database is dropped while it still runs.
    pub(crate) db: TestDb,
    pub(crate) server: PgServer,
    pub(crate) receiver: Receiver,
    pub(crate) oracle: Arc<Oracle>,
    /// Writers wait meanwhile: a storm is about faults, not about a backlog.
    pub(crate) crowded: AtomicBool,
    dir: TempDir,
}

impl Scene {
    pub(crate) fn new(claiming: Claiming, history: &'static str) -> Self {
        let server = PgServer::start();
        let db = server.database();
        let oracle = Arc::new(Oracle::new().ordered());
        oracle.expect_dead([]);
        let receiver = Receiver::start(Arc::clone(&oracle));
        let (crowded, dir) = (AtomicBool::new(false), tempfile::tempdir().unwrap());
        let scene = Self { claiming, history, db, server, receiver, oracle, crowded, dir };
        let config = format!(
            "[sinks.hook]\nurl = \"{}\"\nallow = [\"127.0.0.1\"]\n[[route]]\ntopic = \"**\"\nsink = \"hook\"\n",
            scene.receiver.url()
        );
        std::fs::write(scene.dir.path().join("postbox.toml"), config).unwrap();
        let mut made = scene
            .program(&scene.db.url, &["migrate", "up", "--table", TABLE, "--ordered", "--history", history]);
        assert!(made.wait(PATIENCE).success(), "{}", made.stderr());
        scene
    }

    fn program(&self, url: &str, args: &[&str]) -> Program {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.dir.path()).env_clear().env("DATABASE_URL", url);
        Program::from_command(command)
    }

    /// A relay with short leases that reaches the database by this way.
    pub(crate) fn relay(&self, by: &Proxy) -> Program {
        let claim = match self.claiming {
            Claiming::Owner => ["--claim", "owner", "--single-active=true"],
            Claiming::Shared => ["--claim", "lease", "--single-active=false"],
        };
        let args = ["relay", "--table", TABLE, "--ordering", "aggregate", "--on-dead", "skip"];
        let times = ["--lock-ttl", "1500ms", "--dispatch-timeout", "1s", "--poll-interval", "100ms"];
        let rest = ["--batch-size", "50", "--max-attempts", MAX_ATTEMPTS, "--history", self.history];
        let args = [&args[..], &claim, &times, &rest].concat();
        self.program(&self.db.url_through(by.addr()), &args)
    }

    fn waiting(&self) -> usize {
        let waiting = format!("SELECT count(*) FROM {TABLE} WHERE published_at IS NULL AND dead_at IS NULL");
        self.db.psql(&waiting).parse().unwrap()
    }

    /// Looks whether writers should wait.
    pub(crate) fn look_at_backlog(&self) {
        self.crowded.store(self.waiting() > BACKLOG, Ordering::Relaxed);
    }

    /// Waits until nothing waits any more.
    pub(crate) fn everything_settled(&self) {
        eventually_blocking("nothing to wait", PATIENCE, || self.waiting() == 0);
    }

    /// What the oracle says in the end.
    #[track_caller]
    pub(crate) fn verdict(&self, most_duplicates: usize) -> postbox_testkit::Report {
        for id in self.db.psql(&format!("SELECT event_id FROM {TABLE} WHERE dead_at IS NOT NULL")).lines() {
            self.oracle.dead(id.parse().unwrap());
        }
        self.oracle.verdict(most_duplicates).unwrap_or_else(|faults| panic!("{faults}"))
    }
}
