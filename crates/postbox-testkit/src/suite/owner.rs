//! What is promised where a relay that is alone owns the rows of its table: relays of one table claim in one way, and whoever was
//! taken over settles nothing. What an owner has in flight is [`owner_window`](super::owner_window).

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use postbox_core::redact::Summary;
use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Claimed, Standing, Verdict};
use postbox_core::{Code, Inspect as _, Store};

use super::{PATIENCE, Subject, claim, claim_in_turn, enqueue, events, request, settle_all, state};
use crate::eventually;

/// A subject whose rows can be owned, and what it takes to disturb their owner.
pub trait OwnerSubject: Subject {
    /// A new relay's view of the table, which claims like this.
    fn claimer(&self, how: Claimer) -> Self::Store;
    /// Where the database is.
    fn addr(&self) -> SocketAddr;
    /// What a settle of these rows says to the database, and nothing else that its store says at that time.
    fn words_of_settle(&self, claim: &Claim) -> Vec<u8>;
    /// The same of what writes down which rows an owner has in flight.
    fn words_of_journal(&self) -> Vec<u8>;
    /// Runs a statement that every one of these databases knows.
    fn sql(&self, sql: &'static str) -> impl Future<Output = ()> + Send;
    /// How many rows of the table meet a condition.
    fn count(&self, condition: &'static str) -> impl Future<Output = i64> + Send;
    /// Ends the time of the owner, as if it had died long ago.
    fn end_reign(&self) -> impl Future<Output = ()> + Send;
    /// Ends sessions of relays; that of the owner is among them.
    fn end_sessions(&self) -> impl Future<Output = ()> + Send;
}

/// How a relay claims. By default it is alone, and owns the rows.
#[derive(Debug, Clone, Copy)]
pub struct Claimer {
    /// It shares the table with others.
    pub shared: bool,
    /// It is to lease rows, whether it is alone or not.
    pub leases: bool,
    /// After how long without a sign of life it is replaced.
    pub leader_ttl: Duration,
    /// The proxy that is on its way to the database.
    pub through: Option<SocketAddr>,
}

impl Default for Claimer {
    fn default() -> Self {
        Self { shared: false, leases: false, leader_ttl: Duration::from_secs(15), through: None }
    }
}

/// Of relays that come and go here, nobody waits for the time to be over.
const ALONE: Claimer =
    Claimer { shared: false, leases: false, leader_ttl: Duration::from_secs(3), through: None };
const SHARED: Claimer = Claimer { shared: true, ..ALONE };

/// Without being told to.
pub async fn a_migrated_table_is_owned_and_a_shared_one_leased<S: OwnerSubject>(subject: &S) {
    let alone = subject.claimer(ALONE);
    enqueue(subject, events(1)).await;
    let rows = claim(&alone, 10).await.rows;
    let strategy = subject.admin().relay().await.unwrap().strategy;
    assert_eq!((strategy.as_deref(), rows.len()), (Some("owner"), 1));
    assert_eq!(subject.count("locked_at IS NOT NULL").await, 0, "no claim is written");
    alone.close().await;
    let rows = claim(&subject.claimer(SHARED), 10).await.rows;
    assert_eq!(rows.len(), 1, "what the owner had in flight is free after its stop");
    assert_eq!(
        (subject.count("locked_at IS NOT NULL").await, rows[0].lease.attempts),
        (1, 1),
        "and uncharged"
    );
}

/// They would take each other's rows.
pub async fn relays_of_different_strategies_refuse_to_start<S: OwnerSubject>(subject: &S) {
    let owner = subject.claimer(ALONE);
    assert_eq!(claim(&owner, 1).await.standing, Standing::Active);
    for other in [SHARED, Claimer { leases: true, ..ALONE }, Claimer { leases: true, ..SHARED }] {
        let error = subject.claimer(other).open().await.unwrap_err();
        assert_eq!(error.code(), Code::StrategyMismatch, "{other:?}: {error}");
        assert!(error.message().contains("claim = \"owner\""), "{error}");
    }
    // Another owner stands by.
    let other = subject.claimer(ALONE);
    assert_eq!(claim(&other, 1).await.standing, Standing::Standby);
    other.close().await;
    owner.close().await;

    let shared = subject.claimer(SHARED);
    assert_eq!(claim(&shared, 1).await.standing, Standing::Active);
    let error = subject.claimer(ALONE).open().await.unwrap_err();
    assert_eq!(error.code(), Code::StrategyMismatch, "{error}");
    shared.close().await;
    subject.claimer(ALONE).open().await.unwrap();
}

/// Its sign lasts from one look to the next, however seldom it looks.
pub async fn a_relay_that_shares_and_looks_seldom_is_not_forgotten<S: OwnerSubject>(subject: &S) {
    let ttl = Duration::from_millis(10);
    let shared = subject.claimer(Claimer { leader_ttl: ttl, ..SHARED });
    let seldom = ClaimRequest { poll_interval: Duration::from_mins(1), ..request(ClaimMode::Waiting, 1) };
    assert_eq!(shared.claim(seldom).await.unwrap().standing, Standing::Active);
    tokio::time::sleep(ttl * 5).await;
    let error = subject.claimer(ALONE).open().await.unwrap_err();
    assert_eq!(error.code(), Code::StrategyMismatch, "{error}");
    shared.close().await;
}

/// Both looked before the other was there: the owner waits until nobody shares, those who share wait while there is an owner.
pub async fn two_strategies_that_start_at_once_do_not_work_at_once<S: OwnerSubject>(subject: &S) {
    let (owner, shared) = (subject.claimer(ALONE), subject.claimer(SHARED));
    owner.open().await.unwrap();
    shared.open().await.unwrap();
    assert_eq!(claim(&owner, 1).await.standing, Standing::Active);
    assert_eq!(claim(&shared, 1).await.standing, Standing::Standby);
    owner.close().await;
    assert_eq!(claim(&shared, 1).await.standing, Standing::Active);
    assert_eq!(claim(&owner, 1).await.standing, Standing::Standby);
}

/// What ran when a reign ended may still run in the next one but one.
pub async fn of_two_reigns_only_the_rows_of_the_first_are_lost<S: OwnerSubject>(subject: &S) {
    let (one, other) = (subject.store(true), subject.store(true));
    enqueue(subject, events(2)).await;
    let old = claim(&one, 1).await;
    subject.end_reign().await;
    assert_eq!(claim_in_turn(&other, 0).await.standing, Standing::Active);
    other.close().await;
    // Its sessions were ended: it does not get through at once.
    let next =
        async || one.claim(request(ClaimMode::Waiting, 1)).await.ok().filter(|claim| !claim.rows.is_empty());
    let new = eventually("its next reign", PATIENCE, next).await;
    let [old, new] = [&old, &new].map(|claim| claim.rows[0].lease.clone());
    assert_ne!(old.token, new.token);
    for leases in [[&old, &new], [&new, &old]] {
        let renewed = one.extend(leases.map(Clone::clone).to_vec()).await.unwrap();
        assert_eq!(renewed.lost.iter().map(|lease| lease.row).collect::<Vec<_>>(), [old.row]);
    }
}

/// The settle of a relay that was taken over changes nothing, also where rows look as they did.
pub async fn hazard_1_an_owner_that_was_taken_over_settles_nothing<S: OwnerSubject>(subject: &S) {
    let (old, new) = (subject.store(true), subject.store(true));
    enqueue(subject, events(2)).await;
    let claimed = claim(&old, 10).await;
    assert_eq!(claimed.rows.len(), 2);
    subject.end_reign().await;
    let next = claim_in_turn(&new, 10).await;
    assert!(next.rows.is_empty() && next.suspects, "they wait to be tried alone: {next:?}");
    assert_eq!(subject.count("attempts = 1 AND locked_by = 'left behind'").await, 2, "and are charged");
    assert_eq!(old.extend(vec![claimed.rows[0].lease.clone()]).await.unwrap().lost.len(), 1, "it is lost");
    for again in [false, true] {
        if again {
            // As rows are after a replay: only the owner's row tells that this is not the attempt which the old one made.
            subject.sql("UPDATE org_outbox SET attempts = 0, locked_at = NULL, locked_by = NULL").await;
        }
        let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
        let retry = Verdict::Retry { after: Duration::from_mins(1), reason };
        for verdict in [Verdict::Delivered, retry] {
            let settled = old.settle(&settle_all(&claimed, &verdict)).await.unwrap();
            assert_eq!(settled.lost.len(), 2, "both are another's: {verdict:?}");
        }
        assert_eq!(subject.count("published_at IS NULL AND last_error IS NULL").await, 2);
    }
    // Nor does it write down anything more.
    let standing = async || Some(old.claim(request(ClaimMode::Waiting, 10)).await.ok()?.standing);
    assert_eq!(eventually("an answer", PATIENCE, standing).await, Standing::Standby);
}

/// What a predecessor had in flight is tried one by one, charged; what it had settled or put off is not.
pub async fn a_take_over_finds_exactly_what_was_in_flight<S: OwnerSubject>(subject: &S) {
    let (old, new) = (subject.store(true), subject.store(true));
    let ids = enqueue(subject, events(6)).await;
    let claimed = claim(&old, 5).await;
    let reason = Summary::new("OUTBOX_DISPATCH_FAILED: no", 100);
    let mut settlements = settle_all(&claimed, &Verdict::Delivered);
    settlements.truncate(2);
    settlements[1].verdict = Verdict::Retry { after: Duration::from_millis(1), reason };
    old.settle(&settlements).await.unwrap();
    drop(old);
    subject.end_reign().await;
    let next = eventually("what was free", PATIENCE, async || {
        let next = claim_in_turn(&new, 10).await;
        (next.rows.len() == 2).then_some(next)
    })
    .await;
    let attempts = |rows: &[Claimed]| -> Vec<(bool, i32)> {
        rows.iter().map(|row| (row.lease.token.starts_with("own/"), row.lease.attempts)).collect()
    };
    assert_eq!(attempts(&next.rows), [(true, 2), (true, 1)], "one that was put off, one that was never read");
    assert!(next.suspects);
    new.settle(&settle_all(&next, &Verdict::Delivered)).await.unwrap();
    for _ in 0..3 {
        let alone = new.claim(request(ClaimMode::Suspect, 1)).await.unwrap();
        assert_eq!(attempts(&alone.rows), [(false, 2)], "leased, and charged for the attempt that was lost");
        new.settle(&settle_all(&alone, &Verdict::Delivered)).await.unwrap();
    }
    for id in ids {
        assert!(state(subject, id).await.published);
    }
}
