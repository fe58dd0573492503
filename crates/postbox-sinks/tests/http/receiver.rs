//! A receiver of webhooks that remembers what came and answers as it is told.

use std::collections::HashSet;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, Version};
use axum::response::{IntoResponse, Response};
use tokio::runtime::Runtime;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// What all handlers share.
pub(crate) struct Desk {
    answer: Box<dyn Fn(Seen) -> Answer + Send + Sync>,
    pub(crate) seen: Mutex<Vec<Seen>>,
    pub(crate) peers: Mutex<HashSet<SocketAddr>>,
    pub(crate) now: AtomicUsize,
    pub(crate) most: AtomicUsize,
}

impl Desk {
    pub(crate) fn new(answer: impl Fn(Seen) -> Answer + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            answer: Box::new(answer),
            seen: Mutex::default(),
            peers: Mutex::default(),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        })
    }
}

/// A server in a runtime of its own, so that stopping it closes all of its connections.
pub(crate) struct Receiver {
    pub(crate) desk: Arc<Desk>,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Receiver {
    /// One that answers every request so.
    pub(crate) fn answering<R: IntoResponse>(answer: impl Fn() -> R + Send + Sync + 'static) -> Self {
        Self::with(move |_| {
            let answer = answer().into_response();
            Box::pin(async { answer })
        })
    }

    /// One that takes everything.
    pub(crate) fn willing() -> Self {
        Self::answering(|| "thanks")
    }

    /// One that decides by the request.
    pub(crate) fn with(answer: impl Fn(Seen) -> Answer + Send + Sync + 'static) -> Self {
        let mut receiver = Self::idle(answer);
        receiver.start();
        receiver
    }

    /// One that nobody can reach yet.
    pub(crate) fn idle(answer: impl Fn(Seen) -> Answer + Send + Sync + 'static) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self { desk: Desk::new(answer), address, runtime: None }
    }

    pub(crate) fn start(&mut self) {
        // The standard library lets an address be bound again whose old connections linger.
        let listener = TcpListener::bind(self.address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let desk = Arc::clone(&self.desk);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, service(desk).into_make_service_with_connect_info::<SocketAddr>()).await
        });
        self.runtime = Some(runtime);
    }

    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waits until every connection is closed; beside the test's own runtime, which must not block.
            std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5))).join().unwrap();
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.desk.seen.lock().unwrap().clone()
    }

    pub(crate) fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.into_iter().next().unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The handler of every path.
pub(crate) fn service(desk: Arc<Desk>) -> Router {
    Router::new().fallback(handle).with_state(desk)
}

async fn handle(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let busy = Busy::new(&desk);
    let (head, body) = request.into_parts();
    if let Some(ConnectInfo(peer)) = head.extensions.get::<ConnectInfo<SocketAddr>>() {
        desk.peers.lock().unwrap().insert(*peer);
    }
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let (method, uri, version, headers) = (head.method, head.uri.to_string(), head.version, head.headers);
    let seen = Seen { method, uri, version, headers, body };
    desk.seen.lock().unwrap().push(seen.clone());
    let answer = (desk.answer)(seen).await;
    drop(busy);
    answer
}

/// A request in work, also when its client hangs up.
struct Busy(Arc<Desk>);

impl Busy {
    fn new(desk: &Arc<Desk>) -> Self {
        let now = desk.now.fetch_add(1, Ordering::SeqCst) + 1;
        desk.most.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(desk))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}
