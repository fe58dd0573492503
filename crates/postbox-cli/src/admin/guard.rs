//! Before any handler runs: is this our name, is it our page that asks, who asks, and may they.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use postbox_core::Code;

use super::Admin;
use super::access::{COOKIE, CSRF_HEADER, Role, Who, now};
use super::answer::Refusal;

/// What a route asks of who calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: it is how one becomes somebody.
    Nothing,
    /// To be somebody.
    View,
    /// To be somebody, by a request that only our own page can make.
    Own,
    /// To be an operator, while changes are allowed.
    Change,
}

/// A route's own guard.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) admin: Arc<Admin>,
    pub(super) need: Need,
}

fn refused(code: Code, message: &str) -> Refusal {
    let status = match code {
        Code::AdminUnauthorized => StatusCode::UNAUTHORIZED,
        Code::AdminHost => StatusCode::MISDIRECTED_REQUEST,
        _ => StatusCode::FORBIDDEN,
    };
    Refusal::new(status, code, message)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The name that the request went to.
fn host(request: &Request) -> Option<&str> {
    request.uri().host().or_else(|| text(request.headers(), &header::HOST))
}

/// For every request: refuses names that are not ours (a page whose name was made to point here could read everything), and
/// gives every answer the headers that keep it from being used otherwise.
pub(super) async fn outer(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    let known = host(&request).is_some_and(|host| admin.access.knows_host(host));
    let is_api = request.uri().path().contains("/api/");
    let mut response = if known {
        next.run(request).await
    } else {
        refused(Code::AdminHost, "this server is not called so").into_response()
    };
    let json = HeaderValue::from_static("application/json");
    let (status, given) = (response.status(), response.headers().get(header::CONTENT_TYPE));
    // What the router itself refuses has words of its own.
    if (status.is_client_error() || status.is_server_error()) && given != Some(&json) {
        let code = if status == StatusCode::NOT_FOUND { Code::AdminNotFound } else { Code::AdminRequest };
        let allow = response.headers_mut().remove(header::ALLOW);
        response = Refusal::new(status, code, status.canonical_reason().unwrap_or("refused")).into_response();
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    secure(response.headers_mut(), is_api);
    response
}

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'";

fn secure(headers: &mut HeaderMap, is_api: bool) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (
            HeaderName::from_static("permissions-policy"),
            "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_api {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// For every route of the API.
pub(super) async fn gate(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    match admitted(&gate, &request) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Who asks, if they may. None where nobody has to be anybody.
fn admitted(Gate { admin, need }: &Gate, request: &Request) -> Result<Option<Who>, Refusal> {
    let headers = request.headers();
    own_page(admin, request)?;
    if request.method() == Method::POST {
        let json = text(headers, &header::CONTENT_TYPE).is_some_and(|kind| {
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
        });
        if !json {
            // A form cannot send this, so that none of another site can be one of ours.
            let message = "a body must be application/json";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::AdminRequest, message));
        }
    }
    let who = who(admin, headers);
    if *need == Need::Nothing {
        return Ok(who.ok().flatten());
    }
    let who = who?.ok_or_else(|| refused(Code::AdminUnauthorized, "who asks is not known"))?;
    if *need == Need::View {
        return Ok(Some(who));
    }
    if let Some(csrf) = &who.csrf {
        let given = text(headers, &HeaderName::from_static(CSRF_HEADER)).unwrap_or_default();
        if !admin.access.same(csrf, given) {
            return Err(refused(
                Code::AdminCsrf,
                "the header x-postbox-csrf is missing or not that of this session",
            ));
        }
    }
    if *need == Need::Change {
        if who.role != Role::Operator {
            return Err(refused(Code::AdminForbidden, "this needs an operator, and the token is a viewer's"));
        }
        if admin.access.read_only {
            return Err(refused(Code::AdminReadOnly, "changes are switched off (admin.read_only)"));
        }
    }
    Ok(Some(who))
}

/// Refuses what a browser says comes from another site, or another page's script.
fn own_page(admin: &Admin, request: &Request) -> Result<(), Refusal> {
    let headers = request.headers();
    let site = text(headers, &HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Err(refused(Code::AdminCsrf, "the request comes from another site"));
    }
    // What cannot be read as text is nobody's either.
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = host(request).unwrap_or_default();
    let full = text(headers, &header::HOST).unwrap_or(host);
    if origin.to_str().is_ok_and(|origin| admin.access.knows_origin(origin, full)) {
        return Ok(());
    }
    Err(refused(Code::AdminCsrf, "the request comes from a page of another origin"))
}

/// Who asks: by token, by session, or as whoever is on this machine where that is enough.
fn who(admin: &Admin, headers: &HeaderMap) -> Result<Option<Who>, Refusal> {
    if let Some(given) = headers.get(header::AUTHORIZATION) {
        let given = given.to_str().unwrap_or_default();
        let token = given.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let who = token.and_then(|(_, token)| admin.access.by_token(token.trim()));
        if who.is_none() {
            complain("a wrong token was refused");
            return Err(refused(Code::AdminUnauthorized, "the token is not known"));
        }
        return Ok(who);
    }
    let session = cookie(headers).and_then(|cookie| admin.access.by_cookie(cookie));
    Ok(session.or_else(|| admin.access.local_user()))
}

/// The session's cookie.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value).next()
}

/// Tells the log, once a second at most: who guesses shall not fill it.
pub(super) fn complain(what: &str) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = now();
    if LAST.swap(now, Ordering::Relaxed) != now {
        tracing::warn!("admin API: {what}");
    }
}
