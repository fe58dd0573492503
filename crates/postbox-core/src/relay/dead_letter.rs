//! Dead letters: dead events on their way to the dead-letter route.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::after_death::AfterDeath;
use super::backoff::tries;
use super::circuit::Circuit;
use super::lane::Item;
use super::unit::{Dispatching, End, Ended};
use crate::dispatcher::{BoxDispatcher, Dispatcher as _};
use crate::failpoint;
use crate::letter::{Letter, LetterRequest, LetterVerdict, explain};
use crate::redact::Summary;
use crate::store::{Lease, Settled, Store, StoreError};

/// What its sink will never take, or what cannot be read at all, is tried again so seldom that it disturbs nobody, and is
/// still found by whoever mends the cause.
const REJECTED: Duration = Duration::from_hours(1);
const UNREADABLE: Duration = Duration::from_hours(24);

/// What is dead takes no more than this part of the bytes that may be in flight, beside them.
const SHARE: usize = 4;

/// Where they go.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: Arc<str>,
    pub(super) sink: BoxDispatcher,
    pub(super) circuit: Circuit,
}

/// What one look at the dead-letter route did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Posted {
    /// Events that arrived.
    pub(super) sent: usize,
    /// Whether there may be more.
    pub(super) more: bool,
}

/// A letter that is on its way.
struct Underway {
    lease: Lease,
    dead_for: Duration,
    verdict: Option<LetterVerdict>,
}

impl<S: Store> AfterDeath<S> {
    /// Sends one batch to the dead-letter route.
    pub(super) async fn post(&mut self, stop: &mut watch::Receiver<bool>) -> Result<Posted, StoreError> {
        // First: what arrived must not be leased once more.
        let sent = self.settle().await;
        let nothing = Posted { sent, more: false };
        let Some(route) = &self.route else { return Ok(nothing) };
        let asked = Instant::now();
        let probe = match route.circuit.probe_at() {
            Some(at) if at > asked => return Ok(nothing),
            at => at.is_some(),
        };
        // All of them are sent at once, so that none waits for its turn while its lease runs out.
        let at_once = self.settings.concurrency.saturating_mul(route.sink.batch_limit().max(1));
        let limit = if probe { 1 } else { at_once.min(self.settings.batch_size) };
        let request = LetterRequest {
            limit,
            max_bytes: self.settings.max_in_flight_bytes / SHARE,
            lock_ttl: self.settings.lock_ttl,
        };
        let letters = self.store.letters(request).await?;
        if letters.is_empty() {
            return Ok(nothing);
        }
        let more = letters.len() >= limit || letters.len() == 1;
        let verdicts = self.send(letters, probe, asked, stop).await;
        self.unsettled.extend(verdicts);
        Ok(Posted { sent: sent + self.settle().await, more })
    }

    /// Sends letters and waits for all answers, or, when it is to stop, for as long as that may take.
    async fn send(
        &mut self,
        letters: Vec<Letter>,
        probe: bool,
        asked: Instant,
        stop: &mut watch::Receiver<bool>,
    ) -> Vec<(Lease, LetterVerdict)> {
        let Some(route) = &self.route else { return Vec::new() };
        let (sink, most) = (route.sink.clone(), route.sink.batch_limit().max(1));
        let mut underway = Vec::with_capacity(letters.len());
        let mut items = Vec::with_capacity(letters.len());
        for letter in letters {
            let Letter { lease, delivery, dead_at, dead_for, last_error } = letter;
            let mut verdict = None;
            if let Some(mut delivery) = delivery {
                explain(&mut delivery, last_error.as_deref(), dead_at);
                items.push(Item {
                    lease: lease.clone(),
                    delivery: Box::new(delivery),
                    alone: probe,
                    probe,
                    hot: false,
                });
            } else {
                tracing::warn!(table = self.store.table(), row = %lease.row, "a dead row is no event: nothing to send");
                verdict = Some(LetterVerdict::Later(UNREADABLE));
            }
            underway.push(Underway { lease, dead_for, verdict });
        }
        let (reports, mut answers) = mpsc::unbounded_channel();
        let (settings, telemetry) = (Arc::clone(&self.settings), self.telemetry.clone());
        let dispatching = Dispatching { settings, telemetry, reports, counted: false };
        let mut units = JoinSet::new();
        let mut running = 0;
        while !items.is_empty() {
            let rest = items.split_off(most.min(items.len()));
            let unit = std::mem::replace(&mut items, rest);
            units.spawn(dispatching.clone().run(0, sink.clone(), unit).in_current_span());
            running += 1;
        }
        let mut deadline = asked + self.settings.lock_ttl;
        let mut stopping = false;
        while running > 0 {
            let report = tokio::select! {
                // What has been answered by the end of its time counts.
                biased;
                Some(report) = answers.recv() => report,
                _ = stop.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    deadline = deadline.min(Instant::now() + self.settings.drain_timeout);
                    continue;
                }
                () = tokio::time::sleep_until(deadline) => break,
            };
            running -= usize::from(report.over);
            for ended in report.ended {
                let known = underway.iter_mut().find(|letter| letter.lease == ended.lease);
                if let Some(letter) = known {
                    let dead_for = letter.dead_for;
                    letter.verdict = Some(self.judge(ended, dead_for));
                }
            }
            let covered = asked.elapsed() + self.settings.dispatch_timeout < self.settings.lock_ttl;
            if covered && !stopping {
                for item in report.again {
                    units.spawn(dispatching.clone().run(0, sink.clone(), vec![item]).in_current_span());
                    running += 1;
                }
            }
        }
        // Whoever has not answered by now has not got it, as far as we know.
        let verdict =
            |letter: Underway| (letter.lease, letter.verdict.unwrap_or(LetterVerdict::Later(Duration::ZERO)));
        underway.into_iter().map(verdict).collect()
    }

    fn judge(&mut self, ended: Ended, dead_for: Duration) -> LetterVerdict {
        let Some(route) = &mut self.route else { return LetterVerdict::Later(REJECTED) };
        let now = Instant::now();
        let (table, sink) = (self.store.table(), &*route.name);
        if let Some(open) = route.circuit.heard(&ended, now) {
            self.telemetry.circuit(sink, open);
            if open {
                tracing::error!(table, sink, "the dead-letter route is down, dead events wait");
            } else {
                tracing::info!(table, sink, "the dead-letter route is back");
            }
        }
        match ended.end {
            End::Delivered => {
                self.telemetry.dead_lettered(&ended.topic);
                LetterVerdict::Sent
            }
            End::Retry { after, .. } => {
                LetterVerdict::Later(after.unwrap_or_else(|| self.settings.backoff.after(tries(dead_for))))
            }
            End::Reject { error } => {
                let error = Summary::as_str(&error);
                tracing::error!(table, sink, event_id = %ended.event_id, error, "the dead-letter route refuses an event");
                LetterVerdict::Later(REJECTED)
            }
            End::Unavailable { .. } => LetterVerdict::Later(route.circuit.put_off(now).unwrap_or_default()),
        }
    }

    /// Writes down what became of letters, however long the database is gone; answers how many arrived. Those whose rows somebody has
    /// locked hold up no others: they come along with the next. What cannot be written before the relay ends is sent again when its
    /// lease has run out.
    pub(super) async fn settle(&mut self) -> usize {
        if self.unsettled.is_empty() {
            return 0;
        }
        let mut wait = Duration::from_millis(20);
        loop {
            failpoint::hit("letters.settle", self.store.table()).await;
            // They stay where they are meanwhile: whoever drops this, or panics in it, must not forget what arrived.
            match self.store.settle_letters(self.unsettled.clone()).await {
                Ok(Settled { lost, busy }) => {
                    if !lost.is_empty() {
                        self.telemetry.lease_lost(lost.len());
                        let table = self.store.table();
                        tracing::warn!(
                            table,
                            rows = lost.len(),
                            "dead events were replayed or discarded meanwhile"
                        );
                    }
                    self.unsettled.retain(|(lease, _)| !lost.contains(&lease.row));
                    let is_written = |(lease, _): &mut (Lease, _)| !busy.contains(&lease.row);
                    let written = self.unsettled.extract_if(.., is_written);
                    return written.filter(|(_, verdict)| *verdict == LetterVerdict::Sent).count();
                }
                Err(error) => {
                    tracing::error!(table = self.store.table(), %error, "dead letters cannot be settled, trying again");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(5));
                }
            }
        }
    }
}
