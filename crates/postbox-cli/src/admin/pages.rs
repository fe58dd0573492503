//! The dashboard itself: files that the program carries with it.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::response::{IntoResponse as _, Response};

use super::Shared;
use super::answer::Refusal;

/// The files of `assets/dashboard`, each with its name, its content and a mark of it; made by `build.rs`.
type File = (&'static str, &'static [u8], &'static str);

include!(concat!(env!("OUT_DIR"), "/dashboard.rs"));

/// The page, which knows below which path it is.
pub(super) async fn index(State(admin): Shared) -> Response {
    let Some((_, page, _)) = FILES.iter().find(|(name, ..)| *name == "index.html") else {
        return Refusal::not_found("this program was built without the dashboard").into_response();
    };
    // The base path has no character that means anything in HTML: the configuration refuses them.
    let text = String::from_utf8_lossy(page).replace("{{base}}", &admin.access.base);
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    let cache = HeaderValue::from_static("no-cache");
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, cache)], text).into_response()
}

/// Any other file.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let found = FILES.iter().find(|(file, ..)| *file == name && *file != "index.html");
    let Some((name, content, mark)) = found else {
        return Refusal::not_found("there is no such file").into_response();
    };
    let mark = HeaderValue::from_static(mark);
    let cached = headers.get(header::IF_NONE_MATCH) == Some(&mark);
    let shared = [(header::ETAG, mark), (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    if cached {
        return (StatusCode::NOT_MODIFIED, shared).into_response();
    }
    let kind = HeaderValue::from_static(kind_of(name));
    (shared, [(header::CONTENT_TYPE, kind)], *content).into_response()
}

fn kind_of(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "json" | "map" => "application/json",
        "html" => "text/html; charset=utf-8",
        "txt" | "md" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
