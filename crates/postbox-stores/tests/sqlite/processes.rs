//! Several processes on one file: this test's own program, started again with a part to play.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use postbox_core::{Delivery, DispatchError, Dispatcher, Outbox, Relay, Settings};
use postbox_stores::sqlite::{SqliteStore, begin};
use postbox_testkit::suite::{PATIENCE, Subject as _, TOPIC, event, events, quick};
use postbox_testkit::{Oracle, Program, eventually};
use sqlx::sqlite::SqlitePoolOptions;

use crate::subject::{Table, options};

/// Where the database is; set for those that were started again.
const FILE: &str = "POSTBOX_TEST_SQLITE_FILE";

fn play(part: &str, table: &Table) -> Program {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("processes::{part}"), "--nocapture", "--test-threads=1"]);
    command.env(FILE, table.file());
    Program::from_command(command)
}

fn file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// Notes what arrives in a file beside the database: one write each, which outlives the process.
struct Note(std::fs::File);

impl Dispatcher for Note {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        let line = format!("{} {}\n", std::process::id(), delivery.meta.event_id);
        (&self.0).write_all(line.as_bytes()).map_err(|error| DispatchError::retry(error.to_string()))?;
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(())
    }
}

fn settings() -> Settings {
    Settings { batch_size: 20, poll_interval: Duration::from_millis(50), ..quick() }
}

/// A part, not a test: a relay until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn part_relay() {
    let Some(file) = file() else { return };
    let notes =
        std::fs::OpenOptions::new().create(true).append(true).open(file.with_extension("notes")).unwrap();
    let store = SqliteStore::builder(options(&file), "org_outbox".parse().unwrap()).build();
    let relay = Relay::builder(store).dispatcher(Note(notes)).settings(settings()).build().unwrap();
    println!("relay up");
    relay.run().await.unwrap();
}

/// A part, not a test: writes as fast as it can for two seconds, and says how often.
#[tokio::test(flavor = "multi_thread")]
async fn part_writer() {
    let Some(file) = file() else { return };
    let options = options(&file).busy_timeout(Duration::ZERO);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let outbox = Outbox::new("org_outbox".parse().unwrap());
    println!("writer up");
    let go = file.with_extension("go");
    while !go.exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (started, mut commits, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while started.elapsed() < Duration::from_secs(2) {
        let asked = Instant::now();
        let mut tx = begin(&pool).await.unwrap();
        outbox.enqueue(&mut tx, event(TOPIC, commits)).await.unwrap();
        tx.commit().await.unwrap();
        longest = longest.max(asked.elapsed());
        commits += 1;
    }
    println!("commits={commits} longest={longest:?}");
}

/// Deliveries so far: process and event.
fn notes(table: &Table) -> Vec<(u32, uuid::Uuid)> {
    let text = std::fs::read_to_string(table.file().with_extension("notes")).unwrap_or_default();
    let line = |line: &str| {
        let (process, id) = line.split_once(' ').unwrap();
        (process.parse().unwrap(), id.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hazard_20_a_killed_relay_is_replaced_at_once_and_nothing_is_lost() {
    let table = Table::new().await;
    let oracle = Oracle::new();
    oracle.expect_dead([]);
    let mut relays = vec![play("part_relay", &table), play("part_relay", &table)];
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        let open = table.begin(events(400)).await;
        let ids: Vec<_> =
            postbox_testkit::suite::OpenTransaction::receipts(&open).iter().map(|r| r.event_id.0).collect();
        postbox_testkit::suite::OpenTransaction::commit(open).await;
        for id in ids {
            oracle.committed(id);
        }
        let before = notes(&table).len();
        let active = eventually("some of them", PATIENCE, async || {
            notes(&table).get(before + 30).map(|(process, _)| *process)
        })
        .await;
        let place = relays.iter().position(|relay| relay.id() == active).expect("one of the two");
        relays.swap_remove(place).kill9();
        let killed = Instant::now();
        eventually("the other one", PATIENCE, async || {
            notes(&table).last().is_some_and(|(process, _)| *process != active)
        })
        .await;
        slowest = slowest.max(killed.elapsed());
        relays.push(play("part_relay", &table));
    }
    eventually("everything to be settled", PATIENCE, async || {
        table.number("SELECT count(*) FROM org_outbox WHERE published_at IS NULL").await == 0
    })
    .await;
    drop(relays);
    for (_, id) in notes(&table) {
        oracle.delivered(id);
    }
    // Each kill repeats at most what was in flight: four batches.
    let report = oracle.verdict(3 * 4 * 20).unwrap();
    println!("{report:?}, slowest take-over {slowest:?}");
    assert_eq!(report.delivered, 1_200);
    assert!(slowest < Duration::from_secs(5), "{slowest:?}: the row alone would take 15 s");
    assert_eq!(table.number("SELECT epoch FROM postbox_relay").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_write_all_the_time_both_get_their_turn() {
    let table = Table::new().await;
    let mut writers = [play("part_writer", &table), play("part_writer", &table)];
    for writer in &writers {
        writer.wait_for_line("writer up", PATIENCE);
    }
    std::fs::write(table.file().with_extension("go"), "").unwrap();
    let counts = writers.each_mut().map(|writer| {
        let line = writer.wait_for_line("commits=", PATIENCE);
        assert!(writer.wait(PATIENCE).success());
        println!("{line}");
        let count = line.split_once("commits=").unwrap().1;
        count.split(' ').next().unwrap().parse::<usize>().unwrap()
    });
    assert_eq!(table.rows().await, counts.iter().sum::<usize>());
    let (less, more) = (counts[0].min(counts[1]), counts[0].max(counts[1]));
    assert!(less * 10 > more, "{counts:?}: a busy_timeout would give one of them nothing");
}
