//! What is promised of an inbox (P7): of all that receive a message, one has its effect.

use std::time::Duration;

use postbox_core::cleaner::Cleaner;
use postbox_core::{
    ConsumerName, Inbox, InboxAdmin, InboxFilter, InboxPage, InboxRequest, InboxRetention, MessageId,
    RecordError, Seen,
};

use super::{Subject, event, events};
use crate::skipped;

const HOUR: Duration = Duration::from_hours(1);
static STOCK: ConsumerName = ConsumerName::from_static("stock");
static MAIL: ConsumerName = ConsumerName::from_static("mail.daily-2");

fn id(text: impl std::fmt::Display) -> MessageId {
    MessageId::new(text.to_string()).expect("the id of a message")
}

/// The inbox of a table that can have one.
async fn made<S: Subject>(subject: &S) -> Option<Inbox> {
    if !subject.features().full {
        skipped("a bare table has no inbox");
        return None;
    }
    subject.make_inbox().await;
    Some(subject.outbox().inbox())
}

/// Records messages in a transaction of their own.
async fn record<S: Subject>(
    subject: &S,
    inbox: &Inbox,
    consumer: &ConsumerName,
    ids: &[MessageId],
) -> Vec<Seen> {
    let mut tx = subject.open(&subject.outbox()).await;
    let seen = inbox.record_all(&mut tx, consumer, ids).await.unwrap();
    tx.commit().await.unwrap();
    seen
}

/// Hazard 44: sixteen that race for one message; its effect happens once.
pub async fn of_many_that_race_for_a_message_one_is_first<S: Subject>(subject: &S) {
    let Some(inbox) = made(subject).await else { return };
    let outbox = subject.outbox();
    for round in 0..5 {
        let message = id(format!("order-{round}"));
        let racer = async |n: usize| {
            let (mut tx, seen) = loop {
                let mut tx = subject.open(&outbox).await;
                match inbox.record(&mut tx, &STOCK, &message).await {
                    Ok(seen) => break (tx, seen),
                    // As whoever uses it has to: the whole transaction again.
                    Err(RecordError::Conflict(_)) if subject.waiting_may_conflict() => {
                        tx.rollback().await.unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            if seen.is_first() {
                // The effect, for which nothing but the inbox keeps the others from having it too.
                outbox.enqueue(&mut tx, event(super::TOPIC, n)).await.unwrap();
                // One in two of the first ones fails at the end, and another has to have the effect instead.
                if n.is_multiple_of(2) {
                    tx.rollback().await.unwrap();
                    return None;
                }
            }
            tx.commit().await.unwrap();
            Some(seen)
        };
        let racers = futures_util::future::join_all((0..16).map(racer)).await;
        let first = racers.iter().filter(|seen| **seen == Some(Seen::First)).count();
        assert_eq!(first, 1, "{racers:?}");
        assert_eq!(subject.rows().await, round + 1, "one effect for each message");
    }
}

/// Who comes second waits for the first one's end, and then knows.
pub async fn a_rollback_lets_the_next_be_first<S: Subject>(subject: &S) {
    let Some(inbox) = made(subject).await else { return };
    let message = id("m");
    for (commit, expected) in [(false, Seen::First), (true, Seen::Before)] {
        let mut first = subject.open(&subject.outbox()).await;
        assert_eq!(inbox.record(&mut first, &STOCK, &message).await.unwrap(), Seen::First);
        let second = async {
            let mut tx = subject.open(&subject.outbox()).await;
            let seen = inbox.record(&mut tx, &STOCK, &message).await.unwrap();
            tx.rollback().await.unwrap();
            seen
        };
        let mut second = std::pin::pin!(second);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut second).await;
        assert!(early.is_err(), "it does not know before the first one has ended: {early:?}");
        if commit {
            first.commit().await.unwrap();
        } else {
            first.rollback().await.unwrap();
        }
        assert_eq!(second.await, expected, "after a commit: {commit}");
    }
    assert_eq!(record(subject, &inbox, &STOCK, std::slice::from_ref(&message)).await, [Seen::Before]);
    assert_eq!(
        record(subject, &inbox, &MAIL, &[message]).await,
        [Seen::First],
        "each has a memory of its own"
    );
}

/// Effect, memory and further events are one commit, also in a unit of work and in the driver's own transaction.
pub async fn an_effect_its_memory_and_its_events_commit_together<S: Subject>(subject: &S) {
    let Some(inbox) = made(subject).await else { return };
    let (outbox, message) = (subject.outbox(), id("m"));
    for commit in [false, true] {
        let mut tx = subject.open(&outbox).await;
        assert!(inbox.record(&mut tx, &STOCK, &message).await.unwrap().is_first());
        let receipts = outbox.enqueue_all(&mut tx, events(3)).await.unwrap();
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        for receipt in receipts {
            assert_eq!(subject.row(receipt.event_id).await.is_some(), commit);
        }
        let remembered = subject.admin().inbox_count(&InboxFilter::default()).await.unwrap();
        assert_eq!(remembered, u64::from(commit));
    }
    let mut unit = subject.unit_of_work(&outbox).await;
    assert_eq!(inbox.record(&mut unit, &STOCK, &message).await.unwrap(), Seen::Before);
    assert_eq!(inbox.record(&mut unit, &STOCK, id("n")).await.unwrap(), Seen::First);
    unit.rollback().await.unwrap();
    assert_eq!(record(subject, &inbox, &STOCK, &[id("n")]).await, [Seen::First]);
}

/// Any number in one call, repeated ones among them, whatever is in the ids.
pub async fn a_batch_tells_of_each_message<S: Subject>(subject: &S) {
    let Some(inbox) = made(subject).await else { return };
    assert_eq!(record(subject, &inbox, &STOCK, &[]).await, []);
    let hostile =
        ["z", "a'b\"c", "%", "|", "\\", "{\"a\":1}", "{1,2}", "NULL", "Zoë 😀", "z", " a", "A"].map(id);
    let seen = record(subject, &inbox, &STOCK, &hostile).await;
    let again = seen.iter().enumerate().filter(|(_, seen)| !seen.is_first()).map(|(at, _)| at);
    assert_eq!(again.collect::<Vec<_>>(), [9], "only the one that is there twice");
    assert!(record(subject, &inbox, &STOCK, &hostile).await.iter().all(|seen| !seen.is_first()));
    let many: Vec<MessageId> = (0..2_500).map(|n| id(n % 2_400)).collect();
    let seen = record(subject, &inbox, &STOCK, &many).await;
    assert_eq!(seen.iter().filter(|seen| seen.is_first()).count(), 2_400);
    assert!(seen[2_400..].iter().all(|seen| !seen.is_first()));
    let longest = id("x".repeat(MessageId::LIMIT));
    assert_eq!(record(subject, &inbox, &STOCK, &[longest]).await, [Seen::First]);
}

/// Hazard 18: batches with the same messages in different orders do not wait for each other in a circle.
pub async fn batches_in_different_orders_do_not_deadlock<S: Subject>(subject: &S) {
    let Some(inbox) = made(subject).await else { return };
    for round in 0..20 {
        let forwards: Vec<MessageId> = (0..200).map(|n| id(format!("{round}-{n}"))).collect();
        let backwards: Vec<MessageId> = forwards.iter().rev().cloned().collect();
        let batches = [&forwards, &backwards, &forwards, &backwards];
        let batches = batches.map(|batch| record(subject, &inbox, &STOCK, batch));
        let seen = futures_util::future::join_all(batches).await;
        let first = seen.iter().flatten().filter(|seen| seen.is_first()).count();
        assert_eq!(first, 200, "one of them had all of them");
    }
}

/// What is not there says so, with the next step.
pub async fn a_missing_inbox_is_said_to_be_missing<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table has no inbox");
    }
    let inbox = subject.outbox().inbox();
    let mut tx = subject.open(&subject.outbox()).await;
    let error = inbox.record(&mut tx, &STOCK, id("m")).await.unwrap_err();
    assert!(matches!(error, RecordError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("postbox migrate up --inbox --table"), "{error}");
    tx.rollback().await.unwrap();
    let admin = subject.admin();
    assert!(!admin.has_inbox().await.unwrap());
    let error = admin.inbox_count(&InboxFilter::default()).await.unwrap_err();
    assert_eq!(error.code(), postbox_core::Code::InboxMissing);
    let retention = InboxRetention::new(HOUR, HOUR).unwrap();
    assert_eq!(
        Cleaner::new(admin).inbox(retention).run_once().await.unwrap(),
        0,
        "a cleaner leaves it at that"
    );
}

/// In batches, by age, and nothing else; a message that was forgotten is new again.
pub async fn what_was_received_long_ago_is_cleaned<S: Subject>(subject: &S) {
    let Some(inbox) = made(subject).await else { return };
    let old: Vec<MessageId> = (0..1_201).map(|n| id(format!("old-{n}"))).collect();
    record(subject, &inbox, &STOCK, &old).await;
    subject.age_inbox(10 * HOUR).await;
    record(subject, &inbox, &STOCK, &[id("new")]).await;
    let admin = subject.admin();
    let count = async || admin.inbox_count(&InboxFilter::default()).await.unwrap();
    let never = Cleaner::new(subject.admin()).retention(Duration::ZERO);
    assert_eq!(never.run_once().await.unwrap(), 0, "an inbox is cleaned only where that is asked for");
    let patient = InboxRetention::new(11 * HOUR, HOUR).unwrap();
    assert_eq!(Cleaner::new(subject.admin()).inbox(patient).run_once().await.unwrap(), 0);
    assert_eq!(count().await, 1_202);
    let retention = InboxRetention::new(5 * HOUR, 5 * HOUR).unwrap();
    let cleaner = Cleaner::new(subject.admin()).inbox(retention);
    let (a, b) = tokio::join!(cleaner.run_once(), cleaner.run_once());
    let later = cleaner.run_once().await.unwrap();
    assert_eq!(a.unwrap() + b.unwrap() + later, 1_201, "in batches, one cleaner at a time");
    assert_eq!(count().await, 1);
    assert_eq!(record(subject, &inbox, &STOCK, &[id("new"), id("old-7")]).await, [Seen::Before, Seen::First]);
}

/// Pages, filters, what is forgotten, and that it is audited.
pub async fn operators_see_what_was_received_and_can_have_it_forgotten<S: Subject>(subject: &S) {
    let Some(inbox) = made(subject).await else { return };
    let numbered: Vec<MessageId> = (0..7).map(id).collect();
    record(subject, &inbox, &STOCK, &numbered).await;
    subject.age_inbox(HOUR).await;
    record(subject, &inbox, &MAIL, &numbered[..3]).await;
    let admin = subject.admin();
    let all = InboxFilter::default();
    let list = async |filter: &InboxFilter, limit| {
        let (mut pages, mut after) = (Vec::<InboxPage>::new(), None);
        loop {
            let request = InboxRequest { filter: filter.clone(), after, limit };
            let page = admin.inbox_list(&request).await.unwrap();
            pages.push(page);
            match pages.last().and_then(|page| page.next.clone()) {
                None => return pages,
                next => after = next,
            }
        }
    };
    let pages = list(&all, 4).await;
    assert_eq!(pages.iter().map(|page| page.messages.len()).collect::<Vec<_>>(), [4, 4, 2]);
    let found: Vec<_> = pages.into_iter().flat_map(|page| page.messages).collect();
    assert!(found.windows(2).all(|pair| pair[0].processed_at >= pair[1].processed_at), "the latest first");
    assert!(found[..3].iter().all(|entry| entry.consumer == MAIL.as_str()));
    assert_eq!(list(&all, 10).await.into_iter().flat_map(|page| page.messages).collect::<Vec<_>>(), found);
    let of = |consumer: &ConsumerName| InboxFilter { consumer: Some(consumer.to_string()), ..all.clone() };
    let between = |since, until| InboxFilter { since, until, ..all.clone() };
    let (newest, oldest) = (found[0].processed_at, found[9].processed_at);
    let middle = oldest + (newest - oldest) / 2;
    let only = |ids: &[&str]| InboxFilter {
        message_ids: ids.iter().map(ToString::to_string).collect(),
        ..all.clone()
    };
    for (filter, expected) in [
        (all.clone(), 10),
        (of(&STOCK), 7),
        (of(&ConsumerName::from_static("nobody")), 0),
        (only(&["1", "6", "none"]), 3),
        (InboxFilter { consumer: Some(MAIL.to_string()), ..only(&["1", "6"]) }, 1),
        (between(Some(middle), None), 3),
        (between(None, Some(middle)), 7),
        (between(Some(middle), Some(middle)), 0),
    ] {
        assert_eq!(admin.inbox_count(&filter).await.unwrap(), expected, "{filter:?}");
        assert_eq!(
            list(&filter, 2).await.iter().map(|page| page.messages.len()).sum::<usize>() as u64,
            expected
        );
    }
    assert_eq!(admin.inbox_forget(&of(&ConsumerName::from_static("nobody")), "tester").await.unwrap(), 0);
    assert_eq!(subject.audit_lines().await, 0, "nothing happened");
    assert_eq!(
        admin
            .inbox_forget(&InboxFilter { consumer: Some(STOCK.to_string()), ..only(&["1"]) }, "tester")
            .await
            .unwrap(),
        1
    );
    assert_eq!(admin.inbox_forget(&between(Some(middle), None), "tester").await.unwrap(), 3);
    assert_eq!(subject.audit_lines().await, 2);
    assert_eq!(record(subject, &inbox, &STOCK, &numbered[1..3]).await, [Seen::First, Seen::Before]);
    assert_eq!(record(subject, &inbox, &MAIL, &numbered[..1]).await, [Seen::First]);
}
