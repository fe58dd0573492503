//! The NATS sink against a real server: the sink suite, and what is NATS's own.
#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod creds;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use postbox_core::{DispatchErrorKind, Dispatcher as _};
use postbox_sinks::NatsSink;
use postbox_testkit::sink_suite::{Abilities, Broker, Received, WRONG_PASSWORD, deliver, event, fresh, send};
use postbox_testkit::{NatsServer, ServerOptions, broker_or_skip, sink_suite};
use support::options;
use wire::Wire;

/// A server that wants a login.
struct Nats(NatsServer);

const LOGIN: (&str, &str) = ("postbox", "s3cret");
const PATIENCE: Duration = Duration::from_mins(1);

impl Nats {
    fn start() -> Result<Self, String> {
        NatsServer::try_with(&ServerOptions::new().login(LOGIN.0, LOGIN.1)).map(Self)
    }

    fn wire(&self) -> Wire {
        Wire::connect(self.0.addr(), Some(LOGIN))
    }

    fn sink_as(login: &str, addr: SocketAddr, more: &[(&str, &str)]) -> NatsSink {
        let short = [("timeout", "2s"), ("connect_timeout", "2s")];
        NatsSink::new(&format!("nats://{login}{addr}"), options(&[&short, more].concat())).unwrap()
    }
}

impl Broker for Nats {
    type Sink = NatsSink;

    fn abilities(&self) -> Abilities {
        Abilities { deduplicates: true, cloudevents_prefix: "ce-", ..Abilities::default() }
    }

    fn addr(&self) -> SocketAddr {
        self.0.addr()
    }

    fn sink_at(&self, addr: SocketAddr, options: &[(&str, &str)]) -> NatsSink {
        Self::sink_as("postbox:s3cret@", addr, options)
    }

    fn sink_with_wrong_credentials(&self) -> NatsSink {
        Self::sink_as(&format!("postbox:{WRONG_PASSWORD}@"), self.addr(), &[])
    }

    async fn prepare(&self, destination: &str) {
        self.wire().make_stream(destination);
    }

    async fn read(&self, destination: &str) -> Vec<Received> {
        self.wire().read_stream(destination)
    }

    async fn stop(&self) {
        tokio::task::block_in_place(|| self.0.stop());
    }

    async fn start_again(&self) {
        tokio::task::block_in_place(|| self.0.start_again());
    }
}

sink_suite!(suite, async { Nats::start() });

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_without_a_stream_waits_until_there_are_streams_and_is_rejected_then() {
    let nats = broker_or_skip!(Nats::start());
    let sink = nats.sink(&[]);
    let (known, unknown) = (fresh("known"), fresh("unknown"));
    let error = sink.dispatch(&event(&unknown, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("there is none yet"), "{error}");
    nats.prepare(&known).await;
    let outcomes = send(&sink, &[event(&known, 1), event(&unknown, 2), event(&known, 3)]).await;
    let error = outcomes[1].clone().unwrap().unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
    assert!(error.to_string().contains(&format!("no stream takes the subject \"{unknown}\"")), "{error}");
    assert!(outcomes[0].as_ref().unwrap().is_ok() && outcomes[2].as_ref().unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stream_refuses_is_classified() {
    let nats = broker_or_skip!(Nats::start());
    let topic = fresh("limits");
    let mut wire = nats.wire();
    wire.make_stream_with(&topic, r#","max_msg_size":1000,"max_msgs":2,"discard":"new""#);
    let sink = nats.sink(&[]);
    let mut large = event(&topic, 1);
    large.payload =
        postbox_core::Payload::Bytes { bytes: vec![b'x'; 2000].into(), content_type: "text/plain".into() };
    let error = sink.dispatch(&large).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Reject, "{error}");
    for n in 0..2 {
        sink.dispatch(&event(&topic, n)).await.unwrap();
    }
    let error = sink.dispatch(&event(&topic, 3)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("maximum messages exceeded"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_to_the_server_are_not_for_events_to_give() {
    let nats = broker_or_skip!(Nats::start());
    let topic = fresh("orders");
    nats.wire().make_stream_with(&topic, r#","allow_rollup_hdrs":true"#);
    let sink = nats.sink(&[]);
    sink.dispatch(&event(&topic, 1)).await.unwrap();
    let mut bad = event(&topic, 2);
    bad.meta.headers = [("Nats-Rollup".into(), "all".into()), ("nats-msg-id".into(), "x".into())].into();
    sink.dispatch(&bad).await.unwrap();
    let received = nats.read(&topic).await;
    assert_eq!(received.len(), 2);
    assert_eq!(received[1].headers["Nats-Msg-Id"], format!("{}@{topic}", bad.meta.event_id));
}

/// A stream leaves out what it takes for a repetition, and confirms it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn one_event_may_go_to_several_subjects_of_a_stream_and_to_each_once() {
    let nats = broker_or_skip!(Nats::start());
    let all = fresh("all");
    nats.wire().make_stream(&format!("{all}.*"));
    let event = event("shop.order.placed.v1", 1);
    for part in ["orders", "audit", "orders"] {
        let destination = format!("{all}.{part}");
        nats.sink(&[("destination", destination.as_str())]).dispatch(&event).await.unwrap();
    }
    assert_eq!(nats.read(&format!("{all}.*")).await.len(), 2, "the second to the same subject is known");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_login_that_a_server_wants() {
    let token = broker_or_skip!(NatsServer::try_with(&ServerOptions::new().token("t0ken")));
    let nkey = NatsServer::with(
        &ServerOptions::new().setting(&format!("authorization {{ users: [ {{ nkey: {NKEY} }} ] }}")),
    );
    for (server, login, wire) in [
        (&token, vec![("token", "t0ken")], Some(Wire::connect_with(token.addr(), r#""auth_token":"t0ken""#))),
        (&nkey, vec![("nkey", SEED)], None),
    ] {
        let topic = fresh("login");
        let sink = NatsSink::new(&format!("nats://{}", server.addr()), options(&login)).unwrap();
        if let Some(mut wire) = wire {
            wire.make_stream(&topic);
            deliver(&sink, &[event(&topic, 1)], PATIENCE).await;
        } else {
            // No stream, as only the sink can log in: but it is told so.
            let error = sink.dispatch(&event(&topic, 1)).await.unwrap_err().to_string();
            assert!(error.contains("there is none yet"), "{error}");
        }
        let nobody = NatsSink::new(&format!("nats://{}", server.addr()), options(&[])).unwrap();
        let error = nobody.dispatch(&event(&topic, 1)).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("refuses the credentials"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_credentials_opens_a_server_of_an_operator() {
    let operator = creds::Operator::make();
    let server = broker_or_skip!(NatsServer::try_with(&ServerOptions::new().setting(&operator.settings)));
    let url = format!("nats://{}", server.addr());
    let file = operator.creds.display().to_string();
    // There is no stream, and nothing else that is wrong.
    let sink = NatsSink::new(&url, options(&[("creds", &file)])).unwrap();
    let error = sink.dispatch(&event(&fresh("creds"), 1)).await.unwrap_err().to_string();
    assert!(error.contains("there is none yet"), "{error}");
    // Another file in its place is read at the next connection.
    let sink = NatsSink::new(&url, options(&[("creds", &file)])).unwrap();
    std::fs::write(&operator.creds, "no credentials").unwrap();
    let error = sink.dispatch(&event(&fresh("creds"), 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the credentials in"), "{error}");
}

/// A pair that the documentation of NATS uses; nobody's.
const NKEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_is_missing_is_named() {
    let users = "authorization { users: [ { user: postbox, password: s3cret, permissions: { publish: { deny: \"suite.denied.>\" } } } ] }";
    let nats = Nats(broker_or_skip!(NatsServer::try_with(&ServerOptions::new().setting(users))));
    let topic = fresh("denied");
    let error = nats.sink(&[]).dispatch(&event(&topic, 1)).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().to_lowercase().contains("permissions violation"), "{error}");
}
