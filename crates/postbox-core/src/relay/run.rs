//! ③ The loop: wait, claim, dispatch, settle.
//!
//! One task owns all state. It starts claims, dispatches and settles as tasks of their own and never waits for one of
//! them alone, so the next claim overlaps with the dispatch and the settle of the last, and nothing is interrupted
//! half-way: `select!` only ever drops the *waiting* for a task, never the task.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tracing::Instrument as _;
use uuid::Uuid;

use super::RunReport;
use super::backoff::Backoff;
use super::dead_letter::AfterDeath;
use super::dispatch::{Dispatching, Report};
use super::error::RelayError;
use super::health::RelayHealth;
use super::hot;
use super::lane::{self, Item, Lane};
use super::lease::{Held, HeldKey, Renewal, Stage, key};
use super::order::Strands;
use super::settings::Settings;
use super::settle::Outcomes;
use super::tracker::Tracker;
use crate::hash::RowMap;
use crate::hot::HotEnd;
use crate::letter::Requirements;
use crate::route::Routes;
use crate::store::{Claim, ClaimMode, Settled, Standing, Store, StoreError, StoreErrorKind};
use crate::telemetry::Telemetry;

/// The state of a relay.
#[derive(Debug)]
pub(super) struct Engine<S: Store> {
    pub(super) store: S,
    pub(super) settings: Arc<Settings>,
    pub(super) routes: Routes,
    pub(super) lanes: Vec<Lane>,
    pub(super) telemetry: Telemetry,
    pub(super) health: RelayHealth,

    /// Every row that is leased to this relay, from its claim to the end of its settle.
    pub(super) held: RowMap<HeldKey, Held>,
    /// How many of these came by the hot path.
    pub(super) held_hot: usize,
    /// The relay's end of the hot path.
    pub(super) hot: Option<HotEnd>,
    pub(super) tracker: Tracker,
    /// What waits behind others of its aggregate.
    pub(super) strands: Strands,
    /// Events that failed and wait for their next attempt, as far as they fit: while there are some, events wait.
    pub(super) failing: RowMap<Uuid, Instant>,
    /// What is to be settled next.
    pub(super) outcomes: Outcomes,

    pub(super) dispatching: Dispatching,
    pub(super) reports: UnboundedReceiver<Report>,
    pub(super) units: JoinSet<()>,
    pub(super) claiming: Option<JoinHandle<Answer>>,
    pub(super) settling: Option<JoinHandle<(Outcomes, Settled)>>,
    pub(super) extending: Option<JoinHandle<Renewal>>,

    pub(super) standing: Standing,
    /// Whether the table is paused; not known before the first answer.
    pub(super) paused: Option<bool>,
    /// The lane that the claim under way is a probe for.
    pub(super) probing: Option<usize>,
    pub(super) next_claim: Instant,
    pub(super) next_beat: Instant,
    pub(super) next_extend: Instant,
    /// Not before this, after a renewal that failed.
    pub(super) extend_pause: Instant,
    /// The last claim left out tenants that had their share: there may be more as soon as they have less.
    pub(super) left_out_tenants: bool,
    /// And these lanes, which were full. No such claim is made before `detour_from`.
    pub(super) left_out_lanes: Vec<usize>,
    pub(super) detour_from: Instant,
    /// They have less since that claim was asked.
    pub(super) have_less: bool,
    pub(super) failures: i32,
    pub(super) suspects: Suspects,
    pub(super) report: RunReport,
    pub(super) stopping: bool,
    /// What is done about dead events, until its task takes it.
    pub(super) after_death: Option<AfterDeath<S>>,
    /// What the store has to be able to do.
    pub(super) needs: Requirements,
    /// What it does about a refusal at its start.
    pub(super) refused: Refused,
}

/// What a relay does whose table is missing, or that lacks a grant, when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// It ends.
    Ends,
    /// It waits until that is mended.
    Waits,
}

/// A claim's answer, with when it was asked (leases count from before the question) and what for.
pub(super) type Answer = (Instant, Asked, Result<Claim, StoreError>);

/// What a claim asked for; nothing, to show that the relay lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Rows(ClaimMode),
    Nothing,
}

/// Suspects are dispatched with nothing else in flight, so the relay takes turns: some of them, then the others.
#[derive(Debug)]
pub(super) struct Suspects {
    /// Rows whose lease ran out were seen.
    pub(super) waiting: bool,
    /// Whether the relay claims nothing else.
    pub(super) turn: bool,
    /// When the first suspect of this turn was claimed.
    pub(super) turn_since: Option<Instant>,
    /// Not before this, so that the others get their turn.
    pub(super) not_before: Instant,
}

/// So many events that wait after a failure are remembered, and no longer than the longest of the usual waits twice: another
/// relay may have delivered them.
pub(super) const FAILING_KEPT: usize = 1000;
pub(super) const FAILING_FOR: Duration = Duration::from_mins(2);

/// How long a stop waits for the store to give up its place.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A turn of suspects ends after this long (but not before one was tried).
pub(super) const SUSPECTS_TURN: Duration = Duration::from_secs(1);

impl<S: Store> Engine<S> {
    pub(super) fn new(
        store: S,
        settings: Arc<Settings>,
        routes: Routes,
        lanes: Vec<Lane>,
        telemetry: Telemetry,
        hot: Option<HotEnd>,
    ) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        let now = Instant::now();
        let tracker = Tracker::new(settings.dispatch_timeout * 2);
        let strands = Strands::new(store.order());
        let mut lanes = lanes;
        if store.fair_tenants() {
            lanes.iter_mut().for_each(Lane::share);
        }
        Self {
            health: RelayHealth::new(telemetry.database(), store.table(), settings.poll_interval),
            dispatching: Dispatching {
                settings: Arc::clone(&settings),
                telemetry: telemetry.clone(),
                reports: sender,
                counted: true,
            },
            next_extend: now + settings.lock_ttl / 3,
            store,
            settings,
            routes,
            lanes,
            telemetry,
            held: RowMap::default(),
            held_hot: 0,
            hot,
            tracker,
            strands,
            failing: RowMap::default(),
            probing: None,
            outcomes: Outcomes::default(),
            reports,
            units: JoinSet::new(),
            claiming: None,
            settling: None,
            extending: None,
            standing: Standing::Standby,
            paused: None,
            next_claim: now,
            next_beat: now,
            extend_pause: now,
            left_out_tenants: false,
            left_out_lanes: Vec::new(),
            detour_from: now,
            have_less: false,
            failures: 0,
            suspects: Suspects { waiting: false, turn: false, turn_since: None, not_before: now },
            report: RunReport::default(),
            stopping: false,
            after_death: None,
            needs: Requirements::default(),
            refused: Refused::Ends,
        }
    }

    pub(super) fn health(&self) -> RelayHealth {
        self.health.clone()
    }

    /// Runs until the signal, then drains.
    pub(super) async fn run(&mut self, signal: impl Future<Output = ()> + Send) -> Result<(), RelayError> {
        let mut signal = pin!(signal);
        tokio::select! {
            () = &mut signal => return Ok(()),
            opened = self.open() => opened?,
        }
        let beside = self.start_beside();
        loop {
            let looked = self.start_work();
            tokio::select! {
                biased;
                () = &mut signal => break,
                () = self.turn(looked) => {}
            }
        }
        beside.stop();
        self.drain().await;
        beside.ended(self.settings.drain_timeout.max(CLOSE_LIMIT)).await;
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
        // A database that is silent notices by itself that this relay is gone.
        let _ = tokio::time::timeout(CLOSE_LIMIT, self.store.close()).await;
        self.telemetry.leader(false);
    }

    /// One batch by hand, then the suspects it found.
    pub(super) async fn run_once(&mut self) -> Result<RunReport, RelayError> {
        self.report = RunReport::default();
        self.open_store().await?;
        self.health.note_opened();
        let mut mode = ClaimMode::Waiting;
        loop {
            let limit = if mode == ClaimMode::Waiting { self.settings.batch_size } else { 1 };
            let request = self.request(mode.clone(), limit);
            let asked = Instant::now();
            let claim = self.store.claim(request).await?;
            let more_suspects = claim.suspects || (mode == ClaimMode::Suspect && !claim.rows.is_empty());
            self.claimed(asked, &Asked::Rows(mode.clone()), Ok(claim));
            while !self.held.is_empty() {
                let now = Instant::now();
                self.start_settle();
                self.start_dispatches(now);
                self.start_extend(now);
                self.turn(now).await;
            }
            if !more_suspects {
                self.dead_once().await?;
                return Ok(self.report);
            }
            mode = ClaimMode::Suspect;
        }
    }

    /// Waits for whatever happens next and takes it in. `now` is when it was last looked what is to be done: whatever has
    /// become due since then is due now, and must not be slept over.
    pub(super) async fn turn(&mut self, now: Instant) {
        let idle = self.claiming.is_none() && self.next_claim > now && self.standing == Standing::Active;
        let wake_at = self.next_deadline(now);
        tokio::select! {
            Some(report) = self.reports.recv() => {
                self.ended(report);
                while let Ok(report) = self.reports.try_recv() {
                    self.ended(report);
                }
            }
            Some(event) = hot::next(&mut self.hot) => self.arrived(event),
            (asked, wanted, answer) = finished(&mut self.claiming) => self.claimed(asked, &wanted, answer),
            (batch, settled) = finished(&mut self.settling) => {
                // First: the database need not wait until all of this has been taken in.
                self.start_settle();
                self.settled(batch, settled);
            }
            (leases, lost) = finished(&mut self.extending) => self.extended(leases, lost),
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
        let times = [self.next_beat, extend, self.next_claim, self.suspects.not_before, self.detour_from];
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

    pub(super) fn start_dispatches(&mut self, now: Instant) {
        let must_last = now + self.settings.dispatch_timeout;
        let alone = self.suspects.turn;
        for number in 0..self.lanes.len() {
            self.lanes[number].queue.hold_hot = alone;
            while let Some(unit) = self.lanes[number].next_unit() {
                // A lease that cannot cover the timeout is renewed first (hazard 2).
                let until = |item: &Item| self.held.get(&key(&item.lease)).map(|held| held.lease_until);
                if unit.iter().filter_map(until).any(|until| until < must_last) {
                    let lane = &mut self.lanes[number];
                    lane.over(lane::tenant_of(&unit));
                    unit.into_iter().rev().for_each(|item| lane.queue.push_front(item));
                    self.next_extend = self.next_extend.min(now);
                    break;
                }
                for item in &unit {
                    self.tracker.start(item.delivery.meta.event_id, now);
                    if let Some(held) = self.held.get_mut(&key(&item.lease)) {
                        held.stage = Stage::Running;
                        if let Some(fan) = &mut held.fan {
                            fan.start(number);
                        }
                    }
                }
                let sink = self.lanes[number].sink.clone();
                self.units.spawn(self.dispatching.clone().run(number, sink, unit).in_current_span());
            }
        }
    }

    pub(super) fn ended(&mut self, report: Report) {
        let now = Instant::now();
        self.note_deliveries(&report);
        if report.over {
            self.lanes[report.lane].over(report.tenant);
        }
        let lane = &mut self.lanes[report.lane];
        lane.careful = lane.careful.max(report.silent);
        for ended in report.ended {
            self.tracker.end(ended.event_id);
            self.note_circuit(report.lane, &ended, now);
            let put_off = self.lanes[report.lane].put_off(now);
            self.conclude(report.lane, ended, put_off);
        }
        for item in report.again.into_iter().rev() {
            self.tracker.end(item.delivery.meta.event_id);
            let lane = &mut self.lanes[report.lane];
            if self.stopping || (lane.circuit.is_open() && !item.probe) {
                let (after, reason) = (lane.put_off(now), lane.down(&self.settings));
                self.give_back(report.lane, item.lease, after, reason);
            } else if let Some(held) = self.held.get_mut(&key(&item.lease)) {
                held.stage = held.fan.as_mut().map_or(Stage::Queued, |fan| fan.requeue(report.lane));
                lane.queue.push_front(item);
            }
        }
    }
}

/// Waits for a task, if there is one. Cancel safe: the task goes on and stays in its place until it is over.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> T {
    match task {
        Some(handle) => match handle.await {
            Ok(value) => {
                *task = None;
                value
            }
            // A store that panics is a bug; its caller must not go on as if the answer were known.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        },
        None => std::future::pending().await,
    }
}
