//! What an owner has in flight, as others see it, and what becomes of it when its sessions end or answers are lost.

use std::collections::HashSet;
use std::time::Duration;

use postbox_core::letter::Redrive;
use postbox_core::redact::Summary;
use postbox_core::store::{Claim, ClaimMode, Standing, Verdict};
use postbox_core::{
    Browse, EventFilter, EventId, EventStatus, Inspect, ListRequest, Published, Settings, Store,
};

use super::owner::{Claimer, OwnerSubject};
use super::relay::{run, start};
use super::script::{Act, Scripted};
use super::{
    OpenTransaction, PATIENCE, TOPIC, claim, claim_in_turn, enqueue, events, quick, request, settle_all,
    state,
};
use crate::{Proxy, eventually};

/// What a table says of its events, in all the ways it can be asked.
async fn statuses<S: OwnerSubject>(subject: &S, ids: &[EventId]) -> Vec<EventStatus> {
    let admin = subject.admin();
    let mut found = Vec::new();
    for id in ids {
        let shown = admin.show(*id, false).await.unwrap().unwrap().summary.status;
        assert_eq!(admin.statuses(&[*id]).await.unwrap(), [(*id, shown)]);
        assert_eq!(subject.view(*id).await, [shown.as_str()], "the view says the same");
        let filter = EventFilter { status: Some(shown), ..EventFilter::default() };
        for depth in [Some(100), None] {
            let request = ListRequest { filter: filter.clone(), depth, ..ListRequest::default() };
            let page = admin.list(&request).await.unwrap();
            assert!(page.events.iter().any(|event| event.event_id == *id), "{shown:?} in {page:?}");
        }
        found.push(shown);
    }
    found
}

async fn locked<S: OwnerSubject>(subject: &S) -> u64 {
    subject.admin().counts().await.unwrap().locked
}

async fn all_settled<S: OwnerSubject>(subject: &S) {
    eventually("everything to be settled", PATIENCE * 2, async || {
        subject.count("published_at IS NULL").await == 0
    })
    .await;
}

/// Though no row of the table says so.
pub async fn what_an_owner_has_in_flight_is_publishing<S: OwnerSubject>(subject: &S) {
    use EventStatus::{Dead, Failed, New, Publishing, Sent};
    let ids = enqueue(subject, events(5)).await;
    let store = subject.store(true);
    let claimed = claim(&store, 4).await;
    assert_eq!(subject.count("locked_at IS NOT NULL").await, 0);
    assert_eq!(statuses(subject, &ids).await, [Publishing, Publishing, Publishing, Publishing, New]);
    assert_eq!(locked(subject).await, 4);
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    let mut settlements = settle_all(&claimed, &Verdict::Delivered);
    settlements[1].verdict = Verdict::Retry { after: Duration::from_mins(1), reason: reason.clone() };
    settlements[2].verdict = Verdict::Dead { reason };
    let last = settlements.pop().unwrap();
    store.settle(&settlements).await.unwrap();
    // The window is written when rows come into it: it still names those that have left.
    assert_eq!(statuses(subject, &ids).await, [Sent, Failed, Dead, Publishing, New]);
    assert_eq!(locked(subject).await, 1);
    store.settle(&[last]).await.unwrap();
    assert_eq!(locked(subject).await, 0);
    store.close().await;
}

/// Nothing has to be settled of rows that were only read.
pub async fn what_an_owner_gave_back_is_not_in_flight_for_long<S: OwnerSubject>(subject: &S) {
    let ids = enqueue(subject, events(3)).await;
    // Its next sign of life tells: those come the more often the shorter this is.
    let store = subject.claimer(Claimer { leader_ttl: Duration::from_secs(6), ..Claimer::default() });
    let claimed = claim(&store, 3).await;
    subject.pause(true).await;
    store.settle(&settle_all(&claimed, &Verdict::Release { after: None, reason: None })).await.unwrap();
    eventually("the window to be cleared", PATIENCE, async || {
        assert_ne!(claim(&store, 3).await.standing, Standing::Active);
        locked(subject).await == 0
    })
    .await;
    assert_eq!(statuses(subject, &ids).await, [EventStatus::New; 3]);
    subject.pause(false).await;
    eventually("all to be read again", PATIENCE, async || claim(&store, 3).await.rows.len() == 3).await;
    assert_eq!(locked(subject).await, 3);
    // One that died is missed when its time is over.
    subject.end_reign().await;
    assert_eq!(locked(subject).await, 0);
}

/// Also where the next rows were read already, and others are in flight.
pub async fn a_pause_is_seen_by_every_claim<S: OwnerSubject>(subject: &S) {
    let ids = enqueue(subject, events(300)).await;
    let store = subject.store(true);
    let mut seen = Vec::new();
    let mut take = async || {
        let claimed = claim(&store, 10).await;
        seen.extend(claimed.rows.iter().map(|row| row.delivery.meta.event_id));
        claimed
    };
    for _ in 0..5 {
        let claimed = take().await;
        assert_eq!(claimed.rows.len(), 10);
        store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
    }
    let in_flight = take().await;
    subject.pause(true).await;
    let paused = take().await;
    assert!(paused.standing == Standing::Paused && paused.paused && paused.rows.is_empty(), "{paused:?}");
    subject.pause(false).await;
    eventually("all to be handed over", PATIENCE, async || {
        let claimed = take().await;
        store.settle(&settle_all(&claimed, &Verdict::Delivered)).await.unwrap();
        subject.count("published_at IS NULL").await == 10
    })
    .await;
    assert!(store.settle(&settle_all(&in_flight, &Verdict::Delivered)).await.unwrap().lost.is_empty());
    seen.sort_unstable();
    assert_eq!(seen, ids, "each once, none forgotten");
    assert_eq!(subject.count("attempts = 1").await, 300);
}

/// Hazard 12: transactions that commit late, the last one first, while an owner drains and has read far ahead of them.
pub async fn what_commits_behind_the_reader_is_found<S: OwnerSubject>(subject: &S) {
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(subject.begin(events(5)).await);
        enqueue(subject, events(1_000)).await;
    }
    let mut late: Vec<EventId> = Vec::new();
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(2)));
    let relay = start(subject, &sink, Settings { batch_size: 20, ..quick() });
    for round in 1..=3 {
        eventually("it to go on", PATIENCE, async || sink.arrived().len() > round * 800).await;
        let transaction = open.pop().unwrap();
        late.extend(transaction.receipts().iter().map(|receipt| receipt.event_id));
        transaction.commit().await;
    }
    all_settled(subject).await;
    relay.shutdown().await.unwrap();
    let arrived = sink.arrived();
    assert!(late.iter().all(|id| arrived.contains(id)));
    assert_eq!(arrived.len(), 3_015, "each once");
}

/// The relay does not know that its settle was carried out, and repeats it. What an operator did in between stays, and so does what it
/// has tried again by itself.
pub async fn hazard_25_a_repeated_settle_does_not_undo_a_replay<S: OwnerSubject>(subject: &S) {
    let dead = Verdict::Dead { reason: Summary::new("OUTBOX_REJECTED: never", 100) };
    for (verdict, by_itself) in [(Verdict::Delivered, false), (dead.clone(), false), (dead, true)] {
        let proxy = Proxy::start(subject.addr());
        let store = subject.claimer(Claimer { through: Some(proxy.addr()), ..Claimer::default() });
        let id = enqueue(subject, events(1)).await[0];
        let claimed = claim_in_turn(&store, 1).await;
        // The connection is there: what is said to a new one may be the same.
        assert!(store.extend(vec![claimed.rows[0].lease.clone()]).await.unwrap().lost.is_empty());
        let mut cut = proxy.cut_replies_after_requests_containing(subject.words_of_settle(&claimed));
        store.settle(&settle_all(&claimed, &verdict)).await.unwrap_err();
        cut.fired().await;
        eventually("the settle to have happened", PATIENCE, async || {
            let row = state(subject, id).await;
            row.published || row.dead
        })
        .await;
        let admin = subject.admin();
        if by_itself {
            let (after, lock_ttl) = (Duration::ZERO, Duration::from_mins(1));
            let redrive = Redrive { after, most: 1, lock_ttl, who: "redrive".into() };
            assert_eq!(store.redrive(redrive).await.unwrap(), 1);
        } else if verdict == Verdict::Delivered {
            let which = Published::Events { event_ids: vec![id] };
            assert_eq!(admin.replay_published(&which, 10, "tester").await.unwrap(), [id]);
        } else {
            assert_eq!(admin.replay_dead(&[id], "tester").await.unwrap(), [id]);
        }
        let settled = store.settle(&settle_all(&claimed, &verdict)).await.unwrap();
        assert!(settled.lost.is_empty(), "its own work is not a lost lease");
        let row = state(subject, id).await;
        assert!(!row.published && !row.dead && row.attempts == 0, "it is to be sent again: {row:?}");
        let again = store.claim(request(ClaimMode::Suspect, 10)).await.unwrap();
        assert_eq!(again.rows.len(), 1, "and it is");
        store.settle(&settle_all(&again, &Verdict::Delivered)).await.unwrap();
        assert!(state(subject, id).await.published);
        store.close().await;
    }
}

/// The window may have been written, but nobody knows: nothing is handed over by that claim, and everything by later ones, uncharged.
pub async fn a_journal_whose_reply_was_lost_hands_over_nothing<S: OwnerSubject>(subject: &S) {
    let proxy = Proxy::start(subject.addr());
    let store = subject.claimer(Claimer { through: Some(proxy.addr()), ..Claimer::default() });
    // Nothing is written down for a claim of nothing.
    assert_eq!(claim(&store, 0).await.standing, Standing::Active, "it leads");
    let ids = enqueue(subject, events(6)).await;
    let mut cut = proxy.cut_replies_after_requests_containing(subject.words_of_journal());
    let mut claims = Vec::new();
    let count = |claims: &[Claim]| claims.iter().map(|claim| claim.rows.len()).sum::<usize>();
    eventually("all of them", PATIENCE, async || {
        claims.extend(store.claim(request(ClaimMode::Waiting, 2)).await);
        count(&claims) >= 6
    })
    .await;
    cut.fired().await;
    assert_eq!(subject.count("attempts = 0").await, 6, "nobody was charged");
    let mut found = Vec::new();
    for claimed in &claims {
        found.extend(claimed.rows.iter().map(|row| row.delivery.meta.event_id));
        assert!(claimed.rows.iter().all(|row| row.lease.attempts == 1), "{claimed:?}");
        let settled = store.settle(&settle_all(claimed, &Verdict::Delivered)).await.unwrap();
        assert!(settled.lost.is_empty(), "{settled:?}");
    }
    found.sort_unstable();
    assert_eq!(found, ids, "each once");
}

/// It comes back to its own place, and its window is as it was.
pub async fn hazard_10_an_owner_whose_sessions_were_killed_repeats_nothing_if_it_comes_back<
    S: OwnerSubject,
>(
    subject: &S,
) {
    let ids = enqueue(subject, events(2_000)).await;
    let sink = Scripted::new(|_| Act::Slow(Duration::from_millis(2)));
    let relay = start(subject, &sink, quick());
    for kill in 1..=5 {
        eventually("deliveries to go on", PATIENCE, async || sink.arrived().len() > kill * 200).await;
        subject.end_sessions().await;
    }
    all_settled(subject).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), ids.len(), "nothing is repeated");
    assert_eq!(subject.count("attempts > 1").await, 0, "and nothing charged twice");
}

/// A row with a lease of its own is given back, and the owner reads it before it hears of that: what it hears then is not about what
/// is in flight now, which would be read and delivered a second time.
pub async fn what_is_heard_late_of_a_lease_ends_nothing_in_flight<S: OwnerSubject>(subject: &S) {
    enqueue(subject, events(1)).await;
    subject.sql("UPDATE org_outbox SET attempts = 1, locked_at = '2001-01-01', locked_by = 'gone'").await;
    let store = subject.store(true);
    let leased = store.claim(request(ClaimMode::Suspect, 1)).await.unwrap();
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    let back = settle_all(&leased, &Verdict::Retry { after: Duration::ZERO, reason });
    assert_eq!((back.len(), store.settle(&back).await.unwrap().lost), (1, Vec::new()));
    let read = eventually("the row to be read", PATIENCE, async || {
        Some(claim(&store, 10).await).filter(|claim| !claim.rows.is_empty())
    })
    .await;
    assert_eq!(store.settle(&back).await.unwrap().lost.len(), 1, "that lease is over");
    // A probe looks at everything.
    let probe = store.claim(request(ClaimMode::Probe([TOPIC].into()), 10)).await.unwrap();
    assert_eq!(probe.rows.len(), 0, "it is in flight");
    let settled = store.settle(&settle_all(&read, &Verdict::Delivered)).await.unwrap();
    assert!(settled.lost.is_empty());
}

/// A settle that fails comes again, whole: until then nothing of it may be read, or it would end what is in flight by then.
pub async fn what_a_settle_gave_back_that_failed_is_still_in_flight<S: OwnerSubject>(subject: &S) {
    let proxy = Proxy::start(subject.addr());
    let store = subject.claimer(Claimer { through: Some(proxy.addr()), ..Claimer::default() });
    enqueue(subject, events(2)).await;
    let claimed = claim(&store, 10).await;
    let mut settlements = settle_all(&claimed, &Verdict::Delivered);
    assert_eq!(settlements.len(), 2);
    settlements[0].verdict = Verdict::Release { after: None, reason: None };
    proxy.cut();
    store.settle(&settlements).await.unwrap_err();
    proxy.pass();
    let probe = async || store.claim(request(ClaimMode::Probe([TOPIC].into()), 10)).await.ok();
    let found = eventually("an answer", PATIENCE, probe).await;
    assert_eq!(found.rows.len(), 0, "both are in flight");
    let settled = eventually("the settle", PATIENCE, async || store.settle(&settlements).await.ok()).await;
    assert!(settled.lost.is_empty(), "{settled:?}");
    assert_eq!(eventually("an answer", PATIENCE, probe).await.rows.len(), 1, "one came back");
}

/// Where another is quicker, it repeats what was in flight: not more than the window for each time.
pub async fn hazard_10_a_take_over_repeats_no_more_than_the_window<S: OwnerSubject>(subject: &S) {
    let ids = enqueue(subject, events(2_000)).await;
    let settings = Settings { batch_size: 10, ..quick() };
    let (a, b) = (Scripted::ok(), Scripted::ok());
    let [first, second] = [&a, &b].map(|sink| run(subject.store(true), sink.clone(), settings.clone()));
    for kill in 1..=5 {
        eventually("deliveries to go on", PATIENCE, async || {
            a.arrived().len() + b.arrived().len() > kill * 200
        })
        .await;
        subject.end_sessions().await;
    }
    all_settled(subject).await;
    first.shutdown().await.unwrap();
    second.shutdown().await.unwrap();
    let all = [a.arrived(), b.arrived()].concat();
    let distinct: HashSet<EventId> = all.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len());
    // Four batches are in flight at most.
    let repeated = all.len() - ids.len();
    assert!(repeated <= 5 * 4 * settings.batch_size, "{repeated} were repeated");
}
