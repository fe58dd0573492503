//! Entries of Redis Streams, from a real server.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Bench, Dead, Effects, Letter, consumer_suite};
use postbox_consumers::{Handler, Message, RedisSource};
use postbox_core::{Delivery, HandlerResult, OutboxTransaction};
use postbox_sinks::{Options, RedisSink};
use postbox_stores::sqlite::SqlxSqlite;
use postbox_testkit::RedisServer;
use postbox_testkit::sink_suite::{deliver, fresh};
use redis::streams::StreamRangeReply;
use redis::{Client, FromRedisValue, cmd};
use tokio::sync::{Semaphore, watch};

/// A stream of its own at a server that is shared.
struct Redis {
    url: String,
    stream: String,
    sources: AtomicUsize,
}

impl Redis {
    async fn new() -> Result<Self, String> {
        Ok(Self::at(RedisServer::try_shared()?).await)
    }

    async fn at(server: &RedisServer) -> Self {
        let this =
            Self { url: server.url().to_owned(), stream: fresh("consumer"), sources: AtomicUsize::new(0) };
        let () = this.ask(&["XGROUP", "CREATE", &this.stream, "stock", "0", "MKSTREAM"]).await;
        // Where no entry can be added.
        let () = this.ask(&["SET", &format!("{}:nowhere", this.stream), "no stream"]).await;
        this
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let client = Client::open(self.url.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut connection).await.unwrap()
    }
}

impl Bench for Redis {
    type Source = RedisSource;

    async fn send(&self, events: &[Delivery], _: usize, options: &[(&str, &str)]) {
        let options = options.iter().fold(Options::new(), |all, (name, value)| all.set(*name, *value));
        let options = options.set("destination", self.stream.as_str());
        deliver(&RedisSink::new(&self.url, options).unwrap(), events, common::PATIENCE).await;
    }

    async fn source(&self, dead: Dead) -> RedisSource {
        let place = match dead {
            Dead::Here => "dead",
            Dead::Nowhere => "nowhere",
        };
        // Each is somebody else: what another has left behind must be taken over.
        let name = format!("stock-{}", self.sources.fetch_add(1, Ordering::SeqCst));
        let client = Client::open(self.url.as_str()).unwrap();
        RedisSource::new(client, self.stream.as_str(), "stock", name)
            .dead_letters(format!("{}:{place}", self.stream))
            .take_over_after(Duration::from_secs(1))
    }

    async fn dead(&self) -> Vec<Letter> {
        let found: StreamRangeReply = self.ask(&["XRANGE", &format!("{}:dead", self.stream), "-", "+"]).await;
        let letter = |entry: &redis::streams::StreamId| {
            let mut headers: BTreeMap<String, String> =
                entry.map.keys().map(|name| (name.clone(), entry.get(name).unwrap())).collect();
            let payload = headers.remove("payload").unwrap().into_bytes();
            Letter { headers, payload }
        };
        found.ids.iter().map(letter).collect()
    }

    async fn left(&self) -> u64 {
        let groups: Vec<BTreeMap<String, redis::Value>> = self.ask(&["XINFO", "GROUPS", &self.stream]).await;
        let number = |name: &str| redis::from_redis_value::<u64>(groups[0][name].clone()).unwrap();
        number("pending") + number("lag")
    }
}

consumer_suite!(Redis::new());

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_comes_back_under_its_name_goes_on_at_once() {
    let redis = postbox_testkit::broker_or_skip!(Redis::new().await);
    let (shop, effects) = (common::Shop::open().await, common::Effects::default());
    let orders: Vec<Delivery> = (0..9).map(|n| common::order(n, "")).collect();
    redis.send(&orders, 0, &[]).await;
    // Delivered to it, and it died.
    let count: &[&str] =
        &["XREADGROUP", "GROUP", "stock", "stock-9", "COUNT", "9", "STREAMS", &redis.stream, ">"];
    let _: redis::Value = redis.ask(count).await;
    let client = Client::open(redis.url.as_str()).unwrap();
    // It would take nothing over for an hour.
    let source = RedisSource::new(client, redis.stream.as_str(), "stock", "stock-9")
        .take_over_after(Duration::from_hours(1));
    let running = common::consumer(&shop, &effects).spawn(source);
    postbox_testkit::eventually("all effects", common::PATIENCE, async || shop.effects().await.len() == 9)
        .await;
    running.shutdown().await.unwrap();
    shop.assert_once(&orders).await;
    assert_eq!(redis.left().await, 0);
}

/// Holds up what it will reject until it may go on.
#[derive(Clone)]
struct Held {
    effects: Effects,
    begun: Arc<Semaphore>,
    open: watch::Sender<bool>,
}

impl Handler<SqlxSqlite> for Held {
    async fn handle(&self, tx: &mut OutboxTransaction<SqlxSqlite>, message: &Message) -> HandlerResult {
        if message.json::<serde_json::Value>()?["reject"] == true {
            self.begun.add_permits(1);
            self.open.subscribe().wait_for(|open| *open).await.unwrap();
        }
        self.effects.handle(tx, message).await
    }
}

/// The connection that a message came by is gone when it is to be buried: it would never be, and nothing behind it would be worked on.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_while_redis_restarts_holds_up_nothing() {
    let server = postbox_testkit::broker_or_skip!(RedisServer::try_start());
    let (redis, shop) = (Redis::at(&server).await, common::Shop::open().await);
    let (effects, begun) = (Effects::default(), Arc::new(Semaphore::new(0)));
    let held = Held { effects, begun, open: watch::Sender::new(false) };
    let (bad, good) = (common::order(0, r#","reject":true"#), common::order(1, ""));
    redis.send(std::slice::from_ref(&bad), 0, &[]).await;
    let consumer = shop.consumer_of(held.clone()).at_once(1);
    let running = consumer.spawn(redis.source(Dead::Here).await);
    held.begun.acquire().await.unwrap().forget();
    server.stop();
    server.start_again();
    held.open.send_replace(true);
    redis.send(std::slice::from_ref(&good), 0, &[]).await;
    let effects = async || shop.effects().await.len() == 1;
    postbox_testkit::eventually("the one behind it", common::PATIENCE, effects).await;
    running.shutdown().await.unwrap();
    shop.assert_once(std::slice::from_ref(&good)).await;
    let letters = redis.dead().await;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(redis.left().await, 0, "both are acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_gone_ends_the_run() {
    let redis = postbox_testkit::broker_or_skip!(Redis::new().await);
    let (shop, effects) = (common::Shop::open().await, common::Effects::default());
    let mut running = common::consumer(&shop, &effects).spawn(redis.source(Dead::Here).await);
    let () = redis.ask(&["XGROUP", "DESTROY", &redis.stream, "stock"]).await;
    let error = running.ended().await.unwrap_err().to_string();
    assert!(
        error.ends_with(&format!("make it with XGROUP CREATE {} stock 0 MKSTREAM", redis.stream)),
        "{error}"
    );
}
