//! What is promised of tenants: a relay that is for some of them only, and one that they share.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use postbox_core::store::{Claim, ClaimMode, ClaimRequest, Crowding, Standing, Tenants, Verdict};
use postbox_core::{Delivery, EventId, Record, Relay, RelayHandle, Settings, Store, TenantId};

use super::relay::arrived;
use super::script::{Act, Scripted};
use super::{
    PATIENCE, Subject, TOPIC, claim, claim_in_turn, enqueue, event, published, quick, request, settle_all,
    state,
};
use crate::eventually;

const FAIR: Tenants = Tenants { only: Vec::new(), fair: true };

/// Tenants with names that are in no order.
fn tenant(number: usize) -> TenantId {
    TenantId::from_name(&format!("tenant-{number}"))
}

fn of(tenant: TenantId, number: usize) -> Vec<Record> {
    (0..number).map(|n| event(TOPIC, n).tenant(tenant).build().expect("an event")).collect()
}

/// How many rows each tenant has in a claim.
fn counts(claim: &Claim) -> HashMap<TenantId, usize> {
    let mut counts = HashMap::new();
    for row in &claim.rows {
        *counts.entry(row.delivery.meta.tenant_id).or_default() += 1;
    }
    counts
}

async fn deliver<S: Store>(store: &S, claim: &Claim) {
    let settled = store.settle(&settle_all(claim, &Verdict::Delivered)).await.expect("a settle");
    assert!(settled.lost.is_empty());
}

/// A claim takes as much of each tenant as of any other, whoever came first.
pub async fn a_claim_takes_some_of_each_tenant<S: Subject>(subject: &S) {
    let all: Vec<Record> =
        [(1, 300), (2, 10), (3, 5)].into_iter().flat_map(|(n, number)| of(tenant(n), number)).collect();
    enqueue(subject, all).await;
    let store = subject.tenants_store(&FAIR, true);
    let first = claim_in_turn(&store, 30).await;
    assert_eq!(counts(&first), HashMap::from([(tenant(1), 10), (tenant(2), 10), (tenant(3), 5)]));
    assert!(first.more);
    deliver(&store, &first).await;
    // Alone again, the first one has all of it.
    let second = claim(&store, 30).await;
    assert_eq!(counts(&second), HashMap::from([(tenant(1), 30)]));
    assert!(second.more);
    deliver(&store, &second).await;
    let others = claim(&store, 500).await;
    assert_eq!(counts(&others), HashMap::from([(tenant(1), 260)]));
    assert!(claim(&store, 500).await.is_empty(), "each once");
}

/// Those who have their share are left out, and claimed again when they have less.
pub async fn who_has_a_share_already_is_left_out<S: Subject>(subject: &S) {
    enqueue(subject, of(tenant(1), 20)).await;
    enqueue(subject, of(tenant(2), 20)).await;
    let store = subject.tenants_store(&FAIR, true);
    let crowding = Arc::from([Crowding::Whole(tenant(1))]);
    let without = ClaimRequest { crowding, ..request(ClaimMode::Waiting, 30) };
    let second = eventually("a claim", PATIENCE, async || {
        let claim = store.claim(without.clone()).await.expect("a claim");
        (!claim.rows.is_empty()).then_some(claim)
    })
    .await;
    assert_eq!(counts(&second), HashMap::from([(tenant(2), 20)]));
    let nobody = store.claim(without).await.expect("a claim");
    assert!(nobody.is_empty() && !nobody.more, "a relay that claims on would not rest");
    let first = counts(&claim(&store, 30).await);
    assert_eq!(first.into_keys().collect::<Vec<_>>(), [tenant(1)]);
}

/// More tenants than a claim has rows: each has a turn before one has its second.
pub async fn many_tenants_take_turns<S: Subject>(subject: &S) {
    let ids = enqueue(subject, (0..25).flat_map(|n| of(tenant(n), 4)).collect()).await;
    let store = subject.tenants_store(&FAIR, true);
    let (mut turns, mut seen) = (HashMap::<TenantId, usize>::new(), HashSet::new());
    let mut next = claim_in_turn(&store, 10).await;
    loop {
        for row in &next.rows {
            assert!(seen.insert(row.delivery.meta.event_id), "each once");
            *turns.entry(row.delivery.meta.tenant_id).or_default() += 1;
        }
        if seen.len() < 25 {
            let most = turns.values().max().copied();
            assert!(most <= Some(2), "the last claim of a round may have begun the next: {turns:?}");
        }
        let more = next.more;
        deliver(&store, &next).await;
        if !more {
            break;
        }
        next = claim(&store, 10).await;
    }
    assert_eq!(seen.len(), ids.len());
}

/// Nobody is passed by because of the number that he happens to have.
pub async fn no_tenant_is_last_for_ever<S: Subject>(subject: &S) {
    enqueue(subject, (0..6).flat_map(|n| of(tenant(n), 100)).collect()).await;
    let store = subject.tenants_store(&FAIR, true);
    let mut seen = HashSet::new();
    let mut next = claim_in_turn(&store, 10).await;
    for _ in 0..2 {
        seen.extend(next.rows.iter().map(|row| row.delivery.meta.tenant_id));
        deliver(&store, &next).await;
        next = claim(&store, 10).await;
    }
    assert_eq!(seen.len(), 6);
}

/// However many tenants have something that cannot go yet, a relay comes to rest.
pub async fn many_tenants_that_wait_let_the_relay_rest<S: Subject>(subject: &S) {
    let later =
        |n| event(TOPIC, n).tenant(tenant(n)).delay(Duration::from_hours(1)).build().expect("an event");
    enqueue(subject, (0..25).map(later).collect()).await;
    let some = Tenants { only: (0..25).map(tenant).collect(), fair: false };
    for (tenants, single_active) in [(&FAIR, true), (&some, false)] {
        let store = subject.tenants_store(tenants, single_active);
        let mut claims = vec![claim_in_turn(&store, 10).await.more];
        while claims.last() == Some(&true) && claims.len() < 10 {
            claims.push(claim(&store, 10).await.more);
        }
        assert_eq!(claims, [true, true, false], "{tenants:?}");
        store.close().await;
    }
}

/// What a relay left behind when it died takes nobody's share.
pub async fn expired_leases_hold_up_no_tenant<S: Subject>(subject: &S) {
    let old = enqueue(subject, of(tenant(1), 8)).await;
    let died = subject.tenants_store(&FAIR, true);
    assert_eq!(claim_in_turn(&died, 8).await.rows.len(), 8);
    died.close().await;
    for id in &old {
        subject.expire_lease(*id).await;
    }
    let new = enqueue(subject, of(tenant(1), 8)).await;
    let store = subject.tenants_store(&FAIR, true);
    // While their sink is down they are nobody's: a relay that heard of them would make way for them again and again.
    let without = ClaimRequest { exclude: Arc::from([TOPIC]), ..request(ClaimMode::Waiting, 8) };
    let nothing = eventually("a turn", PATIENCE, async || {
        let claim = store.claim(without.clone()).await.expect("a claim");
        (claim.standing == Standing::Active).then_some(claim)
    });
    let nothing = nothing.await;
    assert!(nothing.is_empty() && !nothing.suspects && !nothing.more, "{nothing:?}");
    let next = claim(&store, 8).await;
    let claimed: HashSet<EventId> = next.rows.iter().map(|row| row.delivery.meta.event_id).collect();
    assert_eq!(claimed, new.into_iter().collect());
    assert!(next.suspects, "they are seen all the same");
}

/// A tenant with many events in front delays another's few by some batches, and no more.
pub async fn a_large_backlog_delays_no_other_tenant<S: Subject>(subject: &S) {
    let many = enqueue(subject, of(tenant(1), 3000)).await;
    let sink = Scripted::ok().in_batches(20);
    let settings = Settings { batch_size: 20, ..quick() };
    let relay = start(subject, &FAIR, &sink, settings);
    eventually("some of the many", PATIENCE, async || sink.arrived().len() > 100).await;
    let few = enqueue(subject, of(tenant(2), 10)).await;
    let before = sink.arrived().len();
    arrived(&sink, &few).await;
    let order = sink.arrived();
    let last = order.iter().rposition(|id| few.contains(id)).expect("they arrived");
    assert!(last < before + 10 * 20, "{} of the many came first", last - before);
    arrived(&sink, &many).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), many.len() + few.len(), "each once");
}

/// A tenant that has its share goes on as soon as some of that is settled: the relay here looks by itself only every ten minutes.
pub async fn who_had_a_share_goes_on_when_it_has_less<S: Subject>(subject: &S) {
    let ids = enqueue(subject, of(tenant(1), 300)).await;
    let sink = Scripted::ok();
    let settings = Settings { batch_size: 10, poll_interval: Duration::from_mins(10), ..quick() };
    let relay = start(subject, &FAIR, &sink, settings);
    arrived(&sink, &ids).await;
    relay.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), ids.len(), "each once");
}

/// A tenant whose handlers never end leaves slots for the others.
pub async fn a_tenant_that_hangs_holds_up_no_other<S: Subject>(subject: &S) {
    enqueue(subject, of(tenant(1), 200)).await;
    let hangs = tenant(1);
    let sink = Scripted::new(move |d: &Delivery| if d.meta.tenant_id == hangs { Act::Hang } else { Act::Ok });
    let minutes = Duration::from_mins(10);
    let settings = Settings {
        dispatch_timeout: minutes,
        lock_ttl: minutes * 2,
        concurrency: 4,
        batch_size: 10,
        drain_timeout: Duration::ZERO,
        ..quick()
    };
    let relay = start(subject, &FAIR, &sink, settings);
    eventually("all slots that it may have", PATIENCE, async || sink.seen().len() == 3).await;
    for number in 2..5 {
        let few = enqueue(subject, of(tenant(number), 30)).await;
        arrived(&sink, &few).await;
        for id in few {
            published(subject, id).await;
        }
    }
    let hanging = sink.seen().iter().filter(|delivery| delivery.meta.tenant_id == hangs).count();
    assert_eq!(hanging, 3, "one slot is left to others");
    relay.shutdown().await.unwrap();
}

/// A relay for some tenants delivers theirs alone; what is others' waits for theirs, alive or dead.
pub async fn a_relay_for_some_leaves_the_others<S: Subject>(subject: &S) {
    let [one, two, three] = [
        enqueue(subject, of(tenant(1), 40)).await,
        enqueue(subject, of(tenant(2), 40)).await,
        enqueue(subject, of(tenant(3), 40)).await,
    ];
    let expired = one[0];
    let only =
        |numbers: &[usize]| Tenants { only: numbers.iter().copied().map(tenant).collect(), fair: false };
    let relay = |numbers: &[usize], sink: &Scripted| {
        let store = subject.tenants_store(&only(numbers), false);
        Relay::builder(store).dispatcher(sink.clone()).settings(quick()).build().expect("a relay").spawn()
    };
    let sink = Scripted::ok();
    let first = relay(&[2, 3], &sink);
    let theirs: Vec<EventId> = two.iter().chain(&three).copied().collect();
    arrived(&sink, &theirs).await;
    for id in &theirs {
        published(subject, *id).await;
    }
    assert_eq!(sink.arrived().len(), theirs.len());
    for id in &one {
        let row = state(subject, *id).await;
        assert!(!row.published && !row.locked && row.attempts == 0, "{row:?}");
    }
    // Nor does it take over what a relay of the others left behind.
    let store = subject.tenants_store(&only(&[1]), false);
    assert_eq!(claim(&store, 1).await.rows.len(), 1);
    subject.expire_lease(expired).await;
    let more = enqueue(subject, of(tenant(2), 5)).await;
    arrived(&sink, &more).await;
    assert_eq!(state(subject, expired).await.attempts, 1);
    let second = relay(&[1], &sink);
    arrived(&sink, &one).await;
    first.shutdown().await.unwrap();
    second.shutdown().await.unwrap();
    assert_eq!(sink.arrived().len(), one.len() + theirs.len() + more.len(), "each once");
}

/// What cannot be had together is refused, with the reason.
pub async fn what_tenants_cannot_have_is_refused<S: Subject>(subject: &S) {
    let only = Tenants { only: vec![tenant(1)], fair: false };
    if !subject.features().tenants {
        for tenants in [&FAIR, &only] {
            let refused = subject.tenants_store(tenants, false).open().await.expect_err("no index");
            assert_eq!(refused.code().as_str(), "OUTBOX_TENANTS_UNSUPPORTED", "{refused}");
            assert!(refused.message().contains("migrate up"), "{refused}");
        }
        return;
    }
    let refused = subject.tenants_store(&only, true).open().await.expect_err("it would be the only one");
    assert!(refused.message().contains("single_active = false"), "{refused}");
}

fn start<S: Subject>(subject: &S, tenants: &Tenants, sink: &Scripted, settings: Settings) -> RelayHandle {
    let store = subject.tenants_store(tenants, true);
    Relay::builder(store).dispatcher(sink.clone()).settings(settings).build().expect("a relay").spawn()
}
