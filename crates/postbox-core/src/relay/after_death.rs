//! What becomes of dead events: they go to the dead-letter route (`dead_letter.rs`), and some are tried again by themselves.
//!
//! Both run beside the loop in a task of their own, with leases of their own, so that nothing that lives waits for what is
//! dead. A batch is claimed, sent and settled before the next is looked at; a lease outlasts that, so none is renewed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::circuit::Circuit;
use super::dead_letter::{Posted, Route};
use super::engine::Engine;
use super::health::RelayHealth;
use super::settings::Settings;
use crate::dispatcher::BoxDispatcher;
use crate::letter::{LetterVerdict, Redrive, Requirements};
use crate::panic::catch;
use crate::store::{Lease, Standing, Store, StoreError};
use crate::telemetry::Telemetry;

/// The rest between two full batches, as a part of the poll interval: what is dead is in no hurry.
const REST: u32 = 10;

/// How often dead events are looked at that could be tried again, at the least.
const REDRIVE_EVERY: Duration = Duration::from_mins(1);

/// What a relay does with dead events.
#[derive(Debug)]
pub(super) struct AfterDeath<S: Store> {
    pub(super) store: S,
    pub(super) settings: Arc<Settings>,
    pub(super) telemetry: Telemetry,
    health: RelayHealth,
    pub(super) route: Option<Route>,
    /// What became of letters, until it is written down: those whose rows somebody has locked wait until these are free.
    pub(super) unsettled: Vec<(Lease, LetterVerdict)>,
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
                // It may panic again: then the next relay sends once more what arrived.
                let _ = catch(AssertUnwindSafe(self.settle())).await;
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
            } else {
                // Whoever leads by now would send again what has arrived.
                self.settle().await;
            }
            let stopped = tokio::time::timeout(rest, stop.wait_for(|stop| *stop)).await.is_ok();
            if stopped {
                self.settle().await;
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
