//! What is promised of dead events: they reach the dead-letter route, and some are tried again by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postbox_core::cleaner::{Sweep as _, SweepCount as _, SweepRequest, Swept};
use postbox_core::letter::{LetterRequest, LetterVerdict};
use postbox_core::{
    Browse as _, Code, DeadLetters as _, Delivery, EventId, Relay, RelayBuilder, Settings, Store as _,
};

use super::admin::run;
use super::script::{Act, Scripted};
use super::{PATIENCE, RowState, Subject, enqueue, events, published, quick, state};
use crate::{eventually, skipped};

const BARE: &str = "a bare table has no place for what became of dead letters";

fn relay<S: Subject>(subject: &S, sink: &Scripted, letters: &Scripted) -> RelayBuilder<S::Store> {
    let relay = Relay::builder(subject.store(true)).dispatcher(sink.clone());
    relay.dead_letters("letters", letters.clone()).settings(quick())
}

async fn sent<S: Subject>(subject: &S, event: EventId) -> bool {
    subject.admin().show(event, false).await.unwrap().unwrap().dlq_at.is_some()
}

/// Waits until they have arrived and the rows say so.
async fn all_sent<S: Subject>(subject: &S, events: &[EventId]) {
    for event in events {
        eventually("the letter to be sent", PATIENCE, async || sent(subject, *event).await).await;
    }
}

/// What must stay as it was.
fn kept(row: &RowState) -> (bool, i32, Option<String>, usize) {
    (row.dead, row.attempts, row.last_error.clone(), row.log_lines)
}

fn header(delivery: &Delivery, name: &str) -> String {
    delivery.meta.headers.get(name).cloned().unwrap_or_default()
}

/// Each once, also those that died before there was a route; the row stays what it was.
pub async fn dead_events_go_to_the_dead_letter_route<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let old = enqueue(subject, events(3)).await;
    run(subject, &Scripted::new(|_| Act::Reject), 4).await;
    let before = kept(&state(subject, old[0]).await);
    let sink = Scripted::new(|_| Act::Reject);
    for batch in [1, 4] {
        let letters = Scripted::ok().in_batches(batch);
        let relay = relay(subject, &sink, &letters).build().unwrap().spawn();
        let new = enqueue(subject, events(30)).await;
        all_sent(subject, &new).await;
        all_sent(subject, &old).await;
        relay.shutdown().await.unwrap();
        assert!(new.iter().all(|id| letters.tries(*id) == 1), "each once");
        assert_eq!(letters.seen().len(), if batch == 1 { 33 } else { 30 });
        let letter = letters.seen().into_iter().find(|d| d.meta.event_id == new[0]).unwrap();
        assert!(header(&letter, "postbox-dead-reason").starts_with("OUTBOX_REJECTED: never"));
        assert_eq!(header(&letter, "postbox-dead-attempts"), "1");
        assert!(
            header(&letter, "postbox-dead-at").ends_with('Z')
                && !header(&letter, "postbox-dead-table").is_empty()
        );
    }
    let row = state(subject, old[0]).await;
    assert!(kept(&row) == before && !row.locked, "{row:?}");
}

/// While it is down nothing else waits, and nothing is forgotten.
pub async fn a_dead_letter_route_that_is_down_is_waited_for<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    for act in [Act::Unavailable, Act::Retry, Act::Panic] {
        let dead = enqueue(subject, events(5)).await;
        let bad = dead.clone();
        let sink = Scripted::new(move |d| if bad.contains(&d.meta.event_id) { Act::Reject } else { Act::Ok });
        let up = Arc::new(AtomicBool::new(false));
        let is_up = Arc::clone(&up);
        let letters = Scripted::new(move |_| if is_up.load(Ordering::SeqCst) { Act::Ok } else { act });
        let relay = relay(subject, &sink, &letters).build().unwrap().spawn();
        eventually("some tries", PATIENCE, async || letters.seen().len() > 10).await;
        let before = kept(&state(subject, dead[1]).await);
        assert!(before.0 && before.1 == 1, "{before:?}");
        let well = enqueue(subject, events(20)).await;
        for id in &well {
            published(subject, *id).await;
        }
        up.store(true, Ordering::SeqCst);
        all_sent(subject, &dead).await;
        relay.shutdown().await.unwrap();
        assert_eq!(kept(&state(subject, dead[1]).await), before);
        assert_eq!(letters.arrived().len(), 5, "each once");
    }
}

/// The fence: what is replayed while it is on its way is not marked as sent.
pub async fn a_replay_takes_a_letter_out_of_flight<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(2)).await;
    run(subject, &Scripted::new(|_| Act::Reject), 1).await;
    let store = subject.store(false);
    let ask = |limit| LetterRequest { limit, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    let letters = store.letters(ask(10)).await.unwrap();
    assert_eq!(letters.len(), 2);
    assert!(store.letters(ask(10)).await.unwrap().is_empty(), "they are leased");
    let place = |id: EventId| {
        let of = |d: &Delivery| d.meta.event_id == id;
        letters.iter().find(|letter| letter.delivery.as_ref().is_some_and(of)).unwrap()
    };
    assert!(subject.admin().replay(ids[0], "tester").await.unwrap());
    let verdicts = || letters.iter().map(|letter| (letter.lease.clone(), LetterVerdict::Sent)).collect();
    assert_eq!(store.settle_letters(verdicts()).await.unwrap().lost, [place(ids[0]).lease.row]);
    assert!(!sent(subject, ids[0]).await && sent(subject, ids[1]).await);
    let row = state(subject, ids[0]).await;
    assert!(!row.dead && !row.locked && row.due, "{row:?}");
    // It dies again: what was under way then is still not this death's letter, which goes there again.
    run(subject, &Scripted::new(|_| Act::Reject), 1).await;
    assert_eq!(store.settle_letters(verdicts()).await.unwrap().lost.len(), 2);
    assert!(state(subject, ids[0]).await.dead && !sent(subject, ids[0]).await);
    assert_eq!(store.letters(ask(10)).await.unwrap().len(), 1);
    store.close().await;
}

/// One that may have killed its relay is sent alone, and not again for a while: the longer it is dead, the longer.
pub async fn a_letter_that_may_kill_is_sent_alone_and_seldom<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(5)).await;
    run(subject, &Scripted::new(|_| Act::Reject), 1).await;
    let store = subject.store(false);
    let ask = LetterRequest { limit: 3, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    let first = store.letters(ask.clone()).await.unwrap();
    let poison = first[0].delivery.as_ref().unwrap().meta.event_id;
    assert_eq!(first.len(), 3);
    let others = first.iter().skip(1).map(|letter| (letter.lease.clone(), LetterVerdict::Sent)).collect();
    store.settle_letters(others).await.unwrap();
    subject.expire_lease(poison).await;
    let again = store.letters(ask.clone()).await.unwrap();
    assert_eq!(again.len(), 1, "alone");
    assert_eq!(again[0].delivery.as_ref().unwrap().meta.event_id, poison);
    let stale = vec![(first[0].lease.clone(), LetterVerdict::Sent)];
    assert_eq!(store.settle_letters(stale).await.unwrap().lost, [first[0].lease.row], "another has it");
    // The relay has died of it: the others go on, it does not.
    subject.expire_lease(poison).await;
    let rest = store.letters(ask.clone()).await.unwrap();
    assert_eq!(rest.len(), 2);
    assert!(!state(subject, poison).await.due);
    assert!(store.letters(ask).await.unwrap().is_empty());
    assert!(ids.contains(&poison));
    store.close().await;
}

/// Only where a relay may work.
pub async fn letters_of_a_paused_table_wait<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    enqueue(subject, events(1)).await;
    run(subject, &Scripted::new(|_| Act::Reject), 1).await;
    subject.pause(true).await;
    let store = subject.store(false);
    let ask = LetterRequest { limit: 3, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    assert!(store.letters(ask.clone()).await.unwrap().is_empty());
    subject.pause(false).await;
    assert_eq!(store.letters(ask.clone()).await.unwrap().len(), 1);
    store.close().await;
    // Nor where another is the active one.
    let standby = subject.store(true);
    assert!(standby.letters(ask).await.unwrap().is_empty(), "it has not been told that it is active");
    standby.close().await;
}

/// Old as it may be, what still has to go there is not cleaned away.
pub async fn the_cleaner_keeps_what_has_to_go_to_the_route<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(2)).await;
    run(subject, &Scripted::new(|_| Act::Reject), 1).await;
    let store = subject.store(false);
    let ask = LetterRequest { limit: 1, max_bytes: 1 << 20, lock_ttl: Duration::from_mins(1) };
    let letters = store.letters(ask).await.unwrap();
    let gone = letters[0].delivery.as_ref().unwrap().meta.event_id;
    store.settle_letters(vec![(letters[0].lease.clone(), LetterVerdict::Sent)]).await.unwrap();
    store.close().await;
    for id in &ids {
        subject.make_older(*id, Duration::from_hours(2)).await;
    }
    let hour = Duration::from_hours(1);
    let request = SweepRequest {
        retention: hour,
        dead_retention: Some(hour),
        batch: 10,
        max_attempts: 25,
        dead_letters: true,
    };
    let admin = subject.admin();
    assert_eq!(admin.due(&request).await.unwrap().dead, 1);
    assert_eq!(admin.sweep(&request).await.unwrap(), Swept::Deleted(1));
    assert!(subject.row(gone).await.is_none());
    let request = SweepRequest { dead_letters: false, ..request };
    assert_eq!(admin.due(&request).await.unwrap().dead, 1);
    assert_eq!(admin.sweep(&request).await.unwrap(), Swept::Deleted(1));
}

/// As often as is allowed, then dead for good; what cannot be decoded is not tried at all.
pub async fn dead_events_are_tried_again_by_themselves<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    let ids = enqueue(subject, events(3)).await;
    let (bad, healed, spoilt) = (ids[0], ids[1], ids[2]);
    subject.spoil(spoilt).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let sink = Scripted::new(move |d| {
        let well = d.meta.event_id == healed && count.fetch_add(1, Ordering::SeqCst) >= 1;
        if well { Act::Ok } else { Act::Reject }
    });
    let settings = Settings { redrive_after: Some(Duration::from_millis(50)), redrive_max: 2, ..quick() };
    let relay = Relay::builder(subject.store(true)).dispatcher(sink.clone()).settings(settings);
    let relay = relay.build().unwrap().spawn();
    published(subject, healed).await;
    eventually("the last try", PATIENCE, async || sink.tries(bad) == 3 && state(subject, bad).await.dead)
        .await;
    // New events die and are tried again meanwhile: the old ones had every chance.
    let new = enqueue(subject, events(1)).await[0];
    eventually("a new one to have had its tries", PATIENCE, async || {
        sink.tries(new) == 3 && state(subject, new).await.dead
    })
    .await;
    relay.shutdown().await.unwrap();
    assert_eq!((sink.tries(bad), sink.tries(healed), sink.tries(spoilt)), (3, 2, 0));
    let row = state(subject, spoilt).await;
    assert!(row.dead && row.last_error.unwrap_or_default().starts_with(Code::Undecodable.as_str()));
    let audited = subject.audit_lines().await;
    assert!((2..=5).contains(&audited), "a line for each step: {audited}");
}

/// By hand as well.
pub async fn run_once_looks_after_dead_events<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped(BARE);
    }
    enqueue(subject, events(2)).await;
    let (sink, letters) = (Scripted::new(|_| Act::Reject), Scripted::ok());
    let settings = Settings { redrive_after: Some(Duration::from_millis(1)), ..quick() };
    let mut relay = relay(subject, &sink, &letters).settings(settings).build().unwrap();
    let report = relay.run_once().await.unwrap();
    assert_eq!((report.dead, report.dead_lettered), (2, 2));
    let mut redriven = report.redriven;
    while redriven < 2 {
        redriven += relay.run_once().await.unwrap().redriven;
    }
    relay.close().await;
    assert_eq!(letters.seen().len() % 2, 0);
}

/// Where there is no column for it, it is refused, with the next step.
pub async fn a_bare_table_refuses_dead_letters<S: Subject>(subject: &S) {
    if subject.features().full {
        return skipped("this table has a place for what became of dead letters");
    }
    let dead_letters = relay(subject, &Scripted::ok(), &Scripted::ok());
    let redrive = Relay::builder(subject.store(true))
        .dispatcher(Scripted::ok())
        .set(|settings| settings.redrive_after = Some(Duration::from_mins(1)));
    for builder in [dead_letters, redrive] {
        let error = builder.build().unwrap().run_once().await.unwrap_err();
        assert_eq!(error.code(), Code::ColumnMissing);
        assert!(error.to_string().contains("migrate up"), "{error}");
    }
}
