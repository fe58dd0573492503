//! The RabbitMQ sink against a real broker: the sink suite, and what is RabbitMQ's own.
#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod neighbours;
mod outage;
mod reader;
#[path = "../support/mod.rs"]
mod support;
mod tls;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use postbox_core::{AggregateKey, Delivery, DispatchError, DispatchErrorKind, Payload};
use postbox_sinks::RabbitSink;
use postbox_testkit::sink_suite::{Abilities, Broker, Received, WRONG_PASSWORD, deliver, event, fresh, send};
use postbox_testkit::{RabbitServer, ServerOptions, broker_or_skip, sink_suite};
use support::options;

/// The largest message that the broker takes.
const LARGEST: usize = 1 << 20;

/// A broker; several tests share one, since it takes its time to start.
struct Rabbit(Arc<RabbitServer>);

impl Rabbit {
    /// One that nobody else uses.
    fn private() -> Result<Self, String> {
        reader::python()?;
        RabbitServer::try_with(&ServerOptions::new().max_message(LARGEST)).map(Arc::new).map(Self)
    }

    fn shared() -> Result<Self, String> {
        static SHARED: OnceLock<Result<Arc<RabbitServer>, String>> = OnceLock::new();
        SHARED.get_or_init(|| Self::private().map(|rabbit| rabbit.0)).clone().map(Self)
    }

    /// The one for a test of the suite: a test that stops its broker has it for itself.
    fn of_test() -> impl Future<Output = Result<Self, String>> {
        let stops = std::thread::current().name().is_some_and(|test| test.contains("a_broker_that_restarts"));
        std::future::ready(if stops { Self::private() } else { Self::shared() })
    }

    fn sink_as(login: &str, addr: SocketAddr, more: &[(&str, &str)]) -> RabbitSink {
        let short = [("timeout", "2s"), ("connect_timeout", "4s")];
        RabbitSink::new(&format!("amqp://{login}@{addr}"), options(&[&short, more].concat())).unwrap()
    }
}

impl Broker for Rabbit {
    type Sink = RabbitSink;

    fn abilities(&self) -> Abilities {
        Abilities {
            large: LARGEST,
            too_large: Some(LARGEST + 1),
            cloudevents_prefix: "cloudEvents:",
            ..Abilities::default()
        }
    }

    fn addr(&self) -> SocketAddr {
        self.0.addr()
    }

    fn sink_at(&self, addr: SocketAddr, options: &[(&str, &str)]) -> RabbitSink {
        Self::sink_as("guest:guest", addr, options)
    }

    fn sink_with_wrong_credentials(&self) -> RabbitSink {
        Self::sink_as(&format!("guest:{WRONG_PASSWORD}"), self.addr(), &[])
    }

    async fn prepare(&self, destination: &str) {
        tokio::task::block_in_place(|| reader::ask(self.0.url(), &["declare", destination]));
    }

    async fn read(&self, destination: &str) -> Vec<Received> {
        tokio::task::block_in_place(|| reader::read(self.0.url(), destination))
    }

    async fn stop(&self) {
        tokio::task::block_in_place(|| self.0.stop());
    }

    async fn start_again(&self) {
        tokio::task::block_in_place(|| self.0.start_again());
    }
}

sink_suite!(suite, Rabbit::of_test());

/// The error of an event that did not arrive.
fn error_of(outcome: Option<&Option<Result<(), DispatchError>>>) -> DispatchError {
    outcome.expect("a place").clone().expect("an outcome").expect_err("an error")
}

fn sized(topic: &str, bytes: usize) -> Delivery {
    let payload = Payload::Bytes { bytes: vec![b'x'; bytes].into(), content_type: "text/plain".into() };
    Delivery { payload, ..event(topic, 1) }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_have_their_properties_and_go_by_their_exchange() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let (exchange, queue) = (fresh("exchange"), fresh("queue"));
    reader::ask(rabbit.0.url(), &["bind", &exchange, "topic", &queue, "orders.*.placed"]);
    let sink = rabbit.sink(&[("exchange", &exchange), ("destination", "orders.{aggregate_id}.placed")]);
    let mut placed = event("org.order.placed.v1", 1);
    placed.meta.aggregate = Some(AggregateKey::new("order", "o-17"));
    placed.meta.headers = [("CC".to_owned(), "elsewhere".to_owned())].into();
    deliver(&sink, std::slice::from_ref(&placed), rabbit.abilities().patience).await;
    let [message] = &reader::raw(rabbit.0.url(), &queue)[..] else { panic!("not one message") };
    assert_eq!(message["message_id"], placed.meta.event_id.to_string());
    assert_eq!(message["delivery_mode"], 2);
    assert_eq!(message["timestamp"], placed.meta.occurred_at.unix_timestamp());
    assert_eq!(message["type"], "org.order.placed.v1");
    assert_eq!(message["content_type"], "application/json");
    assert_eq!(message["routing_key"], "orders.o-17.placed");
    assert_eq!(message["headers"]["message_key"], "o-17");
    assert!(message["headers"].get("CC").is_none(), "{message}");
}

/// In base64 more is on its way than there is here, and all of it is counted off again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_batch_that_is_larger_on_its_way_arrives() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let topic = fresh("encoded");
    rabbit.prepare(&topic).await;
    let sink = rabbit.sink(&[("cloudevents", "structured")]);
    // The difference alone is more than may be on its way at a time.
    let batch: Vec<Delivery> = (0..40).map(|_| sized(&topic, 700_000)).collect();
    deliver(&sink, &batch, rabbit.abilities().patience).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_mandatory_what_no_queue_takes_is_dropped_by_the_broker() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let sink = rabbit.sink(&[("mandatory", "false")]);
    deliver(&sink, &[event(&fresh("nowhere"), 1)], rabbit.abilities().patience).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_that_rejects_is_tried_again() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let topic = fresh("full");
    let limit = r#"{"x-max-length": 3, "x-overflow": "reject-publish"}"#;
    reader::ask(rabbit.0.url(), &["declare", &topic, limit]);
    let sink = rabbit.sink(&[]);
    for n in 0..3 {
        deliver(&sink, &[event(&topic, n)], rabbit.abilities().patience).await;
    }
    let error = error_of(send(&sink, &[event(&topic, 3)]).await.first());
    assert_eq!(error.kind(), DispatchErrorKind::Retry(None), "{error}");
    assert!(error.to_string().contains("its queue is full"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_host_answers_when_the_first_does_not() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let topic = fresh("hosts");
    rabbit.prepare(&topic).await;
    // Nobody listens at the first port of all.
    let url = format!("amqp://guest:guest@127.0.0.1:1,{}/%2F", rabbit.addr());
    let sink = RabbitSink::new(&url, options(&[("heartbeat", "30s"), ("frame_max", "16KiB")])).unwrap();
    assert_eq!(sink.to_string(), format!("amqp://127.0.0.1:1,{}//", rabbit.addr()));
    let events = [event(&topic, 1), sized(&topic, 100_000)];
    for outcome in send(&sink, &events).await {
        outcome.unwrap().unwrap();
    }
    assert_eq!(rabbit.read(&topic).await.len(), 2);
}
