//! Changes of many rows: they run here, at their pace, whether anybody watches or not, and say truthfully what came of them.
//!
//! They live in this process and end with it; what they have changed is in the audit log, batch by batch.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::{broadcast, watch};
use uuid::Uuid;

use super::Shared;
use super::answer::{Answer, Refusal, ok, time};
use super::fields::Fields;
use super::run::{self, Work};
use super::table::Table;
use crate::render::thousands;

/// So many run at a time, and so many are remembered.
const MOST_RUNNING: usize = 4;
const REMEMBERED: usize = 50;

/// News that a slow reader has not read are lost for it; the next overview has the number that run.
const NEWS: usize = 64;

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    ReplayDead,
    DiscardDead,
    ReplayPublished,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::ReplayDead => "replay_dead",
            Self::DiscardDead => "discard_dead",
            Self::ReplayPublished => "replay_published",
        }
    }

    fn done(self) -> &'static str {
        if self == Self::DiscardDead { "discarded" } else { "replayed" }
    }
}

/// What is to be done.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) who: String,
    /// Which events, in words.
    pub(super) what: String,
    pub(super) command: String,
    /// Never more than these.
    pub(super) rows: u64,
    pub(super) rate: Option<f64>,
    /// How long what becomes of them is looked at.
    pub(super) watch: Duration,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Watching,
    Done,
    Stopped,
    Failed,
}

impl Phase {
    fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Watching => "watching",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Stopped | Self::Failed)
    }
}

/// What has come of it so far.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    pub(super) done: u64,
    pub(super) delivered: u64,
    pub(super) dead_again: u64,
    pub(super) waiting: u64,
    pub(super) gone: u64,
    pub(super) left: u64,
    pub(super) error: Option<Refusal>,
    ended: Option<OffsetDateTime>,
}

/// A job.
pub(super) struct Job {
    pub(super) id: Uuid,
    pub(super) table: Arc<Table>,
    pub(super) plan: Plan,
    started: OffsetDateTime,
    progress: Mutex<Progress>,
    pub(super) stop: watch::Sender<bool>,
    news: broadcast::Sender<Arc<str>>,
}

impl Job {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what has changed, and tells whoever listens.
    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        {
            let mut progress = self.lock();
            change(&mut progress);
            if progress.phase.is_over() && progress.ended.is_none() {
                progress.ended = Some(OffsetDateTime::now_utc());
            }
        }
        // Nobody listens: nobody has to be told.
        let _ = self.news.send(self.to_json().to_string().into());
    }

    pub(super) fn progress(&self) -> Progress {
        self.lock().clone()
    }

    pub(super) fn to_json(&self) -> Value {
        let (plan, now) = (&self.plan, self.progress());
        json!({
            "id": self.id,
            "kind": plan.kind.as_str(),
            "table": self.table.id,
            "state": now.phase.as_str(),
            "who": plan.who,
            "where": plan.what,
            "command": plan.command,
            "rate": plan.rate,
            "rows": plan.rows,
            "done": now.done,
            "delivered": now.delivered,
            "dead_again": now.dead_again,
            "waiting": now.waiting,
            "gone": now.gone,
            "left": now.left,
            "started_at": time(self.started),
            "ended_at": now.ended.map(time),
            "error": now.error.as_ref().map(Refusal::to_json),
            "sentence": sentence(plan, &now),
        })
    }
}

fn sentence(plan: &Plan, now: &Progress) -> String {
    let mut text = format!("{} {} of {}", plan.kind.done(), thousands(now.done), thousands(plan.rows));
    let parts: Vec<String> = [
        (now.delivered, "delivered"),
        (now.dead_again, "dead again"),
        (now.waiting, "waiting"),
        (now.gone, "gone"),
        (now.left, "left alone: others changed them meanwhile, or hold them"),
    ]
    .into_iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, what)| format!("{} {what}", thousands(number)))
    .collect();
    if !parts.is_empty() {
        text = format!("{text}: {}", parts.join(", "));
    }
    match (now.phase, &now.error) {
        (Phase::Stopped, _) => format!("{text}; stopped before the end"),
        (Phase::Failed, Some(error)) => format!("{text}; then it failed: {}", error.message()),
        _ => text,
    }
}

/// All of them.
pub(super) struct Jobs {
    all: Mutex<VecDeque<Arc<Job>>>,
    news: broadcast::Sender<Arc<str>>,
}

impl Jobs {
    pub(super) fn new() -> Self {
        Self { all: Mutex::default(), news: broadcast::Sender::new(NEWS) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to them, from now on.
    pub(super) fn news(&self) -> broadcast::Receiver<Arc<str>> {
        self.news.subscribe()
    }

    /// How many run.
    pub(super) fn running(&self) -> usize {
        self.lock().iter().filter(|job| !job.progress().phase.is_over()).count()
    }

    /// Starts one.
    pub(super) fn start(&self, table: &Arc<Table>, plan: Plan, work: Work) -> Result<Value, Refusal> {
        if self.running() >= MOST_RUNNING {
            return Err(Refusal::busy(format!("{MOST_RUNNING} jobs run already")));
        }
        let progress = Progress {
            phase: Phase::Running,
            done: 0,
            delivered: 0,
            dead_again: 0,
            waiting: 0,
            gone: 0,
            left: 0,
            error: None,
            ended: None,
        };
        let job = Arc::new(Job {
            id: Uuid::now_v7(),
            table: Arc::clone(table),
            plan,
            started: OffsetDateTime::now_utc(),
            progress: Mutex::new(progress),
            stop: watch::Sender::new(false),
            news: self.news.clone(),
        });
        {
            let mut all = self.lock();
            all.push_front(Arc::clone(&job));
            while all.len() > REMEMBERED {
                // The oldest that is over; those that run are few.
                let Some(at) = all.iter().rposition(|job| job.progress().phase.is_over()) else { break };
                all.remove(at);
            }
        }
        let value = job.to_json();
        tokio::spawn(run::to_the_end(job, work));
        Ok(value)
    }

    fn find(&self, id: &str) -> Result<Arc<Job>, Refusal> {
        let id = Uuid::try_parse(id).map_err(|_| Refusal::request("the id of the job is not a UUID"))?;
        let found = self.lock().iter().find(|job| job.id == id).cloned();
        found.ok_or_else(|| {
            Refusal::not_found(format!("there is no job {id} here"))
                .next("jobs end with the process that has them")
        })
    }
}

/// Those that are remembered, the latest first.
pub(super) async fn list(State(admin): Shared) -> Response {
    let jobs: Vec<Arc<Job>> = admin.jobs.lock().iter().cloned().collect();
    let jobs: Vec<Value> = jobs.iter().map(|job| job.to_json()).collect();
    ok(&json!({ "jobs": jobs }))
}

/// One of them.
pub(super) async fn show(State(admin): Shared, Path(id): Path<String>) -> Answer {
    Ok(ok(&admin.jobs.find(&id)?.to_json()))
}

/// Stops one after the batch that it is at.
pub(super) async fn stop(State(admin): Shared, Path(id): Path<String>, body: Body) -> Answer {
    Fields::of_body(body, &[]).await?;
    let job = admin.jobs.find(&id)?;
    job.stop.send_replace(true);
    // It notices at once, unless the database is slow.
    let over = async {
        while !job.progress().phase.is_over() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), over).await;
    Ok(ok(&job.to_json()))
}
