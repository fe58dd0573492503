//! The sink suite: what every sink to a broker must keep, written once.
//!
//! A sink's test brings a [`Broker`]: a private server, the sink under test, and a reader of another implementation than the
//! sink's client. [`sink_suite!`](macro@crate::sink_suite) makes one test of each promise from it. Whatever a broker cannot do it
//! declares in its [`Abilities`], and the tests that need it say `skipped`.

pub mod delivery;
pub mod form;
pub mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use postbox_core::{Delivery, DispatchError, DispatchErrorKind, Dispatcher, EventId, Receipts};
use tokio::time::Instant;

/// A private server of a broker, and the sink to it.
pub trait Broker: Send + Sync {
    /// The sink under test.
    type Sink: Dispatcher + Clone;

    /// What it can do.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Where the server listens, for a proxy before it.
    fn addr(&self) -> SocketAddr;

    /// A sink to whoever listens at this address, with the credentials that the server wants and these options. An answer that
    /// does not come is given up after a second or two, so that tests of it are quick, unless `timeout` is among the options.
    fn sink_at(&self, addr: SocketAddr, options: &[(&str, &str)]) -> Self::Sink;

    /// A sink to the server, with these options.
    fn sink(&self, options: &[(&str, &str)]) -> Self::Sink {
        self.sink_at(self.addr(), options)
    }

    /// A sink to the server whose credentials it refuses. They contain [`WRONG_PASSWORD`].
    fn sink_with_wrong_credentials(&self) -> Self::Sink;

    /// Makes a destination, if the broker does not do so by itself; called before anything is sent there.
    fn prepare(&self, destination: &str) -> impl Future<Output = ()> + Send;

    /// Everything that is at a destination, in its order, read by something else than the sink's client.
    fn read(&self, destination: &str) -> impl Future<Output = Vec<Received>> + Send;

    /// Stops the server; what it has confirmed it keeps.
    fn stop(&self) -> impl Future<Output = ()> + Send;

    /// Starts it again, at the same address and with what it had.
    fn start_again(&self) -> impl Future<Output = ()> + Send;
}

/// What a broker can do, and how much.
#[allow(clippy::struct_excessive_bools, reason = "each is something of its own that a broker can do or not")]
#[derive(Debug, Clone)]
pub struct Abilities {
    /// How many events its sink takes at once at least.
    pub batch: usize,
    /// The largest payload in bytes that it is to take in any case.
    pub large: usize,
    /// A payload of so many bytes is too large for it; none if it takes every size.
    pub too_large: Option<usize>,
    /// Whether it can refuse credentials.
    pub credentials: bool,
    /// Whether it can be stopped and started again.
    pub restarts: bool,
    /// Whether it can be reached by a proxy.
    pub proxy: bool,
    /// Whether it keeps the order of what one connection sends.
    pub order: bool,
    /// Whether what was sent again under the same event id is there once.
    pub deduplicates: bool,
    /// The start of the names of CloudEvents' headers.
    pub cloudevents_prefix: &'static str,
    /// Options with which its sink gathers what it is given before it sends, for clients that count requests in flight and
    /// not events: a request then has hundreds however slow the machine is.
    pub gathering: &'static [(&'static str, &'static str)],
    /// How long it may take until it works again after a restart.
    pub patience: Duration,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            batch: 500,
            large: 512 * 1024,
            too_large: Some(2 * 1024 * 1024),
            credentials: true,
            restarts: true,
            proxy: true,
            order: true,
            deduplicates: false,
            cloudevents_prefix: "ce_",
            gathering: &[],
            patience: Duration::from_mins(1),
        }
    }
}

/// A message as it was found at the broker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Received {
    /// The message key.
    pub key: Option<String>,
    /// Headers, properties or fields.
    pub headers: BTreeMap<String, String>,
    /// The content type, where it is not a header.
    pub content_type: Option<String>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Received {
    /// The event that it carries.
    pub fn event_id(&self) -> &str {
        self.headers.get("event_id").map_or("(no event_id)", String::as_str)
    }
}

/// Part of the credentials that are wrong: it must not be in any error.
pub const WRONG_PASSWORD: &str = "Zq9wrong";

/// A name that no other test uses.
pub fn fresh(what: &str) -> String {
    format!("suite.{what}.{:08x}", fastrand::u32(..))
}

/// Events to a destination of their own, with their numbers as payloads.
pub fn events(topic: &str, number: usize) -> Vec<Delivery> {
    (0..number).map(|n| event(topic, n)).collect()
}

/// One of them.
pub fn event(topic: &str, n: usize) -> Delivery {
    let mut event = postbox_core::testing::delivery(topic, &format!("{{\"n\":{n}}}"));
    event.meta.sequence = i64::try_from(n).unwrap() + 1;
    event
}

/// Sends a batch once, as the relay does; the outcome of each event.
pub async fn send(sink: &impl Dispatcher, batch: &[Delivery]) -> Vec<Option<Result<(), DispatchError>>> {
    let mut receipts = Receipts::new(batch.len());
    sink.dispatch_batch(batch, &mut receipts).await;
    let mut outcomes: Vec<Option<Result<(), DispatchError>>> = batch.iter().map(|_| None).collect();
    for (index, outcome) in receipts.take() {
        outcomes[index] = Some(outcome);
    }
    outcomes
}

/// Sends events until all are confirmed, as the relay would: those that are not go again, the first first. A reject fails the
/// test, and so does running out of patience.
pub async fn deliver(sink: &impl Dispatcher, events: &[Delivery], patience: Duration) {
    let deadline = Instant::now() + patience;
    let mut waiting: Vec<Delivery> = events.to_vec();
    let limit = sink.batch_limit().max(1);
    while !waiting.is_empty() {
        let mut left = Vec::new();
        let mut last = String::from("nothing was said about it");
        for batch in waiting.chunks(limit) {
            for (event, outcome) in batch.iter().zip(send(sink, batch).await) {
                match outcome {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => {
                        assert!(error.kind() != DispatchErrorKind::Reject, "rejected: {error}");
                        last = error.to_string();
                    }
                    None => {}
                }
                left.push(event.clone());
            }
        }
        assert!(left.is_empty() || Instant::now() < deadline, "{} are left: {last}", left.len());
        waiting = left;
        if !waiting.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Sends one event that must fail, within this time.
pub async fn refused(sink: &impl Dispatcher, event: &Delivery, within: Duration) -> DispatchError {
    let outcome = tokio::time::timeout(within, sink.dispatch(event)).await;
    let outcome = outcome.unwrap_or_else(|_| panic!("no answer within {within:?}"));
    outcome.expect_err("it was delivered")
}

/// Checks that each of the events is there; answers how many were there more than once.
pub fn assert_complete(events: &[Delivery], received: &[Received]) -> usize {
    let found: BTreeSet<&str> = received.iter().map(Received::event_id).collect();
    let expected: BTreeSet<String> = events.iter().map(|event| event.meta.event_id.to_string()).collect();
    let missing = expected.iter().filter(|id| !found.contains(id.as_str())).count();
    assert_eq!(missing, 0, "of {} events {missing} are lost", events.len());
    let foreign = found.iter().filter(|id| !expected.contains(**id)).count();
    assert_eq!(foreign, 0, "{foreign} messages are of nobody");
    received.len() - found.len()
}

/// The message of an event.
pub fn of(received: &[Received], id: EventId) -> &Received {
    let id = id.to_string();
    received.iter().find(|message| message.event_id() == id).unwrap_or_else(|| panic!("{id} did not arrive"))
}

/// Makes one test of each promise for a broker. The expression is evaluated for each test and gives a future of a `Result`:
/// the broker, or why there is none, which skips the test.
#[macro_export]
macro_rules! sink_suite {
    ($name:ident, $broker:expr) => {
        mod $name {
            use super::*;
            $crate::sink_suite! { @each $broker =>
                delivery: every_event_arrives_once,
                delivery: payloads_of_every_kind_arrive,
                delivery: a_large_payload_arrives,
                delivery: what_is_too_large_is_rejected_and_the_rest_arrives,
                delivery: hundreds_in_flight_keep_the_order_of_a_key,
                delivery: an_event_sent_again_is_there_once,
                form: key_and_headers_arrive,
                form: binary_cloudevents_arrive,
                form: structured_cloudevents_arrive,
                form: templates_lead_to_their_destinations,
                form: an_event_without_a_value_for_its_destination_is_rejected,
                trouble: nobody_who_listens_is_an_outage,
                trouble: wrong_credentials_are_an_outage,
                trouble: a_broker_that_restarts_loses_nothing,
                trouble: a_slow_broker_is_waited_for,
                trouble: hundreds_are_in_flight_before_one_is_confirmed,
                trouble: a_broker_that_says_nothing_is_given_up,
                trouble: a_connection_that_is_cut_loses_nothing,
                trouble: a_batch_that_is_dropped_harms_nothing,
            }
        }
    };
    (@each $broker:expr => $($part:ident: $test:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $test() {
            match $broker.await {
                Ok(broker) => $crate::sink_suite::$part::$test(&broker).await,
                Err(reason) => $crate::skip!("{reason}"),
            }
        }
    )*};
}
