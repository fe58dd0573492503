//! [`Consumer::run`]: the loop between a source and a handler.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use postbox_core::inbox::InboxDriver;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::consumer::Consumer;
use crate::source::{Incoming, Source, SourceError};
use crate::work::Ending;

/// How long a stop waits for the broker to know that no more is taken: one that is away may never answer, and what it is not told it
/// finds out when the connection ends. And how much longer than a handler may take it waits for a message.
pub(crate) const LONGEST_HALT: Duration = Duration::from_secs(10);

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Messages whose effect was committed.
    pub first: u64,
    /// Messages that had come before, acknowledged without an effect.
    pub before: u64,
    /// Messages that are at the dead letters now.
    pub dead: u64,
    /// Messages that were given back: when it stopped, or when their way to the dead letters was gone.
    pub given_back: u64,
}

impl ConsumerReport {
    fn count(&mut self, ending: Ending) {
        *match ending {
            Ending::First => &mut self.first,
            Ending::Before => &mut self.before,
            Ending::Dead => &mut self.dead,
            Ending::GivenBack => &mut self.given_back,
        } += 1;
    }
}

impl<D: InboxDriver> Consumer<D> {
    /// Takes messages until `stop`, then finishes those that are worked on, acknowledges them, gives back the rest, and comes back.
    ///
    /// A message that waits for its next try when it is to stop is given back, too; so is one that is not done 10 s after its handler's
    /// [`timeout`](Self::timeout), since database or broker do not answer. If these answer nothing at all, a stop takes `timeout` and 40 s,
    /// and what the broker's client needs to leave. Pass `std::future::pending()` to never stop.
    ///
    /// # Errors
    /// When the source cannot go on: the client has lost its broker, and does not look for it again. What was worked on is finished
    /// nevertheless. Make a new source and run again.
    ///
    /// # Cancel safety
    /// Dropped, it stops at once: open transactions are rolled back, and what was not acknowledged is delivered again. Nothing is lost, and no
    /// effect happens twice.
    pub async fn run<S: Source>(
        &self,
        mut source: S,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<ConsumerReport, SourceError> {
        source.open(self.at_once).await?;
        let (tell, stopped) = watch::channel(false);
        let (mut stop, room) = (pin!(stop), self.at_once + source.read_ahead());
        let (mut desk, mut report) = (Desk::new(), ConsumerReport::default());
        let mut working = FuturesUnordered::new();
        let end = loop {
            while working.len() < self.at_once
                && let Some((lane, incoming)) = desk.take()
            {
                let stopped = stopped.clone();
                working.push(async move { (lane, self.work(incoming, stopped).await) });
            }
            tokio::select! {
                biased;
                () = &mut stop => break Ok(()),
                Some((lane, ending)) = working.next(), if !working.is_empty() => {
                    report.count(ending);
                    desk.done(lane);
                }
                next = source.next(), if desk.waiting + working.len() < room => match next {
                    Ok(Some(incoming)) => desk.put(incoming),
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                },
            }
        };
        // Nothing is given back before the broker knows that we take no more: it would be delivered to us again, and be nobody's then. What is
        // worked on goes on meanwhile.
        {
            let mut halt = pin!(tokio::time::timeout(LONGEST_HALT, source.halt()));
            loop {
                tokio::select! {
                    biased;
                    halted = &mut halt => {
                        if halted.is_err() {
                            let consumer = self.name();
                            tracing::warn!(%consumer, "no answer of the broker within {LONGEST_HALT:?}, stopping all the same");
                        }
                        break;
                    }
                    Some((_, ending)) = working.next(), if !working.is_empty() => report.count(ending),
                }
            }
        }
        tell.send_replace(true);
        while let Some((_, ending)) = working.next().await {
            report.count(ending);
        }
        let give_back = |mut incoming: S::Incoming| {
            let stopped = stopped.clone();
            async move { self.tell(&mut incoming, Ending::GivenBack, stopped).await }
        };
        let back = join_all(desk.rest().map(give_back)).await;
        report.given_back += back.len() as u64;
        source.finish().await;
        end.map(|()| report)
    }

    /// The same in a task of its own, until [`ConsumerHandle::shutdown`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn spawn<S: Source + 'static>(&self, source: S) -> ConsumerHandle
    where
        S::Incoming: 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let consumer = self.clone();
        let task = tokio::spawn(async move {
            // Who drops the handle lets it run on.
            let stop = async {
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            consumer.run(source, stop).await
        });
        ConsumerHandle { stop, task: Some(task) }
    }
}

/// A consumer that runs. Dropped, it runs on.
#[derive(Debug)]
#[must_use = "keep it, and call `shutdown` when the application ends"]
pub struct ConsumerHandle {
    stop: oneshot::Sender<()>,
    /// Until its end was told.
    task: Option<JoinHandle<Result<ConsumerReport, SourceError>>>,
}

impl ConsumerHandle {
    /// Stops it in good order; see [`Consumer::run`].
    ///
    /// # Errors
    /// As `run`; and when [`ended`](Self::ended) has told its end already.
    ///
    /// # Cancel safety
    /// Dropped, the consumer stops all the same.
    pub async fn shutdown(self) -> Result<ConsumerReport, SourceError> {
        let Self { stop, mut task } = self;
        // It may have ended by itself.
        let _ = stop.send(());
        end_of(&mut task).await
    }

    /// Waits until it ends by itself, which it does with an error.
    ///
    /// # Errors
    /// As `run`; and when it has told the end before.
    ///
    /// # Cancel safety
    /// May be dropped at any time, and called again.
    pub async fn ended(&mut self) -> Result<ConsumerReport, SourceError> {
        end_of(&mut self.task).await
    }

    /// Stops it as a crash would: transactions are rolled back, nothing more is acknowledged.
    pub fn abort(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// How a task ended. Told once: to wait for it again would panic.
async fn end_of(
    task: &mut Option<JoinHandle<Result<ConsumerReport, SourceError>>>,
) -> Result<ConsumerReport, SourceError> {
    let Some(running) = task else {
        return Err(SourceError::of("the consumer has ended, and how was told before"));
    };
    let ended = running.await;
    *task = None;
    ended.unwrap_or_else(|error| {
        Err(SourceError::new("the task of the consumer did not end by itself", error))
    })
}

/// Messages that wait for their turn.
struct Desk<I> {
    /// Those whose turn it is as soon as there is room.
    ready: VecDeque<(Option<String>, I)>,
    /// Those behind another one of their lane. A lane that is here has one that is ready or worked on.
    lanes: HashMap<String, VecDeque<I>>,
    waiting: usize,
}

impl<I: Incoming> Desk<I> {
    fn new() -> Self {
        Self { ready: VecDeque::new(), lanes: HashMap::new(), waiting: 0 }
    }

    fn put(&mut self, incoming: I) {
        self.waiting += 1;
        match incoming.lane() {
            None => self.ready.push_back((None, incoming)),
            Some(lane) => {
                if let Some(queue) = self.lanes.get_mut(&lane) {
                    queue.push_back(incoming);
                } else {
                    self.lanes.insert(lane.clone(), VecDeque::new());
                    self.ready.push_back((Some(lane), incoming));
                }
            }
        }
    }

    fn take(&mut self) -> Option<(Option<String>, I)> {
        let next = self.ready.pop_front()?;
        self.waiting -= 1;
        Some(next)
    }

    /// One of a lane is settled: the next one of it is ready.
    fn done(&mut self, lane: Option<String>) {
        let Some(lane) = lane else { return };
        match self.lanes.get_mut(&lane).and_then(VecDeque::pop_front) {
            Some(next) => self.ready.push_back((Some(lane), next)),
            None => drop(self.lanes.remove(&lane)),
        }
    }

    /// All that are left, each lane in its order.
    fn rest(self) -> impl Iterator<Item = I> {
        let queued = self.lanes.into_values().flatten();
        self.ready.into_iter().map(|(_, incoming)| incoming).chain(queued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_is_told_once_and_can_be_asked_for_again() {
        let (stop, _stopped) = oneshot::channel();
        let task = Some(tokio::spawn(async { Err(SourceError::of("the queue is gone")) }));
        let mut running = ConsumerHandle { stop, task };
        assert_eq!(running.ended().await.unwrap_err().to_string(), "the queue is gone");
        let error = running.shutdown().await.unwrap_err().to_string();
        assert!(error.contains("told before"), "{error}");
    }
}
