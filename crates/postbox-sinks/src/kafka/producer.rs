//! The client: a producer of librdkafka, and where it reports to.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{NoCustomPartitioner, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, producer::BaseRecord};
use tokio::sync::mpsc::UnboundedSender;

/// What became of a message: its place in the batch, and the client's word.
pub(super) type Report = (usize, Result<(), RDKafkaErrorCode>);

/// Goes with a message through the client and comes back with its outcome.
pub(super) struct Ticket {
    pub(super) index: usize,
    // When the batch was dropped nobody listens any more, and that is fine.
    pub(super) reports: UnboundedSender<Report>,
}

/// A message for the client.
pub(super) type Record<'a> = BaseRecord<'a, str, [u8], Box<Ticket>>;

/// Hears what the client says.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    troubled: AtomicBool,
    trouble: Mutex<Option<String>>,
}

impl ClientContext for Reporter {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        // Each reconnect that fails is a line; what it means for events is told with them.
        tracing::debug!(target: "postbox_sinks::kafka", facility, message, "librdkafka");
    }

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "postbox_sinks::kafka", %error, reason, "the client reports an error");
        // That all brokers are down says less than why the last one is.
        let all_down = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if !all_down || trouble.is_none() {
            *trouble = Some(reason.to_owned());
        }
        self.troubled.store(true, Ordering::Relaxed);
    }
}

impl ProducerContext<NoCustomPartitioner> for Reporter {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let outcome = match result {
            Ok(_) => {
                if self.troubled.swap(false, Ordering::Relaxed) {
                    *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                Ok(())
            }
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
        };
        ticket.reports.send((ticket.index, outcome)).ok();
    }
}

/// How long a broker may take to tell of a topic, and how many are asked for at a time.
const LOOK: Duration = Duration::from_secs(5);
const LOOKS_AT_A_TIME: usize = 8;

/// A producer with a thread of its own that takes in the reports.
pub(super) struct Producer {
    inner: Option<ThreadedProducer<Reporter>>,
    /// The topics that brokers are asked about right now.
    looks: Mutex<BTreeSet<String>>,
}

impl Producer {
    /// Makes one; it connects by itself, in the background.
    pub(super) fn new(config: &ClientConfig) -> Result<Self, KafkaError> {
        config
            .create_with_context(Reporter::default())
            .map(|inner| Self { inner: Some(inner), looks: Mutex::default() })
    }

    /// Hands a message over; it comes back with the reason if the client does not take it.
    #[allow(clippy::result_large_err, reason = "the record comes back to be handed over again")]
    pub(super) fn send<'a>(&self, record: Record<'a>) -> Result<(), (RDKafkaErrorCode, Record<'a>)> {
        let Some(inner) = &self.inner else { return Err((RDKafkaErrorCode::Fatal, record)) };
        inner.send(record).map_err(|(error, record)| {
            (error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::InvalidArgument), record)
        })
    }

    /// Asks a broker for a topic, in the background. The client remembers for minutes that a topic was not there or not
    /// allowed, and refuses messages for it without asking.
    pub(super) fn look_for(self: &Arc<Self>, topic: &str) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.len() >= LOOKS_AT_A_TIME || !looks.insert(topic.to_owned()) {
            return;
        }
        let (this, topic) = (Arc::clone(self), topic.to_owned());
        tokio::task::spawn_blocking(move || {
            if let Some(inner) = &this.inner {
                inner.client().fetch_metadata(Some(&topic), LOOK).ok();
            }
            this.looks.lock().unwrap_or_else(PoisonError::into_inner).remove(&topic);
        });
    }

    /// Why it can send nothing any more, if so: an idempotent producer that lost its place in a log never finds it again.
    pub(super) fn fatal(&self) -> Option<String> {
        let (code, reason) = self.inner.as_ref()?.client().fatal_error()?;
        Some(format!("{code}: {reason}"))
    }

    /// The last trouble with brokers, until an event arrives again.
    pub(super) fn trouble(&self) -> Option<String> {
        let reporter = self.inner.as_ref()?.client().context();
        reporter.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cfg(test)]
    pub(super) fn inner(&self) -> &ThreadedProducer<Reporter> {
        self.inner.as_ref().expect("taken only by drop")
    }
}

impl Drop for Producer {
    /// Gives up what is still queued, and closes the connections: a wait for threads, so not in a task's thread.
    fn drop(&mut self) {
        let inner = self.inner.take();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(inner))),
            Err(_) => drop(inner),
        }
    }
}
