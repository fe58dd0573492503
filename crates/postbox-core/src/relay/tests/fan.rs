//! Events that go to several sinks.

use std::time::Duration;

use tokio::time::Instant;

use super::{active, endless, goes_down};
use crate::hot::{HotEvent, HotPath, delivery_for_tests};
use crate::relay::claim::Asked;
use crate::relay::engine::Engine;
use crate::relay::order::Strands;
use crate::relay::{Backoff, Relay};
use crate::store::{ClaimMode, OnDead, Order, Standing, Store};
use crate::testing::FailingDispatcher;

fn engine(path: &HotPath) -> Engine<impl Store> {
    let sinks = ["a", "b"].map(|name| (name, FailingDispatcher::times(0)));
    let relay = Relay::builder(endless()).hot(path).fan_out("**", sinks);
    let relay = relay.set(|settings| settings.circuit = Backoff::fixed(Duration::from_secs(1)));
    relay.build().unwrap().engine
}

fn queued(engine: &Engine<impl Store>) -> Vec<usize> {
    engine.lanes.iter().map(|lane| lane.queue.len()).collect()
}

/// A relay that stands by claims nothing to probe with: a hot event has to find out whether the sink is back, or it is down for ever.
#[tokio::test(start_paused = true)]
async fn on_a_standby_a_hot_event_is_the_probe_of_one_of_its_sinks() {
    let path = HotPath::new();
    let mut engine = engine(&path);
    engine.paused = Some(false);
    engine.open_hot();
    let event = || {
        let ((lease, delivery), slot) = (delivery_for_tests(), path.reserve(1).unwrap());
        HotEvent { lease, delivery, born: std::time::Instant::now(), late: false, slot }
    };
    goes_down(&mut engine, 1);
    engine.arrived(event());
    assert_eq!(queued(&engine), [1, 0], "it is left alone");
    tokio::time::advance(Duration::from_secs(2)).await;
    engine.arrived(event());
    engine.arrived(event());
    assert_eq!(queued(&engine), [3, 1], "one at a time");
    assert!(engine.lanes[1].queue.front(|_| true).is_some_and(|item| item.probe && item.alone));
}

/// What waits behind the first of its aggregate is in no lane, and in memory all the same.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_turn_counts_against_the_bytes_in_flight() {
    let mut engine = engine(&HotPath::new());
    engine.standing = Standing::Active;
    engine.strands = Strands::new(Order::Aggregate(OnDead::Block));
    let mut claim = active(3);
    claim.rows.iter_mut().for_each(|row| row.strand = Some(7));
    engine.claimed(Instant::now(), &Asked::Rows(ClaimMode::Waiting), Ok(claim));
    assert_eq!(queued(&engine), [1, 1]);
    // A byte each: the first is in two lanes, the others wait; and each of the next will be in two.
    let left = engine.settings.max_in_flight_bytes - 4;
    assert_eq!(engine.request(ClaimMode::Waiting, 1).max_bytes, left / 2);
}
