//! The Redis sink against a real server: the sink suite, and what is Redis's own.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod cli;
#[path = "../support/mod.rs"]
mod support;

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use cli::Cli;
use postbox_core::{DispatchErrorKind, Dispatcher as _};
use postbox_sinks::RedisSink;
use postbox_testkit::sink_suite::{
    Abilities, Broker, Received, WRONG_PASSWORD, deliver, event, events, fresh, send,
};
use postbox_testkit::{RedisServer, ServerOptions, broker_or_skip, sink_suite};
use support::{Certificates, options};

/// A server that wants a login and takes values of a mebibyte.
struct Redis(RedisServer);

const LIMIT: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_mins(1);

impl Redis {
    fn start() -> Result<Self, String> {
        let options = ServerOptions::new().login("postbox", "s3cret").max_message(LIMIT);
        RedisServer::try_with(&options).map(Self)
    }

    fn cli(&self) -> Cli {
        Cli::new(self.0.addr(), Some(("postbox", "s3cret")))
    }
}

impl Broker for Redis {
    type Sink = RedisSink;

    fn abilities(&self) -> Abilities {
        Abilities { large: LIMIT, too_large: Some(LIMIT + 1), ..Abilities::default() }
    }

    fn addr(&self) -> SocketAddr {
        self.0.addr()
    }

    fn sink_at(&self, addr: SocketAddr, more: &[(&str, &str)]) -> RedisSink {
        let short = [("timeout", "2s"), ("connect_timeout", "2s")];
        RedisSink::new(&format!("redis://postbox:s3cret@{addr}"), options(&[&short, more].concat())).unwrap()
    }

    fn sink_with_wrong_credentials(&self) -> RedisSink {
        let url = format!("redis://postbox:{WRONG_PASSWORD}@{}", self.addr());
        RedisSink::new(&url, options(&[])).unwrap()
    }

    async fn prepare(&self, _: &str) {}

    async fn read(&self, destination: &str) -> Vec<Received> {
        self.cli().read_stream(destination)
    }

    async fn stop(&self) {
        tokio::task::block_in_place(|| self.0.stop());
    }

    async fn start_again(&self) {
        tokio::task::block_in_place(|| self.0.start_again());
    }
}

sink_suite!(suite, async { Redis::start() });

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_rejected_and_the_rest_arrives() {
    let redis = broker_or_skip!(Redis::start());
    let topic = fresh("type");
    redis.cli().run(&["SET", "taken", "1"]);
    let mut batch = events(&topic, 3);
    batch[1].destination = Some("taken".into());
    let outcomes = send(&redis.sink(&[]), &batch).await;
    let error = outcomes[1].clone().unwrap().unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert!(outcomes[0].as_ref().unwrap().is_ok() && outcomes[2].as_ref().unwrap().is_ok());
    assert_eq!(redis.read(&topic).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_is_waited_for() {
    let redis = broker_or_skip!(Redis::start());
    let topic = fresh("memory");
    let (sink, cli) = (redis.sink(&[]), redis.cli());
    deliver(&sink, &events(&topic, 1), PATIENCE).await;
    cli.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = sink.dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("OOM"), "{error}");
    cli.run(&["CONFIG", "SET", "maxmemory", "0"]);
    deliver(&sink, &events(&topic, 1), PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_permission_waits_for_it() {
    let redis = broker_or_skip!(Redis::start());
    let (topic, cli) = (fresh("permission"), redis.cli());
    cli.run(&["ACL", "SETUSER", "weak", "on", ">pw", "~*", "+ping", "+client"]);
    let sink = RedisSink::new(&format!("redis://weak:pw@{}", redis.addr()), options(&[])).unwrap();
    let error = sink.dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("NOPERM"), "{error}");
    cli.run(&["ACL", "SETUSER", "weak", "+xadd"]);
    deliver(&sink, &events(&topic, 1), PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_trimmed_where_that_is_asked_for() {
    let redis = broker_or_skip!(Redis::start());
    let topic = fresh("maxlen");
    deliver(&redis.sink(&[("maxlen", "100")]), &events(&topic, 3000), PATIENCE).await;
    let left = redis.read(&topic).await.len();
    assert!((100..1000).contains(&left), "{left} are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_have_it_where_that_is_asked_for() {
    let leader = broker_or_skip!(RedisServer::try_start());
    let url = format!("redis://{}?timeout=2s", leader.addr());
    let sink = RedisSink::new(&url, options(&[("wait_replicas", "1")])).unwrap();
    let topic = fresh("replicas");
    let all = events(&topic, 250);
    for outcome in send(&sink, &all).await {
        let error = outcome.unwrap().unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("only 0 of 1 replicas"), "{error}");
    }
    let follow = format!("replicaof 127.0.0.1 {}", leader.port());
    let replica =
        RedisServer::with(&ServerOptions::new().setting(&follow).setting("repl-diskless-sync-delay 0"));
    deliver(&sink, &all, PATIENCE).await;
    let there = Cli::new(replica.addr(), None).read_stream(&topic);
    postbox_testkit::sink_suite::assert_complete(&all, &there);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_checked_both_ways() {
    let certificates = broker_or_skip!(Certificates::make());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = ServerOptions::new().setting(&format!("tls-port {port}"));
    for (setting, file) in
        [("tls-cert-file", "server.pem"), ("tls-key-file", "server.key"), ("tls-ca-cert-file", "ca.pem")]
    {
        server = server.setting(&format!("{setting} {}", certificates.text(file)));
    }
    let server = broker_or_skip!(RedisServer::try_with(&server));
    let (ca, cert, key) =
        (certificates.text("ca.pem"), certificates.text("client.pem"), certificates.text("client.key"));
    let url = format!("rediss://127.0.0.1:{port}");
    let all = [("tls_ca", ca.as_str()), ("tls_cert", cert.as_str()), ("tls_key", key.as_str())];
    let topic = fresh("tls");
    deliver(&RedisSink::new(&url, options(&all)).unwrap(), &events(&topic, 5), PATIENCE).await;
    assert_eq!(Cli::new(server.addr(), None).read_stream(&topic).len(), 5);
    for some in [&all[..1], &[]] {
        let error =
            RedisSink::new(&url, options(some)).unwrap().dispatch(&event(&topic, 1)).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    }
    // It can be reached by this name, and is trusted, but its certificate has another.
    let plain = format!("redis://localhost:{}", server.port());
    deliver(&RedisSink::new(&plain, options(&[])).unwrap(), &events(&topic, 1), PATIENCE).await;
    let other = RedisSink::new(&url.replace("127.0.0.1", "localhost"), options(&all)).unwrap();
    let error = other.dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("not valid for name"), "{error}");
    assert_eq!(Cli::new(server.addr(), None).read_stream(&topic).len(), 6);
}
