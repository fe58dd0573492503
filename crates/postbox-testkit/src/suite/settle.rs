//! What is promised of settles: fenced, by set, and nothing but what happened is written.

use std::sync::Arc;
use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{ClaimMode, Claimed, Failure, Renewed, Settlement, Verdict};
use postbox_core::{EventId, Store};

use super::{Subject, claim, enqueue, events, request, state};
use crate::skipped;

fn settlement(row: &Claimed, verdict: Verdict) -> Settlement {
    Settlement::new(row.lease.clone(), verdict)
}

fn because(text: &str) -> Summary {
    Summary::new(text, 2048)
}

/// One settle with every kind of verdict.
pub async fn every_verdict_is_written<S: Subject>(subject: &S) {
    enqueue(subject, events(5)).await;
    let store = subject.store(false);
    let rows = claim(&store, 10).await.rows;
    let verdicts = [
        Verdict::Delivered,
        Verdict::Retry { after: Duration::from_hours(1), reason: because("again") },
        Verdict::Release { after: None, reason: None },
        Verdict::Release { after: Some(Duration::from_hours(1)), reason: None },
        Verdict::Dead { reason: because("never") },
    ];
    let settlements: Vec<_> =
        rows.iter().zip(verdicts).map(|(row, verdict)| settlement(row, verdict)).collect();
    assert!(store.settle(&settlements).await.unwrap().lost.is_empty());
    let states = [0, 1, 2, 3, 4].map(|n| state(subject, rows[n].delivery.meta.event_id));
    let [sent, retry, release, later, dead] = states;
    let (sent, retry, release, later, dead) =
        (sent.await, retry.await, release.await, later.await, dead.await);
    assert!(sent.published && !sent.locked && sent.attempts == 1 && sent.last_error.is_none());
    assert!(!retry.published && !retry.locked && !retry.due && retry.attempts == 1);
    assert_eq!(retry.last_error.as_deref(), Some("again"));
    assert!(release.due && !release.locked && release.attempts == 0 && release.last_error.is_none());
    assert!(!later.due && !later.locked && later.attempts == 0);
    assert!(dead.dead && !dead.locked && !dead.published && dead.last_error.as_deref() == Some("never"));
    let next = claim(&subject.store(false), 10).await;
    assert_eq!(next.rows.len(), 1, "only the released one can be claimed");
}

/// A relay that was stopped past its lease and goes on (hazard 1).
pub async fn a_stale_settle_changes_nothing<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(2)).await;
    let (stale, fresh) = (subject.store(false), subject.store(false));
    let old = claim(&stale, 10).await.rows;
    for id in &ids {
        subject.expire_lease(*id).await;
    }
    let new = fresh.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows;
    let taken = new[0].delivery.meta.event_id;
    let before = state(subject, taken).await;
    let settlements: Vec<_> = old.iter().map(|row| settlement(row, Verdict::Delivered)).collect();
    let settled = stale.settle(&settlements).await.unwrap();
    assert!(settled.lost.contains(&new[0].lease.row));
    if subject.features().full {
        assert_eq!(settled.lost.len(), 1, "the other one was nobody's and may be settled");
    }
    assert_eq!(state(subject, taken).await, before);
    let settled = fresh.settle(&[settlement(&new[0], Verdict::Delivered)]).await.unwrap();
    assert!(settled.lost.is_empty());
    let again = fresh.settle(&[settlement(&new[0], Verdict::Dead { reason: because("x") })]).await.unwrap();
    assert_eq!(again.lost.len(), 1, "what is settled stays settled");
    assert!(state(subject, taken).await.published);
}

/// Rows of any number of claims, with any number of attempts, in one settle.
pub async fn what_several_claims_brought_is_settled_at_once<S: Subject>(subject: &S) {
    for claims in [3, 12] {
        let ids = enqueue(subject, events(2 * claims)).await;
        subject.set_attempts(ids[1], 2).await;
        let store = subject.store(false);
        let mut rows = Vec::new();
        for _ in 0..claims {
            rows.extend(claim(&store, 2).await.rows);
        }
        let attempts = |n: usize| rows.iter().find(|row| row.delivery.meta.event_id == ids[n]).unwrap();
        assert_eq!(
            (attempts(0).lease.attempts, attempts(1).lease.attempts, attempts(2).lease.attempts),
            (1, 3, 1)
        );
        assert_eq!(attempts(1).delivery.meta.attempts, 3);
        // One of them is another relay's by now.
        subject.expire_lease(ids[3]).await;
        let other = subject.store(false);
        let taken = other.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows;
        assert_eq!(taken[0].delivery.meta.event_id, ids[3]);
        let settlements: Vec<_> = rows.iter().map(|row| settlement(row, Verdict::Delivered)).collect();
        assert_eq!(store.settle(&settlements).await.unwrap().lost, [taken[0].lease.row]);
        for id in &ids {
            assert_eq!(state(subject, *id).await.published, *id != ids[3]);
        }
        other.settle(&[settlement(&taken[0], Verdict::Delivered)]).await.unwrap();
    }
}

/// Renewal changes only the time.
pub async fn a_renewed_lease_lasts_and_a_lost_one_is_reported<S: Subject>(subject: &S) {
    let ids = enqueue(subject, events(2)).await;
    let store = subject.store(false);
    let rows = claim(&store, 10).await.rows;
    let leases: Vec<_> = rows.iter().map(|row| row.lease.clone()).collect();
    assert_eq!(store.extend(leases.clone()).await.unwrap(), Renewed::default());
    let settled = store.settle(&[settlement(&rows[0], Verdict::Delivered)]).await.unwrap();
    assert!(settled.lost.is_empty(), "the fence is the claim's, whatever was renewed");
    subject.expire_lease(ids[1]).await;
    let other = subject.store(false);
    assert_eq!(other.claim(request(ClaimMode::Suspect, 1)).await.unwrap().rows.len(), 1);
    let lost = store.extend(leases).await.unwrap().lost;
    assert_eq!(lost.len(), 2, "one is settled, the other taken");
}

/// `attempts_log`.
pub async fn the_log_of_attempts_keeps_the_last_ten<S: Subject>(subject: &S) {
    if !subject.features().full {
        return skipped("a bare table has no log of attempts");
    }
    let ids = enqueue(subject, events(1)).await;
    let store = subject.store(false);
    let fail = async |n: u64| {
        let rows = claim(&store, 1).await.rows;
        let failure = Failure {
            relay: Arc::from("r"),
            duration_ms: n,
            outcome: "retry",
            error: format!("failure {n}"),
        };
        let verdict = Verdict::Retry { after: Duration::ZERO, reason: because("x") };
        let failure = Some(Box::new(failure));
        let settlement = Settlement { failure, ..settlement(&rows[0], verdict) };
        store.settle(&[settlement]).await.unwrap();
    };
    let lines = async |event: EventId| state(subject, event).await.log_lines;
    fail(1).await;
    assert_eq!(lines(ids[0]).await, 1);
    for n in 2..=12 {
        fail(n).await;
    }
    assert_eq!(lines(ids[0]).await, 10);
}
