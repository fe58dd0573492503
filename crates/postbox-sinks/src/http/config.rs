//! [`Config`]: URL and options of a webhook, checked.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postbox_core::redact::mask_credentials;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use url::Host;

use super::client::Connect;
use super::guard::{Guard, is_this_machine};
use super::headers;
use super::sign::{Secret, Signer};
use super::target::{Credentials, Target};
use crate::address::add_query;
use crate::encode::{Binding, Encoding};
use crate::options::{Options, Reader};
use crate::tls::TlsFiles;
use crate::url::SinkError;

/// Below the relay's own timeout, so that it is this one that says which host was slow.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Half of the timeout where that is less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONCURRENCY: usize = 32;

/// A webhook as it was configured.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) target: Target,
    pub(super) method: Method,
    /// On every request: the operator's own and the credentials.
    pub(super) headers: HeaderMap,
    pub(super) signer: Signer,
    pub(super) encoding: Encoding,
    pub(super) connect: Connect,
}

impl Config {
    /// Reads URL and options. The query belongs to the receiver, so options in the URL stand behind a `#`, which is
    /// never sent.
    ///
    /// # Errors
    /// With all that is wrong, naming no more of the URL than its host.
    pub(super) fn new(url: &str, mut options: Options) -> Result<Self, SinkError> {
        let masked = mask_credentials(url);
        let shown = without_path(&masked);
        let fail = |problem: String| SinkError::new(shown, problem);
        let (text, fragment) = url.split_once('#').unwrap_or((url, ""));
        add_query(fragment, &mut options).map_err(fail)?;
        let mut options = Reader::new(shown, options);
        let destination = options.template("destination");
        let (target, credentials) = Target::parse(text, destination.as_ref()).map_err(fail)?;
        let guard = guard(&mut options);
        let (timeout, reach) = timeouts(&mut options);
        let allow_http = options.switch("allow_http").unwrap_or(false);
        let config = Self {
            method: options
                .choice("method", &[("post", 0), ("put", 1)])
                .map_or(Method::POST, |choice| if choice == 0 { Method::POST } else { Method::PUT }),
            headers: request_headers(credentials, &mut options),
            signer: signer(&mut options),
            encoding: Encoding::from_options(Binding::HTTP, &mut options),
            connect: Connect {
                proxy: proxy(&mut options),
                tls: TlsFiles::from_options(&mut options, !target.is_plain(), "https"),
                timeout,
                reach,
                concurrency: concurrency(&mut options),
                guard,
            },
            target,
        };
        options.finish()?;
        check_host(&config.target, &config.connect.guard, allow_http).map_err(fail)?;
        Ok(config)
    }
}

/// A URL up to its host: path and query of webhooks often are secrets.
fn without_path(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    &url[..url[start..].find(['/', '?', '#', '\\']).map_or(url.len(), |at| start + at)]
}

/// Whether the host may be sent to, as far as its name or address in the URL tells.
fn check_host(target: &Target, guard: &Guard, allow_http: bool) -> Result<(), String> {
    let Some(host) = target.host() else { return Err("it has no host".to_owned()) };
    let refused = match host {
        Host::Ipv4(address) => guard.check(address.into()).err(),
        Host::Ipv6(address) => guard.check(address.into()).err(),
        Host::Domain(_) => None,
    };
    if let Some(refused) = refused {
        return Err(refused.to_string());
    }
    if is_this_machine(&host) && !guard.allow_private && !guard.names(&host) {
        return Err(format!(
            "{host} is this machine, which is refused: name it in the option `allow`, or set `allow_private`"
        ));
    }
    if target.is_plain() && !allow_http && !guard.names(&host) && !is_this_machine(&host) {
        return Err(format!(
            "http: sends events in the clear: use https:, or name {host} in `allow`, or set `allow_http`"
        ));
    }
    Ok(())
}

fn guard(options: &mut Reader) -> Guard {
    let mut guard =
        Guard { allow_private: options.switch("allow_private").unwrap_or(false), ..Guard::default() };
    for entry in options.list("allow") {
        if let Err(problem) = guard.allow(&entry) {
            options.problem("allow", &problem, "use hosts, addresses and networks");
        }
    }
    guard
}

fn signer(options: &mut Reader) -> Signer {
    let mut given: Vec<(&str, String)> = Vec::new();
    given.extend(options.text("secret").map(|secret| ("secret", secret)));
    given.extend(options.list("secrets").into_iter().map(|secret| ("secrets", secret)));
    if let Some(path) = options.file("secret_file") {
        let lines = read(&path, "secret_file", options);
        given.extend(
            lines.lines().filter(|line| !line.trim().is_empty()).map(|line| ("secret_file", line.to_owned())),
        );
        if !given.iter().any(|(name, _)| *name == "secret_file") {
            options.problem("secret_file", "names a file without a secret", "write one secret per line");
        }
    }
    let mut secrets = Vec::new();
    for (name, secret) in given {
        match Secret::parse(&secret) {
            Ok(secret) => secrets.push(secret),
            Err(problem) => options.problem(name, "cannot be used", &problem),
        }
    }
    Signer::new(secrets)
}

fn read(path: &Path, name: &str, options: &mut Reader) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| {
        options.problem(
            name,
            &format!("names {}, which cannot be read: {error}", path.display()),
            "name a text file",
        );
        String::new()
    })
}

fn request_headers(credentials: Option<Credentials>, options: &mut Reader) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in options.map("headers") {
        let given = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value));
        match given {
            (Ok(name), Ok(mut value)) if !headers::is_framing(&name) => {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
            (Ok(name), Ok(_)) => {
                options.problem("headers", &format!("sets {name}"), "that header is the sink's own");
            }
            _ => options.problem("headers", &format!("has {name:?}"), "HTTP has no such header or value"),
        }
    }
    let token = options.text("bearer_token");
    let file = options.file("bearer_token_file");
    let file = file.map(|path| {
        let token = read(&path, "bearer_token_file", options).trim().to_owned();
        if token.is_empty() {
            let text = format!("names {}, which holds no token", path.display());
            options.problem("bearer_token_file", &text, "write the token into it");
        }
        token
    });
    let tokens = token.into_iter().chain(file);
    let mut ways: Vec<String> = tokens.map(|token| format!("Bearer {token}")).collect();
    ways.extend(
        credentials
            .map(|(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))),
    );
    if ways.len() + usize::from(headers.contains_key(AUTHORIZATION)) > 1 {
        options.problem(
            "bearer_token",
            "is not the only way to log in",
            "keep one of it, the URL's user and headers",
        );
    }
    for way in ways {
        match HeaderValue::from_str(&way) {
            Ok(mut value) => {
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
            Err(_) => options.problem("bearer_token", "holds what a header cannot", "use visible characters"),
        }
    }
    headers
}

fn proxy(options: &mut Reader) -> Option<Url> {
    let url = options.text("proxy")?;
    match Url::parse(&url) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Some(url),
        _ => {
            options.problem("proxy", "is not the URL of one", "use http://<host>:<port>");
            None
        }
    }
}

fn timeouts(options: &mut Reader) -> (Duration, Duration) {
    let timeout = options.duration("timeout", 100, 600_000).unwrap_or(TIMEOUT);
    let connect = options.duration("connect_timeout", 50, 600_000);
    if connect.is_some_and(|connect| connect >= timeout) {
        options.problem(
            "connect_timeout",
            "is not less than timeout",
            "which has to cover both connection and answer",
        );
    }
    (timeout, connect.unwrap_or_else(|| CONNECT_TIMEOUT.min(timeout / 2)))
}

fn concurrency(options: &mut Reader) -> usize {
    options.number("concurrency", 1..=1000).and_then(|n| usize::try_from(n).ok()).unwrap_or(CONCURRENCY)
}
