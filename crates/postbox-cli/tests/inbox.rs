//! `postbox inbox list|forget`, `migrate --inbox` and the cleaner of an inbox, on PostgreSQL, MariaDB and a file.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Command;

use common::case::case;
use common::{Done, LONG, Place, TABLE, address, finish, get, url_as};
use postbox_testkit::{MariaDb, MariaDbServer, Program, eventually_blocking};
use serde_json::Value;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, SqliteConnection};
use tempfile::TempDir;

/// The same story for each database: how the program is run there, and how SQL is.
trait Story {
    const TABLE: &'static str;
    const INBOX: &'static str;
    fn run(&self, words: &str) -> Done;
    fn sql(&self, sql: &str) -> String;
    /// So many hours ago, for SQL.
    fn ago(&self, hours: u32) -> String;

    #[track_caller]
    fn ok(&self, words: &str) -> String {
        let done = self.run(words);
        assert_eq!(done.code, 0, "{words}: {done:#?}");
        done.stdout
    }

    #[track_caller]
    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("{words} --json"))).unwrap()
    }

    fn record(&self, consumer: &str, messages: std::ops::Range<u32>, hours: u32) {
        for message in messages {
            let (inbox, ago) = (Self::INBOX, self.ago(hours));
            let columns = "consumer, message_id, processed_at";
            self.sql(&format!(
                "INSERT INTO {inbox} ({columns}) VALUES ('{consumer}', 'order-{message}', {ago})"
            ));
        }
    }

    fn remembered(&self) -> usize {
        self.sql(&format!("SELECT count(*) FROM {}", Self::INBOX)).parse().unwrap()
    }
}

fn with_table<'a>(words: &'a str, table: &'a str) -> Vec<&'a str> {
    words.split(' ').chain(["--table", table]).collect()
}

impl Story for Place {
    const TABLE: &'static str = TABLE;
    const INBOX: &'static str = "public.org_inbox";

    fn run(&self, words: &str) -> Done {
        Place::run(self, &with_table(words, TABLE))
    }

    fn sql(&self, sql: &str) -> String {
        self.db.psql(sql)
    }

    fn ago(&self, hours: u32) -> String {
        format!("now() - interval '{hours} hours'")
    }
}

/// A directory with a database file.
struct Folder(TempDir);

impl Story for Folder {
    const TABLE: &'static str = "org_outbox";
    const INBOX: &'static str = "org_inbox";

    fn run(&self, words: &str) -> Done {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(with_table(words, Self::TABLE)).current_dir(self.0.path()).env_clear();
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost"), ("DATABASE_URL", "sqlite:test.db")]);
        finish(command, "")
    }

    fn sql(&self, sql: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = SqliteConnectOptions::new().filename(self.0.path().join("test.db"));
            let mut connection: SqliteConnection = options.connect().await.unwrap();
            if sql.starts_with("SELECT") {
                let number = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql.to_owned()));
                return number.fetch_one(&mut connection).await.unwrap().to_string();
            }
            sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
            String::new()
        })
    }

    fn ago(&self, hours: u32) -> String {
        format!("(CAST(unixepoch() AS INTEGER) - {hours} * 3600) * 1000000")
    }
}

/// A directory, with a database of MariaDB.
struct OnMariaDb(TempDir, MariaDb);

impl Story for OnMariaDb {
    const TABLE: &'static str = "org_outbox";
    const INBOX: &'static str = "org_inbox";

    fn run(&self, words: &str) -> Done {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(with_table(words, Self::TABLE)).current_dir(self.0.path()).env_clear();
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost"), ("DATABASE_URL", &self.1.url)]);
        finish(command, "")
    }

    fn sql(&self, sql: &str) -> String {
        self.1.sql(sql)
    }

    fn ago(&self, hours: u32) -> String {
        format!("UTC_TIMESTAMP(6) - INTERVAL {hours} HOUR")
    }
}

fn the_whole_story(place: &impl Story) {
    a_module_without_an_inbox(place);
    let dry = place.ok("migrate up --inbox --dry-run");
    assert!(dry.contains("+ table org_inbox") && dry.contains("nothing was changed"), "{dry}");
    assert!(place.ok("migrate up --inbox").contains("+ index org_inbox_by_time"));
    let again = place.ok("migrate up --inbox");
    assert!(again.ends_with(": nothing to do\n"), "{again}");
    assert_eq!(place.ok("inbox list"), "no message matches\n");
    place.record("stock", 0..5, 30);
    place.record("mail", 0..3, 2);
    lists(place);
    forgets(place);
    cleans(place);
}

fn a_module_without_an_inbox<S: Story>(place: &S) {
    for words in ["inbox list", "inbox forget --all --yes"] {
        let done = place.run(words);
        let next = format!("next: postbox migrate up --inbox --table {}", S::TABLE);
        assert_eq!(done.code, 1, "{done:#?}");
        assert!(done.stderr.starts_with("error[OUTBOX_INBOX_MISSING]: "), "{done:#?}");
        assert!(done.stderr.contains(&next), "{done:#?}");
    }
    let kept = place.json("clean --inbox-retention 40d --inbox-source-retention 30d");
    assert_eq!(kept["tables"][0]["inbox"], Value::Null, "{kept}");
}

fn lists<S: Story>(place: &S) {
    let shown = place.ok("inbox list --limit 2");
    let lines: Vec<&str> = shown.lines().collect();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[0]), ["PROCESSED", "AGO", "CONSUMER", "MESSAGE"]);
    assert_eq!(words(lines[1])[2..], ["2h00m", "mail", "order-2"], "{shown}");
    let after = lines[3].strip_prefix("more with --after ").unwrap();
    // The text of the one is the place that the other goes on at.
    let page = place.json(&format!("inbox list --limit 2 --after {after}"));
    assert_eq!((&page["table"], &page["inbox"]), (&Value::from(S::TABLE), &Value::from(S::INBOX)));
    let ids = |page: &Value| -> Vec<String> {
        let id =
            |message: &Value| format!("{}/{}", message["consumer"], message["message_id"]).replace('"', "");
        page["messages"].as_array().unwrap().iter().map(id).collect()
    };
    assert_eq!(ids(&page), ["mail/order-0", "stock/order-4"]);
    let next = page["next"].as_str().unwrap();
    let rest = place.json(&format!("inbox list --after {next}"));
    assert_eq!(ids(&rest), ["stock/order-3", "stock/order-2", "stock/order-1", "stock/order-0"]);
    assert_eq!(rest["next"], Value::Null);
    for (filter, expected) in [
        ("--consumer stock", 5),
        ("--message order-0", 2),
        ("--message order-0 --message order-4", 3),
        ("--since 3h", 3),
        ("--until 3h", 5),
        ("--consumer mail --until 3h", 0),
    ] {
        assert_eq!(ids(&place.json(&format!("inbox list {filter}"))).len(), expected, "{filter}");
    }
    for wrong in ["--after nowhere", "--since soon", "--limit few"] {
        let done = place.run(&format!("inbox list {wrong}"));
        assert!(done.code == 2 && done.stderr.starts_with("error[OUTBOX_CONFIG_INVALID]: "), "{done:#?}");
    }
}

fn forgets<S: Story>(place: &S) {
    for (words, code, says) in [
        ("inbox forget --yes", "OUTBOX_CONFIG_MISSING", "it is not said which messages"),
        ("inbox forget --all --consumer mail --yes", "OUTBOX_CONFIG_INVALID", "exclude each other"),
        ("inbox forget --consumer mail", "OUTBOX_CONFIG_MISSING", "3 rows in"),
    ] {
        let done = place.run(words);
        assert_eq!(done.code, 2, "{words}: {done:#?}");
        assert!(done.stderr.contains(&format!("error[{code}]")) && done.stderr.contains(says), "{done:#?}");
    }
    assert_eq!(place.remembered(), 8, "nothing is forgotten by accident");
    let missing = place.run("inbox forget --message order-9 --yes");
    assert!(missing.code == 1 && missing.stderr.contains("error[OUTBOX_MESSAGE_MISSING]"), "{missing:#?}");
    assert_eq!(place.ok("inbox forget --consumer nobody --yes"), "no message matches\n");
    let one = place.run("inbox forget --consumer stock --message order-1 --yes");
    assert_eq!((one.code, one.stdout.as_str()), (0, "forgot 1\n"), "{one:#?}");
    let meant =
        format!("DELETE FROM {} WHERE consumer = \"stock\" AND message_id = \"order-1\" AND", S::INBOX);
    assert!(one.stderr.starts_with(&meant), "{one:#?}");
    assert!(one.stderr.contains(&format!("1 row in {} @ ", S::INBOX)), "{one:#?}");
    let some = place.json("inbox forget --consumer mail --since 3h --yes");
    assert_eq!((&some["matched"], &some["forgotten"], &some["left"]), (&3.into(), &3.into(), &0.into()));
    assert_eq!(place.remembered(), 4);
    let audited = "SELECT count(*) FROM postbox_audit WHERE action = 'forget' AND who = 'tester@testhost'";
    assert_eq!(place.sql(audited), "2");
    let audited = format!("SELECT sum(events) FROM postbox_audit WHERE tbl = '{}'", S::TABLE);
    assert_eq!(place.sql(&audited), "4");
}

fn cleans<S: Story>(place: &S) {
    place.record("mail", 0..2, 2);
    let retention = "--inbox-retention 24h --inbox-source-retention 24h";
    assert_eq!(place.json("clean")["tables"][0].get("inbox"), None, "only where that is asked for");
    let dry = place.ok(&format!("clean --dry-run {retention}"));
    assert!(dry.ends_with(&format!("{}: would forget 4 messages; nothing was changed\n", S::INBOX)), "{dry}");
    assert_eq!(place.remembered(), 6);
    let done = place.json(&format!("clean {retention}"));
    assert_eq!(done["tables"][0]["inbox"]["deleted"], 4, "{done}");
    assert_eq!(place.remembered(), 2);
    let refused = place.run("clean --inbox-retention 24h");
    assert!(
        refused.code == 2 && refused.stderr.contains("set OUTBOX_INBOX_SOURCE_RETENTION to"),
        "{refused:#?}"
    );
}

#[test]
fn an_inbox_is_made_listed_forgotten_and_cleaned_on_postgresql() {
    the_whole_story(&Place::new());
}

#[test]
fn an_inbox_is_made_listed_forgotten_and_cleaned_in_a_file() {
    let folder = Folder(tempfile::tempdir().unwrap());
    folder.ok("migrate up");
    the_whole_story(&folder);
}

#[test]
fn an_inbox_is_made_listed_forgotten_and_cleaned_on_mariadb() {
    let place = OnMariaDb(tempfile::tempdir().unwrap(), MariaDbServer::shared().database());
    place.ok("migrate up");
    the_whole_story(&place);
}

#[test]
fn a_relay_cleans_the_inbox_and_counts_it() {
    let place = Place::new();
    Story::ok(&place, "migrate up --inbox");
    place.record("stock", 0..3, 30);
    place.record("stock", 3..5, 1);
    let args = ["relay", "--table", TABLE, "--sink", "null:", "--listen", "127.0.0.1:0"];
    let mut command = place.command(&args);
    command.args(["--inbox-retention", "24h", "--inbox-source-retention", "24h"]);
    command.args(["--cleaner-interval", "100ms"]);
    let relay = Program::from_command(command);
    eventually_blocking("what is old to be forgotten", LONG, || place.remembered() == 2);
    let counted = "outbox_cleaned_total{table=\"public.org_inbox\"} 3";
    let address = address(&relay);
    eventually_blocking(counted, LONG, || get(&address, "/metrics").1.contains(counted));
}

#[test]
fn what_is_printed_and_granted_knows_the_inbox() {
    let place = Place::empty();
    for format in ["sql", "goose"] {
        let printed =
            Story::ok(&place, &format!("migrate print --inbox --format {format} --dialect postgres"));
        assert!(printed.contains("CREATE TABLE IF NOT EXISTS \"public\".\"org_inbox\""), "{printed}");
    }
    let roles = ["writer", "relay", "viewer"].map(|kind| format!("{kind}_{}", place.db.name));
    for role in &roles {
        place.db.psql(&format!("CREATE ROLE {role} LOGIN"));
    }
    let [writer, relay, viewer] = &roles;
    let grants = format!("writer={writer},relay={relay},viewer={viewer}");
    Story::ok(&place, &format!("migrate up --inbox --grants {grants}"));
    let as_role = |role: &str, sql: &str| place.db.try_psql(&format!("SET ROLE {role}; {sql}"));
    let insert = "INSERT INTO org_inbox (consumer, message_id) VALUES ('a', 'b') ON CONFLICT (consumer, message_id) DO NOTHING";
    as_role(writer, insert).unwrap();
    for (role, forbidden) in [
        (writer, "DELETE FROM org_inbox"),
        (writer, "INSERT INTO org_inbox VALUES ('a', 'c', '2000-01-01')"),
        (viewer, "DELETE FROM org_inbox"),
        (viewer, insert),
        (relay, insert),
    ] {
        assert!(as_role(role, forbidden).unwrap_err().contains("permission denied"), "{role}: {forbidden}");
    }
    let viewer = url_as(&place.db.url, viewer);
    let mut list = place.command(&["inbox", "list", "--table", TABLE]);
    list.env("DATABASE_URL", &viewer);
    assert_eq!(finish(list, "").code, 0);
    let relay = url_as(&place.db.url, relay);
    let mut clean = place.command(&["clean", "--table", TABLE, "--inbox-retention", "1ms"]);
    clean.args(["--inbox-source-retention", "1ms", "--json"]).env("DATABASE_URL", &relay);
    let clean = finish(clean, "");
    assert!(clean.stdout.contains("\"deleted\":1"), "{clean:#?}");
}

#[test]
fn down_names_the_inbox_and_removes_it() {
    let place = Place::new();
    Story::ok(&place, "migrate up --inbox");
    case(
        "no terminal",
        &["migrate", "down", "--table", TABLE],
        2,
        "OUTBOX_CONFIG_MISSING",
        &["public.org_inbox"],
    )
    .check(&place);
    assert_eq!(place.remembered(), 0);
    Story::ok(&place, "migrate down --yes");
    assert_eq!(place.db.psql("SELECT to_regclass('org_inbox') IS NULL"), "t");
}
