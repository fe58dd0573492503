//! What is promised of claims: nobody shares a row, nothing is skipped, nothing becomes a zombie.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use postbox_core::store::{Claim, ClaimMode, Settlement, Verdict};
use postbox_core::{Store, Topic};

use super::{OpenTransaction, Subject, TOPIC, claim, enqueue, event, events, request, state};
use crate::{Proxy, skipped};

/// Two claimers, many claims, no row twice; every claim within its limit (hazard 11).
pub async fn two_claimers_never_share_a_row<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(600)).await;
    let claimer = async |store: S::Store| {
        let mut rows = Vec::new();
        loop {
            let claim = claim(&store, 7).await;
            assert!(claim.rows.len() <= 7);
            if claim.rows.is_empty() && !claim.more {
                return rows;
            }
            rows.extend(claim.rows.iter().map(|row| row.delivery.meta.event_id));
        }
    };
    let (a, b, c) = tokio::join!(
        claimer(subject.store(false)),
        claimer(subject.store(false)),
        claimer(subject.store(false))
    );
    let all: Vec<_> = [a, b, c].concat();
    let distinct: HashSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (ids.len(), ids.len()));
}

/// Rows and bytes; one row is always allowed.
pub async fn a_claim_keeps_its_limits<S: Subject>(subject: &S) {
    let big = "x".repeat(10_000);
    let records = (0..10).map(|_| event(TOPIC, 0).json(&big).build().unwrap()).collect();
    enqueue(subject, records).await;
    let store = subject.store(false);
    let mut small = request(ClaimMode::Waiting, 100);
    small.max_bytes = 35_000;
    let claim = store.claim(small.clone()).await.unwrap();
    assert!((3..=5).contains(&claim.rows.len()), "{} rows", claim.rows.len());
    assert!(claim.more, "the rest waits");
    small.max_bytes = 1;
    assert_eq!(store.claim(small.clone()).await.unwrap().rows.len(), 1);
    small.limit = 0;
    assert_eq!(store.claim(small.clone()).await.unwrap().rows.len(), 0);
    let attempts: Vec<_> = claim.rows.iter().map(|row| row.delivery.meta.sequence).collect();
    assert!(attempts.is_sorted());
}

/// A suspect is left by ordinary claims and charged another attempt.
pub async fn an_expired_lease_is_claimed_again_alone<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(3)).await;
    let store = subject.store(false);
    assert_eq!(claim(&store, 10).await.rows.len(), 3);
    subject.expire_lease(ids[1]).await;
    let other = subject.store(false);
    let ordinary = claim(&other, 10).await;
    assert!(ordinary.rows.is_empty() && ordinary.suspects);
    let suspect = other.claim(request(ClaimMode::Suspect, 1)).await.unwrap();
    assert_eq!(suspect.rows.len(), 1);
    assert_eq!(suspect.rows[0].delivery.meta.event_id, ids[1]);
    assert_eq!(suspect.rows[0].delivery.meta.attempts, 2);
    assert!(other.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows.is_empty());
}

/// The process died on the last attempt, or the limit was lowered.
pub async fn an_exhausted_row_is_dead_not_a_zombie<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(3)).await;
    let store = subject.store(false);
    let mut once = request(ClaimMode::Waiting, 1);
    once.max_attempts = 1;
    assert_eq!(store.claim(once.clone()).await.unwrap().rows.len(), 1);
    let first = ids[0];
    subject.expire_lease(first).await;
    subject.set_attempts(ids[1], 1).await;
    once.limit = 10;
    let other = subject.store(false);
    let claim = other.claim(once.clone()).await.unwrap();
    assert_eq!(claim.rows.iter().map(|row| row.delivery.meta.event_id).collect::<Vec<_>>(), [ids[2]]);
    once.mode = ClaimMode::Suspect;
    let suspect = other.claim(once).await.unwrap();
    assert!(suspect.rows.is_empty());
    if subject.features().full {
        assert_eq!((claim.buried.len(), suspect.buried.len()), (1, 1));
        for id in [first, ids[1]] {
            let row = state(subject, id).await;
            assert!(row.dead && !row.locked && row.last_error.unwrap().starts_with("OUTBOX_EXHAUSTED"));
        }
    }
}

/// Circuits: topics of a sink that is down are left out, and found by its probe.
pub async fn excluded_topics_are_left_and_probes_find_them<S: Subject>(subject: &S) {
    let other = Topic::from_static("crm.contact.added.v1");
    let records =
        (0..6).map(|n| event(if n % 2 == 0 { TOPIC } else { other.clone() }, n).build().unwrap()).collect();
    enqueue(subject, records).await;
    let store = subject.store(false);
    let mut without = request(ClaimMode::Waiting, 10);
    without.exclude = Arc::from([TOPIC]);
    let claim = store.claim(without).await.unwrap();
    assert_eq!(claim.rows.len(), 3);
    assert!(claim.rows.iter().all(|row| row.delivery.meta.topic == other));
    let probe = store.claim(request(ClaimMode::Probe(Arc::from([TOPIC])), 1)).await.unwrap();
    assert_eq!(probe.rows.len(), 1);
    assert_eq!(probe.rows[0].delivery.meta.topic, TOPIC);
}

/// A sink is down, and a look at all that waits for it is dear, as it is through this proxy. What comes for another sink is found by
/// the next look, and what waits by the first one that does not leave it out. Of the table's store, which goes through the proxy.
pub async fn dear_looks_in_vain_hide_nothing<S: Subject>(subject: &S, store: &impl Store, proxy: &Proxy) {
    let ids = |claim: Claim| -> Vec<_> { claim.rows.iter().map(|row| row.delivery.meta.event_id).collect() };
    let waiting = enqueue(subject, events(3)).await;
    let mut without = request(ClaimMode::Waiting, 10);
    without.exclude = Arc::from([TOPIC]);
    proxy.delay(Duration::from_millis(20));
    // It is dear once it was twice. After more looks the next would be due to go back to the start, and find everything anyway.
    for _ in 0..2 {
        assert!(store.claim(without.clone()).await.unwrap().rows.is_empty());
    }
    let other = event(Topic::from_static("crm.contact.added.v1"), 0).build().unwrap();
    let news = enqueue(subject, vec![other]).await;
    assert_eq!(ids(store.claim(without).await.unwrap()), news);
    assert_eq!(ids(claim(store, 10).await), waiting);
}

/// If only suspects wait for a sink that is down, one of them must be its probe: so a probe that finds none says so.
pub async fn a_probe_that_finds_nothing_tells_of_suspects<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(2)).await;
    let other = Topic::from_static("crm.contact.added.v1");
    assert_eq!(claim(&subject.store(false), 10).await.rows.len(), 2);
    let store = subject.store(false);
    let probe = async |topic: Topic| {
        let claim = store.claim(request(ClaimMode::Probe(Arc::from([topic])), 1)).await.unwrap();
        assert!(claim.rows.is_empty());
        claim.suspects
    };
    assert!(!probe(TOPIC).await, "both are being worked on");
    subject.expire_lease(ids[0]).await;
    assert!(probe(TOPIC).await);
    assert!(!probe(other).await, "not of this sink");
    let suspect = store.claim(request(ClaimMode::Suspect, 1)).await.unwrap();
    assert_eq!(suspect.rows[0].delivery.meta.event_id, ids[0]);
    assert!(!probe(TOPIC).await, "it is taken");
}

/// Sequence order is not commit order (hazard 12).
pub async fn what_commits_behind_the_cursor_is_found<S: Subject>(subject: &S) {
    let late = if subject.writers_overlap() { Some(subject.begin(events(1)).await) } else { None };
    let early = enqueue(subject, events(5)).await;
    let store = subject.store(false);
    let mut found = Vec::new();
    for _ in 0..5 {
        let claim = claim(&store, 2).await;
        found.extend(claim.rows.iter().map(|row| row.delivery.meta.event_id));
    }
    assert_eq!(found.len(), early.len());
    let late_id = if let Some(late) = late {
        let id = late.receipts()[0].event_id;
        late.commit().await;
        id
    } else {
        // One writer: but an event can still be available earlier than those that were read.
        let id = enqueue(subject, events(1)).await[0];
        subject.make_older(id, Duration::from_hours(1)).await;
        id
    };
    let found = crate::eventually("the late one", super::PATIENCE, async || {
        claim(&store, 2).await.rows.first().map(|row| row.delivery.meta.event_id)
    })
    .await;
    assert_eq!(found, late_id);
}

/// Ten of them in front: the rest arrive (hazard 43).
pub async fn an_undecodable_row_does_not_fail_its_batch<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table has no column that can be undecodable");
    }
    let ids = enqueue(subject, events(15)).await;
    for id in &ids[..10] {
        subject.spoil(*id).await;
    }
    let store = subject.store(false);
    let claim = claim(&store, 100).await;
    assert_eq!((claim.rows.len(), claim.undecodable.len()), (5, 10));
    let reason = postbox_core::redact::Summary::new("OUTBOX_UNDECODABLE: x", 100);
    let bury = |row: &postbox_core::store::Undecodable| {
        Settlement::new(row.lease.clone(), Verdict::Dead { reason: reason.clone() })
    };
    let settled = store.settle(&claim.undecodable.iter().map(bury).collect::<Vec<_>>()).await.unwrap();
    assert!(settled.lost.is_empty());
    assert!(state(subject, ids[0]).await.dead);
}
