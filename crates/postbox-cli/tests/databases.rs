//! One relay on three databases of three kinds: what happens to one of them, the others do not notice.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Done, LONG, address, finish, get, ready};
use postbox_stores::sqlite;
use postbox_testkit::{
    MariaDb, MariaDbServer, Oracle, PgServer, Program, Proxy, TestDb, eventually_blocking, read_jsonl,
};
use serde_json::Value;
use sqlx::{AssertSqlSafe, SqlitePool};
use uuid::Uuid;

/// PostgreSQL, MariaDB and SQLite.
const NAMES: [&str; 3] = ["orders", "billing", "local"];
const TOPIC: &str = "shop.order.placed.v1";

/// Three databases, one configuration, one folder.
struct Place {
    postgres: TestDb,
    mariadb: MariaDb,
    /// The way to PostgreSQL, which a test can cut.
    proxy: Proxy,
    dir: tempfile::TempDir,
    oracle: Oracle,
    /// How many were committed, by database.
    written: BTreeMap<&'static str, usize>,
}

impl Place {
    /// Databases without tables; the file is not there.
    fn empty() -> Self {
        Self::on(PgServer::shared())
    }

    fn on(server: &PgServer) -> Self {
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
    fn new() -> Self {
        Self::empty().migrated()
    }

    fn migrated(self) -> Self {
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

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.dir.path()).env_clear();
        // The password of one is not in the file.
        command
            .envs([("USER", "tester"), ("HOSTNAME", "testhost")])
            .env("DATABASE_URL_BILLING", &self.mariadb.url);
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        finish(self.command(args), "")
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code, 0, "{args:?}: {done:#?}");
        done.stdout
    }

    fn relay(&self) -> (Program, String) {
        let relay = Program::from_command(self.command(&["relay", "--listen", "127.0.0.1:0"]));
        let address = address(&relay);
        (relay, address)
    }

    fn delivered(&self) -> Vec<Value> {
        read_jsonl(self.dir.path().join("out.jsonl"))
    }

    /// How many different events of a database have arrived.
    fn arrived(&self, name: &str) -> usize {
        let lines = self.delivered();
        let of = lines.iter().filter(|line| line["payload"]["of"] == name);
        of.filter_map(|line| line["event_id"].as_str()).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Commits events in a database.
    fn write(&mut self, name: &'static str, events: usize) {
        let ids: Vec<Uuid> = (0..events).map(|_| Uuid::now_v7()).collect();
        insert(name, &ids, &self.postgres, &self.mariadb, self.dir.path());
        for id in &ids {
            self.oracle.committed(*id);
        }
        *self.written.entry(name).or_default() += events;
    }

    /// Waits until all that was written in a database has arrived.
    #[track_caller]
    fn all_arrived(&self, name: &str) {
        let written = self.written.get(name).copied().unwrap_or_default();
        eventually_blocking(&format!("all events of {name}"), LONG, || self.arrived(name) == written);
    }

    fn judge(&self, most_duplicates: usize) {
        for line in self.delivered() {
            self.oracle.delivered(line["event_id"].as_str().unwrap().parse().unwrap());
        }
        let report = self.oracle.verdict(most_duplicates).unwrap();
        println!("{report:?}");
    }
}

/// Events by SQL alone, in one transaction.
fn insert(name: &str, ids: &[Uuid], postgres: &TestDb, mariadb: &MariaDb, dir: &std::path::Path) {
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
fn problems(address: &str) -> BTreeMap<String, String> {
    let (status, body) = ready(address);
    let tables = body["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 3, "{body}");
    let text = |table: &Value, key: &str| table[key].as_str().map(str::to_owned);
    let found: BTreeMap<String, String> =
        tables.iter().filter_map(|table| Some((text(table, "database")?, text(table, "problem")?))).collect();
    assert_eq!(status, if found.is_empty() { 200 } else { 503 }, "{body}");
    found
}

fn only(name: &str) -> impl Fn(&BTreeMap<String, String>) -> bool {
    move |problems| problems.keys().eq([name])
}

#[test]
fn one_database_is_away_for_a_while_and_the_others_do_not_notice() {
    let server = PgServer::start();
    let mut place = Place::on(&server).migrated();
    let (mut relay, address) = place.relay();
    eventually_blocking("all to work", LONG, || problems(&address).is_empty());
    for name in NAMES {
        place.write(name, 50);
    }
    for name in NAMES {
        place.all_arrived(name);
    }

    place.proxy.cut();
    let red = eventually_blocking("red", LONG, || Some(problems(&address)).filter(|red| !red.is_empty()));
    assert!(red["orders"].contains("public.shop_outbox in orders cannot work"), "{red:?}");
    // Meanwhile the others deliver what is written, wave after wave; the one stays red, alone, and waits.
    place.write("orders", 30);
    for _ in 0..5 {
        for name in ["billing", "local"] {
            place.write(name, 100);
            place.all_arrived(name);
        }
        let red = problems(&address);
        assert!(only("orders")(&red), "{red:?}");
        assert_eq!(get(&address, "/healthz").0, 200, "alive all the same");
    }
    assert_eq!(place.arrived("orders"), 50, "it is away");

    place.proxy.pass();
    place.all_arrived("orders");
    eventually_blocking("green", LONG, || problems(&address).is_empty());

    // The same with a server that is stopped, which refuses connections.
    server.stop_immediate();
    eventually_blocking("red again", LONG, || only("orders")(&problems(&address)));
    for name in ["billing", "local"] {
        place.write(name, 100);
        place.all_arrived(name);
    }
    // Who asks sees the others, and which one is missing.
    let done = place.run(&["status"]);
    assert_eq!(done.code, 1, "{done:#?}");
    assert!(
        done.stdout.contains("billing  shop_outbox") && done.stdout.contains("local    shop_outbox"),
        "{done:#?}"
    );
    // What is in front of a server that is stopped may close connections, or refuse them.
    assert!(done.stderr.starts_with("error[OUTBOX_DB_") && done.stderr.contains("]: orders: "), "{done:#?}");
    let done = place.run(&["doctor"]);
    assert_eq!(done.code, 3, "{done:#?}");
    assert!(
        done.stdout.contains("✗ orders: ") && done.stdout.contains("✓ billing: connected to billing ("),
        "{done:#?}"
    );

    server.start_again();
    eventually_blocking("green for good", LONG, || problems(&address).is_empty());
    place.write("orders", 30);
    place.all_arrived("orders");
    let metrics = get(&address, "/metrics").1;
    for (name, table) in
        [("orders", "public.shop_outbox"), ("billing", "shop_outbox"), ("local", "shop_outbox")]
    {
        // What was in flight when its database went away is sent twice.
        let line = format!(
            "outbox_dispatch_total{{database=\"{name}\",table=\"{table}\",topic=\"{TOPIC}\",result=\"success\"}} "
        );
        let counted = metrics.lines().find_map(|text| text.strip_prefix(&line)?.parse::<usize>().ok());
        let written = place.written[name];
        assert!(counted.is_some_and(|counted| counted >= written), "{line} not {written}: {metrics}");
        assert!(
            metrics.contains(&format!("outbox_relay_leader{{database=\"{name}\",table=\"{table}\"}} 1")),
            "{metrics}"
        );
    }
    let nameless = metrics.lines().find(|line| line.contains('{') && !line.contains("database="));
    assert_eq!(nameless, None);
    relay.sigterm();
    assert!(relay.wait(LONG).success(), "{}", relay.stderr());
    let log = relay.stderr();
    assert!(log.contains("database{name=\"orders\"}"), "{log}");
    assert_eq!(lines_with(&log, "relaying shop_outbox in billing → file:out.jsonl"), 1, "{log}");
    // What was in flight when the way was cut may have come twice.
    place.judge(30);
}

fn lines_with(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn who_is_not_there_at_the_start_is_waited_for_and_nobody_waits_with_it() {
    let mut place = Place::empty();
    // The server of one does not answer, the file of another is not there, and the table of the third has to be made.
    place.proxy.cut();
    let (mut relay, address) = place.relay();
    eventually_blocking("all red", LONG, || problems(&address).len() == 3);
    place.ok(&["migrate", "up", "--database", "billing"]);
    eventually_blocking("two red", LONG, || problems(&address).len() == 2);
    place.write("billing", 20);
    place.all_arrived("billing");
    let red = problems(&address);
    assert!(red["local"].contains("local.db"), "{red:?}");
    place.ok(&["migrate", "up", "--database", "local"]);
    eventually_blocking("one red", LONG, || only("orders")(&problems(&address)));
    place.write("local", 20);
    place.all_arrived("local");
    place.proxy.pass();
    place.ok(&["migrate", "up", "--database", "orders"]);
    eventually_blocking("green", LONG, || problems(&address).is_empty());
    place.write("orders", 20);
    place.all_arrived("orders");
    relay.sigterm();
    assert!(relay.wait(LONG).success(), "{}", relay.stderr());
    place.judge(0);
}

#[test]
fn a_stop_does_not_wait_for_who_is_away() {
    let place = Place::new();
    place.proxy.blackhole();
    let (mut relay, address) = place.relay();
    eventually_blocking("the others", LONG, || problems(&address).len() == 1);
    relay.sigterm();
    assert!(relay.wait(Duration::from_secs(20)).success(), "{}", relay.stderr());
}

#[test]
fn kills_lose_nothing_in_any_of_them() {
    const KILLS: usize = 5;
    let place = Place::new();
    let stop = AtomicBool::new(false);
    let (postgres, mariadb, dir, oracle) = (&place.postgres, &place.mariadb, place.dir.path(), &place.oracle);
    std::thread::scope(|scope| {
        for name in NAMES {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let ids: Vec<Uuid> = (0..10).map(|_| Uuid::now_v7()).collect();
                    insert(name, &ids, postgres, mariadb, dir);
                    for id in &ids {
                        oracle.committed(*id);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
        for _ in 0..KILLS {
            let before = place.delivered().len();
            let (mut relay, _) = place.relay();
            let look = || place.delivered().len() > before + 200;
            eventually_blocking("deliveries", LONG, look);
            relay.kill9();
        }
        stop.store(true, Ordering::SeqCst);
    });
    let (mut relay, _) = place.relay();
    let open = |name: &str| match name {
        "orders" => place.postgres.psql("SELECT count(*) FROM shop_outbox WHERE published_at IS NULL"),
        _ => place.mariadb.sql("SELECT count(*) FROM shop_outbox WHERE published_at IS NULL"),
    };
    eventually_blocking("the servers to be empty", LONG, || open("orders") == "0" && open("billing") == "0");
    let all = place.oracle.committed_ids();
    let missing = || {
        let lines = place.delivered();
        let seen: std::collections::BTreeSet<Uuid> =
            lines.iter().filter_map(|line| line["event_id"].as_str()?.parse().ok()).collect();
        all.difference(&seen).count()
    };
    eventually_blocking("everything", LONG, || missing() == 0);
    relay.stop(LONG);
    // At each kill, what was in flight in each of the three.
    place.judge(KILLS * 3 * 400);
}

#[test]
fn commands_are_about_the_database_that_is_named() {
    let mut place = Place::new();
    // Which of the three is not said.
    for args in [
        &["pause", "--table", "shop_outbox"][..],
        &["events", "list"],
        &["dead", "list"],
        &["migrate", "down", "--table", "shop_outbox", "--yes"],
        &["enqueue", "--topic", TOPIC, "--payload", "1"],
    ] {
        let done = place.run(args);
        assert_eq!(done.code, 2, "{args:?}: {done:#?}");
        let says = "error[OUTBOX_CONFIG_MISSING]: this command works on one database, and there are 3: orders, billing, local";
        assert!(
            done.stderr.contains(says) && done.stderr.contains("next: give --database orders"),
            "{done:#?}"
        );
    }
    let done = place.run(&["status", "--table", "shop_outbox"]);
    assert!(done.code == 2 && done.stderr.contains("--table is about one database"), "{done:#?}");
    let done = place.run(&["events", "list", "--database", "biling"]);
    assert!(done.code == 2 && done.stderr.contains("Did you mean billing?"), "{done:#?}");

    let paused = place.ok(&["pause", "--database", "billing", "--table", "shop_outbox"]);
    assert_eq!(paused.trim(), "billing: paused shop_outbox");
    for name in NAMES {
        place.write(name, 5);
    }
    let (mut relay, address) = place.relay();
    place.all_arrived("orders");
    place.all_arrived("local");
    let standing = |name: &str| {
        let tables = ready(&address).1["tables"].as_array().unwrap().clone();
        tables.iter().find(|table| table["database"] == name).unwrap()["standing"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    eventually_blocking("the pause", LONG, || standing("billing") == "paused");
    assert_eq!((standing("orders").as_str(), ready(&address).0), ("active", 200), "a pause is well");
    assert_eq!(place.arrived("billing"), 0);
    place.ok(&["resume", "--database", "billing", "--table", "shop_outbox"]);
    place.all_arrived("billing");
    relay.stop(LONG);
    place.judge(0);

    let listed = place.ok(&["events", "list", "--database", "billing"]);
    assert!(listed.contains("SENT"), "{listed}");
    let status: Value = serde_json::from_str(&place.ok(&["status", "--json"])).unwrap();
    let names: Vec<&str> =
        status["tables"].as_array().unwrap().iter().filter_map(|table| table["database"].as_str()).collect();
    assert_eq!(names, NAMES);
    let checked = place.ok(&["status", "--check", "--format", "nagios"]);
    assert!(checked.contains("OK orders/shop_outbox oldest=0s"), "{checked}");
    let cleaned = place.ok(&["clean"]);
    assert!(cleaned.contains("orders: public.shop_outbox: deleted 0 events"), "{cleaned}");
    // Only one of them: the others have no relay meanwhile.
    let mut alone = Program::from_command(place.command(&["relay", "--database", "local"]));
    alone.wait_for_line("relaying shop_outbox in local → ", LONG);
    place.write("local", 1);
    place.all_arrived("local");
    assert!(!alone.stderr().contains("billing"), "{}", alone.stderr());
    alone.stop(LONG);
    let shown = place.ok(&["config", "show"]);
    assert!(shown.contains("DATABASE_URL_BILLING") && shown.contains("sqlite:local.db"), "{shown}");
    assert!(!shown.contains("sqlite:postbox.db"), "{shown}");
    place.ok(&["config", "check"]);
}
