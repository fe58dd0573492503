//! What it costs to write events: one by one on several connections at once, and in bulk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postbox_core::{Code, Outbox};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::figures::{Measured, Step, Times};
use super::progress::End;
use super::run::{Halt, Run};
use super::wanted::Wanted;
use super::writer::Writer;
use crate::report::{Failure, Problem};

/// What comes first pays for plans and pages: so much of the time is not counted.
const WARM_UP: u32 = 10;

/// One event in a transaction, again and again, on so many connections.
pub(super) async fn one_by_one(run: &mut Run<'_>, connections: u64) -> Result<Measured, Halt> {
    let step = Step::One { connections };
    let mut progress = run.progress(step, End::Time(run.wanted.time));
    let writers = run.unless_stopped(run.site.writers(connections)).await?;
    let done = Arc::new(AtomicU64::new(0));
    let (outbox, wanted) = (run.outbox(), Arc::clone(&run.wanted));
    let all =
        |writers, span| write_for(writers, outbox.clone(), Arc::clone(&wanted), Arc::clone(&done), span);
    let (writers, _) = run.watched(&mut progress, &done, all(writers, run.wanted.time / WARM_UP)).await?;
    done.store(0, Ordering::Relaxed);
    progress.restart();
    let wal = run.site.wal().await;
    let started = Instant::now();
    let (_, times) = run.watched(&mut progress, &done, all(writers, run.wanted.time)).await?;
    let took = started.elapsed();
    let wal = run.site.wal().await.zip(wal).map(|(after, before)| after.saturating_sub(before));
    Ok(Measured { step, events: times.count(), took, times: Some(times), with_commit: None, wal })
}

/// All connections at once.
async fn write_for(
    writers: Vec<Writer>,
    outbox: Outbox,
    wanted: Arc<Wanted>,
    done: Arc<AtomicU64>,
    span: Duration,
) -> Result<(Vec<Writer>, Times), Failure> {
    let until = Instant::now() + span;
    let mut tasks = JoinSet::new();
    for mut writer in writers {
        let (outbox, wanted, done) = (outbox.clone(), Arc::clone(&wanted), Arc::clone(&done));
        tasks.spawn(async move {
            let mut times = Times::new();
            while Instant::now() < until && done.load(Ordering::Relaxed) < wanted.most_written() {
                let event = wanted.event(Uuid::now_v7(), done.load(Ordering::Relaxed));
                let began = Instant::now();
                let written = writer.write(&outbox, [event]).await;
                written.map_err(|error| Problem::of_enqueue(outbox.table(), error))?;
                times.add(began.elapsed());
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Failure>((writer, times))
        });
    }
    let (mut writers, mut all) = (Vec::new(), Times::new());
    while let Some(ended) = tasks.join_next().await {
        let (writer, times) = joined(ended)?;
        writers.push(writer);
        all.merge(&times);
    }
    Ok((writers, all))
}

/// All events of the backlog, many in a transaction, on one connection.
pub(super) async fn in_bulk(run: &mut Run<'_>) -> Result<Measured, Halt> {
    let (wanted, outbox) = (Arc::clone(&run.wanted), run.outbox());
    let step = Step::Bulk { events: wanted.bulk().min(wanted.events) };
    let mut progress = run.progress(step, End::Events(wanted.events));
    let mut writers = run.unless_stopped(run.site.writers(1)).await?;
    let done = AtomicU64::new(0);
    let wal = run.site.wal().await;
    let started = Instant::now();
    let all = async {
        let mut times = Times::new();
        let (mut first, bulk) = (0, wanted.bulk());
        while let (true, Some(writer)) = (first < wanted.events, writers.first_mut()) {
            let next = (first + bulk).min(wanted.events);
            let events = (first..next).map(|number| wanted.event(Uuid::now_v7(), number));
            let began = Instant::now();
            let written = writer.write(&outbox, events).await;
            written.map_err(|error| Problem::of_enqueue(outbox.table(), error))?;
            times.add(began.elapsed());
            done.store(next, Ordering::Relaxed);
            first = next;
        }
        Ok(times)
    };
    let times = run.watched(&mut progress, &done, all).await?;
    let took = started.elapsed();
    let wal = run.site.wal().await.zip(wal).map(|(after, before)| after.saturating_sub(before));
    Ok(Measured { step, events: wanted.events, took, times: Some(times), with_commit: None, wal })
}

/// What became of a task.
pub(super) fn joined<T>(ended: Result<Result<T, Failure>, tokio::task::JoinError>) -> Result<T, Failure> {
    ended.unwrap_or_else(|error| Err(Problem::new(Code::Panicked, error).into()))
}
