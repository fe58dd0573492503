//! Sends a part of a batch over a line and waits for its confirmations.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::Confirmation;
use lapin::options::BasicPublishOptions;
use postbox_core::{Delivery, DispatchError, Receipts};
use tokio::time::timeout;

use super::config::RabbitConfig;
use super::confirm::{Confirms, Fate, Landed};
use super::error;
use super::line::Line;
use super::message::{Outgoing, outgoing};

/// Events of so many bytes may be on their way to the broker: the client takes all that it is given.
const WINDOW: usize = 8 << 20;
/// How long a broker that confirms nothing may take to show that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

/// How it went with a part of a batch.
#[derive(Debug)]
pub(super) enum End {
    /// All events have their receipts.
    Complete,
    /// The broker ended it over one of these, or for all of them.
    Closed { unconfirmed: Vec<usize>, error: lapin::Error },
    /// Nothing came any more; this is for all that have no receipt.
    Given(DispatchError),
}

type Flying<'a> = Pin<Box<dyn Future<Output = (usize, lapin::Result<Confirmation>)> + Send + 'a>>;

/// The events of a part that are on their way.
struct Flight<'a> {
    config: &'a RabbitConfig,
    line: &'a Line,
    batch: &'a [Delivery],
    flying: FuturesUnordered<Flying<'a>>,
    confirms: Confirms,
    /// Without a receipt, in the order of the batch.
    open: BTreeSet<usize>,
    bytes: usize,
    any_confirmed: bool,
    ended: Option<lapin::Error>,
}

/// Publishes the events at these places, in this order.
pub(super) async fn send(
    config: &RabbitConfig,
    line: &Line,
    batch: &[Delivery],
    part: &[usize],
    receipts: &mut Receipts,
) -> End {
    let mut flight = Flight {
        config,
        line,
        batch,
        flying: FuturesUnordered::new(),
        confirms: Confirms::default(),
        open: part.iter().copied().collect(),
        bytes: 0,
        any_confirmed: false,
        ended: None,
    };
    for &index in part {
        match outgoing(config, &batch[index], line.frame_max()) {
            Ok(message) => flight.publish(index, message).await,
            Err(error) => flight.record(index, Err(error), receipts),
        }
        while flight.bytes > WINDOW && flight.ended.is_none() {
            if let Err(error) = flight.advance(receipts).await {
                return End::Given(error);
            }
        }
        if flight.ended.is_some() {
            break;
        }
    }
    while !flight.flying.is_empty() {
        if let Err(error) = flight.advance(receipts).await {
            return End::Given(error);
        }
    }
    match flight.ended {
        None => End::Complete,
        Some(error) => End::Closed { unconfirmed: flight.open.into_iter().collect(), error },
    }
}

impl<'a> Flight<'a> {
    /// Hands an event to the client, which has it in its place among the others then.
    async fn publish(&mut self, index: usize, message: Outgoing<'a>) {
        let Self { config, line, .. } = *self;
        // As much as its answer takes off again: what is sent may be larger, in base64.
        self.bytes += self.batch[index].payload.len();
        let mut flying: Flying<'a> = Box::pin(async move {
            let options = BasicPublishOptions { mandatory: config.mandatory, immediate: false };
            let exchange = config.exchange.as_str().into();
            let Outgoing { routing_key, properties, payload } = message;
            let sent = line.channel.basic_publish(exchange, routing_key, options, &payload, properties).await;
            let outcome = match sent {
                Ok(confirm) => {
                    // Given back while thousands wait for their confirmations.
                    drop(payload);
                    confirm.await
                }
                Err(error) => Err(error),
            };
            (index, outcome)
        });
        // The first poll puts it into the client's queue: here and now, not in an order that others choose.
        let first = poll_fn(|context| Poll::Ready(flying.as_mut().poll(context))).await;
        match first {
            Poll::Ready((_, Err(error))) => self.end(error),
            Poll::Ready(done) => self.flying.push(Box::pin(std::future::ready(done))),
            Poll::Pending => self.flying.push(flying),
        }
    }

    /// Waits for confirmations and records them.
    async fn advance(&mut self, receipts: &mut Receipts) -> Result<(), DispatchError> {
        let first = match timeout(self.config.timeout, self.flying.next()).await {
            Ok(Some(first)) => first,
            Ok(None) => return Ok(()),
            Err(_) => return Err(self.silence().await),
        };
        self.line.at_rest().await;
        let mut results = vec![first];
        self.take_ready(&mut results);
        let mut group = Vec::with_capacity(results.len());
        for (index, result) in results {
            self.bytes = self.bytes.saturating_sub(self.batch[index].payload.len());
            match result {
                Ok(confirmation) => group.push(landed(index, confirmation)),
                Err(error) => self.end(error),
            }
        }
        self.any_confirmed |= !group.is_empty();
        let batch = self.batch;
        let id = |index: usize| batch[index].meta.event_id.to_string();
        let mut settled = Vec::new();
        self.confirms.take(group, id, |index, fate| settled.push((index, fate)));
        if self.flying.is_empty() && self.ended.is_none() {
            self.confirms.finish(id, |index, fate| settled.push((index, fate)));
        }
        for (index, fate) in settled {
            let outcome = match fate {
                Fate::Arrived => Ok(()),
                Fate::Refused => Err(error::refused()),
                Fate::Returned(words) => Err(error::returned(&self.config.exchange, &words)),
            };
            self.record(index, outcome, receipts);
        }
        Ok(())
    }

    /// All further results that are there already. Not one may be left out: it may hold what came back of another.
    fn take_ready(&mut self, results: &mut Vec<(usize, lapin::Result<Confirmation>)>) {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&flag));
        loop {
            flag.0.store(false, Ordering::SeqCst);
            match self.flying.poll_next_unpin(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(result)) => results.push(result),
                // It stops now and then to let others have their turn, and says so by waking at once.
                Poll::Pending if flag.0.load(Ordering::SeqCst) => {}
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    /// Why nothing is confirmed any more.
    async fn silence(&mut self) -> DispatchError {
        let limit = self.config.timeout;
        if let Some(reason) = self.line.blocked() {
            return DispatchError::unavailable(format!("RabbitMQ blocks publishers: {reason}"));
        }
        let text = format!("RabbitMQ did not confirm within {limit:?}");
        if self.any_confirmed && self.line.answers(limit.min(SIGN_OF_LIFE)).await {
            return DispatchError::retry(text);
        }
        DispatchError::unavailable(text)
    }

    /// The first error tells why; those that follow are its consequences.
    fn end(&mut self, error: lapin::Error) {
        if self.ended.as_ref().is_none_or(|known| !known.is_amqp_error() && error.is_amqp_error()) {
            self.ended = Some(error);
        }
    }

    fn record(&mut self, index: usize, outcome: Result<(), DispatchError>, receipts: &mut Receipts) {
        self.open.remove(&index);
        receipts.record(index, outcome);
    }
}

fn landed(index: usize, confirmation: Confirmation) -> Landed {
    let taken = confirmation.is_ack();
    let back = confirmation.take_message().map(|returned| {
        let id = returned.properties.message_id().as_ref().map(ToString::to_string);
        (id.unwrap_or_default(), error::words(&returned))
    });
    Landed { index, taken, back }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
