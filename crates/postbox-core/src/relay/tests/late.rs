//! Answers that come late, or not at all.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{active, endless, goes_down};
use crate::code::Code;
use crate::event::Payload;
use crate::hot::{Born, HotPath};
use crate::record::Record;
use crate::redact::Summary;
use crate::relay::Relay;
use crate::relay::claim::Asked;
use crate::relay::engine::Engine;
use crate::relay::lease::{Stage, key};
use crate::relay::settle::{Outcome, Outcomes};
use crate::store::{
    Claim, ClaimMode, Claimed, Lease, OnDead, Order, Renewed, Settled, Standing, Store, StoreError,
    StoreErrorKind, Verdict,
};
use crate::testing::FailingDispatcher;
use crate::topic::Topic;

const WAITING: Asked = Asked::Rows(ClaimMode::Waiting);

fn engine() -> Engine<impl Store> {
    let relay = Relay::builder(endless()).dispatcher(FailingDispatcher::times(0)).build().unwrap();
    let mut engine = relay.engine;
    engine.standing = Standing::Active;
    engine
}

/// The same rows once more.
fn again(claim: &Claim) -> Claim {
    let claimed = |row: &Claimed| Claimed {
        lease: row.lease.clone(),
        delivery: row.delivery.clone(),
        age: row.age,
        strand: row.strand,
        sinks_done: Vec::new(),
    };
    Claim { rows: claim.rows.iter().map(claimed).collect(), standing: claim.standing, ..Claim::default() }
}

/// What is settled now, as the engine hears of it later.
fn taken(engine: &mut Engine<impl Store>) -> Outcomes {
    std::mem::take(&mut engine.outcomes)
}

fn retry_at_once(lease: Lease) -> Outcome {
    let mut outcome = Outcome::release(lease, None);
    outcome.settlement.verdict =
        Verdict::Retry { after: Duration::ZERO, reason: Summary::new("not now", 100) };
    outcome
}

/// The usual way to lose a table: the connection first, then the place. What waits here would be sent beside its new owner.
#[tokio::test(start_paused = true)]
async fn a_queue_goes_back_also_when_the_place_is_lost_after_a_claim_that_failed() {
    let mut engine = engine();
    let now = Instant::now();
    engine.claimed(now, &WAITING, Ok(active(3)));
    assert_eq!(engine.lanes[0].queue.len(), 3);
    let lost = StoreError::new(Code::DatabaseUnreachable, StoreErrorKind::Connection, "away");
    engine.claimed(now, &WAITING, Err(lost));
    assert_eq!(engine.lanes[0].queue.len(), 3, "nobody said that it is another's");
    engine.claimed(now, &WAITING, Ok(Claim { standing: Standing::Standby, ..Claim::default() }));
    assert_eq!(engine.lanes[0].queue.len(), 0);
    assert!(engine.held.values().all(|held| held.stage == Stage::Settling));
}

/// An owner reads a row again that was given back, under the same token, and only then hears that this was written.
#[tokio::test(start_paused = true)]
async fn what_came_again_is_held_when_its_last_settle_is_heard_of() {
    let mut engine = engine();
    let (now, claim) = (Instant::now(), active(1));
    engine.claimed(now, &WAITING, Ok(again(&claim)));
    engine.release_cold();
    let first = taken(&mut engine);
    engine.claimed(now, &WAITING, Ok(again(&claim)));
    engine.settled(first, &Settled::default());
    assert_eq!((engine.held.len(), engine.lanes[0].held), (1, 1), "it waits to be sent");
    engine.release_cold();
    let second = taken(&mut engine);
    engine.settled(second, &Settled::default());
    assert_eq!((engine.held.len(), engine.lanes[0].held), (0, 0));
}

/// The same where order is kept: those behind it go on when it has arrived.
#[tokio::test(start_paused = true)]
async fn a_strand_goes_on_behind_one_that_came_again() {
    let mut engine = engine();
    engine.strands = crate::relay::order::Strands::new(Order::Aggregate(OnDead::Block));
    let now = Instant::now();
    let mut claim = active(2);
    claim.rows.iter_mut().for_each(|row| row.strand = Some(7));
    let [first, second] = [0, 1].map(|n| claim.rows[n].lease.clone());
    engine.claimed(now, &WAITING, Ok(again(&claim)));
    assert_eq!(engine.lanes[0].drain_cold().len(), 1, "one at a time");
    engine.finish(retry_at_once(first.clone()));
    let before = taken(&mut engine);
    engine.claimed(now, &WAITING, Ok(again(&claim)));
    engine.settled(before, &Settled::default());
    assert_eq!(engine.lanes[0].drain_cold().len(), 1, "it is tried again");
    engine.finish(arrived(first));
    let next = engine.lanes[0].drain_cold();
    assert_eq!(next.iter().map(|item| item.lease.row).collect::<Vec<_>>(), [second.row]);
}

/// A relay that stops is alive as long as something runs.
#[tokio::test(start_paused = true)]
async fn a_relay_that_stops_goes_on_giving_signs_of_life() {
    let mut engine = engine();
    let now = Instant::now();
    engine.stopping = true;
    engine.next_beat = now + Duration::from_secs(1);
    engine.start_beat(now);
    assert!(engine.claiming.is_none(), "not yet");
    engine.start_beat(engine.next_beat);
    assert!(engine.claiming.is_some());
    assert_eq!(engine.next_beat, now + Duration::from_secs(1) + engine.settings.poll_interval);
}

/// Somebody has locked the suspect that was seen: those who look for it in vain let the others work.
#[tokio::test(start_paused = true)]
async fn a_turn_of_suspects_in_vain_is_not_repeated_at_once() {
    let mut engine = engine();
    let now = Instant::now();
    let seen = || Claim { standing: Standing::Active, suspects: true, ..Claim::default() };
    engine.claimed(now, &WAITING, Ok(seen()));
    assert!(engine.suspects_turn(now), "their turn");
    engine.claimed(now, &Asked::Rows(ClaimMode::Suspect), Ok(active(0)));
    engine.claimed(now, &WAITING, Ok(Claim { suspects: true, ..active(2) }));
    assert!(!engine.suspects_turn(now), "the turn of the others");
    assert_eq!(engine.lanes[0].queue.len(), 2, "who are not given back");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(engine.suspects_turn(Instant::now()), "and later it is theirs again");
}

/// Only a suspect waits for a sink that is down, and it is not its turn: the table is not asked without a rest until it is.
#[tokio::test(start_paused = true)]
async fn a_suspect_is_the_probe_of_its_sink_when_it_is_its_turn() {
    let mut engine = engine();
    goes_down(&mut engine, 0);
    tokio::time::advance(Duration::from_secs(2)).await;
    let (now, turn) = (Instant::now(), Duration::from_millis(500));
    engine.suspects.not_before = now + turn;
    let probe = engine.what_to_claim(now).unwrap();
    assert!(matches!(probe, Asked::Rows(ClaimMode::Probe(_))), "{probe:?}");
    engine.claimed(now, &probe, Ok(Claim { suspects: true, ..active(0) }));
    assert_eq!(engine.what_to_claim(now), Some(Asked::Nothing), "a sign of life");
    tokio::time::advance(turn).await;
    assert_eq!(engine.what_to_claim(Instant::now()), Some(Asked::Rows(ClaimMode::Suspect)));
    assert!(engine.lanes[0].wants_probe(Instant::now()));
}

/// Hot events of a sink that is down go back one after the other, and a suspect waits until nothing is at work: so they wait for it.
#[tokio::test(start_paused = true)]
async fn hot_events_that_would_go_back_leave_suspects_their_turn() {
    let path = HotPath::new();
    let relay = Relay::builder(endless()).hot(&path).dispatcher(FailingDispatcher::times(0));
    let mut engine = relay.build().unwrap().engine;
    (engine.standing, engine.paused) = (Standing::Active, Some(false));
    engine.open_hot();
    goes_down(&mut engine, 0);
    let record = Record::builder(Topic::from_static("shop.order.placed.v1")).json(&1).build().unwrap();
    let (row, slot) = (Uuid::now_v7(), path.reserve(1).unwrap());
    let born = Born { row, at: std::time::Instant::now(), slot, durable: true };
    path.admit(std::iter::once((born, record, 1)));
    for suspects in [true, false] {
        engine.suspects.turn = suspects;
        engine.turn(Instant::now()).await;
        assert_eq!(engine.nothing_at_work(), suspects);
    }
    assert!(!engine.outcomes.is_empty(), "it goes back now");
}

fn arrived(lease: Lease) -> Outcome {
    let mut outcome = Outcome::release(lease, None);
    outcome.settlement.verdict = Verdict::Delivered;
    outcome
}

/// Somebody has locked the row of an event that was sent: that it arrived cannot be written down for as long as he likes. Whatever has to
/// be alone, and all others behind it, need not wait for him.
#[tokio::test(start_paused = true)]
async fn a_row_that_somebody_has_locked_leaves_suspects_their_turn() {
    let mut engine = engine();
    let now = Instant::now();
    let claim = Claim { suspects: true, ..active(1) };
    let lease = claim.rows[0].lease.clone();
    engine.claimed(now, &WAITING, Ok(claim));
    assert_eq!(engine.lanes[0].drain_cold().len(), 1);
    engine.finish(arrived(lease.clone()));
    engine.next_beat = now + Duration::from_secs(1);
    assert_eq!(engine.what_to_claim(now), None, "it is to be written down first");
    for _ in 0..2 {
        let batch = taken(&mut engine);
        engine.settled(batch, &Settled { busy: vec![lease.row], ..Settled::default() });
        assert_eq!(engine.what_to_claim(now), Some(Asked::Rows(ClaimMode::Suspect)));
    }
    let batch = taken(&mut engine);
    assert_eq!(
        engine.what_to_claim(now),
        Some(Asked::Rows(ClaimMode::Suspect)),
        "also while it is tried again"
    );
    engine.settled(batch, &Settled::default());
    assert_eq!((engine.held.len(), engine.report.delivered), (0, 1));
}

/// What is not renewed is not ours for longer: somebody else may send it, as soon as it is free.
#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_ends_when_it_would_have() {
    let mut engine = engine();
    let (ttl, timeout) = (engine.settings.lock_ttl, engine.settings.dispatch_timeout);
    let claim = active(2);
    let [locked, other] = [0, 1].map(|n| claim.rows[n].lease.clone());
    let began = Instant::now();
    engine.claimed(began, &WAITING, Ok(claim));
    let renew = |engine: &mut Engine<_>| {
        let renewed = Renewed { busy: vec![locked.clone()], ..Renewed::default() };
        engine.extended(&[locked.clone(), other.clone()], Ok(renewed));
    };
    tokio::time::advance(ttl / 3).await;
    renew(&mut engine);
    let until = |lease: &Lease| engine.held[&key(lease)].lease_until;
    assert_eq!((until(&locked), until(&other) > began + ttl), (began + ttl, true));
    engine.next_extend = Instant::now() + ttl / 3;
    renew(&mut engine);
    let next = engine.next_extend.max(engine.extend_pause);
    assert!(next > Instant::now() && next <= Instant::now() + ttl / 30, "it is tried again soon");
    let rest = (ttl * 2 / 3).saturating_sub(timeout);
    tokio::time::advance(rest + Duration::from_secs(1)).await;
    renew(&mut engine);
    let left: Vec<_> = engine.lanes[0].drain_cold().into_iter().map(|item| item.lease).collect();
    assert_eq!(left, [other], "too little is left to send it");
    let released = taken(&mut engine);
    let rows: Vec<_> = released.leases().map(|lease| lease.row).collect();
    assert_eq!(rows, [locked.row], "it was never sent: its attempt is given back");
    engine.settled(released, &Settled::default());
    assert_eq!((engine.report.released, engine.report.lost), (1, 0));
}

/// Of an aggregate whose first is sent now, those behind it are not sent under a lease that is too short; nor are those behind one that
/// goes back.
#[tokio::test(start_paused = true)]
async fn those_behind_one_whose_lease_cannot_be_renewed_go_back_with_it() {
    for locked in [0, 1] {
        let mut engine = engine();
        engine.strands = crate::relay::order::Strands::new(Order::Aggregate(OnDead::Block));
        let mut claim = active(3);
        claim.rows.iter_mut().for_each(|row| row.strand = Some(7));
        let leases: Vec<Lease> = claim.rows.iter().map(|row| row.lease.clone()).collect();
        engine.claimed(Instant::now(), &WAITING, Ok(claim));
        tokio::time::advance(engine.settings.lock_ttl * 9 / 10).await;
        // The first is on its way when it is about the second.
        if locked == 1 {
            assert_eq!(engine.lanes[0].drain_cold().len(), 1);
            engine.held.get_mut(&key(&leases[0])).unwrap().stage = Stage::Running;
        }
        let renewed = Renewed { busy: vec![leases[locked].clone()], ..Renewed::default() };
        engine.extended(&leases, Ok(renewed));
        assert_eq!(taken(&mut engine).leases().count(), 3 - locked, "{locked}");
        assert_eq!(engine.lanes[0].queue.len(), 0);
    }
}

/// One sink of two takes its time with an event whose lease cannot be renewed: it does not wait for the other one, at the head of its
/// queue.
#[tokio::test(start_paused = true)]
async fn an_event_that_runs_at_one_sink_gives_up_its_place_at_the_other() {
    let sink = || FailingDispatcher::times(0);
    let relay = Relay::builder(endless()).fan_out("**", [("a", sink()), ("b", sink())]);
    let mut engine = relay.build().unwrap().engine;
    engine.standing = Standing::Active;
    let claim = active(1);
    let lease = claim.rows[0].lease.clone();
    engine.claimed(Instant::now(), &WAITING, Ok(claim));
    assert_eq!(engine.lanes[0].drain_cold().len(), 1);
    let held = engine.held.get_mut(&key(&lease)).unwrap();
    held.stage = Stage::Running;
    held.fan.as_mut().unwrap().start(0);
    tokio::time::advance(engine.settings.lock_ttl).await;
    engine.extended(
        std::slice::from_ref(&lease),
        Ok(Renewed { busy: vec![lease.clone()], ..Renewed::default() }),
    );
    let queued: Vec<usize> = engine.lanes.iter().map(|lane| lane.queue.len()).collect();
    assert_eq!((queued, engine.held.len(), engine.outcomes.is_empty()), (vec![0, 0], 1, true));
}

/// A sink that is down is probed when nothing of it is under way. A row that cannot be settled is not.
#[tokio::test(start_paused = true)]
async fn a_row_that_somebody_has_locked_keeps_no_sink_from_being_probed() {
    let mut engine = engine();
    let claim = active(2);
    let [locked, other] = [0, 1].map(|n| claim.rows[n].lease.clone());
    engine.claimed(Instant::now(), &WAITING, Ok(claim));
    goes_down(&mut engine, 0);
    engine.release_cold();
    tokio::time::advance(Duration::from_secs(2)).await;
    for _ in 0..2 {
        let batch = taken(&mut engine);
        engine.settled(batch, &Settled { busy: vec![locked.row], ..Settled::default() });
        assert!(!engine.held.contains_key(&key(&other)));
        assert!(engine.lanes[0].wants_probe(Instant::now()));
    }
    let batch = taken(&mut engine);
    engine.settled(batch, &Settled::default());
    assert_eq!((engine.held.len(), engine.lanes[0].held, engine.lanes[0].held_bytes), (0, 0, 0));
}

/// Somebody has locked as many rows of one sink as a relay may hold. It takes no more of them, and goes on with the others.
#[tokio::test(start_paused = true)]
async fn many_rows_that_somebody_has_locked_leave_the_other_sink_its_events() {
    let sink = || FailingDispatcher::times(0);
    let relay = Relay::builder(endless()).route("shop.**", sink()).route("**", sink());
    let mut engine = relay.set(|settings| settings.batch_size = 2).build().unwrap().engine;
    engine.standing = Standing::Active;
    let room = engine.room();
    while !engine.blocked(&engine.lanes[0]) {
        engine.claimed(Instant::now(), &WAITING, Ok(active(4)));
        for item in engine.lanes[0].drain_cold() {
            engine.finish(arrived(item.lease));
        }
        let batch = taken(&mut engine);
        let busy = batch.leases().map(|lease| lease.row).collect();
        engine.settled(batch, &Settled { busy, ..Settled::default() });
        assert!(engine.held.len() <= room, "without end");
    }
    engine.next_claim = Instant::now();
    assert_eq!((engine.held.len(), engine.room()), (room / 2, room), "they take no place of the others");
    assert_eq!(engine.what_to_claim(Instant::now()), Some(WAITING));
    assert_eq!(engine.request(ClaimMode::Waiting, 1).exclude.len(), 1);
    let batch = taken(&mut engine);
    engine.settled(batch, &Settled::default());
    assert_eq!((engine.held.len(), engine.held_busy, engine.lanes[0].busy), (0, 0, 0));
}

/// One sink of two takes its time. What waits behind its event is as large as all that may be in flight, and leaves nothing for others.
#[tokio::test(start_paused = true)]
async fn large_events_behind_one_that_takes_long_go_back() {
    let sink = || FailingDispatcher::times(0);
    let relay = Relay::builder(endless()).fan_out("**", [("a", sink()), ("b", sink())]);
    let mut engine = relay.set(|settings| settings.max_in_flight_bytes = 40).build().unwrap().engine;
    engine.standing = Standing::Active;
    engine.strands = crate::relay::order::Strands::new(Order::Aggregate(OnDead::Block));
    let mut claim = active(7);
    claim.rows[..3].iter_mut().for_each(|row| row.strand = Some(7));
    let large = || Payload::Bytes { bytes: [0; 15].into(), content_type: "image/png".to_owned() };
    claim.rows[1..3].iter_mut().for_each(|row| row.delivery.payload = large());
    engine.claimed(Instant::now(), &WAITING, Ok(claim));
    assert_eq!(engine.bytes_behind_others(), 30);
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(engine.what_to_claim(Instant::now()), Some(WAITING), "there is room for others");
    assert_eq!((engine.bytes_behind_others(), taken(&mut engine).leases().count()), (0, 2));
}
