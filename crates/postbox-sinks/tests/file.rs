//! The file sink's promises: durable, whole lines, several writers, rotation, outages.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::path::Path;

use postbox_core::testing::delivery;
use postbox_core::{Code, Delivery, DispatchErrorKind, Dispatcher as _, Payload, Receipts};
use postbox_sinks::FileSink;
use serde_json::Value;

const TOPIC: &str = "org.thing.created.v1";

fn event(n: usize) -> Delivery {
    delivery(TOPIC, &format!("{{\"n\":{n}}}"))
}

fn batch(len: usize) -> Vec<Delivery> {
    (0..len).map(event).collect()
}

/// Dispatches a batch and answers the indices that were acknowledged and the text of the first error.
async fn dispatch(sink: &FileSink, batch: &[Delivery]) -> (Vec<usize>, Option<String>) {
    let mut receipts = Receipts::new(batch.len());
    sink.dispatch_batch(batch, &mut receipts).await;
    let (mut delivered, mut first) = (Vec::new(), None);
    let outcomes = receipts.take();
    assert_eq!(outcomes.len(), batch.len(), "an event without an outcome");
    for (index, outcome) in outcomes {
        match outcome {
            Ok(()) => delivered.push(index),
            Err(error) => {
                assert_eq!(error.kind(), DispatchErrorKind::Unavailable);
                assert_eq!(error.code(), Code::Unavailable);
                first.get_or_insert_with(|| error.to_string());
            }
        }
    }
    (delivered, first)
}

/// All lines of a file, each of which must be whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "a torn line at the end");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[tokio::test]
async fn what_is_acknowledged_is_in_the_file_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let sink = FileSink::open(directory.path().join("out.jsonl"));
    let events = batch(1000);
    let (delivered, error) = dispatch(&sink, &events).await;
    assert_eq!((delivered.len(), error), (1000, None));
    sink.dispatch(&event(1000)).await.unwrap();
    let lines = lines(sink.path());
    assert_eq!(lines.len(), 1001);
    for (n, line) in lines.iter().enumerate() {
        assert_eq!(line["payload"]["n"], n);
    }
    assert_eq!(lines[7]["event_id"], events[7].meta.event_id.to_string());
    assert_eq!(sink.batch_limit(), 1000);
}

#[tokio::test]
async fn payloads_arrive_as_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let sink = FileSink::open(directory.path().join("out.jsonl"));
    let mut bytes = event(0);
    bytes.payload = Payload::Bytes { bytes: b"\n\0\xff".as_slice().into(), content_type: "x/y".into() };
    let raw = delivery(TOPIC, "{\n  \"n\": 0.10000000000000000055511151231257827,\r\n \"s\": \"a b\"\n}");
    let (delivered, _) = dispatch(&sink, &[raw, bytes]).await;
    assert_eq!(delivered, [0, 1]);
    assert_eq!(lines(sink.path()).len(), 2);
    let text = fs::read_to_string(sink.path()).unwrap();
    assert!(text.contains(r#""payload":{"n":0.10000000000000000055511151231257827,"s":"a b"}}"#), "{text}");
    assert!(text.contains(r#""payload":"CgD/","content_type":"x/y","payload_encoding":"base64"}"#), "{text}");
}

#[tokio::test]
async fn a_line_that_a_crash_tore_is_cut_off() {
    let whole = r#"{"event_id":"1","payload":1}"#;
    let long = format!("{{\"event_id\":\"{}", "x".repeat(200_000));
    for torn in ["{", r#"{"event_id":"2"#, long.as_str(), "\0\0\0\0"] {
        for before in [String::new(), format!("{whole}\n"), format!("{whole}\n{whole}\n")] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("out.jsonl");
            fs::write(&path, format!("{before}{torn}")).unwrap();
            assert_eq!(dispatch(&FileSink::open(&path), &batch(1)).await.1, None);
            let text = fs::read_to_string(&path).unwrap();
            let added = text.strip_prefix(&before).expect("what was whole is kept");
            assert!(added.starts_with("{\"event_id\":\"") && added.len() < 1000, "{added}");
            assert_eq!(lines(&path).len(), before.lines().count() + 1);
        }
    }
}

#[tokio::test]
async fn the_text_of_somebody_else_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    fs::write(&path, "my only copy").unwrap();
    assert_eq!(dispatch(&FileSink::open(&path), &batch(1)).await.1, None);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("my only copy\n{\"event_id\":") && text.ends_with("}\n"), "{text}");
}

#[tokio::test]
async fn a_rotated_or_deleted_file_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("out.jsonl"), directory.path().join("out.jsonl.1"));
    let sink = FileSink::open(&path);
    dispatch(&sink, &batch(2)).await;
    fs::rename(&path, &old).unwrap();
    dispatch(&sink, &batch(3)).await;
    assert_eq!((lines(&old).len(), lines(&path).len()), (2, 3));
    fs::remove_file(&path).unwrap();
    dispatch(&sink, &batch(4)).await;
    assert_eq!(lines(&path).len(), 4);
    // Rotation by copy and truncate leaves the same file in place.
    fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    dispatch(&sink, &batch(1)).await;
    assert_eq!((lines(&old).len(), lines(&path).len()), (2, 1));
}

#[tokio::test]
async fn a_missing_directory_is_an_outage_that_ends_when_it_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("not/yet/out.jsonl");
    let sink = FileSink::open(&path);
    let (delivered, error) = dispatch(&sink, &batch(2)).await;
    let error = error.expect("an outage");
    assert!(delivered.is_empty());
    assert!(error.contains(&format!("cannot find the directory of {}", path.display())), "{error}");
    assert_eq!(sink.check().await.unwrap_err().kind(), DispatchErrorKind::Unavailable);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    sink.check().await.unwrap();
    assert_eq!(dispatch(&sink, &batch(2)).await, (vec![0, 1], None));
    assert_eq!(lines(&path).len(), 2);
}

#[tokio::test]
async fn what_is_not_a_file_is_an_outage_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let error = dispatch(&FileSink::open(directory.path()), &batch(1)).await.1.expect("an outage");
    assert!(error.contains(&format!("cannot open {}", directory.path().display())), "{error}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn hazard_36_a_full_device_is_an_outage() {
    let error = dispatch(&FileSink::open("/dev/full"), &batch(2)).await.1.expect("an outage");
    assert!(error.contains("cannot write to /dev/full") && error.contains("No space left"), "{error}");
}

#[tokio::test]
async fn a_dispatch_dropped_while_it_waits_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.jsonl");
    let holder = fs::File::create(&path).unwrap();
    holder.lock().unwrap();
    let sink = FileSink::open(&path);
    let first = tokio::spawn({
        let sink = sink.clone();
        async move { dispatch(&sink, &[event(1)]).await }
    });
    tokio::task::yield_now().await;
    {
        let (dropped, events) = (FileSink::clone(&sink), [event(2)]);
        let mut second = std::pin::pin!(dispatch(&dropped, &events));
        tokio::select! {
            biased;
            _ = &mut second => panic!("it had to wait for the first"),
            () = std::future::ready(()) => {}
        }
    }
    drop(holder);
    assert_eq!(first.await.unwrap(), (vec![0], None));
    assert_eq!(dispatch(&sink, &[event(3)]).await, (vec![0], None));
    let numbers: Vec<_> = lines(&path).iter().map(|line| line["payload"]["n"].clone()).collect();
    assert_eq!(numbers, [1, 3]);
}
