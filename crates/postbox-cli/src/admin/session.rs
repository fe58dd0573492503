//! Who somebody is, and how they become somebody: `/session`, `/login`, `/logout`.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::response::Response;
use postbox_core::Code;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::access::{COOKIE, CSRF_HEADER, Role, SESSION, Who};
use super::answer::{Answer, Refusal, ok, time};
use super::fields::Fields;
use super::guard::{complain, cookie};
use super::{Admin, Shared};
use crate::assemble;

/// Who asks.
pub(super) async fn show(State(admin): Shared, Extension(who): Extension<Option<Who>>) -> Response {
    ok(&describe(&admin, who.as_ref()))
}

fn describe(admin: &Admin, who: Option<&Who>) -> Value {
    let access = &admin.access;
    let expires = who.and_then(|who| who.expires).and_then(|at| i64::try_from(at).ok());
    let expires = expires.and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    let operator = who.is_some_and(|who| who.role == Role::Operator);
    json!({
        "authenticated": who.is_some(),
        "login_required": access.needs_login(),
        "role": who.map(|who| who.role.as_str()),
        "name": who.map(|who| who.name.as_str()),
        "read_only": access.read_only,
        "can_change": operator && !access.read_only,
        "csrf": who.and_then(|who| who.csrf.as_deref()),
        "csrf_header": CSRF_HEADER,
        "expires_at": expires.map(time),
        "version": env!("CARGO_PKG_VERSION"),
        "base_path": access.base,
        "host": assemble::host(),
        "trace_url": access.trace_url,
        "several_databases": admin.tables.iter().any(|table| table.site.database.label().is_some()),
    })
}

/// Turns a token into a session.
pub(super) async fn login(State(admin): Shared, headers: HeaderMap, body: Body) -> Answer {
    let fields = Fields::of_body(body, &[&["token"]]).await?;
    let token = fields.text("token")?.unwrap_or_default();
    let session = admin.access.begin(token.trim());
    let Some((value, who)) = session.and_then(|value| admin.access.by_cookie(&value).map(|who| (value, who)))
    else {
        complain("a wrong token was refused at the login");
        return Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            Code::AdminUnauthorized,
            "the token is not known",
        ));
    };
    tracing::info!(who = who.label(), "admin API: login");
    let secure = headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let mut response = ok(&describe(&admin, Some(&who)));
    set_cookie(&mut response, &admin, &value, SESSION.as_secs(), secure);
    Ok(response)
}

/// Ends a session.
pub(super) async fn logout(State(admin): Shared, headers: HeaderMap, body: Body) -> Answer {
    Fields::of_body(body, &[]).await?;
    if let Some(cookie) = cookie(&headers) {
        admin.access.end(cookie);
    }
    let mut response = ok(&describe(&admin, admin.access.local_user().as_ref()));
    set_cookie(&mut response, &admin, "", 0, false);
    Ok(response)
}

fn set_cookie(response: &mut Response, admin: &Admin, value: &str, seconds: u64, secure: bool) {
    // Behind TLS it never leaves it; the page's own origin says whether it is.
    let secure = if secure { "; Secure" } else { "" };
    let path = format!("{}/", admin.access.base);
    let cookie =
        format!("{COOKIE}={value}; HttpOnly; SameSite=Strict; Path={path}; Max-Age={seconds}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}
