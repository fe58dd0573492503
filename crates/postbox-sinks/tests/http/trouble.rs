//! Receivers that hang, break off, are away, or come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use postbox_core::testing::delivery;
use postbox_core::{Code, DispatchErrorKind, Dispatcher as _, Receipts};
use postbox_testkit::eventually;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::receiver::Receiver;
use crate::{dispatch, keyed, sink};

/// A server that reads what comes, writes this to each connection, and then holds it or lets it go.
async fn raw(reply: &'static [u8], hold: bool) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(reply).await;
                if hold {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (url, connections)
}

#[tokio::test]
async fn hazard_26_no_answer_in_time_is_a_retry() {
    for reply in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-"] {
        let (url, connections) = raw(reply, true).await;
        let started = Instant::now();
        let error =
            sink(&url, json!({"timeout": "300ms"})).dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (DispatchErrorKind::Retry(None), Code::Timeout), "{error}");
        assert!(error.to_string().contains("did not answer within 300ms"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(3));
        assert_eq!(connections.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_retry() {
    for reply in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-", b"SSH-2.0-OpenSSH_9\r\n\r\n"] {
        let (url, _) = raw(reply, false).await;
        let error = sink(&url, json!({})).dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Retry(None), "{error}");
        assert!(error.to_string().contains("broke before the answer"), "{error}");
    }
}

#[tokio::test]
async fn a_body_that_never_ends_changes_nothing() {
    let (url, _) = raw(b"HTTP/1.1 204 No Content\r\n\r\n", true).await;
    sink(&url, json!({})).dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap();
    let (url, _) = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nand so on", true).await;
    let started = Instant::now();
    sink(&url, json!({})).dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap();
    let (url, _) = raw(b"HTTP/1.1 400 Bad\r\nContent-Length: 99999999\r\n\r\nand so on", true).await;
    let error = sink(&url, json!({})).dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap_err();
    assert!(error.to_string().contains("400 Bad Request: and so on"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn hazard_27_a_receiver_that_is_away_costs_no_attempt_and_its_events_arrive_later() {
    let mut receiver = Receiver::idle(|_| Box::pin(async { StatusCode::OK.into_response() }));
    let sink = sink(&receiver.url("/"), json!({}));
    let batch: Vec<_> = (0..20).map(|n| keyed(&n.to_string(), "{}")).collect();
    for round in 0..3 {
        for outcome in dispatch(&sink, &batch).await {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("cannot connect to 127.0.0.1:"), "{error}");
        }
        receiver.start();
        for outcome in dispatch(&sink, &batch).await {
            outcome.unwrap();
        }
        assert_eq!(receiver.seen().len(), 20 * (round + 1));
        receiver.stop();
    }
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_an_outage() {
    let sink = sink("https://nobody.invalid/", json!({}));
    let error = sink.dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("cannot resolve nobody.invalid"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_dropped_ends_its_requests_and_the_sink_works_on() {
    let receiver = Receiver::with(|seen| {
        let slow = seen.body.starts_with(b"\"slow");
        Box::pin(async move {
            if slow {
                tokio::time::sleep(Duration::from_mins(1)).await;
            }
            StatusCode::OK.into_response()
        })
    });
    let sink = sink(&receiver.url("/"), json!({"concurrency": 4}));
    let batch: Vec<_> =
        (0..8).map(|n| keyed(&n.to_string(), if n < 2 { "\"quick\"" } else { "\"slow\"" })).collect();
    let mut receipts = Receipts::new(batch.len());
    let cut =
        tokio::time::timeout(Duration::from_millis(700), sink.dispatch_batch(&batch, &mut receipts)).await;
    assert!(cut.is_err());
    let known: Vec<usize> = receipts.take().into_iter().map(|(index, _)| index).collect();
    assert_eq!(known.len(), 2, "what was confirmed is known: {known:?}");
    eventually("the receiver to lose the others", Duration::from_secs(5), async || {
        receiver.desk.now.load(Ordering::SeqCst) == 0
    })
    .await;
    for outcome in dispatch(&sink, &batch[..2]).await {
        outcome.unwrap();
    }
}

#[tokio::test]
async fn a_proxy_is_used_where_it_is_asked_for() {
    let (proxy, connections) = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false).await;
    let direct = Receiver::willing();
    let through = sink(&direct.url("/"), json!({"proxy": proxy}));
    through.dispatch(&delivery("a.b.c.v1", "{}")).await.unwrap();
    assert_eq!((connections.load(Ordering::SeqCst), direct.seen().len()), (1, 0));
    let (proxy, _) =
        raw(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", false).await;
    let error = sink("https://hooks.example.com/", json!({"proxy": proxy}))
        .dispatch(&delivery("a.b.c.v1", "{}"))
        .await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
}
