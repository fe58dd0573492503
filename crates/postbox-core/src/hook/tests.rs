//! What is promised of hooks, on transactions in memory; the store suite has the same on databases.

use std::sync::Mutex;

use super::*;
use crate::code::Code;
use crate::event::EventId;
use crate::outbox::{EnqueueError, Outbox};
use crate::testing::{MemoryOutbox, MemoryTransaction};
use crate::topic::Topic;
use crate::transaction::CommitError;
use crate::tx::Enqueued;

const TOPIC: Topic = Topic::from_static("shop.order.placed.v1");

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down what it sees, as `name stage payloads`, and takes out the payloads it was told.
struct Noting {
    name: &'static str,
    log: Log,
    suppress: &'static [&'static str],
}

fn payload(record: &Record) -> String {
    match &record.payload {
        crate::Payload::Json(json) => json.as_str().to_owned(),
        crate::Payload::Bytes { .. } => panic!("bytes"),
    }
}

impl Noting {
    fn note<'a>(&self, stage: &str, records: impl Iterator<Item = &'a Record>) {
        let payloads: Vec<String> = records.map(payload).collect();
        self.log.lock().unwrap().push(format!("{} {stage} {}", self.name, payloads.join(",")));
    }

    fn written(&self, stage: &str, events: &[Written]) {
        self.note(stage, events.iter().map(|event| &event.record));
    }
}

impl WriterHook for Noting {
    async fn before_write(&self, events: &mut Vec<Record>) -> HookResult {
        self.note("before", events.iter());
        events.retain(|event| !self.suppress.contains(&payload(event).as_str()));
        Ok(())
    }
    async fn after_write(&self, events: &[Written]) -> HookResult {
        self.written("write", events);
        Ok(())
    }
    async fn after_commit(&self, events: &[Written]) -> HookResult {
        self.written("commit", events);
        Ok(())
    }
    async fn after_rollback(&self, events: &[Written]) -> HookResult {
        self.written("rollback", events);
        Ok(())
    }
}

/// Fails or panics at every stage after the writing.
struct Broken(bool);

impl Broken {
    fn fail(&self) -> HookResult {
        if self.0 { panic!("oh") } else { Err(std::io::Error::other("no").into()) }
    }
}

impl WriterHook for Broken {
    async fn after_write(&self, _: &[Written]) -> HookResult {
        self.fail()
    }
    async fn after_commit(&self, _: &[Written]) -> HookResult {
        self.fail()
    }
    async fn after_rollback(&self, _: &[Written]) -> HookResult {
        self.fail()
    }
}

fn event(n: u32) -> crate::RecordBuilder {
    Record::builder(TOPIC).json(&n)
}

fn outbox() -> Outbox {
    Outbox::new("test_outbox".parse().unwrap())
}

fn noting(log: &Log) -> Outbox {
    outbox().hook(Noting { name: "a", log: Arc::clone(log), suppress: &[] })
}

fn lines(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

/// Waits for hooks that run in a task of their own.
async fn wait_for_lines(log: &Log, number: usize) -> Vec<String> {
    while log.lock().unwrap().len() < number {
        tokio::task::yield_now().await;
    }
    lines(log)
}

#[tokio::test]
async fn stages_run_in_order_writes_per_call_and_ends_per_transaction() {
    let log = Log::default();
    let outbox = noting(&log).hook(Noting { name: "b", log: Arc::clone(&log), suppress: &["2"] });
    let memory = MemoryOutbox::of(outbox);
    let mut tx = memory.begin().await.unwrap();
    let receipts = memory.enqueue_all(&mut tx, [event(1), event(2), event(3)]).await.unwrap();
    assert_eq!(
        receipts.iter().map(|receipt| receipt.enqueued).collect::<Vec<_>>(),
        [Enqueued::Written(1), Enqueued::Suppressed, Enqueued::Written(2)]
    );
    assert_eq!(lines(&log), ["a before 1,2,3", "b before 1,2,3", "a write 1,3", "b write 1,3"]);
    memory.enqueue(&mut tx, event(4)).await.unwrap();
    let all = memory.enqueue(&mut tx, event(2)).await.unwrap();
    assert_eq!(all.enqueued, Enqueued::Suppressed);
    assert_eq!(
        lines(&log),
        ["a before 4", "b before 4", "a write 4", "b write 4", "a before 2", "b before 2"],
        "nothing was written, so nothing is told"
    );
    tx.commit().await.unwrap();
    assert_eq!(lines(&log), ["a commit 1,3,4", "b commit 1,3,4"]);
    assert_eq!(memory.records().len(), 3);
}

#[tokio::test]
async fn a_rollback_and_a_drop_are_told_once() {
    let log = Log::default();
    let memory = MemoryOutbox::of(noting(&log));
    for dropped in [true, false] {
        let mut tx = memory.begin().await.unwrap();
        memory.enqueue(&mut tx, event(1)).await.unwrap();
        memory.enqueue(&mut tx, event(2)).await.unwrap();
        lines(&log);
        if dropped {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(wait_for_lines(&log, 1).await, ["a rollback 1,2"]);
    }
    assert_eq!((memory.records().len(), memory.uncommitted()), (0, 0));
}

#[test]
fn a_drop_without_a_runtime_does_no_harm() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let memory = MemoryOutbox::of(noting(&Log::default()));
    let tx = runtime.block_on(async {
        let mut tx = memory.begin().await.unwrap();
        memory.enqueue(&mut tx, event(1)).await.unwrap();
        tx
    });
    drop(tx);
    assert_eq!(memory.uncommitted(), 0);
}

#[tokio::test]
async fn a_driver_s_own_transaction_runs_the_first_two_stages_alone() {
    let log = Log::default();
    let memory = MemoryOutbox::of(noting(&log));
    let mut tx = memory.begin().await.unwrap();
    let own: &mut MemoryTransaction = &mut tx;
    memory.enqueue(own, event(1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(lines(&log), ["a before 1", "a write 1"]);
    assert_eq!(memory.records().len(), 1);
}

#[tokio::test]
async fn an_error_or_a_panic_before_the_writing_writes_nothing() {
    struct Refuses(bool);
    impl WriterHook for Refuses {
        async fn before_write(&self, _: &mut Vec<Record>) -> HookResult {
            if self.0 { panic!("oh") } else { Err(HookError::new("not today")) }
        }
    }
    for (panics, says) in [(false, "not today"), (true, "the hook panicked: oh")] {
        let memory = MemoryOutbox::of(outbox().hook(Refuses(panics)));
        let mut tx = memory.begin().await.unwrap();
        let error = memory.enqueue(&mut tx, event(1)).await.unwrap_err();
        assert!(error.to_string().starts_with(Code::HookFailed.as_str()), "{error}");
        let EnqueueError::Hook(source) = error else { panic!("{error:?}") };
        assert_eq!(source.to_string(), says);
        tx.commit().await.unwrap();
        assert!(memory.records().is_empty());
    }
}

#[tokio::test]
async fn what_a_hook_changes_is_written_changed_and_checked_again() {
    struct Changes;
    impl WriterHook for Changes {
        async fn before_write(&self, events: &mut Vec<Record>) -> HookResult {
            for event in &mut *events {
                *event = event.clone().rebuild().header("seen", "yes").build()?;
            }
            events.push(Record::builder(TOPIC).json(&"added").build()?);
            if payload(&events[0]) == "9" {
                let deep = format!("{}{}", "[".repeat(9), "]".repeat(9));
                events.push(Record::builder(TOPIC).raw_json(deep).build()?);
            }
            Ok(())
        }
    }
    let limits = crate::Limits { json_depth: 8, ..crate::Limits::default() };
    let memory = MemoryOutbox::of(outbox().limits(limits).hook(Changes));
    let mut tx = memory.begin().await.unwrap();
    let receipts = memory.enqueue_all(&mut tx, [event(1), event(2)]).await.unwrap();
    assert_eq!(receipts.len(), 2, "what was added has no receipt");
    let error = memory.enqueue(&mut tx, event(9)).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Event(_)), "the outbox's own limits hold: {error}");
    tx.commit().await.unwrap();
    assert_eq!(memory.records().len(), 3);
    assert_eq!(memory.records()[0].headers["seen"], "yes");
    assert_eq!(memory.records()[0].event_id, receipts[0].event_id);
}

#[tokio::test]
async fn what_goes_wrong_after_the_writing_is_swallowed_and_the_others_run() {
    let log = Log::default();
    for panics in [false, true] {
        let noting = Noting { name: "a", log: Arc::clone(&log), suppress: &[] };
        let memory = MemoryOutbox::of(outbox().hook(Broken(panics)).hook(noting));
        let mut tx = memory.begin().await.unwrap();
        memory.enqueue(&mut tx, event(1)).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = memory.begin().await.unwrap();
        memory.enqueue(&mut tx, event(2)).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(
            lines(&log),
            ["a before 1", "a write 1", "a commit 1", "a before 2", "a write 2", "a rollback 2"]
        );
    }
}

#[tokio::test]
async fn only_what_is_certain_is_told() {
    let log = Log::default();
    let memory = MemoryOutbox::of(noting(&log));

    memory.lose_next_commit();
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, event(1)).await.unwrap();
    lines(&log);
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)) && error.code() == Code::CommitUnknown);
    assert!(lines(&log).is_empty(), "neither committed nor rolled back");

    memory.fail_next_commit();
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, event(2)).await.unwrap();
    lines(&log);
    assert!(matches!(tx.commit().await, Err(CommitError::RolledBack(_))));
    assert_eq!(lines(&log), ["a rollback 2"]);

    memory.fail_next_write();
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, event(3)).await.unwrap_err();
    memory.enqueue(&mut tx, event(4)).await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert_eq!(memory.records().len(), 1, "only the one whose answer was lost");
}

#[tokio::test]
async fn rows_that_were_taken_back_behind_the_outbox_are_not_told_as_committed() {
    let log = Log::default();
    let memory = MemoryOutbox::of(noting(&log));
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, event(1)).await.unwrap();
    memory.enqueue(&mut tx, event(2)).await.unwrap();
    tx.take_back_last();
    lines(&log);
    tx.commit().await.unwrap();
    assert_eq!(lines(&log), ["a commit 1", "a rollback 2"]);

    let id = EventId::new();
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, event(3).event_id(id)).await.unwrap();
    tx.take_back_last();
    memory.enqueue(&mut tx, event(3).event_id(id)).await.unwrap();
    lines(&log);
    tx.commit().await.unwrap();
    assert_eq!(lines(&log), ["a commit 3"], "written twice, there once");
}

#[tokio::test]
async fn each_outbox_of_a_transaction_hears_of_its_own_events() {
    let (log, other_log) = (Log::default(), Log::default());
    let memory = MemoryOutbox::of(noting(&log));
    let other = outbox().hook(Noting { name: "b", log: Arc::clone(&other_log), suppress: &[] });
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue(&mut tx, event(1)).await.unwrap();
    other.enqueue(&mut tx, event(2)).await.unwrap();
    memory.clone().enqueue(&mut tx, event(3)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(lines(&log).last().unwrap(), "a commit 1,3");
    assert_eq!(lines(&other_log).last().unwrap(), "b commit 2");
}

#[tokio::test]
async fn hooks_run_to_their_end_when_nobody_waits_for_the_commit_any_more() {
    struct Slow(Log);
    impl WriterHook for Slow {
        async fn after_commit(&self, _: &[Written]) -> HookResult {
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
            self.0.lock().unwrap().push("done".to_owned());
            Ok(())
        }
        async fn after_rollback(&self, _: &[Written]) -> HookResult {
            self.0.lock().unwrap().push("this too".to_owned());
            Ok(())
        }
    }
    let log = Log::default();
    let memory = MemoryOutbox::of(outbox().hook(Slow(Arc::clone(&log))));
    let mut tx = memory.begin().await.unwrap();
    memory.enqueue_all(&mut tx, [event(1), event(2)]).await.unwrap();
    tx.take_back_last();
    tokio::time::timeout(std::time::Duration::from_millis(1), tx.commit()).await.unwrap_err();
    assert_eq!(wait_for_lines(&log, 2).await, ["done", "this too"]);
}
