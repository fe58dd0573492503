//! Redis by its usual client: pipelines of commands, several of them under way.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postbox_testkit::{RedisServer, ServerOptions};
use redis::aio::MultiplexedConnection;

use super::{Broker, Message};

/// Commands of a pipeline, and pipelines under way. A guess: others have not been tried.
const PIPELINE: usize = 500;
const AT_A_TIME: usize = 4;

pub(super) struct Redis {
    server: RedisServer,
    connection: MultiplexedConnection,
}

/// A server that writes what it confirms, and syncs it once a second, as is its own default.
pub(super) fn durable() -> RedisServer {
    RedisServer::with(&ServerOptions::new().setting("appendfsync everysec"))
}

impl Redis {
    async fn ask<T: redis::FromRedisValue>(&self, command: &str, key: &str) -> T {
        redis::cmd(command).arg(key).query_async(&mut self.connection.clone()).await.expect("an answer")
    }
}

impl Broker for Redis {
    async fn start() -> Self {
        let server = durable();
        let client = redis::Client::open(server.url()).expect("a URL");
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
        let connection =
            client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
        Self { server, connection }
    }

    fn url(&self) -> String {
        self.server.url().to_owned()
    }

    async fn make(&self, _: &str) {}

    async fn publish(
        &self,
        destination: &str,
        messages: impl Iterator<Item = Message> + Send + 'static,
    ) -> Duration {
        let started = Instant::now();
        let messages = Arc::new(Mutex::new(messages));
        let workers = (0..AT_A_TIME).map(|_| {
            let (messages, mut connection) = (Arc::clone(&messages), self.connection.clone());
            let destination = destination.to_owned();
            tokio::spawn(async move {
                loop {
                    let some: Vec<Message> =
                        messages.lock().expect("whole").by_ref().take(PIPELINE).collect();
                    if some.is_empty() {
                        return;
                    }
                    let mut pipeline = redis::Pipeline::with_capacity(some.len());
                    for message in &some {
                        let add = pipeline.cmd("XADD").arg(&destination).arg("*");
                        add.arg("key").arg(&message.event_id);
                        for (name, value) in message.headers() {
                            add.arg(name).arg(value);
                        }
                        add.arg("payload").arg(&message.payload).ignore();
                    }
                    let _: () = pipeline.query_async(&mut connection).await.expect("answers");
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        for worker in workers {
            worker.await.expect("a worker");
        }
        started.elapsed()
    }

    async fn count(&self, destination: &str) -> usize {
        self.ask("XLEN", destination).await
    }

    async fn remove(&self, destination: &str) {
        self.ask::<()>("DEL", destination).await;
    }
}
