//! What becomes of dead events: they go to the dead-letter route, and some are tried again by themselves.
//!
//! Both run beside the loop in a task of their own, with leases of their own, so that nothing that lives waits for what is
//! dead. A batch is claimed, sent and settled before the next is looked at; a lease outlasts that, so none is renewed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::backoff::tries;
use super::circuit::Circuit;
use super::engine::Engine;
use super::health::RelayHealth;
use super::lane::Item;
use super::settings::{LONGEST, Settings};
use super::unit::{Dispatching, End, Ended};
use crate::dispatcher::{BoxDispatcher, Dispatcher as _};
use crate::failpoint;
use crate::letter::{Letter, LetterRequest, LetterVerdict, Redrive, Requirements, explain};
use crate::panic::catch;
use crate::redact::Summary;
use crate::store::{Lease, Settled, Standing, Store, StoreError};
use crate::telemetry::Telemetry;

/// What its sink will never take, or what cannot be read at all, is tried again so seldom that it disturbs nobody, and is
/// still found by whoever mends the cause.
const REJECTED: Duration = Duration::from_hours(1);
const UNREADABLE: Duration = Duration::from_hours(24);

/// The rest between two full batches, as a part of the poll interval: what is dead is in no hurry.
const REST: u32 = 10;

/// What is dead takes no more than this part of the bytes that may be in flight, beside them.
const SHARE: usize = 4;

/// How often dead events are looked at that could be tried again, at the least.
const REDRIVE_EVERY: Duration = Duration::from_mins(1);

/// What a relay does with dead events.
#[derive(Debug)]
pub(super) struct AfterDeath<S: Store> {
    store: S,
    settings: Arc<Settings>,
    telemetry: Telemetry,
    health: RelayHealth,
    route: Option<Route>,
    /// What became of letters whose rows somebody had locked: written down when those are free.
    unsettled: Vec<(Lease, LetterVerdict)>,
}

/// Where they go.
#[derive(Debug)]
struct Route {
    name: Arc<str>,
    sink: BoxDispatcher,
    circuit: Circuit,
}

/// What one look at the dead-letter route did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Posted {
    /// Events that arrived.
    pub(super) sent: usize,
    /// Whether there may be more.
    more: bool,
}

/// A letter that is on its way.
struct Underway {
    lease: Lease,
    dead_for: Duration,
    verdict: Option<LetterVerdict>,
}

impl<S: Store> AfterDeath<S> {
    pub(super) fn new(
        store: S,
        settings: &Arc<Settings>,
        telemetry: &Telemetry,
        health: &RelayHealth,
        route: Option<(String, BoxDispatcher)>,
    ) -> Self {
        let route = route.map(|(name, sink)| Route {
            // A sink can also have routes of its own, with a circuit of their own.
            name: format!("dead-letter/{name}").into(),
            sink,
            circuit: Circuit::new(settings.circuit.clone()),
        });
        let (settings, telemetry, health) = (Arc::clone(settings), telemetry.clone(), health.clone());
        Self { store, settings, telemetry, health, route, unsettled: Vec::new() }
    }

    /// Whether there is anything to do at all.
    fn is_idle(&self) -> bool {
        self.route.is_none() && self.settings.redrive_after.is_none()
    }

    /// What it needs of the store.
    pub(super) fn needs(&self, fan_out: bool) -> Requirements {
        Requirements {
            fan_out,
            dead_letters: self.route.is_some(),
            redrive: self.settings.redrive_after.is_some(),
        }
    }

    /// Runs until it is to stop. Should it panic, what it had in hand waits until its leases have run out, and the rest for the next look.
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while let Err(panic) = catch(AssertUnwindSafe(self.work(&mut stop))).await {
            tracing::error!(
                table = self.store.table(),
                panic,
                "looking after dead events panicked, trying again"
            );
            let rest = self.settings.poll_interval;
            if tokio::time::timeout(rest, stop.wait_for(|stop| *stop)).await.is_ok() {
                return;
            }
        }
    }

    /// Works until it is to stop, and then to the end of what is under way.
    async fn work(&mut self, stop: &mut watch::Receiver<bool>) {
        let mut next_redrive = Instant::now();
        let mut failures = 0;
        loop {
            let mut rest = self.settings.poll_interval;
            if self.health.now().standing == Standing::Active {
                match self.look(&mut next_redrive, stop).await {
                    Ok(posted) => {
                        failures = 0;
                        if posted.more {
                            rest /= REST;
                        }
                    }
                    Err(error) => {
                        failures += 1;
                        let table = self.store.table();
                        tracing::error!(table, %error, failures, "dead events cannot be looked at, trying again");
                        rest = rest.max(self.settings.backoff.after(failures));
                    }
                }
            }
            let stopped = tokio::time::timeout(rest, stop.wait_for(|stop| *stop)).await;
            if stopped.is_ok() {
                return;
            }
        }
    }

    async fn look(
        &mut self,
        next_redrive: &mut Instant,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Posted, StoreError> {
        let mut redriven = Ok(0);
        if Instant::now() >= *next_redrive {
            redriven = self.redrive().await;
            let after = self.settings.redrive_after.unwrap_or(REDRIVE_EVERY);
            *next_redrive = Instant::now() + (after / 10).max(self.settings.poll_interval).min(REDRIVE_EVERY);
        }
        // Neither keeps the other from its work.
        let posted = self.post(stop).await?;
        redriven.map(|_| posted)
    }

    /// Replays what has been dead for long enough.
    pub(super) async fn redrive(&self) -> Result<u64, StoreError> {
        let Some(after) = self.settings.redrive_after else { return Ok(0) };
        let events = self
            .store
            .redrive(Redrive {
                after,
                most: self.settings.redrive_max,
                lock_ttl: self.settings.lock_ttl,
                who: Arc::clone(&self.settings.name),
            })
            .await?;
        if events > 0 {
            tracing::info!(table = self.store.table(), events, ?after, "dead events are tried again");
        }
        Ok(events)
    }

    /// Sends one batch to the dead-letter route.
    pub(super) async fn post(&mut self, stop: &mut watch::Receiver<bool>) -> Result<Posted, StoreError> {
        // First: what arrived must not be leased once more.
        let sent = self.settle(Vec::new()).await;
        let nothing = Posted { sent, more: false };
        let Some(route) = &self.route else { return Ok(nothing) };
        let asked = Instant::now();
        let probe = match route.circuit.probe_at() {
            Some(at) if at > asked => return Ok(nothing),
            at => at.is_some(),
        };
        // All of them are sent at once, so that none waits for its turn while its lease runs out.
        let at_once = self.settings.concurrency.saturating_mul(route.sink.batch_limit().max(1));
        let limit = if probe { 1 } else { at_once.min(self.settings.batch_size) };
        let request = LetterRequest {
            limit,
            max_bytes: self.settings.max_in_flight_bytes / SHARE,
            lock_ttl: self.settings.lock_ttl,
        };
        let letters = self.store.letters(request).await?;
        if letters.is_empty() {
            return Ok(nothing);
        }
        let more = letters.len() >= limit || letters.len() == 1;
        let verdicts = self.send(letters, probe, asked, stop).await;
        Ok(Posted { sent: sent + self.settle(verdicts).await, more })
    }

    /// Sends letters and waits for all answers, or, when it is to stop, for as long as that may take.
    async fn send(
        &mut self,
        letters: Vec<Letter>,
        probe: bool,
        asked: Instant,
        stop: &mut watch::Receiver<bool>,
    ) -> Vec<(Lease, LetterVerdict)> {
        let Some(route) = &self.route else { return Vec::new() };
        let (sink, most) = (route.sink.clone(), route.sink.batch_limit().max(1));
        let mut underway = Vec::with_capacity(letters.len());
        let mut items = Vec::with_capacity(letters.len());
        for letter in letters {
            let Letter { lease, delivery, dead_at, dead_for, last_error } = letter;
            let mut verdict = None;
            if let Some(mut delivery) = delivery {
                explain(&mut delivery, last_error.as_deref(), dead_at);
                items.push(Item {
                    lease: lease.clone(),
                    delivery: Box::new(delivery),
                    alone: probe,
                    probe,
                    hot: false,
                });
            } else {
                tracing::warn!(table = self.store.table(), row = %lease.row, "a dead row is no event: nothing to send");
                verdict = Some(LetterVerdict::Later(UNREADABLE));
            }
            underway.push(Underway { lease, dead_for, verdict });
        }
        let (reports, mut answers) = mpsc::unbounded_channel();
        let (settings, telemetry) = (Arc::clone(&self.settings), self.telemetry.clone());
        let dispatching = Dispatching { settings, telemetry, reports, counted: false };
        let mut units = JoinSet::new();
        let mut running = 0;
        while !items.is_empty() {
            let rest = items.split_off(most.min(items.len()));
            let unit = std::mem::replace(&mut items, rest);
            units.spawn(dispatching.clone().run(0, sink.clone(), unit).in_current_span());
            running += 1;
        }
        let mut deadline = asked + self.settings.lock_ttl;
        let mut stopping = false;
        while running > 0 {
            let report = tokio::select! {
                Some(report) = answers.recv() => report,
                _ = stop.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    deadline = deadline.min(Instant::now() + self.settings.drain_timeout);
                    continue;
                }
                () = tokio::time::sleep_until(deadline) => break,
            };
            running -= usize::from(report.over);
            for ended in report.ended {
                let known = underway.iter_mut().find(|letter| letter.lease == ended.lease);
                if let Some(letter) = known {
                    let dead_for = letter.dead_for;
                    letter.verdict = Some(self.judge(ended, dead_for));
                }
            }
            let covered = asked.elapsed() + self.settings.dispatch_timeout < self.settings.lock_ttl;
            if covered && !stopping {
                for item in report.again {
                    units.spawn(dispatching.clone().run(0, sink.clone(), vec![item]).in_current_span());
                    running += 1;
                }
            }
        }
        // Whoever has not answered by now has not got it, as far as we know.
        let verdict =
            |letter: Underway| (letter.lease, letter.verdict.unwrap_or(LetterVerdict::Later(Duration::ZERO)));
        underway.into_iter().map(verdict).collect()
    }

    fn judge(&mut self, ended: Ended, dead_for: Duration) -> LetterVerdict {
        let Some(route) = &mut self.route else { return LetterVerdict::Later(REJECTED) };
        let now = Instant::now();
        let (table, sink) = (self.store.table(), &*route.name);
        if let Some(open) = route.circuit.heard(&ended, now) {
            self.telemetry.circuit(sink, open);
            if open {
                tracing::error!(table, sink, "the dead-letter route is down, dead events wait");
            } else {
                tracing::info!(table, sink, "the dead-letter route is back");
            }
        }
        match ended.end {
            End::Delivered => {
                self.telemetry.dead_lettered(&ended.topic);
                LetterVerdict::Sent
            }
            End::Retry { after, .. } => {
                let after = after.map(|after| after.min(LONGEST));
                LetterVerdict::Later(after.unwrap_or_else(|| self.settings.backoff.after(tries(dead_for))))
            }
            End::Reject { error } => {
                let error = Summary::as_str(&error);
                tracing::error!(table, sink, event_id = %ended.event_id, error, "the dead-letter route refuses an event");
                LetterVerdict::Later(REJECTED)
            }
            End::Unavailable { .. } => LetterVerdict::Later(route.circuit.put_off(now).unwrap_or_default()),
        }
    }

    /// Writes down what became of letters, however long the database is gone; answers how many arrived. Those whose rows somebody has
    /// locked hold up no others: they come along with the next. What cannot be written before the relay ends is sent again when its
    /// lease has run out.
    async fn settle(&mut self, mut verdicts: Vec<(Lease, LetterVerdict)>) -> usize {
        verdicts.append(&mut self.unsettled);
        if verdicts.is_empty() {
            return 0;
        }
        let mut wait = Duration::from_millis(20);
        loop {
            failpoint::hit("letters.settle", self.store.table()).await;
            match self.store.settle_letters(verdicts.clone()).await {
                Ok(Settled { lost, busy }) => {
                    if !lost.is_empty() {
                        self.telemetry.lease_lost(lost.len());
                        let table = self.store.table();
                        tracing::warn!(
                            table,
                            rows = lost.len(),
                            "dead events were replayed or discarded meanwhile"
                        );
                    }
                    verdicts.retain(|(lease, _)| !lost.contains(&lease.row));
                    let is_busy = |(lease, _): &mut (Lease, _)| busy.contains(&lease.row);
                    self.unsettled = verdicts.extract_if(.., is_busy).collect();
                    return verdicts.iter().filter(|(_, verdict)| *verdict == LetterVerdict::Sent).count();
                }
                Err(error) => {
                    tracing::error!(table = self.store.table(), %error, "dead letters cannot be settled, trying again");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(5));
                }
            }
        }
    }
}

/// The task that looks after dead events. Ends with the loop, whatever ends that.
#[derive(Debug)]
pub(super) struct AfterDeathTask {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl AfterDeathTask {
    /// No new work is begun.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for the rest, at most so long.
    pub(super) async fn ended(mut self, at_most: Duration) {
        if let Some(task) = &mut self.task {
            let _ = tokio::time::timeout(at_most, task).await;
        }
    }
}

impl Drop for AfterDeathTask {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl<S: Store> Engine<S> {
    /// Starts what is done about dead events, if anything is.
    pub(super) fn start_after_death(&mut self) -> AfterDeathTask {
        let (stop, stopped) = watch::channel(false);
        let work = self.after_death.take().filter(|work| !work.is_idle());
        AfterDeathTask { stop, task: work.map(|work| tokio::spawn(work.run(stopped).in_current_span())) }
    }

    /// One batch of dead letters by hand, and what is due to be tried again.
    pub(super) async fn dead_once(&mut self) -> Result<(), StoreError> {
        let Some(work) = &mut self.after_death else { return Ok(()) };
        if self.standing == Standing::Active {
            let (_stop, mut never) = watch::channel(false);
            self.report.dead_lettered = work.post(&mut never).await?.sent;
            self.report.redriven = usize::try_from(work.redrive().await?).unwrap_or(usize::MAX);
        }
        Ok(())
    }
}
