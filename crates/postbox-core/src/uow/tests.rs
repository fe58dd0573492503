//! What is promised of a unit of work.

use super::*;
use crate::code::Code;
use crate::event::{Event, EventId};
use crate::record::Record;
use crate::testing::{MemoryOutbox, assert_enqueued};
use crate::topic::Topic;
use crate::tx::Enqueued;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Paid {
    order: u64,
}

impl Event for Paid {
    const TOPIC: Topic = Topic::from_static("shop.order.paid.v1");
}

#[derive(Default)]
struct Order {
    id: u64,
    events: PendingEvents,
}

impl Order {
    fn paid(id: u64) -> Self {
        let mut order = Self { id, ..Self::default() };
        order.events.push(Paid { order: order.id });
        order
    }

    fn ids(&self) -> Vec<EventId> {
        self.events.0.iter().map(|event| event.clone().build().unwrap().event_id).collect()
    }
}

impl Aggregate for Order {
    fn pending_events(&mut self) -> &mut PendingEvents {
        &mut self.events
    }
}

#[tokio::test]
async fn the_events_of_all_aggregates_are_committed_in_the_order_of_tracking() {
    let memory = MemoryOutbox::new();
    let (mut first, mut second) = (Order::paid(1), Order::paid(2));
    second.events.push(Record::of(&Paid { order: 3 }).header("h", "v"));
    let mut uow = memory.unit_of_work(&memory).await.unwrap();
    uow.track(&mut first);
    uow.track(&mut second);
    memory.enqueue(&mut uow, Paid { order: 0 }).await.unwrap();
    let receipts = uow.commit().await.unwrap();
    assert_eq!(receipts.len(), 3);
    assert_eq!(memory.events::<Paid>().iter().map(|paid| paid.order).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(memory.records()[3].headers["h"], "v");
    assert!(first.events.is_empty() && second.events.is_empty(), "they are handed over");
}

#[tokio::test]
async fn a_unit_of_work_without_events_commits_its_data() {
    let memory = MemoryOutbox::new();
    let mut order = Order::default();
    let mut uow = memory.unit_of_work(&memory).await.unwrap();
    uow.track(&mut order);
    assert!(uow.commit().await.unwrap().is_empty());
}

#[tokio::test]
async fn whatever_fails_the_aggregates_keep_their_events_and_another_try_sends_the_same() {
    let memory = MemoryOutbox::new();
    let mut order = Order::paid(7);
    let ids = order.ids();

    memory.fail_next_write();
    let mut uow = memory.unit_of_work(&memory).await.unwrap();
    uow.track(&mut order);
    assert!(matches!(uow.commit().await, Err(UnitOfWorkError::Enqueue(EnqueueError::Database(_)))));
    assert_eq!(order.ids(), ids);

    memory.fail_next_commit();
    let mut uow = memory.unit_of_work(&memory).await.unwrap();
    uow.track(&mut order);
    assert!(matches!(uow.commit().await, Err(UnitOfWorkError::Commit(CommitError::RolledBack(_)))));
    assert_eq!((order.ids(), memory.records().len()), (ids.clone(), 0));

    for rolled_back in [true, false] {
        let mut uow = memory.unit_of_work(&memory).await.unwrap();
        uow.track(&mut order);
        if rolled_back {
            uow.rollback().await.unwrap();
        } else {
            drop(uow);
        }
        assert_eq!((order.ids(), memory.records().len()), (ids.clone(), 0));
    }

    memory.lose_next_commit();
    let mut uow = memory.unit_of_work(&memory).await.unwrap();
    uow.track(&mut order);
    let error = uow.commit().await.unwrap_err();
    assert!(error.to_string().starts_with(Code::CommitUnknown.as_str()), "{error}");
    assert_eq!(order.ids(), ids, "it is not known whether they were taken");

    let mut uow = memory.unit_of_work(&memory).await.unwrap();
    uow.track(&mut order);
    let receipts = uow.commit().await.unwrap();
    assert!(matches!(receipts[..], [Receipt { enqueued: Enqueued::Duplicate(_), .. }]), "{receipts:?}");
    assert_eq!(memory.records().len(), 1);
    assert_enqueued!(memory, Paid { order: 7 });
}

#[tokio::test]
async fn an_event_that_breaks_a_limit_rolls_everything_back() {
    let memory = MemoryOutbox::new();
    let (mut good, mut bad) = (Order::paid(1), Order::default());
    bad.events.push(Record::of(&Paid { order: 2 }).routing_key("a\0b"));
    let mut uow = memory.unit_of_work(&memory).await.unwrap();
    uow.track(&mut good);
    uow.track(&mut bad);
    assert!(matches!(uow.commit().await, Err(UnitOfWorkError::Enqueue(EnqueueError::Event(_)))));
    assert_eq!((good.events.len(), bad.events.len(), memory.records().len()), (1, 1, 0));
}
