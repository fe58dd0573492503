//! Order of a key, many keys at a time, and how many at most.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use postbox_core::{Delivery, DispatchErrorKind, Dispatcher as _};
use serde_json::json;

use crate::receiver::{Receiver, Seen};
use crate::{dispatch, keyed, sink};

/// Takes a while, a different one for each request.
fn unsteady() -> Receiver {
    Receiver::with(|seen| {
        let wait = Duration::from_millis(u64::from(seen.header("postbox-event-id").as_bytes()[35]) % 7 * 5);
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            StatusCode::OK.into_response()
        })
    })
}

fn numbers(seen: &[Seen]) -> HashMap<String, Vec<u64>> {
    let mut of_key: HashMap<String, Vec<u64>> = HashMap::new();
    for request in seen {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        of_key.entry(body["key"].as_str().unwrap().to_owned()).or_default().push(body["n"].as_u64().unwrap());
    }
    of_key
}

fn events(keys: u64, each: u64) -> Vec<Delivery> {
    let all = (0..each).flat_map(|n| (0..keys).map(move |key| (key, n)));
    all.map(|(key, n)| keyed(&format!("k{key}"), &format!("{{\"key\":\"k{key}\",\"n\":{n}}}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_key_go_one_after_another_and_keys_side_by_side() {
    let receiver = unsteady();
    let sink = sink(&receiver.url("/"), json!({}));
    for outcome in dispatch(&sink, &events(8, 12)).await {
        outcome.unwrap();
    }
    let of_key = numbers(&receiver.seen());
    assert_eq!(of_key.len(), 8);
    for (key, numbers) in of_key {
        assert_eq!(numbers, (0..12).collect::<Vec<_>>(), "{key}");
    }
    let most = receiver.desk.most.load(Ordering::SeqCst);
    assert!((2..=8).contains(&most), "{most} at a time");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_so_many_at_a_time_whatever_the_batches() {
    let receiver = unsteady();
    let sink = sink(&receiver.url("/"), json!({"concurrency": 5}));
    assert_eq!(sink.batch_limit(), 5);
    let batches: Vec<Vec<Delivery>> = (0..6).map(|_| events(10, 1)).collect();
    futures_util::future::join_all(batches.iter().map(|batch| dispatch(&sink, batch))).await;
    assert_eq!(receiver.seen().len(), 60);
    assert_eq!(receiver.desk.most.load(Ordering::SeqCst), 5);
    let connections = receiver.desk.peers.lock().unwrap().len();
    assert!(connections < 20, "connections are used again: {connections}");
}

/// Hazard 19 is the engine's with `ordering = "aggregate"`; without it nobody waits for a failed one (P5).
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_event_holds_up_nobody() {
    let receiver = Receiver::with(|seen| {
        let bad = seen.body.ends_with(b"\"n\":1}");
        Box::pin(async move {
            if bad { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }.into_response()
        })
    });
    let outcomes = dispatch(&sink(&receiver.url("/"), json!({})), &events(2, 3)).await;
    let failed: Vec<usize> = (0..6).filter(|index| outcomes[*index].is_err()).collect();
    assert_eq!(failed, [2, 3], "the second of each key");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_gets_no_turn_in_time_is_given_back() {
    let receiver = Receiver::with(|_| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            StatusCode::OK.into_response()
        })
    });
    let sink = sink(&receiver.url("/"), json!({"timeout": "1s"}));
    let started = Instant::now();
    let outcomes = dispatch(&sink, &events(1, 40)).await;
    let took = started.elapsed();
    let delivered = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    assert!((1..40).contains(&delivered), "{delivered}");
    for outcome in &outcomes[delivered..] {
        let error = outcome.as_ref().unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("too slow"), "{error}");
    }
    assert!(took < Duration::from_millis(2500), "it ends within 2.5 timeouts: {took:?}");
    assert_eq!(receiver.seen().len(), delivered, "the others were not sent");
}
