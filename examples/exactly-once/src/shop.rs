//! The shop: an order and its event in one commit, once for each idempotency key.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use postbox::sqlite::{SqliteIdempotency, migrate};
use postbox::web::{IdempotencyLayer, SqliteIdempotentTx};
use postbox::{Event, Outbox, TableName};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::Result;
use crate::settings::Settings;

/// What the shop tells the world.
#[derive(Debug, Event, Serialize, Deserialize)]
#[event(topic = "shop.order.placed.v1", aggregate = "order", id = "order")]
pub(crate) struct OrderPlaced {
    pub(crate) order: i64,
    pub(crate) pieces: i64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NewOrder {
    /// The customer's own number of it, for the audit: the shop tells calls apart by their keys alone.
    pub(crate) reference: String,
    pub(crate) pieces: i64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Placed {
    pub(crate) order: i64,
}

pub(crate) fn table() -> Result<TableName> {
    Ok("shop_outbox".parse()?)
}

/// Makes the tables; once, before anybody comes.
pub(crate) async fn prepare(settings: &Settings) -> Result<()> {
    let pool = settings.shop().await?;
    let extras = migrate::Extras { idempotency: true, ..migrate::Extras::default() };
    migrate::up_with(&mut *pool.acquire().await?, &table()?, extras, |_| {}).await?;
    let orders =
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, reference TEXT NOT NULL, pieces INTEGER NOT NULL)";
    sqlx::query(orders).execute(&pool).await?;
    Ok(())
}

pub(crate) async fn run(settings: &Settings) -> Result<()> {
    let (pool, table) = (settings.shop().await?, table()?);
    let layer = IdempotencyLayer::builder(SqliteIdempotency::new(pool, table.clone()))
        .single_principal()
        .require_key()
        // A call whose process was killed is taken over after this.
        .lease(Duration::from_secs(1))
        .build();
    let app = Router::new().route("/orders", post(place)).layer(layer).with_state(Outbox::new(table));
    let listener = TcpListener::bind(("127.0.0.1", settings.port)).await?;
    Ok(axum::serve(listener, app).await?)
}

/// Order, event and answer: all of them, or none. A repeat gets the answer, and none of this runs.
async fn place(
    State(outbox): State<Outbox>,
    mut tx: SqliteIdempotentTx,
    Json(new): Json<NewOrder>,
) -> std::result::Result<Response, Failed> {
    let insert = "INSERT INTO orders (reference, pieces) VALUES (?1, ?2) RETURNING id";
    let order: i64 =
        sqlx::query_scalar(insert).bind(&new.reference).bind(new.pieces).fetch_one(&mut **tx).await?;
    outbox.enqueue(&mut tx, OrderPlaced { order, pieces: new.pieces }).await?;
    Ok(tx.commit((StatusCode::CREATED, Json(Placed { order }))).await?)
}

/// Any error is a 500, which releases the key: the customer asks again.
struct Failed;

impl<E: std::error::Error> From<E> for Failed {
    fn from(_: E) -> Self {
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
