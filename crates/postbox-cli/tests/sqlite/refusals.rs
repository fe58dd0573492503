//! What cannot be done with a file, and what is wrong with one.

use serde_json::Value;

use crate::common::{LONG, finish};
use crate::folder::{Folder, NOW, TABLE, block_on};

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
    folder.stop_between_writes(&mut relay);
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
