//! Three databases of three kinds, and the program that relays all of them.

use std::collections::BTreeMap;
use std::process::Command;

use postbox_stores::sqlite;
use postbox_testkit::{
    MariaDb, MariaDbServer, Oracle, PgServer, Program, Proxy, TestDb, eventually_blocking, read_jsonl,
};
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqlitePool};
use uuid::Uuid;

use crate::common::{Done, LONG, address, finish, ready};

/// PostgreSQL, MariaDB and SQLite.
pub(crate) const NAMES: [&str; 3] = ["orders", "billing", "local"];
pub(crate) const TOPIC: &str = "shop.order.placed.v1";

/// Three databases, one configuration, one folder.
pub(crate) struct Place {
    pub(crate) postgres: TestDb,
    pub(crate) mariadb: MariaDb,
    /// The way to PostgreSQL, which a test can cut.
    pub(crate) proxy: Proxy,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) oracle: Oracle,
    /// How many were committed, by database.
    pub(crate) written: BTreeMap<&'static str, usize>,
}

impl Place {
    /// Databases without tables; the file is not there.
    pub(crate) fn empty() -> Self {
        Self::on(PgServer::shared())
    }

    pub(crate) fn on(server: &PgServer) -> Self {
        let (postgres, mariadb) = (server.database(), MariaDbServer::shared().database());
        let proxy = Proxy::start(postgres.addr());
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "sink = \"file:out.jsonl\"\n[relay]\npoll_interval = \"50ms\"\nlock_ttl = \"1500ms\"\ndispatch_timeout = \"1s\"\n\
             [[database]]\nname = \"orders\"\nurl = \"{}\"\ntables = [\"public.shop_outbox\"]\n\
             [[database]]\nname = \"billing\"\ntables = [\"shop_outbox\"]\n\
             [[database]]\nname = \"local\"\nurl = \"sqlite:local.db\"\ntables = [\"shop_outbox\"]\n",
            postgres.url_through(proxy.addr())
        );
        std::fs::write(dir.path().join("postbox.toml"), config).unwrap();
        Self { postgres, mariadb, proxy, dir, oracle: Oracle::new(), written: BTreeMap::new() }
    }

    /// The same with their tables, all made by one command.
    pub(crate) fn new() -> Self {
        Self::empty().migrated()
    }

    pub(crate) fn migrated(self) -> Self {
        let place = self;
        let made = place.ok(&["migrate", "up"]);
        for name in NAMES {
            assert!(
                made.lines().any(|line| line.starts_with(&format!("{name}: ")) && line.contains("done")),
                "{made}"
            );
        }
        place
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.dir.path()).env_clear();
        // The password of one is not in the file.
        command
            .envs([("USER", "tester"), ("HOSTNAME", "testhost")])
            .env("DATABASE_URL_BILLING", &self.mariadb.url);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Done {
        finish(self.command(args), "")
    }

    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code, 0, "{args:?}: {done:#?}");
        done.stdout
    }

    pub(crate) fn relay(&self) -> (Program, String) {
        let relay = Program::from_command(self.command(&["relay", "--listen", "127.0.0.1:0"]));
        let address = address(&relay);
        (relay, address)
    }

    pub(crate) fn delivered(&self) -> Vec<Value> {
        read_jsonl(self.dir.path().join("out.jsonl"))
    }

    /// How many different events of a database have arrived.
    pub(crate) fn arrived(&self, name: &str) -> usize {
        let lines = self.delivered();
        let of = lines.iter().filter(|line| line["payload"]["of"] == name);
        of.filter_map(|line| line["event_id"].as_str()).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Commits events in a database.
    pub(crate) fn write(&mut self, name: &'static str, events: usize) {
        let ids: Vec<Uuid> = (0..events).map(|_| Uuid::now_v7()).collect();
        insert(name, &ids, &self.postgres, &self.mariadb, self.dir.path());
        for id in &ids {
            self.oracle.committed(*id);
        }
        *self.written.entry(name).or_default() += events;
    }

    /// Waits until all that was written in a database has arrived.
    #[track_caller]
    pub(crate) fn all_arrived(&self, name: &str) {
        let written = self.written.get(name).copied().unwrap_or_default();
        eventually_blocking(&format!("all events of {name}"), LONG, || self.arrived(name) == written);
    }

    pub(crate) fn judge(&self, most_duplicates: usize) {
        for line in self.delivered() {
            self.oracle.delivered(line["event_id"].as_str().unwrap().parse().unwrap());
        }
        let report = self.oracle.verdict(most_duplicates).unwrap();
        println!("{report:?}");
    }
}

/// Events by SQL alone, in one transaction.
pub(crate) fn insert(name: &str, ids: &[Uuid], postgres: &TestDb, mariadb: &MariaDb, dir: &std::path::Path) {
    let (nil, payload) = (Uuid::nil(), format!("{{\"of\": \"{name}\"}}"));
    let values = |id: &dyn Fn(Uuid) -> String| {
        let rows: Vec<String> = ids
            .iter()
            .map(|event| format!("({}, '{TOPIC}', '{payload}', {})", id(nil), id(*event)))
            .collect();
        format!("(tenant_id, topic, payload, event_id) VALUES {}", rows.join(", "))
    };
    let binary = |id: Uuid| format!("x'{}'", id.simple());
    match name {
        "orders" => {
            postgres.psql(&format!("INSERT INTO public.shop_outbox {}", values(&|id| format!("'{id}'"))));
        }
        "billing" => {
            mariadb.sql(&format!("INSERT INTO shop_outbox {}", values(&binary)));
        }
        _ => {
            let url = format!("sqlite:{}", dir.join("local.db").display());
            let sql = format!("INSERT INTO shop_outbox {}", values(&binary));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let options = sqlite::connect_options(&url).unwrap().busy_timeout(LONG);
                let pool = SqlitePool::connect_with(options).await.unwrap();
                sqlx::query(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
                pool.close().await;
            });
        }
    }
}

/// What `/readyz` has to complain of, by database.
pub(crate) fn problems(address: &str) -> BTreeMap<String, String> {
    let (status, body) = ready(address);
    let tables = body["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 3, "{body}");
    let text = |table: &Value, key: &str| table[key].as_str().map(str::to_owned);
    let found: BTreeMap<String, String> =
        tables.iter().filter_map(|table| Some((text(table, "database")?, text(table, "problem")?))).collect();
    assert_eq!(status, if found.is_empty() { 200 } else { 503 }, "{body}");
    found
}

pub(crate) fn only(name: &str) -> impl Fn(&BTreeMap<String, String>) -> bool {
    move |problems| problems.keys().eq([name])
}
