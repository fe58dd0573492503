//! The shop's doors: JSON for programs, a page for people.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Form, Json, Router};
use postbox::RelayHealth;
use serde_json::json;

use super::shop::{NewOrder, Order, Shop};

pub(super) fn router(shop: Shop, health: RelayHealth) -> Router {
    Router::new()
        .route("/", get(page).post(order_by_form))
        .route("/orders", get(list).post(order))
        .route("/readyz", get(move || std::future::ready(ready(&health))))
        .with_state(shop)
}

async fn order(State(shop): State<Shop>, Json(new): Json<NewOrder>) -> Result<Response, Problem> {
    let id = place(&shop, new).await?;
    Ok((StatusCode::CREATED, Json(json!({ "id": id }))).into_response())
}

async fn order_by_form(State(shop): State<Shop>, Form(new): Form<NewOrder>) -> Result<Redirect, Problem> {
    place(&shop, new).await?;
    Ok(Redirect::to("/"))
}

async fn place(shop: &Shop, new: NewOrder) -> Result<String, Problem> {
    match new.problem() {
        Some(problem) => Err(Problem(StatusCode::UNPROCESSABLE_ENTITY, problem.to_owned())),
        None => Ok(shop.place(new).await?),
    }
}

async fn list(State(shop): State<Shop>) -> Result<Json<Vec<Order>>, Problem> {
    Ok(Json(shop.orders().await?))
}

async fn page(State(shop): State<Shop>) -> Result<Html<String>, Problem> {
    let mut rows = String::new();
    for order in shop.orders().await? {
        let confirmation = order.confirmation.as_deref().unwrap_or("…");
        let (item, confirmation) = (escape(&order.item), escape(confirmation));
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{}</td><td>{item}</td><td>{confirmation}</td></tr>",
            order.id, order.quantity
        );
    }
    Ok(Html(include_str!("page.html").replace("{{rows}}", &rows)))
}

/// Red when events wait and nothing delivers them. For readiness, not for liveness: a restart brings back no database.
fn ready(health: &RelayHealth) -> (StatusCode, String) {
    match health.problem() {
        None => (StatusCode::OK, "well\n".to_owned()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}

/// What the customer is told when it did not work.
struct Problem(StatusCode, String);

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Problem {
    fn from(error: E) -> Self {
        eprintln!("orders: {}", error.into());
        Self(StatusCode::INTERNAL_SERVER_ERROR, "the order could not be placed, please try again".to_owned())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
