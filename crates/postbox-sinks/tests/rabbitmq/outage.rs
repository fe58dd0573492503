//! What is wrong with the broker is nobody's fault: the events wait.

use std::io::Read as _;
use std::net::TcpListener;
use std::time::Duration;

use postbox_core::DispatchErrorKind;
use postbox_testkit::broker_or_skip;
use postbox_testkit::sink_suite::{
    Broker as _, assert_complete, deliver, event, events, fresh, refused, send,
};

use super::{Rabbit, error_of, reader};

const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_not_there_is_waited_for() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let (exchange, queue) = (fresh("exchange"), fresh("queue"));
    let sink = rabbit.sink(&[("exchange", &exchange)]);
    let all = events("some.topic", 10);
    for outcome in send(&sink, &all).await {
        let error = error_of(Some(&outcome));
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(&format!("no exchange '{exchange}'")), "{error}");
    }
    reader::ask(rabbit.0.url(), &["bind", &exchange, "fanout", &queue, ""]);
    deliver(&sink, &all, PATIENCE).await;
    assert_complete(&all, &rabbit.read(&queue).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_host_and_an_exchange_that_are_not_for_us_are_waited_for() {
    let rabbit = broker_or_skip!(Rabbit::shared());
    let url = format!("amqp://guest:guest@{}/nowhere", rabbit.addr());
    let sink = super::RabbitSink::new(&url, super::options(&[])).unwrap();
    let error = refused(&sink, &event("some.topic", 1), PATIENCE).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");

    let user = fresh("user");
    rabbit.0.ctl(&["add_user", &user, "secret"]).unwrap();
    rabbit.0.ctl(&["set_permissions", &user, "", "", ""]).unwrap();
    let sink = Rabbit::sink_as(&format!("{user}:secret"), rabbit.addr(), &[("exchange", "amq.topic")]);
    let error = refused(&sink, &event("some.topic", 1), PATIENCE).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("ACCESS_REFUSED"), "{error}");
}

/// The client itself would wait for the greeting for ever, in a thread of its own.
#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_does_not_greet_is_left_alone_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("amqp://{}?connect_timeout=500ms", listener.local_addr().unwrap());
    let sink = super::RabbitSink::new(&url, super::options(&[])).unwrap();
    let error = refused(&sink, &event("some.topic", 1), PATIENCE).await;
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no answer within 500ms"), "{error}");
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut greeting = Vec::new();
    stream.read_to_end(&mut greeting).expect("the end of the connection");
    assert_eq!(greeting, b"AMQP\0\0\x09\x01");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_of_the_broker_is_waited_for() {
    let rabbit = broker_or_skip!(Rabbit::private());
    let topic = fresh("alarm");
    rabbit.prepare(&topic).await;
    let sink = rabbit.sink(&[]);
    let all = events(&topic, 1500);
    deliver(&sink, &all[..500], PATIENCE).await;
    rabbit.0.ctl(&["set_vm_memory_high_watermark", "0.00001"]).unwrap();
    let mut kinds = Vec::new();
    for _ in 0..2 {
        // A few may still be taken before the broker sees that it is full.
        for outcome in
            send(&sink, &all[500..]).await.iter().filter(|outcome| !matches!(outcome, Some(Ok(()))))
        {
            let error = error_of(Some(outcome));
            assert!(error.to_string().contains("blocks publishers: low on memory"), "{error}");
            kinds.push(error.kind());
        }
    }
    assert!(
        !kinds.is_empty() && kinds.iter().all(|kind| *kind == DispatchErrorKind::Unavailable),
        "{kinds:?}"
    );
    rabbit.0.ctl(&["set_vm_memory_high_watermark", "0.6"]).unwrap();
    deliver(&sink, &all[500..], PATIENCE).await;
    assert_complete(&all, &rabbit.read(&topic).await);
}
