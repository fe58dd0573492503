//! What becomes of an event that a receiver did not take.
//!
//! | what happened | verdict |
//! | --- | --- |
//! | 2xx | delivered |
//! | 401, 403, 407 | unavailable: the credentials are wrong, not the event |
//! | 408, 425, 429 | retry, after `Retry-After` if there is one |
//! | 3xx | reject: redirects are not followed |
//! | any other 4xx, such as 400, 404, 410, 413, 422 | reject |
//! | 5xx and everything else | retry, after `Retry-After` if there is one |
//! | no such host, connection refused, TLS failed, no connection in time | unavailable |
//! | the host has an address that is not allowed | unavailable: nothing was sent, and nothing is lost for a wrong DNS answer |
//! | connection lost before the answer | sent once more at once if it broke within a second; then retry |
//! | no answer in time | retry: it may have arrived |
//! | no turn in time, since the receiver is too slow for what is sent to it | unavailable |
//! | the destination cannot be made into a URL | reject |

use std::error::Error as StdError;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_core::redact::{self, Summary};
use postbox_core::{Code, DispatchError};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LOCATION};
use time::OffsetDateTime;

use super::resolve::ResolveError;
use super::retry_after::retry_after;

/// The most characters of an answer that an error quotes.
const EXCERPT: usize = 200;

/// Why an event was not delivered; it names the host, never the path, which may hold a secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("{host} answered {}{}", shown(*.status), quoted(.excerpt))]
    Status { host: String, status: StatusCode, excerpt: String },
    #[error("{host} answered {} to {to}; redirects are not followed: put the new address into the sink's url", shown(*.status))]
    Redirect { host: String, status: StatusCode, to: String },
    #[error("cannot connect to {host}: {problem}")]
    Connect { host: String, problem: String },
    #[error("{host} did not answer within {limit:?}")]
    Timeout { host: String, limit: Duration },
    #[error("the connection to {host} broke before the answer: {problem}")]
    Broken { host: String, problem: String },
    #[error("{host} is too slow: no request could be sent within {limit:?}")]
    NoTurn { host: String, limit: Duration },
    #[error("the event cannot be sent to {host}: {problem}")]
    Request { host: String, problem: String },
}

fn shown(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

fn quoted(excerpt: &str) -> String {
    if excerpt.is_empty() { String::new() } else { format!(": {excerpt}") }
}

/// What an answer says about its event.
pub(super) fn of_status(
    host: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), DispatchError> {
    if status.is_success() {
        return Ok(());
    }
    let host = host.to_owned();
    if status.is_redirection() {
        let to =
            headers.get(LOCATION).map_or_else(|| "nowhere".to_owned(), |to| origin(&excerpt(to.as_bytes())));
        return Err(DispatchError::reject(HttpError::Redirect { host, status, to }));
    }
    let error = HttpError::Status { host, status, excerpt: excerpt(body) };
    Err(match status.as_u16() {
        401 | 403 | 407 => DispatchError::unavailable(error),
        400..=499 if !matches!(status.as_u16(), 408 | 425 | 429) => DispatchError::reject(error),
        _ => match retry_after(headers, OffsetDateTime::now_utc()) {
            Some(wait) => DispatchError::retry_after(error, wait),
            None => DispatchError::retry(error),
        },
    })
}

/// What is shorter is not hidden: it may be part of any word.
const SHORTEST: usize = 4;

/// An answer without what was asked with: many repeat the request, and its path, its query and the sink's own headers may be secrets.
pub(super) fn without_request(body: &[u8], asked: &url::Url, headers: &HeaderMap) -> String {
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let path = asked.path().trim_end_matches('/');
    let mut hidden: Vec<(String, &str)> = Vec::new();
    if path.len() > 1 {
        hidden.extend([(path.to_owned(), "/***"), (decoded(path), "/***")]);
    }
    let query = asked.query().unwrap_or_default();
    let values = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
    let headers = headers.values().filter_map(|value| value.to_str().ok());
    let headers = headers.flat_map(|value| {
        // What stands behind the scheme of an authorization, too, and the password that this is made of.
        let token = value.split_once(' ').map_or("", |(_, token)| token);
        let login = STANDARD.decode(token).ok().and_then(|login| String::from_utf8(login).ok());
        let password = login.and_then(|login| Some(login.split_once(':')?.1.to_owned()));
        [value.to_owned(), token.to_owned(), password.unwrap_or_default()]
    });
    let secrets = std::iter::once(query).chain(values).map(str::to_owned).chain(headers);
    let secrets = secrets.flat_map(|secret| [decoded(&secret), secret]);
    hidden.extend(secrets.filter(|secret| secret.len() >= SHORTEST).map(|secret| (secret, "***")));
    // The longest first: nothing of it is left over.
    hidden.sort_by_key(|(secret, _)| std::cmp::Reverse(secret.len()));
    let body = String::from_utf8_lossy(body).into_owned();
    hidden.iter().fold(body, |body, (secret, shown)| body.replace(secret, shown))
}

/// Where a redirect leads to, without its path, which may be as secret as the one that was asked for.
fn origin(to: &str) -> String {
    match url::Url::parse(to) {
        Ok(to) if to.has_host() => to.origin().ascii_serialization(),
        _ => "another path of the same host".to_owned(),
    }
}

/// What the client's error says about its event.
pub(super) fn of_client(host: &str, error: &reqwest::Error, limit: Duration) -> DispatchError {
    let host = host.to_owned();
    if error.is_connect() || is_tls(error) {
        return DispatchError::unavailable(HttpError::Connect { host, problem: connect_problem(error) });
    }
    if error.is_timeout() {
        return timed_out(host, limit);
    }
    if error.is_builder() {
        return DispatchError::reject(HttpError::Request { host, problem: causes(error) });
    }
    DispatchError::retry(HttpError::Broken { host, problem: causes(error) })
}

/// Whether the connection was lost between the request and its answer.
pub(super) fn is_broken(error: &reqwest::Error) -> bool {
    !error.is_connect() && !error.is_timeout() && !error.is_builder() && !is_tls(error)
}

/// Whether TLS failed. With TLS 1.3 a receiver judges our certificate when the connection is open already, at our end.
fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    // HTTP/2 keeps only the words of what ended its connection.
    if error.is::<rustls::Error>() || error.to_string().starts_with("received fatal alert: ") {
        return true;
    }
    // What an I/O error holds is not its source, but that one's source is.
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(held) => is_tls(held),
        None => error.source().is_some_and(is_tls),
    }
}

fn timed_out(host: String, limit: Duration) -> DispatchError {
    DispatchError::retry(HttpError::Timeout { host, limit }).with_code(Code::Timeout)
}

pub(super) fn no_turn(host: &str, limit: Duration) -> DispatchError {
    DispatchError::unavailable(HttpError::NoTurn { host: host.to_owned(), limit })
}

pub(super) fn no_request(host: &str, problem: String) -> DispatchError {
    DispatchError::reject(HttpError::Request { host: host.to_owned(), problem })
}

/// The cause that matters: the resolver's own words if it was the resolver, else what lies below the client's wrapping.
fn connect_problem(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(resolving) = inner.downcast_ref::<ResolveError>() {
            return redact::chain(resolving);
        }
        cause = inner.source();
    }
    if error.is_timeout() {
        return "no connection in time".to_owned();
    }
    causes(error)
}

/// The causes of an error without its own words, which hold the whole URL.
pub(super) fn causes(error: &reqwest::Error) -> String {
    let text = error.source().map_or_else(|| "no further reason given".to_owned(), redact::chain);
    Summary::new(&text, EXCERPT * 2).to_string()
}

/// The beginning of an answer, on one line and fit to be shown (hazard 49).
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean = Summary::new(&line, 4 * EXCERPT).to_string();
    match clean.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &clean[..end]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postbox_core::DispatchErrorKind::{self, Reject, Retry, Unavailable};
    use reqwest::header::RETRY_AFTER;

    fn verdict(status: u16, wait: Option<&str>) -> Option<DispatchErrorKind> {
        let mut headers = HeaderMap::new();
        if let Some(wait) = wait {
            headers.insert(RETRY_AFTER, wait.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        of_status("h", status, &headers, b"").err().map(|error| error.kind())
    }

    #[test]
    fn every_status_has_its_verdict() {
        for status in 100..=999 {
            let expected = match status {
                200..=299 => None,
                401 | 403 | 407 => Some(Unavailable),
                408 | 425 | 429 => Some(Retry(None)),
                300..=499 => Some(Reject),
                _ => Some(Retry(None)),
            };
            assert_eq!(verdict(status, None), expected, "{status}");
        }
        for status in [408, 425, 429, 500, 503] {
            assert_eq!(verdict(status, Some("90")), Some(Retry(Some(Duration::from_secs(90)))), "{status}");
        }
        for status in [301, 400, 401, 404, 410] {
            assert_eq!(verdict(status, Some("90")), verdict(status, None), "{status}");
        }
    }

    #[test]
    fn hazard_49_an_answer_is_quoted_short_and_clean() {
        let body =
            "line one\r\n\tline two \u{1b}[31m postgres://u:hunter2@db \u{0} ".to_owned() + &"x".repeat(5000);
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let text = of_status("h", status, &HeaderMap::new(), body.as_bytes()).unwrap_err().to_string();
        assert!(text.contains("h answered 500 Internal Server Error: line one line two"), "{text}");
        assert!(!text.contains("hunter2") && !text.chars().any(char::is_control), "{text}");
        assert!(text.chars().count() < 300, "{text}");
        let text = of_status("h", status, &HeaderMap::new(), b"\xff\xfe").unwrap_err().to_string();
        assert!(text.ends_with("Error: \u{fffd}\u{fffd}"), "{text}");
        let text = of_status("h", StatusCode::from_u16(599).unwrap(), &HeaderMap::new(), b"");
        assert!(text.unwrap_err().to_string().ends_with("h answered 599"));
    }

    #[test]
    fn hazard_49_an_answer_that_repeats_the_request_does_not_show_it() {
        let asked = |url: &str| url::Url::parse(url).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer s3cret-token".parse().unwrap());
        headers.insert("proxy-authorization", "Basic YXBwOmh1bnRlcjI=".parse().unwrap());
        headers.insert("x-mode", "on".parse().unwrap());
        for (body, url, shown) in [
            ("Cannot POST /services/T0/s3cret", "https://h/services/T0/s3cret?x=1", "Cannot POST /***"),
            ("no /a b/s3cret/ here", "https://h/a%20b/s3cret/", "no /***/ here"),
            ("all is /well", "https://h/", "all is /well"),
            ("POST /in?key=s3cret&n=1 failed", "https://h/in?key=s3cret&n=1", "POST /***?*** failed"),
            ("key \"s3 cret\" is unknown", "https://h/?key=s3%20cret", "key \"***\" is unknown"),
            ("Authorization: Bearer s3cret-token", "https://h/", "Authorization: ***"),
            ("the token s3cret-token, on and on", "https://h/", "the token ***, on and on"),
            ("no user app with hunter2 (Basic YXBwOmh1bnRlcjI=)", "https://h/", "no user app with *** (***)"),
        ] {
            assert_eq!(without_request(body.as_bytes(), &asked(url), &headers), shown);
        }
    }

    #[test]
    fn a_redirect_says_where_to() {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, "https://u:hunter2@example.com/new".parse().unwrap());
        let error = of_status("h", StatusCode::FOUND, &headers, b"").unwrap_err().to_string();
        assert!(error.contains("302 Found to https://example.com; redirects are not followed"), "{error}");
    }
}
