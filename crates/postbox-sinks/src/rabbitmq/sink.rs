//! [`RabbitSink`]: the connections, and how a batch goes over one of them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use postbox_core::{Delivery, DispatchError, Dispatcher, Receipts};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::config::RabbitConfig;
use super::error::{Concerns, of_end, size_limit};
use super::line::Line;
use super::publish::{End, send};
use crate::connection::Attempts;
use crate::options::Options;
use crate::url::SinkError;

const BATCH: usize = 1_000;
/// A part in which one event is to blame is sent again in so many pieces; those that arrive get larger again.
const PIECES: usize = 4;

/// Delivers events to RabbitMQ; clones share their connections.
///
/// ```
/// use postbox_sinks::{Options, RabbitSink};
///
/// let sink = RabbitSink::new("amqp://app:secret@broker/shop", Options::new().set("exchange", "events"))?;
/// assert_eq!(sink.to_string(), "amqp://broker/shop");
/// # Ok::<(), postbox_sinks::SinkError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RabbitSink(Arc<Inner>);

struct Inner {
    config: RabbitConfig,
    /// As many as there may be connections.
    turns: Semaphore,
    idle: Mutex<Vec<Line>>,
    attempts: Attempts,
    /// The host to begin with: the one that answered last, or the one after those that did not.
    host: AtomicUsize,
    /// The largest message that the broker said it takes, when it refused one.
    largest: AtomicUsize,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

/// A line that is in use. Dropped, it is cut: what is on it has no end that anybody waits for.
struct Taken<'a> {
    line: Line,
    sink: &'a Inner,
    _turn: SemaphorePermit<'a>,
}

impl Taken<'_> {
    /// Everything on it is confirmed: the next batch may have it.
    fn give_back(self) {
        let Self { mut line, sink, _turn } = self;
        line.finish();
        sink.idle.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

impl Inner {
    async fn line(&self) -> Result<Taken<'_>, DispatchError> {
        // It is never closed.
        let turn = self.turns.acquire().await.map_err(DispatchError::retry)?;
        let mut line = loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(line) if line.is_up() => break line,
                Some(_) => {}
                None => {
                    break self.attempts.join(async || Line::open(&self.config, &self.host).await).await?;
                }
            }
        };
        line.begin();
        Ok(Taken { line, sink: self, _turn: turn })
    }

    /// Whom it concerns; what it tells about sizes is kept.
    fn learn(&self, error: &lapin::Error) -> Concerns {
        if let Some(limit) = size_limit(error) {
            self.largest.store(limit, Ordering::Relaxed);
        }
        of_end(error)
    }

    /// Whether the broker will close the channel over it, by what is known.
    fn is_suspect(&self, delivery: &Delivery) -> bool {
        delivery.payload.len() > self.largest.load(Ordering::Relaxed)
    }

    /// How many of those that wait go together: as many as may, but a suspect alone.
    fn next_part(&self, batch: &[Delivery], waiting: &[usize], most: usize) -> usize {
        let most = most.min(waiting.len());
        match waiting[..most].iter().position(|index| self.is_suspect(&batch[*index])) {
            Some(first) => first.max(1),
            None => most,
        }
    }
}

impl RabbitSink {
    /// A sink by its URL and options. Nothing is connected yet.
    ///
    /// # Errors
    /// With all that is wrong with them.
    pub fn new(url: &str, options: Options) -> Result<Self, SinkError> {
        let config = RabbitConfig::new(url, options)?;
        let turns = Semaphore::new(config.connections);
        Ok(Self(Arc::new(Inner {
            config,
            turns,
            idle: Mutex::default(),
            attempts: Attempts::default(),
            host: AtomicUsize::default(),
            largest: AtomicUsize::new(usize::MAX),
        })))
    }
}

impl fmt::Display for RabbitSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.config.address.fmt(f)
    }
}

impl Dispatcher for RabbitSink {
    async fn dispatch(&self, delivery: &Delivery) -> Result<(), DispatchError> {
        Receipts::of_one(self, delivery).await
    }

    async fn dispatch_batch(&self, batch: &[Delivery], receipts: &mut Receipts) {
        let mut waiting: Vec<usize> = (0..batch.len()).collect();
        let mut stride = waiting.len();
        while !waiting.is_empty() {
            let taken = match self.0.line().await {
                Ok(taken) => taken,
                Err(error) => return receipts.rest_failed(error),
            };
            let rest = waiting.split_off(self.0.next_part(batch, &waiting, stride));
            match send(&self.0.config, &taken.line, batch, &waiting, receipts).await {
                End::Complete => {
                    taken.give_back();
                    // Somebody gave the broker a larger limit.
                    if waiting.iter().any(|index| self.0.is_suspect(&batch[*index])) {
                        self.0.largest.store(usize::MAX, Ordering::Relaxed);
                    }
                    waiting = rest;
                    stride = stride.saturating_mul(2);
                }
                End::Given(error) => return receipts.rest_failed(error),
                End::Closed { unconfirmed, error } => match self.0.learn(&error) {
                    Concerns::All(error) => return receipts.rest_failed(error),
                    Concerns::One(error) => {
                        waiting = unconfirmed;
                        if let [culprit] = waiting[..] {
                            // Alone: nobody else can have been the cause.
                            receipts.record(culprit, Err(error));
                            waiting.clear();
                        } else if !waiting.iter().any(|index| self.0.is_suspect(&batch[*index])) {
                            stride = (waiting.len() / PIECES).max(1);
                        }
                        waiting.extend(rest);
                    }
                },
            }
        }
    }

    fn batch_limit(&self) -> usize {
        BATCH
    }
}
