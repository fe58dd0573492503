//! [`RelayHealth`]: whether events flow, readable from any thread while the relay runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use uuid::Uuid;

use super::deliveries::Deliveries;
use super::engine::Engine;
use super::lane::Lane;
use crate::hash::RowMap;
use crate::store::{Standing, Store};

/// What a relay is doing right now.
#[derive(Debug, Clone)]
pub struct Health {
    /// Whether its table was reached at all.
    pub opened: bool,
    /// Whether it may work.
    pub standing: Standing,
    /// When its loop last turned: old means that it is stuck.
    pub last_turn: Instant,
    /// When it last delivered an event.
    pub last_delivery: Option<Instant>,
    /// Since when events wait and none was delivered.
    pub waiting_since: Option<Instant>,
    /// The error that keeps it from working, if one does.
    pub error: Option<String>,
    /// Its sinks.
    pub sinks: Vec<SinkHealth>,
}

/// What is known of a sink.
#[derive(Debug, Clone)]
pub struct SinkHealth {
    /// Its name.
    pub name: Arc<str>,
    /// Since when its circuit is open.
    pub open_since: Option<Instant>,
    /// When it is tried again, while its circuit is open.
    pub probe_at: Option<Instant>,
    /// Its last error.
    pub last_error: Option<String>,
    /// What it has confirmed; goes on by itself, unlike the rest.
    pub deliveries: Deliveries,
}

/// Shared access to a relay's [`Health`].
#[derive(Debug, Clone)]
pub struct RelayHealth {
    /// The name of its database, where there are several.
    database: Option<Arc<str>>,
    table: Arc<str>,
    patience: Duration,
    state: Arc<Mutex<Health>>,
    opened: watch::Sender<bool>,
}

impl RelayHealth {
    pub(super) fn new(database: Option<&str>, table: &str, poll_interval: Duration) -> Self {
        let state = Health {
            opened: false,
            standing: Standing::Standby,
            last_turn: Instant::now(),
            last_delivery: None,
            waiting_since: None,
            error: None,
            sinks: Vec::new(),
        };
        let patience = (poll_interval * 3).max(Duration::from_secs(15));
        let (state, opened) = (Arc::new(Mutex::new(state)), watch::Sender::new(false));
        Self { database: database.map(Into::into), table: table.into(), patience, state, opened }
    }

    /// The name of the relay's database, where a process works on several.
    pub fn database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    /// The relay's table.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// What it is doing now.
    pub fn now(&self) -> Health {
        self.lock().clone()
    }

    /// Why it is not delivering although it should, if that is so. A standby and a paused relay are well.
    pub fn problem(&self) -> Option<String> {
        let health = self.now();
        let table = match self.database() {
            Some(database) => format!("{} in {database}", self.table),
            None => self.table.to_string(),
        };
        if let Some(error) = health.error {
            return Some(format!("the relay of {table} cannot work: {error}"));
        }
        if health.last_turn.elapsed() > self.patience {
            return Some(format!("the relay of {table} is stuck for {:?}", health.last_turn.elapsed()));
        }
        if !health.opened {
            return Some(format!("the relay of {table} has not reached its table yet"));
        }
        let since = health.waiting_since.filter(|since| since.elapsed() > self.patience)?;
        let why =
            health.sinks.iter().find(|sink| sink.open_since.is_some()).map_or_else(String::new, |sink| {
                format!(": {} is down: {}", sink.name, sink.last_error.as_deref().unwrap_or("no answer"))
            });
        (health.standing == Standing::Active).then(|| {
            let seconds = since.elapsed().as_secs();
            format!("events of {table} wait for {seconds}s and none is delivered{why}")
        })
    }

    /// Waits until the table was reached.
    ///
    /// # Cancel safety
    /// Only waits; it can be dropped and called again.
    pub async fn opened(&self) {
        // The sender is in our own hands, so this cannot fail.
        let _ = self.opened.subscribe().wait_for(|opened| *opened).await;
    }

    pub(super) fn note_opened(&self) {
        self.update(|health| (health.opened, health.error) = (true, None));
        self.opened.send_replace(true);
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut Health)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Health> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events that failed and wait for their next attempt: while there are some, events wait.
#[derive(Debug, Default)]
pub(super) struct Failing(RowMap<Uuid, Instant>);

impl Failing {
    /// So many are remembered, and no longer than the longest of the usual waits twice: another relay may have delivered
    /// them.
    const KEPT: usize = 1000;
    const KEPT_FOR: Duration = Duration::from_mins(2);

    /// One has failed and will be tried again.
    pub(super) fn note(&mut self, row: Uuid) {
        if self.0.len() < Self::KEPT {
            self.0.insert(row, Instant::now());
        }
    }

    /// One has ended in another way, or is another relay's.
    pub(super) fn forget(&mut self, row: &Uuid) {
        self.0.remove(row);
    }

    fn any(&mut self) -> bool {
        self.0.retain(|_, since| since.elapsed() < Self::KEPT_FOR);
        !self.0.is_empty()
    }
}

impl<S: Store> Engine<S> {
    /// Says whether events wait.
    pub(super) fn note_waiting(&mut self) {
        let down = |lane: &Lane| lane.circuit.is_open() && !lane.nothing_waits;
        let waits = !self.held.is_empty() || self.failing.any() || self.lanes.iter().any(down);
        self.health.update(|health| match (waits, health.waiting_since) {
            (true, None) => health.waiting_since = Some(Instant::now()),
            (false, Some(_)) => health.waiting_since = None,
            _ => {}
        });
        // When one that is down is tried again changes with every probe.
        if self.lanes.iter().any(|lane| lane.circuit.is_open()) {
            self.note_sinks();
        }
    }

    /// Says how its sinks are.
    pub(super) fn note_sinks(&self) {
        let sinks = self.lanes.iter().map(|lane| SinkHealth {
            name: Arc::clone(&lane.name),
            open_since: lane.circuit.open_since().map(tokio::time::Instant::into_std),
            probe_at: lane.circuit.probe_at().map(tokio::time::Instant::into_std),
            last_error: lane.last_error.clone(),
            deliveries: lane.deliveries.clone(),
        });
        let sinks = sinks.collect();
        self.health.update(|health| health.sinks = sinks);
    }
}
