//! [`Run`]: a handler at work, from its ticket to its stored answer.

use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use axum::http::request::Parts;
use axum::response::Response;
use futures_util::FutureExt as _;
use postbox_core::idempotency::{Call, IdempotencyStore, StoredResponse, Ticket};
use postbox_core::{Code, StoreError, StoreErrorKind};
use tokio::task::JoinHandle;
use tower_service::Service;
use tracing::Instrument as _;

use crate::layer::Shared;
use crate::problem::{Problem, ProblemKind};
use crate::response::keep;
use crate::session::{At, Session};
use crate::telemetry::Outcome;

/// How long one operation on the table may take. What takes longer has an unknown result, which the lease bounds.
const LIMIT: Duration = Duration::from_secs(10);
/// How often it is tried to store an answer, and what is waited in between.
const PAUSES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(2)];

/// Runs an operation on the table with a limit.
pub(crate) async fn within<T>(
    operation: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(LIMIT, operation).await.unwrap_or_else(|_| {
        let message = format!("no answer within {LIMIT:?}");
        Err(StoreError::new(Code::DatabaseUnreachable, StoreErrorKind::Connection, message))
    })
}

/// A call that is to run, if nobody has run it yet.
pub(crate) struct Run<S> {
    pub(crate) shared: Arc<Shared<S>>,
    pub(crate) call: Arc<Call>,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
}

impl<S: IdempotencyStore> Run<S> {
    /// Asks the table and runs the handler in a task of its own: a caller who goes away neither cuts it off half-way nor leaves a
    /// call behind that was begun and that nobody runs.
    pub(crate) async fn start<H, R>(self, handler: H) -> Result<Response, H::Error>
    where
        H: Service<Request<Body>, Response = axum::http::Response<R>> + Send + 'static,
        H::Future: Send,
        H::Error: Send + 'static,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<axum::BoxError>,
    {
        let one = self.shared.running.one();
        let task = async move {
            let answer = self.until_its_end(handler).await;
            drop(one);
            answer
        };
        // To drop the handle of a task lets it run on.
        match tokio::spawn(task.in_current_span()).await {
            Ok(answer) => answer,
            Err(ended) => match ended.try_into_panic() {
                // As it would be without the layer: whoever catches panics outside of it does so here.
                Ok(panic) => resume_unwind(panic),
                // The runtime ends.
                Err(_) => std::future::pending().await,
            },
        }
    }

    async fn until_its_end<H, R>(self, mut handler: H) -> Result<Response, H::Error>
    where
        H: Service<Request<Body>, Response = axum::http::Response<R>>,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<axum::BoxError>,
    {
        let Self { shared, call, mut parts, body } = self;
        let ticket = match shared.decide(&call).await {
            Ok(ticket) => ticket,
            Err(answer) => return Ok(answer),
        };
        let session = Session::new(&shared, ticket.clone());
        parts.extensions.insert(session.clone());
        parts.extensions.insert(ticket.clone());
        let end = End { _renewal: Renewal::start(&shared, &ticket), shared, ticket };
        let request = Request::from_parts(parts, Body::from(body));
        let answer = AssertUnwindSafe(async { handler.call(request).await }).catch_unwind().await;
        match answer {
            Ok(Ok(answer)) => Ok(end.settle(answer.map(Body::new), session.stage.get()).await),
            Ok(Err(error)) => {
                end.release().await;
                Err(error)
            }
            Err(panic) => {
                end.release().await;
                resume_unwind(panic)
            }
        }
    }
}

/// The end of a run: whatever it is, the table hears of it.
struct End<S> {
    shared: Arc<Shared<S>>,
    ticket: Ticket,
    /// Goes on until the table has heard of the end.
    _renewal: Renewal,
}

impl<S: IdempotencyStore> End<S> {
    async fn settle(self, answer: Response, at: At) -> Response {
        let status = answer.status();
        match at {
            At::Committed => answer,
            At::Lost => self.taken_over(),
            // What was promised to the caller has been rolled back: he must not be told that it was done.
            At::Open if status.is_success() || status.is_redirection() => {
                tracing::error!(
                    route = self.ticket.call().route(),
                    %status,
                    "the handler took an IdempotentTx and returned without `commit`: all of it was rolled back"
                );
                self.release().await;
                let detail = "Nothing was done; ask again with the same key.";
                self.shared.refuse(Problem::new(ProblemKind::NotCommitted, detail))
            }
            At::Open | At::Unused if (self.shared.settings.stores)(status) => self.store(answer).await,
            At::Open | At::Unused => {
                self.release().await;
                answer
            }
        }
    }

    async fn store(self, answer: Response) -> Response {
        let (stored, answer) = keep(answer, &self.shared.settings).await;
        match self.finish(&stored).await {
            Some(false) => self.taken_over(),
            Some(true) | None => answer,
        }
    }

    /// Whether the answer was stored; none if nobody knows.
    async fn finish(&self, stored: &StoredResponse) -> Option<bool> {
        let store = &self.shared.store;
        let mut pauses = PAUSES.into_iter();
        loop {
            let error = match within(store.finish(&self.ticket, stored)).await {
                Ok(stored) => return Some(stored),
                Err(error) => error,
            };
            match pauses.next() {
                Some(pause) if error.kind() != StoreErrorKind::Refused => tokio::time::sleep(pause).await,
                _ => {
                    // The handler is done, and its answer is true: the caller gets it.
                    let route = self.ticket.call().route();
                    tracing::error!(table = store.table(), route, %error, "an answer could not be stored: a repeat after the lease would run again");
                    return None;
                }
            }
        }
    }

    fn taken_over(&self) -> Response {
        self.shared.telemetry.count(Outcome::Lost);
        let route = self.ticket.call().route();
        tracing::warn!(
            table = self.shared.store.table(),
            route,
            "a call took longer than its lease, and was taken over"
        );
        let detail = "Ask again with the same key to get the answer that counts.";
        let problem = Problem::new(ProblemKind::TakenOver, detail);
        self.shared.refuse(problem.retry_after(Duration::from_secs(1)))
    }

    /// Lets a repeat run. Does nothing to a call that was finished after all.
    async fn release(&self) {
        let store = &self.shared.store;
        if let Err(error) = within(store.abandon(&self.ticket)).await {
            let route = self.ticket.call().route();
            tracing::warn!(table = store.table(), route, %error, "a key could not be released: repeats wait for its lease");
        }
    }
}

/// Renews a lease as long as it is kept, also while a handler keeps its thread busy.
struct Renewal(JoinHandle<()>);

impl Renewal {
    fn start<S: IdempotencyStore>(shared: &Shared<S>, ticket: &Ticket) -> Self {
        let (store, ticket, lease) = (shared.store.clone(), ticket.clone(), shared.settings.lease);
        let task = async move {
            loop {
                tokio::time::sleep(lease / 3).await;
                match within(store.extend(&ticket, lease)).await {
                    Ok(true) => {}
                    // Finished in between, or somebody else's: the end of the run will tell.
                    Ok(false) => return,
                    Err(error) => {
                        let route = ticket.call().route();
                        tracing::warn!(table = store.table(), route, %error, "a lease could not be renewed");
                    }
                }
            }
        };
        Self(tokio::spawn(task.in_current_span()))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}
