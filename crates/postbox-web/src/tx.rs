//! [`IdempotentTx`]: effect, events and answer of a call in one transaction.

use std::error::Error;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use postbox_core::idempotency::{FinishError, IdempotencyDriver};
use postbox_core::journal::Journal;
use postbox_core::{Code, CommitError, Inserted, Insertion, OutboxTransaction, OutboxTx};

use crate::problem::{Problem, ProblemKind};
use crate::response::keep;
use crate::session::{At, Session};

/// The transaction of a call: what the handler writes in it, the events that it enqueues and the answer that repeats will get
/// are committed together, or none of them is.
///
/// An extractor for handlers under an [`IdempotencyLayer`](crate::IdempotencyLayer). It is the driver's own transaction (it derefs to
/// it), and `outbox.enqueue(&mut tx, …)` takes it. The answer goes through [`commit`](Self::commit):
///
/// ```
/// use axum::extract::State;
/// use axum::http::StatusCode;
/// use axum::response::Response;
/// use axum::Json;
/// use postbox_core::{Event, Outbox, Topic};
/// use postbox_stores::postgres::SqlxPostgres;
/// use postbox_web::IdempotentTx;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced {
///     item: String,
/// }
///
/// impl Event for OrderPlaced {
///     const TOPIC: Topic = Topic::from_static("shop.order.placed.v1");
/// }
///
/// async fn order(
///     State(outbox): State<Outbox>,
///     mut tx: IdempotentTx<SqlxPostgres>,
///     Json(order): Json<OrderPlaced>,
/// ) -> Result<Response, AppError> {
///     sqlx::query("INSERT INTO orders (item) VALUES ($1)").bind(&order.item).execute(&mut **tx).await?;
///     outbox.enqueue(&mut tx, order).await?;
///     Ok(tx.commit((StatusCode::CREATED, "thank you")).await?)
/// }
/// # struct AppError;
/// # impl axum::response::IntoResponse for AppError {
/// #     fn into_response(self) -> Response { StatusCode::INTERNAL_SERVER_ERROR.into_response() }
/// # }
/// # impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for AppError {
/// #     fn from(_: E) -> Self { Self }
/// # }
/// # let _: axum::Router<Outbox> = axum::Router::new().route("/orders", axum::routing::post(order));
/// ```
///
/// Who returns before `commit`, with `?` or otherwise, has rolled back. An error answer is then treated as the layer's builder says
/// (4xx are stored, 5xx release the key); a success without `commit` is a mistake of the handler, and is answered with 500.
///
/// For a call without a key, which the layer lets pass unless it [requires](crate::IdempotencyLayerBuilder::require_key) one, it is an
/// ordinary transaction.
///
/// On SQLite it holds the write lock from the moment in which it is extracted: make it the last extractor before the body, and the handler
/// short. On MySQL and MariaDB it is READ COMMITTED, whatever the sessions of the pool are otherwise.
#[must_use = "dropped, it is rolled back: end it with `commit`"]
pub struct IdempotentTx<D: IdempotencyDriver> {
    tx: OutboxTransaction<D>,
    session: Session<D>,
}

/// [`IdempotentTx`] on PostgreSQL.
#[cfg(feature = "postgres")]
pub type PgIdempotentTx = IdempotentTx<postbox_stores::postgres::SqlxPostgres>;

/// [`IdempotentTx`] on SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteIdempotentTx = IdempotentTx<postbox_stores::sqlite::SqlxSqlite>;

/// [`IdempotentTx`] on MySQL and MariaDB.
#[cfg(feature = "mysql")]
pub type MySqlIdempotentTx = IdempotentTx<postbox_stores::mysql::SqlxMySql>;

impl<D: IdempotencyDriver> IdempotentTx<D> {
    /// Stores the answer, commits everything, and gives the answer back, to be returned as it is. Whatever its status, it is what
    /// repeats will get.
    ///
    /// # Errors
    /// When a repeat has taken the call over, or the database refuses; everything is rolled back then, and a repeat runs again. After
    /// a commit without an answer a repeat finds out what became of it. The error is an answer too, for handlers that have no other.
    ///
    /// # Cancel safety
    /// Dropped before COMMIT is sent, it rolls back. Dropped while COMMIT is under way, the result is unknown, and a repeat finds it
    /// out.
    pub async fn commit(self, answer: impl IntoResponse) -> Result<Response, IdempotentTxError<D::Error>> {
        let Self { mut tx, session } = self;
        let answer = answer.into_response();
        let Some(ticket) = &session.ticket else {
            tx.commit().await?;
            session.stage.set(At::Committed);
            return Ok(answer);
        };
        let (stored, answer) = keep(answer, &session.settings).await;
        // The last statement before COMMIT: it holds up repeats for no longer, and brings to light an error that was ignored.
        if let Err(error) = ticket.finish_in(&mut tx, &stored).await {
            if error.is_lost() {
                session.stage.set(At::Lost);
            }
            // Whether this is answered or not: no COMMIT was sent.
            let _ = tx.rollback().await;
            return Err(error.into());
        }
        tx.commit().await?;
        session.stage.set(At::Committed);
        Ok(answer)
    }

    /// Rolls back on purpose; whatever the handler then answers is treated as if it had never asked for the transaction.
    ///
    /// # Errors
    /// As the driver. The transaction is rolled back all the same.
    ///
    /// # Cancel safety
    /// Dropped, it still rolls back.
    pub async fn rollback(self) -> Result<(), D::Error> {
        self.session.stage.set(At::Unused);
        self.tx.rollback().await
    }

    /// The transaction as [`Outbox::begin`](postbox_core::Outbox::begin) opens it, for whatever takes one.
    pub fn outbox_transaction(&mut self) -> &mut OutboxTransaction<D> {
        &mut self.tx
    }
}

impl<D: IdempotencyDriver, S: Sync> FromRequestParts<S> for IdempotentTx<D> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(session) = parts.extensions.get::<Session<D>>().cloned() else {
            tracing::error!(
                path = parts.uri.path(),
                "an IdempotentTx on a route without an IdempotencyLayer of its database"
            );
            return Err(Problem::new(
                ProblemKind::NoLayer,
                "The route has no idempotency layer for this database.",
            ));
        };
        let problem = |kind, detail: &str| Problem::new(kind, detail).types(session.settings.types.as_ref());
        if !session.stage.open() {
            tracing::error!(path = parts.uri.path(), "a handler takes two IdempotentTx");
            return Err(problem(ProblemKind::NotCommitted, "A call has one transaction."));
        }
        match session.begin().await {
            Ok(tx) => Ok(Self { tx, session }),
            Err(error) => {
                tracing::error!(path = parts.uri.path(), %error, "no transaction for a call");
                let problem =
                    problem(ProblemKind::StoreUnavailable, "Nothing was done; ask again with the same key.");
                Err(problem.retry_after(Duration::from_secs(1)))
            }
        }
    }
}

impl<D: IdempotencyDriver> Deref for IdempotentTx<D> {
    type Target = D::Transaction;

    fn deref(&self) -> &D::Transaction {
        &self.tx
    }
}

impl<D: IdempotencyDriver> DerefMut for IdempotentTx<D> {
    fn deref_mut(&mut self) -> &mut D::Transaction {
        &mut self.tx
    }
}

// What the compiler suggests is the same with and without this crate.
#[diagnostic::do_not_recommend]
impl<D: IdempotencyDriver> OutboxTx<D> for &mut IdempotentTx<D> {
    type Error = D::Error;

    async fn insert(self, insertion: Insertion<'_>) -> Result<Vec<Inserted>, D::Error> {
        OutboxTx::insert(&mut self.tx, insertion).await
    }

    fn journal(&self) -> Option<Journal> {
        Some(self.tx.journal())
    }
}

impl<D: IdempotencyDriver> fmt::Debug for IdempotentTx<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IdempotentTx").field(&self.session).finish()
    }
}

/// Why an [`IdempotentTx`] was not committed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum IdempotentTxError<E: Error + 'static> {
    /// A repeat has taken the call over; nothing was committed. Whatever the handler answers, the caller is told to ask again.
    #[error("{}: the call was taken over while it ran", Code::IdempotencyLost)]
    Lost,
    /// The answer could not be stored; nothing was committed. Mostly an earlier statement had failed.
    #[error("the answer could not be stored")]
    Store(#[source] E),
    /// The commit failed, or its result is not known.
    #[error(transparent)]
    Commit(#[from] CommitError<E>),
}

impl<E: Error + 'static> From<FinishError<E>> for IdempotentTxError<E> {
    fn from(error: FinishError<E>) -> Self {
        match error {
            FinishError::Lost => Self::Lost,
            FinishError::Database(error) => Self::Store(error),
        }
    }
}

impl<E: Error + 'static> IntoResponse for IdempotentTxError<E> {
    fn into_response(self) -> Response {
        tracing::error!(error = &self as &dyn Error, "a call was not committed");
        let detail = "Ask again with the same key.";
        let kind = match self {
            Self::Lost => ProblemKind::TakenOver,
            Self::Store(_) | Self::Commit(_) => ProblemKind::StoreUnavailable,
        };
        Problem::new(kind, detail).retry_after(Duration::from_secs(1)).into_response()
    }
}
