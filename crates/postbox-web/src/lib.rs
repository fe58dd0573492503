//! `Idempotency-Key` for tower and axum: a call that is repeated runs once, and every repeat gets the answer of the first.
//!
//! A client that gets no answer cannot know whether its order was placed. It repeats the call with the same key; with this layer
//! that is safe, however often it does so, at whatever moment something failed.
//!
//! ```
//! use axum::http::StatusCode;
//! use axum::response::Response;
//! use axum::routing::post;
//! use axum::Router;
//! use postbox_core::{Outbox, Record, Topic};
//! use postbox_stores::sqlite::{self, SqliteIdempotency, SqlxSqlite, migrate};
//! use postbox_web::{IdempotencyLayer, IdempotentTx, IdempotentTxError};
//!
//! /// Order, event and answer are there together, or none of them is.
//! async fn order(mut tx: IdempotentTx<SqlxSqlite>, item: String) -> Result<Response, Failed> {
//!     sqlx::query("INSERT INTO orders (item) VALUES (?1)").bind(&item).execute(&mut **tx).await?;
//!     let outbox = Outbox::new("shop_outbox".parse()?);
//!     outbox.enqueue(&mut tx, Record::builder("shop.order.placed.v1".parse::<Topic>()?).json(&item)).await?;
//!     Ok(tx.commit((StatusCode::CREATED, format!("{item}: ordered"))).await?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let options = sqlite::connect_options(&format!("sqlite:{}", folder.path().join("shop.db").display()))?.create_if_missing(true);
//! # let pool = sqlx::SqlitePool::connect_with(options).await?;
//! // Once, or with `postbox migrate up --idempotency --table shop_outbox`: the table `shop_idempotency`.
//! let table: postbox_core::TableName = "shop_outbox".parse()?;
//! let extras = migrate::Extras { idempotency: true, ..Default::default() };
//! migrate::up_with(&mut *pool.acquire().await?, &table, extras, |_| {}).await?;
//! # sqlx::query("CREATE TABLE orders (item TEXT)").execute(&pool).await?;
//!
//! let layer = IdempotencyLayer::builder(SqliteIdempotency::new(pool.clone(), table))
//!     .principal(|parts| Some(parts.headers.get("x-account")?.to_str().ok()?.to_owned()))
//!     .require_key()
//!     .build();
//! let app: Router = Router::new().route("/orders", post(order)).layer(layer);
//! # use tower_service::Service as _;
//! # let call = || {
//! #     let request = axum::http::Request::post("/orders").header("idempotency-key", "\"7\"").header("x-account", "acme");
//! #     app.clone().call(request.body(axum::body::Body::from("tea")).unwrap())
//! # };
//! # let (first, second) = (call().await?, call().await?);
//! # assert_eq!((first.status(), second.status()), (StatusCode::CREATED, StatusCode::CREATED));
//! # assert_eq!(second.headers()["idempotency-replayed"], "true");
//! # let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await?;
//! # assert_eq!(orders, 1);
//! # Ok(())
//! # }
//! # struct Failed;
//! # impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failed { fn from(_: E) -> Self { Self } }
//! # impl axum::response::IntoResponse for Failed { fn into_response(self) -> Response { StatusCode::INTERNAL_SERVER_ERROR.into_response() } }
//! # fn _used(_: IdempotentTxError<sqlx::Error>) {}
//! ```
//!
//! # What a caller sees
//!
//! | call | answer |
//! | --- | --- |
//! | the first with its key | what the handler says |
//! | a repeat, once the first is done | the same status, headers and body, and `Idempotency-Replayed: true` |
//! | a repeat while the first runs | 409 with `Retry-After` |
//! | the same key with another body, path or query | 422 |
//! | no key, though one is required; or a key that is none | 400 |
//! | a body that is too large to be compared | 413 |
//! | a repeat of a call whose answer was too large to be kept | 410, with `original_status` and `Location` |
//! | the database does not answer | 503: nothing is run that may have run before |
//!
//! The layer's own answers are `application/problem+json` (RFC 9457) with a stable `code`.
//!
//! # With the transaction, and without
//!
//! Handlers that take an [`IdempotentTx`] have their effect **exactly once**: the stored answer is a row of the transaction that has
//! the effect, and of two who ran the same call only one can commit.
//!
//! Other handlers run under the layer as they are, and their answers are stored after them. That keeps repeats from running
//! beside or after the first, but a process that dies between effect and answer leaves a call behind that the next repeat runs
//! again, after the lease. Use it for effects that cannot be in the transaction, and hand them the key on
//! (`Extension<`[`Ticket`](postbox_core::Ticket)`>` has it), so that they can be idempotent themselves.
//!
//! # What happens to a handler
//!
//! - It runs **in a task of its own**, to its end, also when the caller goes away meanwhile: a repeat then gets its answer. Spans
//!   come along, task-local values do not. [`IdempotencyLayer::idle`] waits for such handlers when a server stops.
//! - Its call is reserved for it by a lease, which is renewed while it runs; a repeat takes over only when the process died, or
//!   could not reach the database for that long. Whoever was too slow can then neither store an answer nor commit: he is told 409.
//!   A handler that never ends holds its key for ever: put a timeout inside of the layer.
//! - **5xx and panics** release the key, so that a repeat runs again; a panic goes on as it would without the layer.
//!
//! # Where the layer goes
//!
//! Inside of authentication, whose result names the principal; inside of whatever changes answers for one caller or moment (cookies,
//! CORS, compression), since repeats do not pass through what is inside of it. With `Router::layer` or `route_layer` keys are scoped by the
//! route that matched (`POST /orders/{id}`); around a whole service, where no route is known, by the path. Of what is nested in another
//! router that is the whole route, or path, with what stands before it.

#![warn(clippy::missing_errors_doc)]

mod body;
mod builder;
mod fingerprint;
mod key;
mod layer;
mod problem;
mod response;
mod run;
mod running;
mod session;
mod telemetry;
mod tx;

pub use builder::{IdempotencyLayerBuilder, KnowsPrincipal, Said, Unsaid};
pub use layer::{Idempotency, IdempotencyLayer};
pub use problem::{Problem, ProblemKind};
pub use response::REPLAYED;
#[cfg(feature = "mysql")]
pub use tx::MySqlIdempotentTx;
#[cfg(feature = "postgres")]
pub use tx::PgIdempotentTx;
#[cfg(feature = "sqlite")]
pub use tx::SqliteIdempotentTx;
pub use tx::{IdempotentTx, IdempotentTxError};
