//! ③ The loop: wait, claim, dispatch, settle.
//!
//! One task owns all state. It starts claims, dispatches and settles as tasks of their own and never waits for one of
//! them alone, so the next claim overlaps with the dispatch and the settle of the last, and nothing is interrupted
//! half-way: `select!` only ever drops the *waiting* for a task, never the task.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::RunReport;
use super::backoff::Backoff;
use super::claim::Asked;
use super::engine::{Engine, Refused};
use super::error::RelayError;
use super::hot;
use crate::store::{ClaimMode, Standing, Store, StoreError, StoreErrorKind};

/// How long a stop waits for the store to give up its place.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// For so long a run by hand looks in vain for suspects that are there: somebody else has locked them.
const IN_VAIN: Duration = Duration::from_secs(5);

/// What a claim by hand has shown.
struct ByHand {
    /// There may be rows whose lease ran out.
    suspects: bool,
    /// It has brought something.
    found: bool,
}

impl<S: Store> Engine<S> {
    /// Runs until the signal, then drains.
    pub(super) async fn run(&mut self, signal: impl Future<Output = ()> + Send) -> Result<(), RelayError> {
        let mut signal = pin!(signal);
        tokio::select! {
            () = &mut signal => return Ok(()),
            opened = self.open() => opened?,
        }
        let after_death = self.start_after_death();
        loop {
            let looked = self.start_work();
            tokio::select! {
                biased;
                () = &mut signal => break,
                () = self.turn(looked) => {}
            }
        }
        after_death.stop();
        self.drain().await;
        // As long as it waits for answers, and then for the database: what has arrived is to be written down.
        after_death.ended(self.settings.drain_timeout + CLOSE_LIMIT).await;
        self.close().await;
        Ok(())
    }

    /// A database that is away at the start is waited for; a table that cannot be relayed is an error at once, unless the relay
    /// is patient.
    pub(super) async fn open(&mut self) -> Result<(), RelayError> {
        let waits = Backoff::exponential(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            match self.open_store().await {
                Ok(()) => {
                    self.failures = 0;
                    // Also those that were never down are to be seen.
                    self.note_sinks();
                    self.health.note_opened();
                    return Ok(());
                }
                Err(error) if error.kind() == StoreErrorKind::Refused && self.refused == Refused::Ends => {
                    return Err(error.into());
                }
                Err(error) => {
                    self.failures += 1;
                    tracing::error!(table = self.store.table(), %error, "the store cannot be opened, trying again");
                    self.health.update(|health| health.error = Some(error.to_string()));
                    tokio::time::sleep(waits.after(self.failures)).await;
                    self.health.update(|health| health.last_turn = std::time::Instant::now());
                }
            }
        }
    }

    pub(super) async fn close(&mut self) {
        if let Some(work) = &mut self.after_death {
            let _ = tokio::time::timeout(CLOSE_LIMIT, work.settle()).await;
        }
        // A database that is silent notices by itself that this relay is gone.
        let _ = tokio::time::timeout(CLOSE_LIMIT, self.store.close()).await;
        self.telemetry.leader(false);
    }

    /// One batch by hand, then the suspects it found. A sink that is down is tried first, when that is due: nothing else would find out
    /// that it is back.
    pub(super) async fn run_once(&mut self) -> Result<RunReport, RelayError> {
        self.report = RunReport::default();
        self.open_store().await?;
        self.health.note_opened();
        let (mut suspects, mut found_at) = (false, Instant::now());
        for number in 0..self.lanes.len() {
            if self.claiming.is_none() && self.lanes[number].wants_probe(Instant::now()) {
                let probe = self.probe(number);
                suspects |= self.claim_by_hand(probe).await?.suspects;
            }
        }
        suspects |= self.claim_by_hand(ClaimMode::Waiting).await?.suspects;
        while suspects && found_at.elapsed() < IN_VAIN {
            let claim = self.claim_by_hand(ClaimMode::Suspect).await?;
            suspects = claim.suspects;
            if claim.found {
                found_at = Instant::now();
            }
        }
        self.dead_once().await?;
        Ok(self.report)
    }

    /// One claim, to the end of what it brings.
    async fn claim_by_hand(&mut self, mode: ClaimMode) -> Result<ByHand, StoreError> {
        // One may be under way from a call that was dropped: its rows are this one's.
        if self.claiming.is_none() {
            self.ask(Instant::now(), Asked::Rows(mode));
        }
        let (asked, wanted, answer) = finished(&mut self.claiming).await;
        let claim = answer?;
        let found = !(claim.rows.is_empty() && claim.undecodable.is_empty() && claim.buried.is_empty());
        let suspects = claim.suspects || (wanted == Asked::Rows(ClaimMode::Suspect) && found);
        self.claimed(asked, &wanted, Ok(claim));
        while !self.held.is_empty() {
            let now = Instant::now();
            self.start_settle();
            self.start_dispatches(now);
            self.start_extend(now);
            self.turn(now).await;
        }
        Ok(ByHand { suspects, found })
    }

    /// Waits for whatever happens next and takes it in. `now` is when it was last looked what is to be done: whatever has
    /// become due since then is due now, and must not be slept over.
    pub(super) async fn turn(&mut self, now: Instant) {
        let idle = self.claiming.is_none() && self.next_claim > now && self.standing == Standing::Active;
        let wake_at = self.next_deadline(now);
        // Those of a sink that is down go back one after the other. That would leave suspects no moment in which nothing is at work.
        let down = self.lanes.iter().any(|lane| lane.circuit.is_open());
        let admits = self.stopping || !(self.suspects.turn && down);
        tokio::select! {
            Some(report) = self.reports.recv() => {
                self.ended(report);
                while let Ok(report) = self.reports.try_recv() {
                    self.ended(report);
                }
            }
            Some(event) = hot::next(&mut self.hot), if admits => self.arrived(event),
            (asked, wanted, answer) = finished(&mut self.claiming) => self.claimed(asked, &wanted, answer),
            (batch, settled) = finished(&mut self.settling) => {
                // First: the database need not wait until all of this has been taken in.
                self.start_settle();
                self.settled(batch, &settled);
            }
            (leases, renewed) = finished(&mut self.extending) => self.extended(&leases, renewed),
            () = self.store.wait(self.next_claim.saturating_duration_since(now)), if idle => self.next_claim = Instant::now(),
            () = tokio::time::sleep_until(wake_at) => {}
        }
        while self.units.try_join_next().is_some() {}
    }

    /// When something has to be done that no answer or report will bring about. What is due already and was not done
    /// waits for one of those.
    pub(super) fn next_deadline(&self, now: Instant) -> Instant {
        let probes = self.lanes.iter().filter_map(|lane| lane.circuit.probe_at());
        let extend = self.next_extend.max(self.extend_pause);
        let times =
            [self.next_beat, extend, self.next_claim, self.suspects.not_before, self.detour.not_before];
        let future = probes.chain(times).chain(self.gathers_until()).filter(|at| *at > now);
        future.min().unwrap_or(now + self.settings.poll_interval)
    }

    /// Starts all that is due, and answers as of when.
    pub(super) fn start_work(&mut self) -> Instant {
        let now = Instant::now();
        self.health.update(|health| health.last_turn = std::time::Instant::now());
        self.open_hot();
        // First, so that it is under way while others are got ready; and it knows whether hot events still wait for suspects. What it
        // gives back for these is settled at once: nobody else would wake the loop for it.
        self.start_claim(now);
        self.start_settle();
        self.start_dispatches(now);
        self.start_extend(now);
        now
    }
}

/// Waits for a task, if there is one. Cancel safe: the task goes on and stays in its place until it is over.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> T {
    match task {
        Some(handle) => {
            let ended = handle.await;
            *task = None;
            // A store that panics is a bug; its caller must not go on as if the answer were known.
            ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
        }
        None => std::future::pending().await,
    }
}
