//! What is promised of hooks, of transactions that Postbox opened, and of units of work.

use std::sync::{Arc, Mutex};

use postbox_core::{
    Aggregate, CommitError, Driver, Enqueued, EventId, HookError, HookResult, Outbox, OutboxTransaction,
    PendingEvents, Record, UnitOfWorkError, WriterHook, Written,
};

use super::{PATIENCE, Subject, TOPIC, event, events};
use crate::{eventually, skipped};

/// A stage and the events it was given.
pub type Told = (&'static str, Vec<EventId>);

/// A hook that writes down what it is told, takes out the events it was asked to, and fails or panics at the end of
/// every stage after the writing.
#[derive(Clone, Default)]
pub struct Noting {
    told: Arc<Mutex<Vec<Told>>>,
    suppress: Arc<Mutex<Vec<EventId>>>,
    panics: bool,
}

impl Noting {
    /// What it was told since it was last asked.
    pub fn told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.told.lock().expect("unpoisoned"))
    }

    /// Waits until it was told something.
    pub async fn is_told(&self) -> Vec<Told> {
        eventually("a hook to run", PATIENCE, async || {
            let told = self.told();
            (!told.is_empty()).then_some(told)
        })
        .await
    }

    fn note(&self, stage: &'static str, events: &[Written]) -> HookResult {
        let ids = events.iter().map(|event| event.record.event_id).collect();
        self.told.lock().expect("unpoisoned").push((stage, ids));
        assert!(!self.panics, "a hook that panics");
        Err(HookError::new("a hook that fails"))
    }
}

impl WriterHook for Noting {
    async fn before_write(&self, events: &mut Vec<Record>) -> HookResult {
        self.told
            .lock()
            .expect("unpoisoned")
            .push(("before_write", events.iter().map(|e| e.event_id).collect()));
        let suppress = self.suppress.lock().expect("unpoisoned").clone();
        events.retain(|event| !suppress.contains(&event.event_id));
        Ok(())
    }
    async fn after_write(&self, events: &[Written]) -> HookResult {
        self.note("after_write", events)
    }
    async fn after_commit(&self, events: &[Written]) -> HookResult {
        self.note("after_commit", events)
    }
    async fn after_rollback(&self, events: &[Written]) -> HookResult {
        self.note("after_rollback", events)
    }
}

/// An outbox with a hook.
pub fn hooked<S: Subject>(subject: &S) -> (Noting, Outbox) {
    let noting = Noting::default();
    (noting.clone(), subject.outbox().hook(noting))
}

async fn write<D: Driver>(outbox: &Outbox, tx: &mut OutboxTransaction<D>, number: usize) -> Vec<EventId> {
    let receipts = outbox.enqueue_all(tx, events(number)).await.expect("an enqueue");
    receipts.iter().map(|receipt| receipt.event_id).collect()
}

/// Stages in order; what a hook takes out is suppressed; what hooks do wrong after the writing is swallowed.
pub async fn hooks_hear_of_writes_and_of_the_commit<S: Subject>(subject: &S) {
    for panics in [false, true] {
        let noting = Noting { panics, ..Noting::default() };
        let outbox = subject.outbox().hook(noting.clone());
        let before = subject.rows().await;
        let mut tx = subject.open(&outbox).await;
        let records = events(3);
        let ids: Vec<EventId> = records.iter().map(|record| record.event_id).collect();
        noting.suppress.lock().expect("unpoisoned").push(ids[1]);
        let receipts = outbox.enqueue_all(&mut tx, records).await.unwrap();
        assert!(matches!(receipts[0].enqueued, Enqueued::Written(_)));
        assert_eq!((receipts[1].event_id, receipts[1].enqueued), (ids[1], Enqueued::Suppressed));
        let written = vec![ids[0], ids[2]];
        assert_eq!(noting.told(), [("before_write", ids.clone()), ("after_write", written.clone())]);
        let more = write(&outbox, &mut tx, 2).await;
        let again = outbox.enqueue(&mut tx, event(TOPIC, 1).event_id(ids[0])).await.unwrap();
        assert!(matches!(again.enqueued, Enqueued::Duplicate(_)));
        noting.told();
        tx.commit().await.unwrap();
        assert_eq!(
            noting.told(),
            [("after_commit", [written, more].concat())],
            "once, without the duplicate"
        );
        assert_eq!(subject.rows().await - before, 4);
    }
}

/// A rollback is told, by name or by drop; without the wrapper nobody knows.
pub async fn hooks_hear_of_a_rollback<S: Subject>(subject: &S) {
    let (noting, outbox) = hooked(subject);
    for by_drop in [false, true] {
        let mut tx = subject.open(&outbox).await;
        let ids = write(&outbox, &mut tx, 2).await;
        noting.told();
        if by_drop {
            drop(tx);
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(noting.is_told().await, [("after_rollback", ids.clone())]);
        assert_eq!(subject.row(ids[0]).await, None);
    }
    let mut tx = subject.open(&outbox).await;
    let receipts = subject.enqueue_in_driver_transaction(&outbox, &mut tx, events(1)).await;
    assert_eq!(noting.told().len(), 2, "before and after the writing");
    tx.commit().await.unwrap();
    assert!(noting.told().is_empty());
    assert!(subject.row(receipts[0].event_id).await.is_some());
}

/// The guard: after an error that was ignored, PostgreSQL answers COMMIT with ROLLBACK, and the driver says that all is
/// well (hot phantom).
pub async fn a_commit_after_an_ignored_error_is_not_told_as_one<S: Subject>(subject: &S) {
    let (noting, outbox) = hooked(subject);
    let mut tx = subject.open(&outbox).await;
    let ids = write(&outbox, &mut tx, 2).await;
    noting.told();
    subject.run_in(&mut tx, "SELECT * FROM a_table_that_is_not_there").await.unwrap_err();
    if subject.errors_abort() {
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::RolledBack(_)), "{error}");
        assert_eq!(noting.told(), [("after_rollback", ids.clone())]);
        assert_eq!(subject.row(ids[0]).await, None);
    } else {
        tx.commit().await.unwrap();
        assert_eq!(noting.told(), [("after_commit", ids.clone())]);
        assert!(subject.row(ids[0]).await.is_some());
    }
}

/// The guard: rows that went with a savepoint behind the outbox's back.
pub async fn rows_that_went_with_a_savepoint_are_not_told_as_committed<S: Subject>(subject: &S) {
    let (noting, outbox) = hooked(subject);
    let mut tx = subject.open(&outbox).await;
    let kept = write(&outbox, &mut tx, 2).await;
    subject.run_in(&mut tx, "SAVEPOINT here").await.unwrap();
    let gone = write(&outbox, &mut tx, 2).await;
    let again = event(TOPIC, 9).build().unwrap();
    outbox.enqueue(&mut tx, again.clone()).await.unwrap();
    subject.run_in(&mut tx, "ROLLBACK TO SAVEPOINT here").await.unwrap();
    let receipt = outbox.enqueue(&mut tx, again.clone()).await.unwrap();
    assert!(matches!(receipt.enqueued, Enqueued::Written(_)), "{receipt:?}");
    noting.told();
    tx.commit().await.unwrap();
    let committed = [kept.clone(), vec![again.event_id]].concat();
    assert_eq!(noting.told(), [("after_commit", committed), ("after_rollback", gone.clone())]);
    assert!(subject.row(kept[0]).await.is_some());
    assert_eq!(subject.row(gone[0]).await, None);
    assert_eq!(subject.rows().await, 3);
}

/// A refused COMMIT is a rollback, and certain to be one.
pub async fn a_refused_commit_is_told_as_a_rollback<S: Subject>(subject: &S) {
    if !subject.commits_can_be_refused() {
        return skipped("no constraint is deferred here");
    }
    let (noting, outbox) = hooked(subject);
    let mut tx = subject.open(&outbox).await;
    let ids = write(&outbox, &mut tx, 1).await;
    for sql in [
        "CREATE TEMP TABLE parent (id integer PRIMARY KEY)",
        "CREATE TEMP TABLE child (parent integer REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO child VALUES (7)",
    ] {
        subject.run_in(&mut tx, sql).await.unwrap();
    }
    noting.told();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::RolledBack(_)), "{error}");
    assert_eq!(noting.told(), [("after_rollback", ids.clone())]);
    assert_eq!(subject.row(ids[0]).await, None);
}

/// Hooks keep enqueue set-based, and the guard is one statement for any number of rows.
pub async fn hooks_hear_of_many_events_at_once<S: Subject>(subject: &S) {
    let (noting, outbox) = hooked(subject);
    let mut tx = subject.open(&outbox).await;
    let ids = write(&outbox, &mut tx, 2_500).await;
    tx.commit().await.unwrap();
    let told = noting.told();
    assert_eq!(
        told.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(),
        ["before_write", "after_write", "after_commit"]
    );
    assert!(told.iter().all(|(_, events)| *events == ids));
    assert_eq!(subject.rows().await, 2_500);
}

/// An aggregate with events.
#[derive(Default)]
pub struct Thing(PendingEvents);

impl Thing {
    /// One to which so much has happened.
    pub fn with(events: usize) -> Self {
        let mut thing = Self::default();
        (0..events).for_each(|n| thing.0.push(event(TOPIC, n)));
        thing
    }
}

impl Aggregate for Thing {
    fn pending_events(&mut self) -> &mut PendingEvents {
        &mut self.0
    }
}

/// The events of all aggregates with the data, or none of both.
pub async fn a_unit_of_work_commits_all_its_events_or_none<S: Subject>(subject: &S) {
    let (noting, outbox) = hooked(subject);
    let (mut a, mut b) = (Thing::with(2), Thing::with(1));
    let mut uow = subject.unit_of_work(&outbox).await;
    uow.track(&mut a);
    uow.track(&mut b);
    if subject.errors_abort() {
        subject.run_in(uow.transaction(), "SELECT * FROM a_table_that_is_not_there").await.unwrap_err();
        assert!(matches!(uow.commit().await, Err(UnitOfWorkError::Enqueue(_))));
    } else {
        uow.rollback().await.unwrap();
    }
    assert_eq!((a.0.len(), b.0.len(), subject.rows().await), (2, 1, 0), "they keep their events");
    noting.told();

    let mut uow = subject.unit_of_work(&outbox).await;
    uow.track(&mut b);
    uow.track(&mut a);
    let receipts = uow.commit().await.unwrap();
    let ids: Vec<EventId> = receipts.iter().map(|receipt| receipt.event_id).collect();
    assert_eq!((ids.len(), subject.rows().await), (3, 3));
    assert!(a.0.is_empty() && b.0.is_empty());
    assert_eq!(noting.told().last(), Some(&("after_commit", ids)));
}
