//! A shop under the layer, on any of the databases (`databases.rs`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::StreamExt as _;
use postbox_core::idempotency::{IdempotencyDriver, IdempotencyStore};
use postbox_core::{Outbox, Record, Topic};
use postbox_web::{IdempotencyLayer, IdempotentTx, REPLAYED};
use tokio::sync::Semaphore;
use tower_layer::Layer as _;

use crate::client::Ask;
use crate::counted::Counted;

/// What the tests ask of every shop.
pub(crate) trait Shop: Sync {
    /// Where it is.
    fn door(&self) -> &Door;
    /// How many orders and events there are.
    fn books(&self) -> impl Future<Output = (i64, i64)> + Send;
    /// Makes the lease of the call by this key run out.
    fn expire(&self, key: &str) -> impl Future<Output = ()> + Send;
    /// When the lease of the call by this key runs out, in any unit.
    fn lease_until(&self, key: &str) -> impl Future<Output = i64> + Send;
    /// Takes the table of calls away.
    fn drop_table(&self) -> impl Future<Output = ()> + Send;
    /// Whether two transactions can be under way at the same time.
    fn writers_overlap(&self) -> bool;
    /// Whether an error of one statement fails the whole transaction.
    fn errors_abort(&self) -> bool;

    fn ask(&self, path: &str) -> Ask {
        Ask::new(&self.door().address, "POST", path)
    }

    /// How often a handler has begun.
    fn handled(&self) -> usize {
        self.door().floor.handled.load(Ordering::SeqCst)
    }
}

/// The address, and what goes on behind it.
pub(crate) struct Door {
    pub(crate) address: String,
    pub(crate) floor: Arc<Floor>,
    /// What the layers count.
    pub(crate) counted: Counted,
    idle: Box<dyn Fn() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>,
    server: tokio::task::JoinHandle<()>,
}

impl Door {
    /// Ends when no handler runs.
    pub(crate) async fn idle(&self) {
        (self.idle)().await;
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// What handlers and tests share.
pub(crate) struct Floor {
    pub(crate) handled: AtomicUsize,
    /// Handlers that have come to the gate, and who may pass it.
    pub(crate) at_gate: Semaphore,
    pub(crate) gate: Semaphore,
    /// How often each path was called, for handlers that fail at first.
    tries: Mutex<HashMap<String, usize>>,
    outbox: Outbox,
}

impl Floor {
    fn count(&self) -> usize {
        self.handled.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn is_first(&self, path: &str) -> bool {
        let mut tries = self.tries.lock().unwrap();
        let tries = tries.entry(path.to_owned()).or_default();
        *tries += 1;
        *tries == 1
    }

    async fn pass_gate(&self) {
        self.at_gate.add_permits(1);
        self.gate.acquire().await.unwrap().forget();
    }

    /// Waits until so many handlers stand at the gate.
    pub(crate) async fn are_at_gate(&self, number: u32) {
        self.at_gate.acquire_many(number).await.unwrap().forget();
    }
}

/// The SQL of a database.
pub(crate) trait Till: IdempotencyDriver {
    fn order(tx: &mut Self::Transaction, item: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn fail(tx: &mut Self::Transaction) -> impl Future<Output = ()> + Send;
}

/// Opens the shop on a port of its own.
pub(crate) async fn open<S: IdempotencyStore>(store: S) -> Door
where
    S::Driver: Till<Error = sqlx::Error>,
{
    let floor = Arc::new(Floor {
        handled: AtomicUsize::new(0),
        at_gate: Semaphore::new(0),
        gate: Semaphore::new(0),
        tries: Mutex::default(),
        outbox: Outbox::new("shop_outbox".parse().unwrap()),
    });
    let layer = |store: S| {
        IdempotencyLayer::builder(store)
            .principal(|parts| Some(parts.headers.get("x-account")?.to_str().ok()?.to_owned()))
            .body_limit(10_000)
            .response_limit(1_000)
    };
    let counted = Counted::default();
    // The layer takes its counters from the recorder that is there when it is built.
    let (optional, required, picky, quick) = metrics::with_local_recorder(&counted, || {
        let optional = layer(store.clone()).build();
        let required = layer(store.clone()).require_key().problem_types("https://shop.example/problems/");
        let picky = layer(store.clone())
            .key_length(4..=8)
            .keep_headers([HeaderName::from_static("x-request-id"), SET_COOKIE])
            .store_when(|status| status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE);
        (optional, required.build(), picky.build(), layer(store).lease(Duration::from_secs(1)).build())
    });
    let app = Router::new()
        .route("/echo", post(echo).get(echo))
        .route("/things/{id}", post(echo).patch(echo))
        .route("/status/{status}", post(status))
        .route("/big", post(big))
        .route("/stream", post(stream))
        .route("/endless", post(endless))
        .route("/events", post(events))
        .route("/panic", post(panics))
        .route("/gate", post(gate))
        .route("/orders", post(order::<S::Driver>))
        .layer(optional.clone())
        .merge(nested(&optional, &floor))
        .merge(Router::new().route("/required", post(echo)).layer(required))
        .merge(Router::new().route("/picky", post(echo)).route("/picky/{status}", post(status)).layer(picky))
        .merge(Router::new().route("/quick", post(gate)).layer(quick))
        .with_state(Arc::clone(&floor));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let idle = Box::new(move || -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        let layer = optional.clone();
        Box::pin(async move { layer.idle().await })
    });
    Door { address, floor, counted, idle, server }
}

/// Routers in a router, with the layer inside: around its routes, and around whole services.
fn nested<S: IdempotencyStore>(layer: &IdempotencyLayer<S>, floor: &Arc<Floor>) -> Router<Arc<Floor>> {
    let whole = || {
        let service: Router = things().with_state(Arc::clone(floor));
        layer.layer(service)
    };
    Router::new()
        .nest("/shops/{shop}", things().layer(layer.clone()))
        .nest_service("/tea", whole())
        .nest_service("/rice", whole())
}

fn things() -> Router<Arc<Floor>> {
    Router::new().route("/things", post(echo))
}

/// Says how many handlers have run, so that no two answers are alike.
async fn echo(State(floor): State<Arc<Floor>>, body: String) -> impl IntoResponse {
    let number = floor.count();
    let headers = [
        (LOCATION, format!("/things/{number}")),
        (SET_COOKIE, format!("session={number}")),
        (REPLAYED, "never".to_owned()),
        (HeaderName::from_static("x-request-id"), number.to_string()),
    ];
    (StatusCode::CREATED, headers, format!("{number}: {body}"))
}

/// Answers with this status at first, then with 200.
async fn status(State(floor): State<Arc<Floor>>, Path(status): Path<u16>) -> Response {
    let number = floor.count();
    let status = if floor.is_first(&status.to_string()) { status } else { 200 };
    (StatusCode::from_u16(status).unwrap(), format!("{number}")).into_response()
}

async fn big(State(floor): State<Arc<Floor>>) -> impl IntoResponse {
    floor.count();
    ([(LOCATION, "/things/big")], "x".repeat(5_000))
}

async fn stream(State(floor): State<Arc<Floor>>) -> Body {
    floor.count();
    let pieces = (0..50).map(|_| Ok::<_, std::io::Error>("y".repeat(100)));
    Body::from_stream(futures_util::stream::iter(pieces))
}

async fn endless(State(floor): State<Arc<Floor>>) -> Body {
    floor.count();
    begun()
}

/// Something, and then nothing more, without an end.
fn begun() -> Body {
    let piece = futures_util::stream::iter([Ok::<_, std::io::Error>("begun")]);
    Body::from_stream(piece.chain(futures_util::stream::pending()))
}

async fn events(State(floor): State<Arc<Floor>>) -> impl IntoResponse {
    floor.count();
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], "data: 1\n\n")
}

async fn panics(State(floor): State<Arc<Floor>>) -> String {
    let number = floor.count();
    assert!(!floor.is_first("panic"), "a handler that panics");
    number.to_string()
}

async fn gate(State(floor): State<Arc<Floor>>) -> String {
    let number = floor.count();
    floor.pass_gate().await;
    number.to_string()
}

/// Places an order; what it asks for says what goes wrong.
async fn order<D: Till<Error = sqlx::Error>>(
    State(floor): State<Arc<Floor>>,
    mut tx: IdempotentTx<D>,
    item: String,
) -> Result<Response, Failed> {
    let number = floor.count();
    D::order(&mut tx, &item).await?;
    let topic: Topic = "shop.order.placed.v1".parse().unwrap();
    floor.outbox.enqueue(&mut tx, Record::builder(topic).json(&item)).await?;
    match item.as_str() {
        "refused" => return Ok((StatusCode::UNPROCESSABLE_ENTITY, format!("{number}")).into_response()),
        "fails at first" if floor.is_first("order") => return Err("it failed".into()),
        "forgotten" => return Ok(format!("{number}: placed").into_response()),
        "ignored" => D::fail(&mut tx).await,
        "not wanted" => {
            tx.rollback().await?;
            return Ok(format!("{number}: nothing to do").into_response());
        }
        "gate" if floor.is_first("gate") => floor.pass_gate().await,
        "big" => return Ok(tx.commit("z".repeat(5_000)).await?),
        "endless" => return Ok(tx.commit(begun()).await?),
        _ => {}
    }
    Ok(tx.commit((StatusCode::CREATED, format!("{number}: {item}"))).await?)
}

/// An error of a service that knows nothing of the layer.
struct Failed(String);

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into().to_string())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0).into_response()
    }
}
