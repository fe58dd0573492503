//! [`IdempotencyLayer`]: decides what becomes of a call before its handler sees it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, OriginalUri};
use axum::http::Request;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use postbox_core::StoreError;
use postbox_core::idempotency::{Begun, Call, IdempotencyStore, Ticket};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{Collected, collect};
use crate::builder::{IdempotencyLayerBuilder, Principal, Settings};
use crate::problem::{Problem, ProblemKind};
use crate::run::{Run, within};
use crate::running::Running;
use crate::session::Session;
use crate::telemetry::{Outcome, Telemetry};
use crate::{fingerprint, key, response};

/// A handler that lives is done long before its lease has run out, and to ask again costs one read.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A layer for tower and axum that runs a call with an `Idempotency-Key` once, and answers its repeats from the table.
///
/// See [the crate](crate) for all of it. Cheap to clone; give clones of one layer to all routes that share a store.
pub struct IdempotencyLayer<S>(Arc<Shared<S>>);

/// What all requests share.
pub(crate) struct Shared<S> {
    pub(crate) store: S,
    principal: Principal,
    pub(crate) settings: Arc<Settings>,
    pub(crate) telemetry: Telemetry,
    pub(crate) running: Running,
}

impl<S: IdempotencyStore> IdempotencyLayer<S> {
    /// Starts to build a layer on a store, such as `PgIdempotency` or `SqliteIdempotency`.
    pub fn builder(store: S) -> IdempotencyLayerBuilder<S> {
        IdempotencyLayerBuilder::new(store)
    }

    pub(crate) fn new(store: S, principal: Principal, settings: Settings) -> Self {
        let telemetry = Telemetry::new(&settings.prefix, settings.database.as_deref(), store.table());
        let running = Running::default();
        Self(Arc::new(Shared { store, principal, settings: Arc::new(settings), telemetry, running }))
    }

    /// Ends when no handler runs under this layer any more, also none whose caller has gone. Wait for it when the server has ended,
    /// before the runtime does: what is cut off then has to be taken over by a repeat.
    ///
    /// ```no_run
    /// # use postbox_core::idempotency::IdempotencyStore;
    /// # use postbox_web::IdempotencyLayer;
    /// # async fn serve<S: IdempotencyStore>(
    /// #     listener: tokio::net::TcpListener, app: axum::Router, layer: IdempotencyLayer<S>, signal: impl Future<Output = ()> + Send + 'static,
    /// # ) -> std::io::Result<()> {
    /// axum::serve(listener, app).with_graceful_shutdown(signal).await?;
    /// layer.idle().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Only waits; it can be dropped and called again.
    pub async fn idle(&self) {
        self.0.running.idle().await;
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl<S, H> Layer<H> for IdempotencyLayer<S> {
    type Service = Idempotency<S, H>;

    fn layer(&self, inner: H) -> Self::Service {
        Idempotency { shared: Arc::clone(&self.0), inner }
    }
}

/// The service that an [`IdempotencyLayer`] makes of another.
pub struct Idempotency<S, H> {
    shared: Arc<Shared<S>>,
    inner: H,
}

impl<S, H: Clone> Clone for Idempotency<S, H> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), inner: self.inner.clone() }
    }
}

impl<S, H: fmt::Debug> fmt::Debug for Idempotency<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, H, B, R> Service<Request<B>> for Idempotency<S, H>
where
    S: IdempotencyStore,
    H: Service<Request<Body>, Response = axum::http::Response<R>> + Clone + Send + 'static,
    H::Future: Send,
    H::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = H::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, H::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), H::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was asked whether it is ready is the one to call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (mut parts, body) = request.map(Body::new).into_parts();
            let key = match shared.key(&parts) {
                Ok(Some(key)) => key,
                Ok(None) => {
                    parts.extensions.insert(Session::without_call(&shared));
                    let answer = inner.call(Request::from_parts(parts, body)).await?;
                    return Ok(answer.map(Body::new));
                }
                Err(problem) => return Ok(shared.refuse(problem)),
            };
            match shared.identify(key, parts, body).await {
                Ok((call, parts, body)) => Run { shared, call, parts, body }.start(inner).await,
                Err(problem) => Ok(shared.refuse(problem)),
            }
        })
    }
}

impl<S: IdempotencyStore> Shared<S> {
    /// The key of a call that this layer is for; none if the call is to run as if there were no layer.
    fn key(&self, parts: &Parts) -> Result<Option<String>, Problem> {
        if !self.settings.methods.contains(&parts.method) {
            return Ok(None);
        }
        let Settings { header, lengths, required, .. } = &*self.settings;
        match key::read(&parts.headers, header, lengths)? {
            None if *required => {
                let detail = format!(
                    "Send a key of your choice in {header}, the same one when you repeat the request."
                );
                Err(Problem::new(ProblemKind::KeyMissing, detail))
            }
            key => Ok(key),
        }
    }

    /// What is to be done with a call: to run it with this ticket, or to answer it so.
    pub(crate) async fn decide(&self, call: &Arc<Call>) -> Result<Ticket, Response> {
        let begun = within(self.store.begin(call, self.settings.lease)).await;
        match begun.map_err(|error| self.unavailable(&error))? {
            Begun::Run(ticket) => {
                let outcome = if ticket.is_taken_over() { Outcome::TakenOver } else { Outcome::First };
                self.telemetry.count(outcome);
                Ok(ticket)
            }
            Begun::Replay(stored) => {
                self.telemetry.count(Outcome::Replayed);
                Err(response::replay(stored, &self.settings))
            }
            Begun::Busy { remaining } => {
                self.telemetry.count(Outcome::Busy);
                let detail = "The first request with this key has not been answered yet; ask again.";
                let problem = Problem::new(ProblemKind::StillRunning, detail);
                Err(self.refuse(problem.retry_after(remaining.min(LONGEST_WAIT))))
            }
            Begun::Mismatch => {
                self.telemetry.count(Outcome::Mismatch);
                let detail = "A key belongs to one request: use a new one for another body, path or query.";
                Err(self.refuse(Problem::new(ProblemKind::KeyReused, detail)))
            }
        }
    }

    /// Who calls what, and with what content.
    async fn identify(
        &self,
        key: String,
        parts: Parts,
        body: Body,
    ) -> Result<(Arc<Call>, Parts, Bytes), Problem> {
        let Some(principal) = (self.principal)(&parts) else {
            let detail = "A request with an idempotency key must come from somebody who is known.";
            return Err(Problem::new(ProblemKind::PrincipalUnknown, detail));
        };
        let limit = self.settings.body_limit;
        let body = match collect(body, limit, None).await {
            Collected::Whole(body) => body,
            Collected::Larger(_) => {
                let detail = format!("With an idempotency key, a body may have {limit} bytes.");
                return Err(Problem::new(ProblemKind::BodyTooLarge, detail));
            }
            Collected::Broken(_) => {
                let detail = "The body could not be read to its end; nothing was done.";
                return Err(Problem::new(ProblemKind::BodyUnreadable, detail));
            }
        };
        // A nested router has cut off what stands before its own routes, and that may say which account or order it is.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |whole| &whole.0);
        let path = parts.extensions.get::<MatchedPath>().map_or(uri.path(), MatchedPath::as_str);
        let route = fingerprint::route(&parts.method, path);
        let fingerprint = fingerprint::of(&parts.method, uri, &body);
        let call = Call::new(fingerprint::principal(&principal), route, key, fingerprint);
        let call = call.map_err(|error| Problem::new(ProblemKind::KeyInvalid, error.to_string()))?;
        Ok((Arc::new(call), parts, body))
    }

    /// An answer of the layer's own.
    pub(crate) fn refuse(&self, problem: Problem) -> Response {
        problem.types(self.settings.types.as_ref()).into_response()
    }

    /// Without the table nobody can say whether the call was run before: so it is not.
    fn unavailable(&self, error: &StoreError) -> Response {
        tracing::error!(table = self.store.table(), %error, "a call by idempotency key was refused");
        self.telemetry.count(Outcome::Unavailable);
        let detail = "Nothing was done; ask again with the same key.";
        let problem = Problem::new(ProblemKind::StoreUnavailable, detail);
        self.refuse(problem.retry_after(Duration::from_secs(1)))
    }
}
