//! Messages of RabbitMQ, from a real broker.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::sync::Mutex;
use std::time::Duration;

use common::{Bench, Dead, Letter, consumer_suite};
use lapin::options::{BasicGetOptions, BasicNackOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use postbox_consumers::RabbitSource;
use postbox_core::Delivery;
use postbox_sinks::{Options, RabbitSink};
use postbox_testkit::RabbitServer;
use postbox_testkit::sink_suite::{deliver, fresh};

/// A queue of its own at a broker that is shared.
struct Rabbit {
    url: String,
    queue: String,
    own: Connection,
    /// Of the sources.
    connections: Mutex<Vec<Connection>>,
}

impl Rabbit {
    async fn new() -> Result<Self, String> {
        let server = RabbitServer::try_shared()?;
        let (url, queue) = (server.url().to_owned(), fresh("consumer"));
        let own = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = own.create_channel().await.unwrap();
        for queue in [queue.clone(), format!("{queue}.dead")] {
            let options = QueueDeclareOptions { durable: true, ..Default::default() };
            channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
        }
        Ok(Self { url, queue, own, connections: Mutex::default() })
    }
}

impl Bench for Rabbit {
    type Source = RabbitSource;

    async fn send(&self, events: &[Delivery], _: usize, options: &[(&str, &str)]) {
        let options = options.iter().fold(Options::new(), |all, (name, value)| all.set(*name, *value));
        let options = options.set("destination", self.queue.as_str());
        deliver(&RabbitSink::new(&self.url, options).unwrap(), events, common::PATIENCE).await;
    }

    async fn source(&self, dead: Dead) -> RabbitSource {
        let queue = match dead {
            Dead::Here => format!("{}.dead", self.queue),
            Dead::Nowhere => format!("{}.nowhere", self.queue),
        };
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap();
        let source = RabbitSource::new(connection.create_channel().await.unwrap(), self.queue.as_str());
        let source = source.dead_letters(connection.create_channel().await.unwrap(), "", &queue);
        self.connections.lock().unwrap().push(connection);
        source
    }

    async fn crash(&self) {
        let connections = std::mem::take(&mut *self.connections.lock().unwrap());
        for connection in connections {
            // The client may end before it has told that it does, and then nobody is ever told; the connection is gone all the same.
            let closed = connection.close(200, "crashed".into());
            tokio::time::timeout(Duration::from_secs(5), closed).await.ok();
        }
    }

    async fn dead(&self) -> Vec<Letter> {
        let channel = self.own.create_channel().await.unwrap();
        let (mut letters, mut taken) = (Vec::new(), Vec::new());
        let queue = format!("{}.dead", self.queue);
        while let Some(message) =
            channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap()
        {
            let table = message.properties.headers().clone().unwrap_or_default();
            let headers = table.inner().iter().filter_map(|(name, value)| match value {
                AMQPValue::LongString(text) => Some((name.to_string(), text.to_string())),
                _ => None,
            });
            letters.push(Letter { headers: headers.collect(), payload: message.data.clone() });
            taken.push(message);
        }
        for message in taken {
            message.acker.nack(BasicNackOptions { requeue: true, ..Default::default() }).await.unwrap();
        }
        channel.close(200, "".into()).await.unwrap();
        letters
    }

    async fn left(&self) -> u64 {
        // What was not acknowledged is back once its connection is gone.
        self.crash().await;
        let channel = self.own.create_channel().await.unwrap();
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let queue =
            channel.queue_declare(self.queue.as_str().into(), options, FieldTable::default()).await.unwrap();
        u64::from(queue.message_count())
    }
}

consumer_suite!(Rabbit::new());

/// RabbitMQ closes the channel at the first dead letter, and the client opens no other: nothing could be buried again.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_to_an_exchange_that_is_missing_end_the_run() {
    let rabbit = postbox_testkit::broker_or_skip!(Rabbit::new().await);
    for at_once in [1, 4] {
        let (shop, effects) = (common::Shop::open().await, common::Effects::default());
        let missing = fresh("missing");
        let connection = Connection::connect(&rabbit.url, ConnectionProperties::default()).await.unwrap();
        let source = RabbitSource::new(connection.create_channel().await.unwrap(), rabbit.queue.as_str())
            .dead_letters(connection.create_channel().await.unwrap(), &missing, "stock");
        let mut running = common::consumer(&shop, &effects).at_once(at_once).spawn(source);
        if at_once == 1 {
            let order = common::order(0, r#","reject":true"#);
            rabbit.send(std::slice::from_ref(&order), 0, &[]).await;
        }
        let ended = tokio::time::timeout(common::PATIENCE, running.ended()).await.expect("it ends");
        let error = ended.unwrap_err();
        assert!(error.to_string().contains(&missing), "{error}");
        let cause = std::error::Error::source(&error).expect("a reason").to_string();
        assert!(cause.contains("NOT_FOUND") || cause.contains("NOT-FOUND"), "{cause}");
        rabbit.connections.lock().unwrap().push(connection);
        assert_eq!(rabbit.left().await, 1, "it is in the queue again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_ends_the_run() {
    let rabbit = postbox_testkit::broker_or_skip!(Rabbit::new().await);
    let (shop, effects) = (common::Shop::open().await, common::Effects::default());
    let mut running = common::consumer(&shop, &effects).spawn(rabbit.source(Dead::Here).await);
    let order = common::order(0, "");
    rabbit.send(std::slice::from_ref(&order), 0, &[]).await;
    postbox_testkit::eventually("an effect", common::PATIENCE, async || shop.effects().await.len() == 1)
        .await;
    rabbit.crash().await;
    let error = running.ended().await.unwrap_err().to_string();
    assert!(error.contains(&rabbit.queue), "{error}");
}
