//! How a job runs: batch after batch at its pace, with an eye on what becomes of the events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use postbox_core::{Browse as _, EventId, EventStatus, Published, StoreError};
use postbox_stores::any::AnyAdmin;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::Refusal;
use super::jobs::{Job, Kind, Phase, Progress};
use crate::cmd::chosen::{Act, Began, Chosen, Picker};
use crate::cmd::replay::{next_due, step};

/// What becomes of events is looked at so often, and at so many at a time.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_AT: usize = 2_000;

/// No batch takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a job is about.
pub(super) enum Work {
    /// Dead events, as they were at this time.
    Dead(Chosen, Began),
    /// Published ones.
    Published(Published),
}

/// Runs a job, whatever comes of it.
pub(super) async fn to_the_end(job: Arc<Job>, work: Work) {
    let result = Box::pin(run(&job, &work)).await;
    job.update(|progress| {
        let stopped = *job.stop.borrow() && progress.done < job.plan.rows;
        progress.phase = match result {
            Ok(()) if stopped => Phase::Stopped,
            Ok(()) => Phase::Done,
            Err(_) => Phase::Failed,
        };
        if progress.phase == Phase::Done {
            progress.left = job.plan.rows.saturating_sub(progress.done);
        }
        progress.error = result.err();
    });
    let (now, plan) = (job.progress(), &job.plan);
    tracing::info!(
        table = %job.table.name, who = plan.who, command = plan.command, done = now.done, delivered = now.delivered,
        dead_again = now.dead_again, waiting = now.waiting, "a job of the admin API ended"
    );
}

async fn run(job: &Job, work: &Work) -> Result<(), Refusal> {
    let store = &job.table.admin;
    let mut source = match work {
        Work::Dead(chosen, began) => {
            let act = if job.plan.kind == Kind::DiscardDead { Act::Discard } else { Act::Replay };
            Source::Dead(Picker::new(store, chosen, *began, job.plan.rows, &job.plan.who, act))
        }
        Work::Published(which) => Source::Published(store, which, &job.plan.who),
    };
    let (batch, pause) = step(job.plan.rate);
    let (mut stop, mut fates) = (job.stop.subscribe(), Fates::default());
    let (mut due, mut look) = (Instant::now(), Instant::now() + LOOK_EVERY);
    loop {
        let left = job.plan.rows.saturating_sub(job.progress().done);
        let take = u32::try_from(left).unwrap_or(batch).min(batch);
        if take == 0 || *stop.borrow() {
            break;
        }
        let got = in_time(job, source.next(take)).await?;
        if got.is_empty() {
            break;
        }
        job.update(|progress| {
            progress.done += got.len() as u64;
            if job.plan.kind != Kind::DiscardDead {
                progress.waiting += got.len() as u64;
            }
        });
        if job.plan.kind != Kind::DiscardDead {
            fates.open.extend(got);
        }
        // What a slow database has delayed is not made up for: the pace is what receivers can take.
        due = next_due(due, pause, Instant::now());
        // Until the next batch is due, what becomes of the ones before is looked at.
        while let Some(until) = sleep_until(&mut stop, due.min(look)).await {
            if Instant::now() >= look {
                fates.look(job, store).await?;
                look = Instant::now() + LOOK_EVERY;
            }
            if until >= due {
                break;
            }
        }
    }
    job.update(|progress| progress.phase = Phase::Watching);
    let end = Instant::now() + job.plan.watch;
    loop {
        fates.look_at_all(job, store).await?;
        if fates.open.is_empty() || Instant::now() >= end || *stop.borrow() {
            return Ok(());
        }
        sleep_until(&mut stop, Instant::now() + LOOK_EVERY).await;
    }
}

/// Sleeps until then and answers it; none if it is to stop.
async fn sleep_until(stop: &mut watch::Receiver<bool>, then: Instant) -> Option<Instant> {
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => None,
        () = tokio::time::sleep_until(then) => Some(then),
    }
}

async fn in_time<T>(job: &Job, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, Refusal> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(result) => result.map_err(|error| Refusal::store(&job.table.name, &error)),
        Err(_) => Err(Refusal::too_late(&job.table.name)),
    }
}

/// Where the next events come from; they are changed when they come.
enum Source<'a> {
    Dead(Picker<'a, AnyAdmin>),
    Published(&'a AnyAdmin, &'a Published, &'a str),
}

impl Source<'_> {
    async fn next(&mut self, take: u32) -> Result<Vec<EventId>, StoreError> {
        match self {
            Self::Dead(picker) => picker.next(take).await,
            Self::Published(store, which, who) => store.replay_published(which, take, who).await,
        }
    }
}

/// Replayed events of which it is not known yet what became of them.
#[derive(Default)]
struct Fates {
    open: VecDeque<EventId>,
}

impl Fates {
    /// Looks at the ones that have waited longest.
    async fn look(&mut self, job: &Job, store: &AnyAdmin) -> Result<(), Refusal> {
        let some: Vec<EventId> = self.open.drain(..self.open.len().min(LOOK_AT)).collect();
        if some.is_empty() {
            return Ok(());
        }
        let found = in_time(job, store.statuses(&some)).await?;
        let gone = some.len() - found.len().min(some.len());
        let (mut delivered, mut dead) = (0, 0);
        for (event, status) in found {
            match status {
                EventStatus::Sent => delivered += 1,
                EventStatus::Dead => dead += 1,
                EventStatus::New | EventStatus::Publishing | EventStatus::Failed => {
                    self.open.push_back(event);
                }
            }
        }
        let change = |progress: &mut Progress| {
            progress.delivered += delivered;
            progress.dead_again += dead;
            progress.gone += gone as u64;
            let known = progress.delivered + progress.dead_again + progress.gone;
            progress.waiting = progress.done.saturating_sub(known);
        };
        job.update(change);
        Ok(())
    }

    /// Looks at each of them once.
    async fn look_at_all(&mut self, job: &Job, store: &AnyAdmin) -> Result<(), Refusal> {
        for _ in 0..self.open.len().div_ceil(LOOK_AT) {
            self.look(job, store).await?;
        }
        Ok(())
    }
}
