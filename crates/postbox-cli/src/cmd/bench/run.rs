//! A bench at work: what all steps share.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postbox_core::{Code, Outbox};
use tokio::sync::watch;

use super::figures::Step;
use super::progress::{End, Progress};
use super::site::Site;
use super::wanted::Wanted;
use crate::cli::Call;
use crate::report::{Failure, Problem};

/// How often progress is shown.
const BEAT: Duration = Duration::from_millis(100);
/// How long nothing at all may happen.
const PATIENCE: Duration = Duration::from_mins(1);

/// Why a step did not come to its end.
pub(super) enum Halt {
    /// Somebody wanted that.
    Stopped,
    Failed(Failure),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What a step works with.
pub(super) struct Run<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) wanted: Arc<Wanted>,
    pub(super) site: &'a mut Site,
    pub(super) stop: watch::Receiver<bool>,
}

impl Run<'_> {
    pub(super) fn outbox(&self) -> Outbox {
        Outbox::new(self.site.table.clone())
    }

    pub(super) fn progress(&self, step: Step, end: End) -> Progress {
        Progress::new(self.call.json, step.label(&self.call.config), end)
    }

    /// Work that may be dropped at any time, since what it leaves behind goes with the place it is in.
    pub(super) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Halt> {
        unless(self.stop.clone(), work).await
    }

    /// A fresh table.
    pub(super) async fn table_up(&self) -> Result<(), Halt> {
        self.unless_stopped(Box::pin(self.site.table_up(&self.call.config))).await
    }

    pub(super) async fn table_down(&self) -> Result<(), Halt> {
        self.unless_stopped(Box::pin(self.site.table_down())).await
    }

    pub(super) async fn settle_down(&mut self) -> Result<(), Halt> {
        unless(self.stop.clone(), self.site.settle_down()).await
    }

    /// Does work to its end while its progress is shown; gives up when nothing happens any more.
    pub(super) async fn watched<T>(
        &self,
        progress: &mut Progress,
        done: &AtomicU64,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Halt> {
        let watch = async {
            let mut work = pin!(work);
            let mut beat = tokio::time::interval(BEAT);
            let mut moved = (0, Instant::now());
            loop {
                tokio::select! {
                    biased;
                    result = &mut work => return result,
                    _ = beat.tick() => {
                        let now = done.load(Ordering::Relaxed);
                        progress.at(now);
                        if now != moved.0 {
                            moved = (now, Instant::now());
                        }
                        if moved.1.elapsed() > PATIENCE {
                            return Err(stuck());
                        }
                    }
                }
            }
        };
        self.unless_stopped(watch).await
    }
}

async fn unless<T>(
    mut stop: watch::Receiver<bool>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Halt> {
    let stopped = async {
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = stopped => Err(Halt::Stopped),
        result = work => Ok(result?),
    }
}

fn stuck() -> Failure {
    let message = format!(
        "nothing was written or delivered for {PATIENCE:?}: the database is away, or somebody holds a lock"
    );
    let next = "postbox doctor names transactions that hold others up; check the server and the network";
    Problem::new(Code::DatabaseUnreachable, message).next(next).into()
}
