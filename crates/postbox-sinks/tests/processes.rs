//! The file sink among other processes: this test program starts itself again as a second writer.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use postbox_core::testing::delivery;
use postbox_core::{DispatchErrorKind, Dispatcher as _, Receipts};
use postbox_sinks::FileSink;
use serde_json::Value;

const PATH: &str = "POSTBOX_TEST_SINK_PATH";
const NAME: &str = "POSTBOX_TEST_SINK_NAME";
const BATCHES: usize = 40;
const EVENTS: usize = 25;

/// Writes batches of various lengths; each event says who wrote it and which one it is.
async fn write(path: &Path, name: &str) {
    let sink = FileSink::open(path);
    for round in 0..BATCHES {
        let numbers = round * EVENTS..(round + 1) * EVENTS;
        let events: Vec<_> = numbers
            .map(|n| {
                let filler = "x".repeat(n * 37 % 3000);
                delivery("org.thing.created.v1", &format!(r#"{{"by":"{name}","n":{n},"filler":"{filler}"}}"#))
            })
            .collect();
        let mut receipts = Receipts::new(events.len());
        sink.dispatch_batch(&events, &mut receipts).await;
        assert!(receipts.take().into_iter().all(|(_, outcome)| outcome.is_ok()));
    }
}

/// Starts this test program again, to run one test with the given setting.
fn start(test: &str, path: &Path, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(PATH, path)
        .env(NAME, name)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What the second process runs; in an ordinary run there is no setting and nothing to do.
#[tokio::test]
async fn second_writer() {
    if let (Some(path), Ok(name)) = (std::env::var_os(PATH), std::env::var(NAME)) {
        write(Path::new(&path), &name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_in_threads_and_processes_share_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.jsonl");
    let mut children: Vec<_> = ["p1", "p2"].iter().map(|name| start("second_writer", &path, name)).collect();
    let tasks = ["t1", "t2", "t3"].map(|name| {
        let path = path.clone();
        tokio::spawn(async move { write(&path, name).await })
    });
    for task in tasks {
        task.await.unwrap();
    }
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }

    let mut next: HashMap<String, u64> = HashMap::new();
    let text = fs::read_to_string(&path).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect(line);
        let by = line["payload"]["by"].as_str().unwrap().to_owned();
        let expected = next.entry(by).or_default();
        assert_eq!(line["payload"]["n"], *expected, "each writer's events are in its order");
        *expected += 1;
    }
    assert_eq!(next.len(), 5);
    assert!(next.values().all(|n| *n == (BATCHES * EVENTS) as u64), "{next:?}");
}

/// Runs in a process whose files may not grow beyond a limit, like on a full disk.
#[tokio::test]
async fn writer_on_a_full_disk() {
    let Some(path) = std::env::var_os(PATH).map(PathBuf::from) else { return };
    let sink = FileSink::open(&path);
    let small = delivery("org.thing.created.v1", r#""small""#);
    sink.dispatch(&small).await.unwrap();
    let before = fs::read(&path).unwrap();
    // The head of it fits, the rest does not.
    let large = delivery("org.thing.created.v1", &format!("\"{}\"", "x".repeat(100_000)));
    let mut receipts = Receipts::new(2);
    sink.dispatch_batch(&[small.clone(), large], &mut receipts).await;
    for (_, outcome) in receipts.take() {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable);
        assert!(error.to_string().contains(&format!("cannot write to {}", path.display())), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), before, "a half written batch is taken back");
    sink.dispatch(&small).await.unwrap();
}

#[cfg(unix)]
#[test]
fn hazard_36_a_write_that_breaks_off_is_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.jsonl");
    // Without the signal, a write beyond the limit is cut short and the next one is an error.
    let ended = Command::new("sh")
        .args(["-c", r#"trap '' XFSZ; ulimit -f 16; exec "$0" writer_on_a_full_disk --exact"#])
        .arg(std::env::current_exe().unwrap())
        .env(PATH, &path)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(ended.success());
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
}

/// Writes one event to standard output as soon as standard input ends, and says on standard error what came of it.
#[tokio::test]
async fn writer_to_stdout() {
    if std::env::var_os(NAME).is_none_or(|name| name != "stdout") {
        return;
    }
    eprintln!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let outcome = postbox_sinks::StdoutSink::new().dispatch(&delivery("org.thing.created.v1", "1")).await;
    eprintln!("outcome: {outcome:?}");
}

fn start_writer_to_stdout() -> (Child, BufReader<ChildStderr>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["writer_to_stdout", "--exact", "--nocapture"])
        .env(NAME, "stdout")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut ready = String::new();
    said.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    (child, said)
}

#[test]
fn a_closed_pipe_is_an_outage() {
    let (mut child, said) = start_writer_to_stdout();
    drop(child.stdout.take());
    drop(child.stdin.take());
    let outcome = said.lines().map(Result::unwrap).find(|line| line.starts_with("outcome: ")).unwrap();
    assert!(outcome.contains("kind: Unavailable") && outcome.contains("BrokenPipe"), "{outcome}");
    child.wait().unwrap();
}

#[test]
fn stdout_gets_whole_lines() {
    let (mut child, _said) = start_writer_to_stdout();
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("{\"event_id\":\"").count(), 1, "{text}");
    assert!(text.contains("\"payload\":1}\n"), "{text}");
}
