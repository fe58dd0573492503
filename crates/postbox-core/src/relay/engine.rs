//! [`Engine`]: all that a relay knows, in the hands of one task.
//!
//! Its steps are in the files beside it, in the order of an event's way: `run.rs` is the loop, `claim.rs` asks for rows and
//! `accept.rs` takes them in, `dispatch.rs` sends them, `settle.rs` writes what became of them.

use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::RunReport;
use super::after_death::AfterDeath;
use super::claim::{Answer, Detour};
use super::health::{Failing, RelayHealth};
use super::lane::Lane;
use super::lease::{Held, HeldKey, Renewal};
use super::order::Strands;
use super::settings::Settings;
use super::settle::Outcomes;
use super::suspect::Suspects;
use super::tracker::Tracker;
use super::unit::{Dispatching, Report};
use crate::hash::RowMap;
use crate::hot::HotEnd;
use crate::letter::Requirements;
use crate::route::Routes;
use crate::store::{Settled, Standing, Store};
use crate::telemetry::Telemetry;

/// The state of a relay.
#[derive(Debug)]
pub(super) struct Engine<S: Store> {
    // What it was built with.
    pub(super) store: S,
    pub(super) settings: Arc<Settings>,
    pub(super) routes: Routes,
    pub(super) telemetry: Telemetry,
    /// What the store has to be able to do.
    pub(super) needs: Requirements,
    /// What it does about a refusal at its start.
    pub(super) refused: Refused,
    /// What is done about dead events, until its task takes it.
    pub(super) after_death: Option<AfterDeath<S>>,

    // The rows that it has.
    pub(super) lanes: Vec<Lane>,
    /// Every row that is leased to this relay, from its claim to the end of its settle.
    pub(super) held: RowMap<HeldKey, Held>,
    /// How many of these came by the hot path.
    pub(super) held_hot: usize,
    /// How many of the others somebody else has locked, so that they cannot be settled.
    pub(super) held_busy: usize,
    /// The relay's end of the hot path.
    pub(super) hot: Option<HotEnd>,
    pub(super) tracker: Tracker,
    /// What waits behind others of its aggregate.
    pub(super) strands: Strands,
    /// What is to be settled next.
    pub(super) outcomes: Outcomes,

    // The tasks that it has started.
    pub(super) dispatching: Dispatching,
    pub(super) reports: UnboundedReceiver<Report>,
    pub(super) units: JoinSet<()>,
    pub(super) claiming: Option<JoinHandle<Answer>>,
    pub(super) settling: Option<JoinHandle<(Outcomes, Settled)>>,
    pub(super) extending: Option<JoinHandle<Renewal>>,

    // What it may do, and when.
    pub(super) standing: Standing,
    /// Whether the table is paused; not known before the first answer.
    pub(super) paused: Option<bool>,
    pub(super) stopping: bool,
    /// Claims that failed, one after the other.
    pub(super) failures: i32,
    pub(super) next_claim: Instant,
    pub(super) next_beat: Instant,
    pub(super) next_extend: Instant,
    /// Not before this, after a renewal that failed.
    pub(super) extend_pause: Instant,
    /// The lane that the claim under way is a probe for.
    pub(super) probing: Option<usize>,
    pub(super) suspects: Suspects,
    pub(super) detour: Detour,

    // What it says of itself.
    pub(super) health: RelayHealth,
    pub(super) failing: Failing,
    pub(super) report: RunReport,
}

/// What a relay does whose table is missing, or that lacks a grant, when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// It ends.
    Ends,
    /// It waits until that is mended.
    Waits,
}

impl<S: Store> Engine<S> {
    pub(super) fn new(
        store: S,
        settings: Arc<Settings>,
        routes: Routes,
        mut lanes: Vec<Lane>,
        telemetry: Telemetry,
        hot: Option<HotEnd>,
    ) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        let now = Instant::now();
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
            tracker: Tracker::new(settings.dispatch_timeout * 2),
            strands: Strands::new(store.order()),
            next_extend: now + settings.lock_ttl / 3,
            store,
            settings,
            routes,
            telemetry,
            needs: Requirements::default(),
            refused: Refused::Ends,
            after_death: None,
            lanes,
            held: RowMap::default(),
            held_hot: 0,
            held_busy: 0,
            hot,
            outcomes: Outcomes::default(),
            reports,
            units: JoinSet::new(),
            claiming: None,
            settling: None,
            extending: None,
            standing: Standing::Standby,
            paused: None,
            stopping: false,
            failures: 0,
            next_claim: now,
            next_beat: now,
            extend_pause: now,
            probing: None,
            suspects: Suspects::new(now),
            detour: Detour::new(now),
            failing: Failing::default(),
            report: RunReport::default(),
        }
    }

    pub(super) fn health(&self) -> RelayHealth {
        self.health.clone()
    }
}
