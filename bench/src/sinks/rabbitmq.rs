//! RabbitMQ by lapin: confirmations are waited for in the order of the messages, behind a window.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm};
use postbox_testkit::RabbitServer;

use super::{Broker, Message};
use crate::drain::TOPIC;

/// Messages under way. 500 were slower, and neither twice as many nor more connections clearly faster.
const WINDOW: usize = 2_000;

pub(super) struct Rabbit {
    server: RabbitServer,
    channel: Channel,
    /// The channel lives as long.
    _connection: Connection,
}

impl Rabbit {
    /// Declares a durable queue or, if it is there, asks for it: how many messages are ready.
    async fn declare(&self, queue: &str) -> usize {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let queue =
            self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.expect("a queue");
        usize::try_from(queue.message_count()).expect("a number")
    }
}

impl Broker for Rabbit {
    async fn start() -> Self {
        let server = RabbitServer::start();
        let connection =
            Connection::connect(server.url(), ConnectionProperties::default()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirmations");
        Self { server, channel, _connection: connection }
    }

    fn url(&self) -> String {
        self.server.url().to_owned()
    }

    async fn make(&self, destination: &str) {
        self.declare(destination).await;
    }

    async fn publish(
        &self,
        destination: &str,
        messages: impl Iterator<Item = Message> + Send + 'static,
    ) -> Duration {
        let started = Instant::now();
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let mut confirms = VecDeque::with_capacity(WINDOW);
        for message in messages {
            if confirms.len() == WINDOW {
                let confirm: PublisherConfirm = confirms.pop_front().expect("the oldest");
                assert!(confirm.await.expect("a confirmation").is_ack());
            }
            let short = |text: &str| ShortString::from(text);
            let mut table = FieldTable::default();
            for (name, value) in message.headers() {
                table.insert(short(name), AMQPValue::LongString(value.into()));
            }
            table.insert(short("message_key"), AMQPValue::LongString(message.event_id.as_str().into()));
            let properties = BasicProperties::default()
                .with_message_id(short(&message.event_id))
                .with_content_type(short("application/json"))
                .with_delivery_mode(2)
                .with_timestamp(1_767_225_600)
                .with_type(short(TOPIC))
                .with_headers(table);
            let publish = self.channel.basic_publish(
                short(""),
                short(destination),
                options,
                &message.payload,
                properties,
            );
            confirms.push_back(publish.await.expect("a send"));
        }
        for confirm in confirms {
            assert!(confirm.await.expect("a confirmation").is_ack());
        }
        started.elapsed()
    }

    async fn count(&self, destination: &str) -> usize {
        self.declare(destination).await
    }

    async fn remove(&self, destination: &str) {
        self.channel
            .queue_delete(destination.into(), QueueDeleteOptions::default())
            .await
            .expect("a deletion");
    }
}
