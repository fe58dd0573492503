//! NATS by async-nats: acknowledgements are waited for in the order of the messages, behind a window.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::context::{ContextBuilder, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, stream};
use postbox_testkit::NatsServer;

use super::{Broker, Message};

/// Messages under way. A guess: others have not been tried.
const WINDOW: usize = 2_000;

pub(super) struct Nats {
    server: NatsServer,
    context: Context,
}

impl Broker for Nats {
    async fn start() -> Self {
        let server = NatsServer::start();
        let client = async_nats::connect(server.url()).await.expect("a connection");
        let context =
            ContextBuilder::new().timeout(Duration::from_secs(30)).max_ack_inflight(WINDOW * 2).build(client);
        Self { server, context }
    }

    fn url(&self) -> String {
        self.server.url().to_owned()
    }

    async fn make(&self, destination: &str) {
        make_stream(&self.context, destination).await;
    }

    async fn publish(
        &self,
        destination: &str,
        messages: impl Iterator<Item = Message> + Send + 'static,
    ) -> Duration {
        let started = Instant::now();
        let mut acks = VecDeque::with_capacity(WINDOW);
        for message in messages {
            if acks.len() == WINDOW {
                let ack: PublishAckFuture = acks.pop_front().expect("the oldest");
                ack.await.expect("an acknowledgement");
            }
            let mut headers = HeaderMap::new();
            for (name, value) in message.headers() {
                headers.insert(name, value);
            }
            headers.insert("message_key", message.event_id.as_str());
            headers.insert("Nats-Msg-Id", message.event_id.as_str());
            let publish = PublishMessage::build().headers(headers).payload(message.payload.into());
            acks.push_back(self.context.send_publish(destination.to_owned(), publish).await.expect("a send"));
        }
        for ack in acks {
            ack.await.expect("an acknowledgement");
        }
        started.elapsed()
    }

    async fn count(&self, destination: &str) -> usize {
        count(&self.context, destination).await
    }

    async fn remove(&self, destination: &str) {
        self.context.delete_stream(destination).await.expect("a deletion");
    }
}

/// A stream on disk for the subject of the same name.
pub(super) async fn make_stream(context: &Context, name: &str) {
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![name.to_owned()],
        storage: stream::StorageType::File,
        ..stream::Config::default()
    };
    context.create_stream(config).await.expect("a stream");
}

/// How many messages a stream has.
pub(super) async fn count(context: &Context, name: &str) -> usize {
    let mut stream = context.get_stream(name).await.expect("the stream");
    let info = stream.info().await.expect("its state");
    usize::try_from(info.state.messages).expect("a number")
}
