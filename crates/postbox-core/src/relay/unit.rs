//! ⑤ One unit of events is sent under a timeout, its panics caught, each outcome reported as it becomes known.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::lane::Item;
use super::settings::{LONGEST, Settings};
use crate::code::Code;
use crate::dispatcher::{
    BoxDispatcher, Delivery, DispatchError, DispatchErrorKind, Dispatcher as _, Outcome, Receipts,
};
use crate::event::{EventId, TenantId};
use crate::failpoint;
use crate::panic::message;
use crate::redact::Summary;
use crate::store::Lease;
use crate::telemetry::Telemetry;
use crate::topic::Topic;

/// What became of some events of a unit.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) lane: usize,
    pub(super) ended: Vec<Ended>,
    /// To be dispatched again, singly and uncharged: the batch they were in panicked.
    pub(super) again: Vec<Item>,
    /// Whether the unit is over and its slot free.
    pub(super) over: bool,
    /// Whose slot that is, if it was one event alone.
    pub(super) tenant: Option<TenantId>,
    /// So many events were sent together, and nothing came back.
    pub(super) silent: usize,
}

/// What became of one event.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) lease: Lease,
    pub(super) event_id: EventId,
    pub(super) topic: Topic,
    pub(super) probe: bool,
    pub(super) took: Duration,
    pub(super) end: End,
}

#[derive(Debug)]
pub(super) enum End {
    Delivered,
    Retry { after: Option<Duration>, outcome: &'static str, error: Summary },
    Reject { error: Summary },
    Unavailable { error: Summary },
}

/// What every dispatch needs to know.
#[derive(Debug, Clone)]
pub(super) struct Dispatching {
    pub(super) settings: Arc<Settings>,
    pub(super) telemetry: Telemetry,
    pub(super) reports: UnboundedSender<Report>,
    /// Whether the dispatches are counted: those to the dead-letter route have a count of their own.
    pub(super) counted: bool,
}

/// What the outcome of an event needs of it, apart from the batch that the dispatcher borrows.
struct Sent {
    /// Until it is reported: only the first outcome counts.
    lease: Option<Lease>,
    probe: bool,
    hot: bool,
}

impl Dispatching {
    /// Runs a unit to its end. The dispatcher runs in a task of its own: one that blocks its thread cannot keep
    /// this one from seeing the timeout (hazard 23).
    pub(super) async fn run(self, lane: usize, sink: BoxDispatcher, items: Vec<Item>) {
        let started = Instant::now();
        let (mut sent, mut batch) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
        for item in items {
            sent.push(Sent { lease: Some(item.lease), probe: item.probe, hot: item.hot });
            batch.push(*item.delivery);
        }
        let batch = Arc::new(batch);
        let receipts = Receipts::new(batch.len());
        let mut unit = Unit {
            lane,
            sent,
            batch: Arc::clone(&batch),
            receipts: receipts.watch(),
            started,
            silent: false,
            shared: self,
        };

        let mut task =
            AbortOnDrop(tokio::spawn(dispatch(sink, batch, receipts, unit.shared.telemetry.clone())));
        let deadline = started + unit.shared.settings.dispatch_timeout;
        loop {
            tokio::select! {
                // Receipts last: a finished batch is then reported in one piece.
                biased;
                ended = &mut task.0 => return match ended {
                    Err(error) if error.is_panic() => unit.panicked(&message(&*error.into_panic())),
                    Ok(()) | Err(_) => unit.finished(),
                },
                () = tokio::time::sleep_until(deadline) => return unit.timed_out(),
                () = unit.receipts.recorded() => unit.report(Vec::new(), Vec::new(), false),
            }
        }
    }
}

/// The body of a dispatch task.
async fn dispatch(
    sink: BoxDispatcher,
    batch: Arc<Vec<Delivery>>,
    mut receipts: Receipts,
    telemetry: Telemetry,
) {
    use tracing::Instrument as _;
    let database = telemetry.database();
    for delivery in batch.iter() {
        failpoint::hit("dispatch.before", delivery.meta.topic.as_str()).await;
    }
    if let [delivery] = batch.as_slice() {
        let meta = &delivery.meta;
        let span = tracing::info_span!(parent: None, "dispatch", database, table = &*meta.table, topic = %meta.topic, event_id = %meta.event_id, attempts = meta.attempts);
        crate::trace::link(&span, meta.traceparent.as_deref());
        sink.dispatch_batch(&batch, &mut receipts).instrument(span).await;
    } else {
        let span = tracing::info_span!(parent: None, "dispatch", database, table = &*batch[0].meta.table, events = batch.len());
        for delivery in batch.iter() {
            crate::trace::link(&span, delivery.meta.traceparent.as_deref());
        }
        sink.dispatch_batch(&batch, &mut receipts).instrument(span).await;
    }
    failpoint::hit("dispatch.after", batch[0].meta.topic.as_str()).await;
}

/// A dispatch that outlives its relay would deliver what the relay has given back.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Unit {
    lane: usize,
    /// Of each event of the batch.
    sent: Vec<Sent>,
    batch: Arc<Vec<Delivery>>,
    receipts: Receipts,
    started: Instant,
    silent: bool,
    shared: Dispatching,
}

impl Unit {
    fn finished(&mut self) {
        let silent = self.unknown(|| {
            DispatchError::retry("the dispatcher said nothing about this event")
                .with_code(Code::DispatchFailed)
        });
        self.report(silent, Vec::new(), true);
    }

    fn timed_out(&mut self) {
        let limit = self.shared.settings.dispatch_timeout;
        let fresh = self.receipts.take();
        let unknown = self.receipts.unknown();
        // A batch of which nothing came back, or a probe, says nothing about its events: the destination is down. Any
        // other single event may be the cause itself: it is charged, or one that hangs would be tried for ever. (Probes
        // take turns, since each is put off: one that hangs does not keep the circuit open while others wait.)
        self.silent = unknown.len() == self.sent.len() && self.sent.len() > 1;
        let down = self.silent || self.sent[0].probe;
        let text = format!("no answer within {limit:?}");
        let mut outcomes = fresh;
        outcomes.extend(unknown.into_iter().map(|index| {
            let error = if down {
                DispatchError::unavailable(text.clone())
            } else {
                DispatchError::retry(text.clone())
            };
            (index, Err(error.with_code(Code::Timeout)))
        }));
        self.report(outcomes, Vec::new(), true);
    }

    fn panicked(&mut self, panic: &str) {
        if self.sent.len() == 1 {
            let error =
                || DispatchError::retry(format!("dispatcher panicked: {panic}")).with_code(Code::Panicked);
            let unknown = self.unknown(error);
            return self.report(unknown, Vec::new(), true);
        }
        tracing::error!(
            table = &*self.batch[0].meta.table,
            panic,
            "a batch panicked: its events run again one by one"
        );
        let again = self.receipts.unknown().into_iter().filter_map(|index| {
            let (sent, delivery) = (&mut self.sent[index], Box::new(self.batch[index].clone()));
            let lease = sent.lease.take()?;
            Some(Item { lease, delivery, alone: true, probe: sent.probe, hot: sent.hot })
        });
        let again = again.collect();
        self.report(Vec::new(), again, true);
    }

    fn unknown(&self, error: impl Fn() -> DispatchError) -> Vec<Outcome> {
        self.receipts.unknown().into_iter().map(|index| (index, Err(error()))).collect()
    }

    fn report(&mut self, more: Vec<Outcome>, again: Vec<Item>, over: bool) {
        let mut outcomes = self.receipts.take();
        outcomes.extend(more);
        if outcomes.is_empty() && again.is_empty() && !over {
            return;
        }
        let took = self.started.elapsed();
        if self.shared.counted {
            self.count(&outcomes, took);
        }
        let ended =
            outcomes.into_iter().filter_map(|(index, outcome)| self.ended(index, outcome, took)).collect();
        // The relay may be gone; its successor will find the leases.
        let silent = if self.silent { self.sent.len() } else { 0 };
        let tenant = (self.batch.len() == 1).then(|| self.batch[0].meta.tenant_id);
        let _ = self.shared.reports.send(Report { lane: self.lane, ended, again, over, tenant, silent });
    }

    /// Counts outcomes, those of one topic that stand together at once.
    fn count(&self, outcomes: &[Outcome], took: Duration) {
        let kind = |(index, outcome): &Outcome| (&self.batch[*index].meta.topic, outcome.is_ok());
        for alike in outcomes.chunk_by(|a, b| kind(a) == kind(b)) {
            let (topic, success) = kind(&alike[0]);
            self.shared.telemetry.dispatched(topic, success, took, alike.len());
        }
    }

    fn ended(&mut self, index: usize, outcome: Result<(), DispatchError>, took: Duration) -> Option<Ended> {
        let lease = self.sent[index].lease.take()?;
        let delivery = &self.batch[index];
        let end = match outcome {
            Ok(()) => End::Delivered,
            Err(error) => self.failed(delivery, &error),
        };
        Some(Ended {
            lease,
            event_id: delivery.meta.event_id,
            topic: delivery.meta.topic.clone(),
            probe: self.sent[index].probe,
            took,
            end,
        })
    }

    fn failed(&self, delivery: &Delivery, failure: &DispatchError) -> End {
        let settings = &self.shared.settings;
        let max = settings.last_error_max_bytes;
        let error = Summary::without_payload(&failure.to_string(), &delivery.payload, max);
        let meta = &delivery.meta;
        let tenant = if settings.mask_tenants { "***".to_owned() } else { meta.tenant_id.to_string() };
        tracing::warn!(
            table = &*meta.table, topic = %meta.topic, event_id = %meta.event_id, tenant_id = tenant,
            sequence = meta.sequence, attempts = meta.attempts, error = error.as_str(), "dispatch failed"
        );
        let outcome = match failure.code() {
            Code::Timeout => "timeout",
            Code::Panicked => "panic",
            _ => "retry",
        };
        match failure.kind() {
            DispatchErrorKind::Retry(after) => {
                End::Retry { after: after.map(|after| after.min(LONGEST)), outcome, error }
            }
            DispatchErrorKind::Reject => End::Reject { error },
            DispatchErrorKind::Unavailable => End::Unavailable { error },
        }
    }
}
