//! Webhooks that the sink of Postbox sends, received by axum over a real connection.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use common::{Effects, Shop, consumer, order};
use postbox_consumers::{Handler, Identify, Message, Webhook};
use postbox_core::{Delivery, DispatchErrorKind, Dispatcher as _, HandlerResult, OutboxTransaction};
use postbox_sinks::{HttpSink, Options};
use postbox_stores::sqlite::SqlxSqlite;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A receiver that counts what came, with a shop behind it.
struct Receiver {
    shop: Shop,
    effects: Effects,
    addr: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Receiver {
    async fn start(secrets: &[&str]) -> Self {
        let (shop, effects) = (Shop::open().await, Effects::default());
        let consumer = consumer(&shop, &effects);
        let hook = match secrets {
            [] => Webhook::unsigned(consumer),
            secrets => Webhook::signed(consumer, secrets).unwrap(),
        };
        let requests = Arc::new(AtomicUsize::new(0));
        let addr = serve(hook.body_limit(1000), Arc::clone(&requests)).await;
        Self { shop, effects, addr, requests }
    }

    fn sink(&self, options: &[(&str, &str)]) -> HttpSink {
        let options = options.iter().fold(Options::new(), |all, (name, value)| all.set(*name, *value));
        let options = options.set("allow_private", "true").set("allow_http", "true").set("timeout", "5s");
        HttpSink::new(&format!("http://{}/hooks", self.addr), options).unwrap()
    }

    async fn send(&self, order: &Delivery) -> Result<(), DispatchErrorKind> {
        let sink = self.sink(&[("secret", SECRET)]);
        sink.dispatch(order).await.map_err(|error| error.kind())
    }
}

async fn serve(hook: Webhook<SqlxSqlite>, requests: Arc<AtomicUsize>) -> SocketAddr {
    let count = move |request: Request, next: Next| {
        requests.fetch_add(1, Ordering::SeqCst);
        async move { next.run(request).await }
    };
    let app = Router::new().route_service("/hooks", hook).layer(middleware::from_fn(count));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    addr
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_repeated_has_its_effect_once() {
    let receiver = Receiver::start(&[OTHER, SECRET]).await;
    let orders: Vec<Delivery> = (0..5).map(|n| order(n, "")).collect();
    for order in orders.iter().chain(&orders) {
        receiver.send(order).await.unwrap();
    }
    assert_eq!(receiver.requests.load(Ordering::SeqCst), 10);
    receiver.shop.assert_once(&orders).await;
    assert_eq!(receiver.effects.seen(&orders[3]).topic.as_deref(), Some("shop.order.placed.v1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_bring_the_same_message_at_once_one_has_the_effect() {
    let receiver = Receiver::start(&[SECRET]).await;
    let order = order(0, r#","slow":30"#);
    let sent = (0..16).map(|_| receiver.send(&order));
    for outcome in futures_util::future::join_all(sent).await {
        outcome.unwrap();
    }
    receiver.shop.assert_once(std::slice::from_ref(&order)).await;
    assert_eq!(receiver.effects.runs(&order), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_a_webhook_is_known_by_its_event() {
    let receiver = Receiver::start(&[SECRET]).await;
    let orders: Vec<Delivery> = (0..3).map(|n| order(n, "")).collect();
    for (order, form) in orders.iter().zip([None, Some("binary"), Some("structured")]) {
        let form = form.map(|form| ("cloudevents", form));
        let options: Vec<(&str, &str)> = form.into_iter().chain([("secret", SECRET)]).collect();
        receiver.sink(&options).dispatch(order).await.unwrap();
    }
    receiver.shop.assert_once(&orders).await;
    assert_eq!(orders.iter().map(|order| receiver.effects.seen(order).n).collect::<Vec<_>>(), [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sender_is_told_what_to_do() {
    let receiver = Receiver::start(&[SECRET]).await;
    // It fails, and works when it is sent again.
    let failing = order(0, r#","fail":1"#);
    assert_eq!(receiver.send(&failing).await, Err(DispatchErrorKind::Retry(None)));
    receiver.send(&failing).await.unwrap();
    let panicking = order(1, r#","panic":1"#);
    assert_eq!(receiver.send(&panicking).await, Err(DispatchErrorKind::Retry(None)));
    receiver.send(&panicking).await.unwrap();
    // Refused for good: it is dead where it came from.
    assert_eq!(receiver.send(&order(2, r#","reject":true"#)).await, Err(DispatchErrorKind::Reject));
    let mut large = order(3, "");
    large.payload =
        postbox_core::Payload::Bytes { bytes: vec![b' '; 2000].into(), content_type: "text/plain".into() };
    assert_eq!(receiver.send(&large).await, Err(DispatchErrorKind::Reject));
    // Not the event's fault: this sink has no right to send, or another one's secret.
    for options in [vec![], vec![("secret", OTHER)]] {
        let error = receiver.sink(&options).dispatch(&order(4, "")).await.unwrap_err();
        assert_eq!(error.kind(), DispatchErrorKind::Unavailable, "{error}");
    }
    receiver.shop.assert_once(&[failing, panicking]).await;
    // The database is not there.
    let waiting = order(5, "");
    sqlx::query("ALTER TABLE stock_inbox RENAME TO gone").execute(&receiver.shop.pool).await.unwrap();
    assert!(matches!(receiver.send(&waiting).await, Err(DispatchErrorKind::Retry(Some(_)))));
    assert_eq!(receiver.effects.runs(&waiting), 0);
}

/// Panics when it is called, not when it is waited for.
struct Hasty;

impl Handler<SqlxSqlite> for Hasty {
    fn handle(
        &self,
        _: &mut OutboxTransaction<SqlxSqlite>,
        message: &Message,
    ) -> impl Future<Output = HandlerResult> + Send {
        assert!(message.key.is_some(), "a message without a key");
        std::future::ready(Ok(()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_before_it_waits_has_failed_like_any_other() {
    let shop = Shop::open().await;
    let hook = Webhook::unsigned(shop.consumer_of(Hasty));
    let request = axum::http::Request::post("/hooks").header("webhook-id", "m").body(Body::from("{}"));
    let answer = hook.receive(request.unwrap()).await;
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

/// By its fault an event would be dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_early_is_asked_for_again() {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let hook = Webhook::unsigned(consumer(&shop, &effects)).body_limit(100);
    for (rest, status) in [
        (Err(std::io::Error::other("too slow")), StatusCode::REQUEST_TIMEOUT),
        (Ok(" ".repeat(90)), StatusCode::PAYLOAD_TOO_LARGE),
        (Ok("}".to_owned()), StatusCode::NO_CONTENT),
    ] {
        let pieces = [Ok("{\"n\":1,\"slow\":0".to_owned()), rest];
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        let request = axum::http::Request::post("/hooks").header("webhook-id", "m").body(body).unwrap();
        assert_eq!(hook.receive(request).await.status(), status);
    }
    assert_eq!(shop.effects().await, ["m"]);
}

/// A layer in front of the webhook may have a smaller limit, which it can tell only while the body comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_beyond_the_limit_of_a_layer_is_not_asked_for_again() {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let hook = Webhook::unsigned(consumer(&shop, &effects)).body_limit(100);
    for (limit, status) in [(10, StatusCode::PAYLOAD_TOO_LARGE), (20, StatusCode::NO_CONTENT)] {
        let pieces = ["{\"n\":1,", "\"slow\":0}"].map(Ok::<_, std::io::Error>);
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        // As axum wraps what a layer wraps.
        let body = Body::new(http_body_util::Limited::new(body, limit));
        let request = axum::http::Request::post("/hooks").header("webhook-id", "m").body(body).unwrap();
        assert_eq!(hook.receive(request).await.status(), status);
    }
    assert_eq!(shop.effects().await, ["m"]);
}

/// Headers and body of a request.
type Heard = (Vec<(String, String)>, Vec<u8>);

/// Who overheard a request can repeat it, but not have it taken for another message.
#[tokio::test(flavor = "multi_thread")]
async fn hazard_52_only_what_is_signed_tells_messages_apart() {
    let (shop, effects) = (Shop::open().await, Effects::default());
    let hook = Webhook::signed(consumer(&shop, &effects), &[SECRET]).unwrap();
    let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
    let order = order(0, "");
    let receiver = Receiver::start(&[SECRET]).await;
    // The request as the sink makes it.
    let listening = Arc::clone(&heard);
    let app = Router::new().fallback(move |request: Request| async move {
        let (parts, body) = request.into_parts();
        let text = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        let body = axum::body::to_bytes(body, 10_000).await.unwrap().to_vec();
        listening.lock().unwrap().push((parts.headers.iter().map(text).collect(), body));
        StatusCode::OK
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Receiver { addr, ..receiver }.send(&order).await.unwrap();
    let (headers, body) = heard.lock().unwrap().pop().unwrap();
    let send = async |change: &[(&str, &str)]| -> Response {
        let mut request = axum::http::Request::post("/hooks");
        for (name, value) in &headers {
            let changed =
                change.iter().find(|(changed, _)| changed == name).map_or(value.as_str(), |(_, to)| *to);
            request = request.header(name, changed);
        }
        hook.receive(request.body(Body::from(body.clone())).unwrap()).await
    };
    assert!(headers.iter().any(|(name, _)| name == "postbox-event-id"), "{headers:?}");
    for _ in 0..2 {
        assert_eq!(send(&[]).await.status(), StatusCode::NO_CONTENT);
    }
    let other = "0190b0c0-0000-7000-8000-000000000001";
    assert_eq!(send(&[("postbox-event-id", other)]).await.status(), StatusCode::NO_CONTENT);
    assert_eq!(send(&[("webhook-id", other)]).await.status(), StatusCode::UNAUTHORIZED);
    shop.assert_once(std::slice::from_ref(&order)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_signatures_whoever_has_an_id_is_let_in() {
    let receiver = Receiver::start(&[]).await;
    let order = order(0, "");
    receiver.sink(&[]).dispatch(&order).await.unwrap();
    receiver.shop.assert_once(std::slice::from_ref(&order)).await;
    let hook = Webhook::unsigned(consumer(&receiver.shop, &receiver.effects));
    let nobody = || axum::http::Request::post("/hooks").body(Body::from("{}")).unwrap();
    assert_eq!(hook.receive(nobody()).await.status(), StatusCode::BAD_REQUEST);

    // What a function of ours said is not the sender's.
    let panics = Identify::by(|_| panic!("the key is 4711"));
    let hook = Webhook::unsigned(consumer(&receiver.shop, &receiver.effects).identify(panics));
    let refused = hook.receive(nobody()).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let told = axum::body::to_bytes(refused.into_body(), 1024).await.unwrap();
    assert!(!told.is_empty() && !String::from_utf8_lossy(&told).contains("4711"), "{told:?}");
}
