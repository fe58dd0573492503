//! Fan-out: one event on its way to several sinks, each in its own lane, settled once when the last of them has answered.
//!
//! The verdict is that of the worst answer. One reject makes the event dead; one retry is a charged attempt; a sink that is
//! down or has no room puts the event off uncharged. In each case the sinks that confirmed are written down and not sent to
//! again. A sink that is down or full is left out beforehand: the others get the event at their own pace, and what only that
//! one lacks waits in the table, not in memory. An attempt is given back only if no sink has failed, so no failing sink can
//! have an event for ever.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::lane::{Item, Lane};
use super::lease::{HeldKey, Load, Stage, key};
use super::order::Behind;
use super::settle::Outcome;
use super::unit::{End, Ended};
use crate::dispatcher::Delivery;
use crate::event::EventId;
use crate::redact::Summary;
use crate::store::{ClaimMode, Claimed, Lease, Settlement, Spent, Store, Verdict};
use crate::topic::Topic;

/// An event that goes to several sinks, while it is held.
#[derive(Debug)]
pub(super) struct Fan {
    event: (Topic, EventId),
    legs: Vec<Leg>,
}

/// Such an event before it is put into its lanes.
#[derive(Debug)]
pub(super) struct Spread {
    pub(super) lease: Lease,
    delivery: Box<Delivery>,
    sinks_done: Vec<String>,
    /// It came by an ordinary claim: it is no suspect, and no probe.
    waiting: bool,
}

/// The way to one of them.
#[derive(Debug)]
struct Leg {
    lane: usize,
    state: State,
    /// Whether the lane counts it as held.
    counted: bool,
}

#[derive(Debug)]
enum State {
    Queued,
    Running,
    Ended(Answer),
}

/// What came of one way.
#[derive(Debug)]
pub(super) enum Answer {
    /// The sink said something.
    Said { end: End, took: Duration },
    /// It was not asked, or not to its end: it is down, has no room, or the relay has to give the event back.
    NotAsked { after: Option<Duration>, reason: Option<Summary> },
}

impl Spread {
    /// Of its payload, which no lane counts yet.
    pub(super) fn bytes(&self) -> usize {
        self.delivery.payload.len()
    }
}

impl Fan {
    fn new(delivery: &Delivery, lanes: usize) -> Self {
        let event = (delivery.meta.topic.clone(), delivery.meta.event_id);
        Self { event, legs: Vec::with_capacity(lanes) }
    }

    fn leg(&mut self, lane: usize) -> Option<&mut Leg> {
        self.legs.iter_mut().find(|leg| leg.lane == lane)
    }

    /// The dispatch of one begins.
    pub(super) fn start(&mut self, lane: usize) {
        if let Some(leg) = self.leg(lane) {
            leg.state = State::Running;
        }
    }

    /// One goes back into its lane's queue; answers what the event as a whole does.
    pub(super) fn requeue(&mut self, lane: usize) -> Stage {
        if let Some(leg) = self.leg(lane) {
            leg.state = State::Queued;
        }
        self.stage()
    }

    fn stage(&self) -> Stage {
        let running = self.legs.iter().any(|leg| matches!(leg.state, State::Running));
        if running { Stage::Running } else { Stage::Queued }
    }

    fn over(&self) -> bool {
        self.legs.iter().all(|leg| matches!(leg.state, State::Ended(_)))
    }

    /// The lanes that the event is in.
    pub(super) fn lanes(&self) -> impl Iterator<Item = usize> + '_ {
        self.legs.iter().map(|leg| leg.lane)
    }

    /// The lanes that count it as held.
    pub(super) fn counted(&self) -> impl Iterator<Item = usize> + '_ {
        self.legs.iter().filter(|leg| leg.counted).map(|leg| leg.lane)
    }

    /// The lanes whose sinks have confirmed.
    fn confirmed(&self) -> impl Iterator<Item = usize> + '_ {
        let said = |leg: &&Leg| matches!(&leg.state, State::Ended(Answer::Said { end: End::Delivered, .. }));
        self.legs.iter().filter(said).map(|leg| leg.lane)
    }
}

impl<S: Store> Engine<S> {
    /// Takes in a claimed event that goes to several sinks, or did so at an earlier attempt. `full` tells of each lane whether
    /// it had no room before this claim. Answers whether those behind it in its strand may line up.
    pub(super) fn take_in_fan(
        &mut self,
        asked: Instant,
        mode: &ClaimMode,
        claimed: Claimed,
        full: &[bool],
        strand: Option<i64>,
    ) -> bool {
        let Claimed { lease, delivery, age, sinks_done, .. } = claimed;
        let key = key(&lease);
        let load = Load::of(&delivery);
        self.hold(asked, &lease, load, age, None);
        if self.stopping || self.standing != crate::store::Standing::Active {
            self.finish(Outcome::release(lease, None));
            return false;
        }
        if self.tracker.is_running(delivery.meta.event_id, Instant::now()) {
            // Its lease ended while it is being dispatched here: that one may still arrive.
            self.finish(Outcome::release(lease, Some(self.settings.poll_interval)));
            return false;
        }
        let spread = Spread { lease, delivery, sinks_done, waiting: *mode == ClaimMode::Waiting };
        let first = match strand {
            Some(strand) => self.queue_up(strand, Behind::Several(Box::new(spread))),
            None => Some(Behind::Several(Box::new(spread))),
        };
        if let Some(Behind::Several(spread)) = first {
            self.spread(*spread, full);
        }
        self.held.get(&key).is_some_and(|held| held.stage != Stage::Settling)
    }

    /// Puts it into the lanes of its sinks.
    pub(super) fn spread(&mut self, spread: Spread, full: &[bool]) {
        let Spread { lease, delivery, sinks_done, waiting } = spread;
        let (now, load) = (Instant::now(), Load::of(&delivery));
        let lanes = self.remaining(&delivery.meta.topic, &sinks_done);
        if lanes.is_empty() {
            // All that the route leads to today have it.
            return self.finish(delivered(lease));
        }
        let goes = |lane: &Lane| !lane.circuit.is_open() || (!waiting && lane.wants_probe(now));
        // For a tenant that has its share of a lane, that one is full.
        let crowds = |number: &usize| full[*number] || self.crowds(&self.lanes[*number], load.tenant);
        let full: Vec<bool> = lanes.iter().map(crowds).collect();
        let any_room = lanes.iter().zip(&full).any(|(number, full)| goes(&self.lanes[*number]) && !full);
        let mut fan = Fan::new(&delivery, lanes.len());
        for (number, full) in lanes.into_iter().zip(full) {
            let lane = &mut self.lanes[number];
            let probe = lane.circuit.is_open();
            let state = if !goes(lane) {
                let (after, reason) = (lane.put_off(now), lane.down(&self.settings));
                State::Ended(Answer::NotAsked { after, reason })
            } else if waiting && full && any_room {
                // The others do not wait for it. It finds the event in the table when it has room.
                State::Ended(Answer::NotAsked { after: None, reason: None })
            } else {
                let (lease, delivery) = (lease.clone(), delivery.clone());
                lane.push(Item { lease, delivery, alone: !waiting, probe, hot: false });
                lane.take_on(&load);
                State::Queued
            };
            let counted = matches!(state, State::Queued);
            fan.legs.push(Leg { lane: number, state, counted });
        }
        self.put(&lease, fan);
    }

    /// The same for one that comes straight from its commit: `open` unless it has to go back at once.
    pub(super) fn spread_hot(&mut self, lease: &Lease, delivery: &Delivery, open: bool) {
        let now = Instant::now();
        let lanes = self.remaining(&delivery.meta.topic, &[]);
        let mut fan = Fan::new(delivery, lanes.len());
        for number in lanes {
            let lane = &mut self.lanes[number];
            let probe = open && lane.probes_with_hot(self.standing, now, self.settings.dispatch_timeout);
            let state = if open && (probe || !lane.circuit.is_open()) {
                let (lease, delivery) = (lease.clone(), Box::new(delivery.clone()));
                lane.push(Item { lease, delivery, alone: probe, probe, hot: true });
                State::Queued
            } else {
                let (after, reason) = (lane.put_off(now), lane.down(&self.settings));
                State::Ended(Answer::NotAsked { after, reason })
            };
            fan.legs.push(Leg { lane: number, state, counted: false });
        }
        self.put(lease, fan);
    }

    /// The lanes of a topic whose sinks have not confirmed. All of them learn of the topic: claims and probes go by it.
    fn remaining(&mut self, topic: &Topic, done: &[String]) -> Vec<usize> {
        let lanes = self.routes.lanes_of(topic).unwrap_or_default();
        for number in lanes {
            self.lanes[*number].learn(topic);
        }
        let lacks = |number: &usize| !done.iter().any(|name| **name == *self.lanes[*number].name);
        lanes.iter().copied().filter(lacks).collect()
    }

    fn put(&mut self, lease: &Lease, fan: Fan) {
        let key = key(lease);
        if let Some(held) = self.held.get_mut(&key) {
            held.fan = Some(Box::new(fan));
        }
        self.sum_up(&key);
    }

    /// What one of the sinks has answered; the last answer settles the event.
    pub(super) fn answer(&mut self, key: &HeldKey, number: usize, answer: Answer) {
        let Some(held) = self.held.get_mut(key) else { return };
        let (load, Some(fan)) = (held.load, &mut held.fan) else { return };
        if let Some(leg) = fan.leg(number) {
            leg.state = State::Ended(answer);
        }
        if !fan.over() {
            held.stage = fan.stage();
            // It waits for others: this lane has room for the next. (The last one counts until it is settled.)
            if let Some(leg) = fan.leg(number)
                && std::mem::take(&mut leg.counted)
            {
                self.lanes[number].let_off(&load);
            }
        }
        self.sum_up(key);
    }

    /// The lease is lost: what still waits in lanes is not sent any more. What runs cannot be called back.
    pub(super) fn drop_waiting(&mut self, key: &HeldKey) {
        let Some(fan) = self.held.get(key).and_then(|held| held.fan.as_ref()) else { return };
        let queued = fan.legs.iter().filter(|leg| matches!(leg.state, State::Queued));
        for number in queued.map(|leg| leg.lane).collect::<Vec<_>>() {
            self.lanes[number].forget(key);
            self.answer(key, number, Answer::NotAsked { after: None, reason: None });
        }
    }

    /// The names of the sinks that have confirmed an event that is still under way elsewhere.
    pub(super) fn confirmed(&self, lease: &Lease) -> Box<[Arc<str>]> {
        let fan = self.held.get(&key(lease)).and_then(|held| held.fan.as_ref());
        let lanes = fan.into_iter().flat_map(|fan| fan.confirmed());
        lanes.map(|number| Arc::clone(&self.lanes[number].name)).collect()
    }

    /// Settles an event once all its lanes have answered.
    fn sum_up(&mut self, key: &HeldKey) {
        let Some(held) = self.held.get(key) else { return };
        let Some(fan) = held.fan.as_ref().filter(|fan| fan.over()) else { return };
        let lease = held.lease.clone();
        let done: Box<[Arc<str>]> =
            fan.confirmed().map(|number| Arc::clone(&self.lanes[number].name)).collect();
        if done.len() == fan.legs.len() {
            return self.finish(delivered(lease));
        }
        let mut outcome = self.worst(fan, lease);
        outcome.settlement.sinks_done = done;
        self.finish(outcome);
    }

    /// The outcome of the worst answer, with the words of all that are as bad.
    fn worst(&self, fan: &Fan, lease: Lease) -> Outcome {
        let max = self.settings.last_error_max_bytes;
        let (mut rejects, mut retries, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        let (mut longest, mut asked_for, mut kind, mut soonest) = (Duration::ZERO, None, "retry", None);
        for leg in &fan.legs {
            let State::Ended(answer) = &leg.state else { continue };
            let said = |error: &Summary| format!("{error} [{}]", self.lanes[leg.lane].name);
            match answer {
                Answer::Said { end: End::Delivered, .. } => {}
                Answer::Said { end: End::Reject { error }, took } => {
                    longest = longest.max(*took);
                    rejects.push(said(error));
                }
                Answer::Said { end: End::Retry { after, outcome, error }, took } => {
                    longest = longest.max(*took);
                    asked_for = asked_for.max(*after);
                    kind = outcome;
                    retries.push(said(error));
                }
                Answer::Said { end: End::Unavailable { error }, .. } => waits.push(said(error)),
                Answer::NotAsked { after, reason } => {
                    // The first probe of any of them may want to find it.
                    soonest = match (soonest, *after) {
                        (Some(one), Some(other)) => Some(std::cmp::min::<Duration>(one, other)),
                        (one, other) => one.or(other),
                    };
                    waits.extend(reason.as_ref().map(said));
                }
            }
        }
        let joined = |texts: &[String]| Summary::new(&texts.join("; "), max);
        let end = if !rejects.is_empty() {
            End::Reject { error: joined(&rejects) }
        } else if !retries.is_empty() {
            let usual = self.settings.backoff.after(lease.attempts);
            // A sink that asks for more time gets it; the others are not hurried by one that asks for less.
            let after = asked_for.map(|wanted| if retries.len() > 1 { wanted.max(usual) } else { wanted });
            End::Retry { after, outcome: kind, error: joined(&retries) }
        } else {
            let reason = (!waits.is_empty()).then(|| joined(&waits));
            return Outcome::put_off(lease, soonest, reason);
        };
        let ((topic, event_id), probe) = (fan.event.clone(), false);
        Outcome::of(Ended { lease, event_id, topic, probe, took: longest, end }, &self.settings, None)
    }

    /// What a claim leaves out while some lanes are `shut`: topics that go to these alone, and rows of the others that only
    /// these lack.
    pub(super) fn left_out(&self, shut: impl Fn(&Lane) -> bool) -> (Vec<Topic>, Vec<Spent>) {
        let (mut exclude, mut spent, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for topic in self.lanes.iter().filter(|lane| shut(lane)).flat_map(Lane::topics) {
            if !seen.insert(topic) {
                continue;
            }
            let lanes =
                self.routes.lanes_of(topic).unwrap_or_default().iter().map(|number| &self.lanes[*number]);
            let sinks: Vec<Arc<str>> =
                lanes.filter(|lane| !shut(lane)).map(|lane| Arc::clone(&lane.name)).collect();
            if sinks.is_empty() {
                exclude.push(topic.clone());
            } else {
                spent.push(Spent { topic: topic.clone(), sinks });
            }
        }
        (exclude, spent)
    }

    /// What a probe of a lane leaves out: rows that it has confirmed.
    pub(super) fn not_for(&self, number: usize) -> Vec<Spent> {
        let lane = &self.lanes[number];
        let several = |topic: &&Topic| self.routes.lanes_of(topic).is_some_and(|lanes| lanes.len() > 1);
        let spent = |topic: &Topic| Spent { topic: topic.clone(), sinks: vec![Arc::clone(&lane.name)] };
        lane.topics().filter(several).map(spent).collect()
    }
}

fn delivered(lease: Lease) -> Outcome {
    Outcome { settlement: Settlement::new(lease, Verdict::Delivered), event: None }
}
