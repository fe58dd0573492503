//! The built program with nothing but a file: no database is named, and none is installed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Command;

use common::every::check_every_command;
use common::{Done, LONG, TOPIC, address, distinct, finish, get};
use postbox_core::{Outbox, Record, Topic};
use postbox_stores::sqlite;
use postbox_testkit::{Oracle, Program, eventually_blocking, read_jsonl};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _, SqlitePool};
use tempfile::TempDir;

const TABLE: &str = "shop_outbox";

/// A directory with the file that stands in for a database.
struct Folder(TempDir);

impl Folder {
    fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn new() -> Self {
        let folder = Self::empty();
        folder.ok("migrate up");
        folder
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postbox"));
        command.args(args).current_dir(self.0.path()).env_clear();
        command.envs([("USER", "tester"), ("HOSTNAME", "testhost")]);
        command
    }

    fn run(&self, words: &str) -> Done {
        let args: Vec<&str> = words.split(' ').chain(["--table", TABLE]).collect();
        finish(self.command(&args), "")
    }

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

    fn refuses(&self, words: &str, exit: i32, code: &str, says: &str) {
        let done = self.run(words);
        assert_eq!(done.code, exit, "{words}: {done:#?}");
        assert!(done.stderr.contains(&format!("error[{code}]: ")), "{words}: {done:#?}");
        assert!(done.stderr.contains(says), "{words}: no {says:?} in {done:#?}");
        assert!(!done.stderr.contains("panicked"), "{words}: {done:#?}");
    }

    /// A relay with short leases, so that what a kill leaves behind is soon taken up.
    fn relay(&self, more: &[&str]) -> Program {
        let args = ["relay", "--table", TABLE, "--sink", "file:out.jsonl", "--poll-interval", "50ms"];
        let args = [&args[..], &["--lock-ttl", "1500ms", "--dispatch-timeout", "1s"], more].concat();
        let relay = Program::from_command(self.command(&args));
        relay.wait_for_line("relaying shop_outbox in postbox.db (no database is named) → ", LONG);
        relay
    }

    fn delivered(&self) -> Vec<Value> {
        read_jsonl(self.0.path().join("out.jsonl"))
    }

    async fn pool(&self) -> SqlitePool {
        let url = format!("sqlite:{}", self.0.path().join("postbox.db").display());
        SqlitePool::connect_with(sqlite::connect_options(&url).unwrap()).await.unwrap()
    }

    /// One statement's first value, as text.
    fn sql(&self, text: &str) -> String {
        block_on(async {
            let pool = self.pool().await;
            let row = sqlx::query(AssertSqlSafe(text)).fetch_optional(&pool).await.unwrap();
            pool.close().await;
            row.map(|row| row.try_get_unchecked::<String, _>(0).unwrap()).unwrap_or_default()
        })
    }

    /// Events with numbers, of which some are changed afterwards.
    fn fill(&self, events: usize, change: &str) {
        self.sql(&format!(
            "INSERT INTO {TABLE} (tenant_id, topic, payload, event_id)
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {events})
             SELECT zeroblob(16), '{TOPIC}', '1', randomblob(16) FROM n"
        ));
        self.sql(change);
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Now, as the table has it.
const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";

#[test]
fn from_nothing_to_a_delivered_event() {
    let folder = Folder::empty();
    let meant = "postbox.db: it does not exist (no database is named, so this file is meant)";
    for words in ["status", "doctor", "events list", "pause", "relay --sink stdout:", "migrate down --yes"] {
        let done = folder.run(words);
        assert!(
            done.code != 0 && format!("{}{}", done.stdout, done.stderr).contains(meant),
            "{words}: {done:?}"
        );
        assert_eq!(folder.0.path().read_dir().unwrap().count(), 0, "{words} made a file");
    }
    let plan = folder.ok("migrate up --dry-run");
    assert!(plan.starts_with("+ file postbox.db\n") && plan.contains("nothing was changed"), "{plan}");
    assert_eq!(folder.0.path().read_dir().unwrap().count(), 0);
    assert!(folder.ok("migrate up").starts_with("+ file postbox.db\n"));
    assert_eq!(folder.ok("migrate up"), "shop_outbox: nothing to do\n");
    let enqueued = folder.ok(&format!("enqueue --topic {TOPIC} --payload {{\"n\":1}}"));
    assert!(enqueued.ends_with(" in shop_outbox, sequence 1\n"), "{enqueued}");
    assert!(folder.ok("status").starts_with("shop_outbox  no leader  waiting 1  oldest "));
    let mut relay = folder.relay(&[]);
    eventually_blocking("the event", LONG, || folder.delivered().len() == 1);
    eventually_blocking("its settlement", LONG, || {
        folder.json("status")["tables"][0]["counts"]["pending"] == 0
    });
    assert!(folder.ok("status").starts_with("shop_outbox  leader testhost:"));
    assert_eq!(folder.ok("pause"), "paused shop_outbox\n");
    assert_eq!(folder.ok("resume"), "resumed shop_outbox\n");
    relay.sigterm();
    assert!(relay.wait(LONG).success());
    assert_eq!(folder.ok("migrate down --yes"), "removed shop_outbox\n");
}

#[test]
fn a_blocked_aggregate_is_seen_and_freed() {
    let folder = Folder::new();
    for n in 1..=3 {
        folder.ok(&format!("enqueue --topic {TOPIC} --payload {n}"));
    }
    folder.sql(&format!(
        "UPDATE {TABLE} SET aggregate_type = 'order', aggregate_id = iif(sequence < 3, '7', '8')"
    ));
    folder.sql(&format!("UPDATE {TABLE} SET dead_at = {NOW}, last_error = 'HTTP 410' WHERE sequence = 1"));
    let order = ["--ordering", "aggregate", "--listen", "127.0.0.1:0"];
    let mut relay = folder.relay(&order);
    eventually_blocking("the other aggregate", LONG, || folder.delivered().len() == 1);
    assert_eq!(folder.delivered()[0]["sequence"], 3);
    let (address, gauge) = (address(&relay), format!("outbox_blocked{{table=\"{TABLE}\"}} 1"));
    eventually_blocking(&gauge, LONG, || get(&address, "/metrics").1.lines().any(|line| line == gauge));
    assert!(folder.ok("status").contains("  blocked 1"), "{}", folder.ok("status"));
    assert_eq!(folder.json("status")["tables"][0]["counts"]["blocked"], 1);
    // `--dead-retention` is not for what others wait behind.
    folder.sql(&format!("UPDATE {TABLE} SET dead_at = 1 WHERE sequence = 1"));
    folder.ok("clean --cleaner-dead-retention 1s");
    folder.ok("dead replay --all --yes");
    eventually_blocking("both", LONG, || folder.delivered().len() == 3);
    let sequences: Vec<_> = folder.delivered().iter().map(|line| line["sequence"].as_i64()).collect();
    assert_eq!(sequences, [Some(3), Some(1), Some(2)]);
    relay.sigterm();
    assert!(relay.wait(LONG).success());
    assert!(!folder.ok("status").contains("blocked"));
}

#[test]
fn every_command_speaks_json() {
    let folder = Folder::new();
    let [sent, dead] = ["00000000-0000-7000-8000-000000000002", "00000000-0000-7000-8000-000000000003"];
    for id in ["00000000-0000-7000-8000-000000000001", sent, dead] {
        folder.ok(&format!("enqueue --topic {TOPIC} --payload 1 --event-id {id}"));
    }
    folder.sql(&format!("UPDATE {TABLE} SET published_at = {NOW}, attempts = 1 WHERE sequence = 2"));
    folder.sql(&format!(
        "UPDATE {TABLE} SET dead_at = {NOW}, attempts = 3, last_error = 'HTTP 410 from a' WHERE sequence = 3"
    ));
    check_every_command(&|args| finish(folder.command(args), ""), TABLE, sent, dead);
}

#[test]
fn an_empty_table_is_no_problem() {
    let folder = Folder::new();
    assert_eq!(folder.ok("events list"), "no event matches\n");
    assert_eq!(folder.ok("events tail --for 100ms"), "");
    assert_eq!(folder.ok("events replay --since 1h --yes"), "no published event matches\n");
    assert_eq!(folder.ok("dead list"), "no dead events\n");
    assert_eq!(folder.ok("dead replay --all --yes"), "no dead event matches\n");
    assert_eq!(folder.ok("dead discard --all --yes"), "no dead event matches\n");
    assert_eq!(folder.ok("clean"), "shop_outbox: deleted 0 events\n");
    assert_eq!(folder.ok("clean --dry-run"), "shop_outbox: would delete 0 published; nothing was changed\n");
    assert_eq!(folder.ok("status --check --format nagios"), "OK shop_outbox oldest=0s;10;30\n");
    let well = folder.ok("doctor");
    assert!(well.contains("✓ SQLite ") && well.ends_with("all is well\n"), "{well}");
}

#[test]
fn a_hundred_thousand_events_are_answered_for() {
    let folder = Folder::new();
    folder.fill(
        100_000,
        &format!(
            "UPDATE {TABLE} SET attempts = 3, published_at = CASE WHEN sequence <= 80000 THEN {NOW} - 8 * 86400000000 END,
                dead_at = CASE WHEN sequence > 90000 THEN {NOW} END,
                last_error = CASE WHEN sequence > 90000 THEN 'HTTP 410 for ' || sequence END"
        ),
    );
    let page = folder.json("events list --limit 3");
    assert_eq!(
        (&page["events"][0]["sequence"], &page["next"]),
        (&Value::from(100_000), &Value::from(99_998)),
        "{page}"
    );
    let page = folder.json("events list --limit 2 --after 90000 --status failed");
    assert_eq!(page["events"][1]["sequence"], 89_998, "{page}");
    let page = folder.json("events list --deep --oldest --limit 1 --error 95123");
    assert_eq!(page["events"][0]["sequence"], 95_123, "{page}");
    let causes = folder.json("dead list");
    assert_eq!(causes["events"], 10_000, "{causes}");
    assert_eq!(causes["causes"][0]["cause"], "HTTP # for #", "{causes}");
    assert_eq!(folder.json("clean --dry-run")["tables"][0]["due"]["published"], 80_000);
    folder.ok("events tail --for 100ms");
    let doctor = folder.run("doctor");
    assert!(doctor.code == 3 && doctor.stdout.contains("10,000 events dead"), "{doctor:?}");
    assert_eq!(folder.json("dead discard --all --yes")["discarded"], 10_000);
    assert_eq!(folder.json("clean")["tables"][0]["deleted"], 80_000);
    assert_eq!(folder.sql(&format!("SELECT CAST(count(*) AS TEXT) FROM {TABLE}")), "10000");
}

#[test]
fn what_cannot_be_is_said() {
    let folder = Folder::new();
    let done = finish(folder.command(&["status", "--table", "shpo_outbox"]), "");
    assert!(
        done.code == 1 && done.stderr.contains("shpo_outbox does not exist. Did you mean shop_outbox?"),
        "{done:?}"
    );
    let done = finish(folder.command(&["status", "--table", "public.shop_outbox"]), "");
    assert!(done.code == 2 && done.stderr.contains("next: --table shop_outbox "), "{done:?}");
    let roles = "SQLite has no roles: whoever may write the file may write every table";
    folder.refuses("migrate up --grants writer=app", 2, "OUTBOX_CONFIG_INVALID", roles);
    folder.refuses("events show 00000000-0000-7000-8000-000000000001", 1, "OUTBOX_EVENT_MISSING", "");
    let mut command = folder.command(&["status", "--table", TABLE]);
    command.env("OUTBOX_DIRECT_URL", "postgres://db/app");
    let done = finish(command, "");
    assert!(done.code == 2 && done.stderr.contains("a database file has none: leave it out"), "{done:?}");
}

#[test]
fn a_file_that_may_only_be_read_can_be_looked_at() {
    let folder = Folder::new();
    folder.fill(3, &format!("UPDATE {TABLE} SET dead_at = {NOW}, last_error = 'no' WHERE sequence = 1"));
    let read_only = |words: &str| {
        let args: Vec<&str> = words.split(' ').chain(["--table", TABLE]).collect();
        let mut command = folder.command(&args);
        command.env("DATABASE_URL", "sqlite:postbox.db?mode=ro");
        finish(command, "")
    };
    for words in ["status", "events list", "dead list", "clean --dry-run"] {
        let done = read_only(words);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{words}: {done:?}");
    }
    for words in ["pause", "dead replay --all --yes", "dead discard --all --yes", "relay --sink null:"] {
        let done = read_only(words);
        assert!(done.code == 1 && done.stderr.contains("error[OUTBOX_DB_READ_ONLY]"), "{words}: {done:?}");
    }
    assert_eq!(
        folder.sql(&format!("SELECT CAST(count(*) AS TEXT) FROM {TABLE} WHERE dead_at IS NOT NULL")),
        "1"
    );
}

#[test]
fn dead_events_come_back_one_cause_at_a_time() {
    let folder = Folder::new();
    folder.fill(
        60,
        &format!(
            "UPDATE {TABLE} SET attempts = 25, dead_at = {NOW}, last_error = CASE WHEN sequence <= 40 THEN 'HTTP 410 from ' ELSE 'no ' END || sequence"
        ),
    );
    let relay = folder.relay(&[]);
    assert!(folder.ok("dead list").starts_with("2 causes, 60 events\n"));
    assert_eq!(folder.ok("dead replay --cause 1 --first 1 --yes"), "replayed 1  ✓ delivered 1\n");
    assert_eq!(folder.ok("dead replay --cause 1 --rate 500/s --yes"), "replayed 39  ✓ delivered 39\n");
    assert_eq!(distinct(&folder.delivered()), 40);
    assert_eq!(folder.ok("dead discard --all --yes"), "discarded 20\n");
    assert_eq!(folder.ok("events replay --since 1h --first 5 --yes"), "replayed 5  ✓ delivered 5\n");
    assert_eq!((folder.delivered().len(), distinct(&folder.delivered())), (45, 40));
    assert_eq!(folder.sql("SELECT group_concat(DISTINCT who) FROM postbox_audit"), "tester@testhost");
    drop(relay);
}

/// The age that a filter goes by is that of the question, however long the answer takes to carry out.
#[test]
fn a_slow_replay_of_what_died_just_now_is_not_cut_short() {
    let folder = Folder::new();
    folder.fill(8, &format!("UPDATE {TABLE} SET dead_at = {NOW}, last_error = 'no'"));
    let done = folder.json("dead replay --since 2s --rate 2/s --watch 0 --yes");
    assert_eq!((&done["replayed"], &done["left"]), (&Value::from(8), &Value::from(0)), "{done}");
}

#[test]
fn what_somebody_made_up_is_shown_within_bounds() {
    let folder = Folder::new();
    folder.fill(
        1_200,
        &format!(
            "UPDATE {TABLE} SET dead_at = sequence - 99999999999999999, attempts = 25,
                last_error = replace(replace(replace(hex(sequence), '1', 'a'), '2', 'b'), '3', 'c'),
                topic = CASE WHEN sequence = 1 THEN replace(hex(zeroblob(200000)), '00', 't') || sequence ELSE topic END"
        ),
    );
    // As many as can be told apart, but all are counted.
    folder.sql(&format!("UPDATE {TABLE} SET topic = topic || hex(sequence)"));
    let list = folder.ok("dead list");
    assert!(list.starts_with("1,000 causes or more, 1,200 events\n"), "{}", &list[..100]);
    assert_eq!(folder.json("dead list")["events"], 1_200);
    assert!(folder.ok("events list --oldest").len() < 50_000, "one topic does not fill the screen");
}

#[test]
fn a_tail_ends_when_nobody_reads_it() {
    let folder = Folder::new();
    let mut command = folder.command(&["events", "tail", "--table", TABLE]);
    let mut tail = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(tail.stdout.take());
    eventually_blocking("its end", LONG, || {
        folder.fill(1, "SELECT ''");
        tail.try_wait().unwrap().is_some()
    });
    assert_eq!(tail.wait().unwrap().code(), Some(0));
}

#[test]
fn a_file_that_somebody_has_for_himself_is_locked_and_not_away() {
    let folder = Folder::new();
    let done = block_on(async {
        let pool = folder.pool().await;
        let mut holder = pool.acquire().await.unwrap();
        for sql in ["PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE"] {
            sqlx::query(sql).execute(&mut *holder).await.unwrap();
        }
        folder.run("status")
    });
    let says = "error[OUTBOX_DB_LOCKED]: postbox.db: somebody kept it locked for all of 10s";
    assert!(done.code == 1 && done.stderr.contains(says), "{done:?}");
}

/// Its numbers mean something else: 2 would be an alarm.
#[test]
fn a_plugin_that_is_asked_wrongly_knows_nothing() {
    let folder = Folder::new();
    let mut command = folder.command(&["status", "--check", "--format", "nagios", "--table", TABLE]);
    command.env("OUTBOX_RELAY_LOCK_TTL", "soon");
    let done = finish(command, "");
    assert!(done.code == 3 && done.stdout.starts_with("UNKNOWN postbox: relay.lock_ttl"), "{done:?}");
}

/// P2 under kill -9 at any instant, with a standby that takes over and writers in another process.
#[test]
fn six_thousand_events_through_ten_kills() {
    let folder = Folder::new();
    let oracle = Oracle::new();
    let waiting = || folder.json("status")["tables"][0]["counts"]["pending"].as_u64().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| block_on(write(&folder, 6_000, &oracle)));
        let mut relays = [folder.relay(&[]), folder.relay(&[])];
        for kill in 0..10 {
            let before = folder.delivered().len();
            eventually_blocking("deliveries to go on", LONG, || {
                folder.delivered().len() > before + 100 || (writer.is_finished() && waiting() == 0)
            });
            relays[kill % 2].kill9();
            relays[kill % 2] = folder.relay(&[]);
        }
        writer.join().unwrap();
        eventually_blocking("everything to be published", LONG, || waiting() == 0);
        for mut relay in relays {
            relay.sigterm();
            assert!(relay.wait(LONG).success());
        }
    });
    for line in folder.delivered() {
        oracle.delivered(line["event_id"].as_str().unwrap().parse().unwrap());
    }
    oracle.expect_dead([]);
    // In flight are at most four batches of 100.
    println!("{:?}", oracle.verdict(10 * 4 * 100).unwrap());
}

/// Writes transactions of some events, every seventh rolled back, until it wrote so many.
async fn write(folder: &Folder, events: usize, oracle: &Oracle) {
    let pool = folder.pool().await;
    let outbox = Outbox::new(TABLE.parse().unwrap());
    let topic: Topic = TOPIC.parse().unwrap();
    let (mut written, mut n) = (0, 0);
    while written < events {
        n += 1;
        let mut tx = sqlite::begin(&pool).await.unwrap();
        let records = (0..=n % 20).map(|i| Record::builder(topic.clone()).json(&i));
        let receipts = outbox.enqueue_all(&mut tx, records).await.unwrap();
        let ids = receipts.iter().map(|receipt| receipt.event_id.0);
        if n % 7 == 0 {
            tx.rollback().await.unwrap();
            ids.for_each(|id| oracle.rolled_back(id));
        } else {
            tx.commit().await.unwrap();
            written += receipts.len();
            ids.for_each(|id| oracle.committed(id));
        }
    }
}

/// The codes of what a doctor finds, sorted.
fn found(json: &Value) -> Vec<&str> {
    let mut codes: Vec<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|finding| finding["code"].as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[test]
fn what_is_broken_in_a_file_has_a_code() {
    let folder = Folder::new();
    let doctor = |more: &str| {
        let done = folder.run(&format!("doctor --between 50ms --json{more}"));
        let json: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:#?}"));
        assert_eq!(done.code == 0, found(&json).is_empty(), "{done:#?}");
        json
    };
    assert_eq!(found(&doctor("")), Vec::<&str>::new());
    assert_eq!(found(&doctor(" --sink file:nowhere/out.jsonl")), ["OUTBOX_SINK_UNREACHABLE"]);
    folder.sql("DROP INDEX shop_outbox_pending_by_available");
    assert_eq!(found(&doctor("")), ["OUTBOX_INDEX_MISSING"]);
    folder.ok("migrate up");
    // An owner that has stopped, and events that have been due for long.
    let mut relay = folder.relay(&[]);
    relay.wait_for_line("standing=Active", LONG);
    relay.sigstop();
    folder.fill(
        3,
        &format!(
            "UPDATE {TABLE} SET available_at = available_at - 60000000, created_at = created_at - 60000000"
        ),
    );
    let stuck = found(&doctor(" --dispatch-timeout 1s")).contains(&"OUTBOX_OWNER_STUCK");
    relay.kill9();
    assert!(stuck, "{:#}", doctor(""));
    folder.sql(&format!("UPDATE {TABLE} SET dead_at = {NOW}"));
    assert_eq!(found(&doctor("")), ["OUTBOX_DEAD_EVENTS"]);
}
