//! [`Target`]: the URL of each event.
//!
//! Scheme, host and port are the sink's alone. What comes from an event can only ever be a part of the path or of the
//! query, encoded, and never leads out of the path that the operator wrote.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use postbox_core::{Delivery, Template};
use url::{Host, Url};

/// What stays as it is in a value: the characters that mean nothing in a URL.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same in a route's destination, which is a path: its slashes part segments.
const PATH: &AsciiSet = &VALUE.remove(b'/').remove(b':').remove(b'@').remove(b'=').remove(b',').remove(b'+');

/// Where a sink's requests go.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Scheme, host and port, with an empty path.
    origin: Url,
    path: Template,
    query: Option<Template>,
    /// What the destination of a route is put behind; it ends with a slash.
    folder: String,
    /// The one URL, where nothing in it depends on the event.
    fixed: Option<Url>,
}

/// A user and a password that stood in the URL.
pub(super) type Credentials = (String, String);

impl Target {
    /// Reads a URL without fragment, whose path and query may hold placeholders. A destination is put behind its path.
    ///
    /// # Errors
    /// In words that show nothing of the URL but its host.
    pub(super) fn parse(
        text: &str,
        destination: Option<&Template>,
    ) -> Result<(Self, Option<Credentials>), String> {
        // The parser would drop or turn these, and then something else would be judged than what was written.
        if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
            return Err("it holds a space, a control character or a backslash".to_owned());
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err("write https://<host>/<path>".to_owned());
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if scheme.contains(['{', '}']) || authority.contains(['{', '}']) {
            return Err("placeholders may stand in the path and the query only".to_owned());
        }
        let mut origin =
            Url::parse(&format!("{scheme}://{authority}/")).map_err(|error| error.to_string())?;
        if !matches!(origin.scheme(), "http" | "https") {
            return Err("the scheme is neither https nor http".to_owned());
        }
        let credentials = take_credentials(&mut origin);
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        let folder = folder(path);
        let path = match destination {
            Some(_) if path.contains('{') => {
                return Err(
                    "its path has placeholders, and there is the option destination: keep one".to_owned()
                );
            }
            Some(destination) => format!("{folder}{}", relative(destination.as_str())),
            None => path.to_owned(),
        };
        if has_dots(&path) {
            return Err("its path has a segment of dots".to_owned());
        }
        let mut target = Self {
            folder,
            path: template(&path)?,
            query: query.filter(|query| !query.is_empty()).map(template).transpose()?,
            fixed: None,
            origin,
        };
        if target.path.is_fixed() && target.query.as_ref().is_none_or(Template::is_fixed) {
            let plain = |template: &Template| template.as_str().replace("{{", "{").replace("}}", "}");
            target.fixed =
                Some(target.join(&plain(&target.path), target.query.as_ref().map(plain).as_deref())?);
        }
        Ok((target, credentials))
    }

    pub(super) fn is_plain(&self) -> bool {
        self.origin.scheme() == "http"
    }

    pub(super) fn host(&self) -> Option<Host<&str>> {
        self.origin.host()
    }

    /// Host and port, for messages.
    pub(super) fn shown(&self) -> String {
        let host = self.origin.host_str().unwrap_or_default();
        self.origin.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Scheme, host and port, for showing the sink itself.
    pub(super) fn origin(&self) -> &str {
        self.origin.as_str()
    }

    /// The URL of an event.
    ///
    /// # Errors
    /// In words, when the event lacks a value or its values do not make a path.
    pub(super) fn of(&self, delivery: &Delivery) -> Result<Url, String> {
        if delivery.destination.is_none()
            && let Some(fixed) = &self.fixed
        {
            return Ok(fixed.clone());
        }
        let encode = |value: &str| utf8_percent_encode(value, VALUE).to_string();
        let render = |template: &Template| {
            template.render_with(&delivery.meta, encode).map_err(|error| error.to_string())
        };
        let path = match delivery.destination.as_deref() {
            Some(destination) => {
                format!("{}{}", self.folder, utf8_percent_encode(relative(destination), PATH))
            }
            None => render(&self.path)?,
        };
        if has_dots(&path) {
            return Err("its destination has a segment of dots".to_owned());
        }
        let query = self.query.as_ref().map(render).transpose()?;
        self.join(&path, query.as_deref())
    }

    fn join(&self, path: &str, query: Option<&str>) -> Result<Url, String> {
        let mut url = self.origin.clone();
        url.set_path(path);
        url.set_query(query);
        // It cannot be otherwise; if it ever is, nothing is sent.
        if url.origin() == self.origin.origin() { Ok(url) } else { Err("its URL leads elsewhere".to_owned()) }
    }
}

/// A path from here on, not from the root.
fn relative(path: &str) -> &str {
    path.trim_start_matches('/')
}

fn template(text: &str) -> Result<Template, String> {
    text.parse::<Template>().map_err(|error| error.problem().to_owned())
}

fn take_credentials(url: &mut Url) -> Option<Credentials> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let credentials = (plain(url.username()), plain(url.password().unwrap_or_default()));
    // Both work for every URL with a host, which this one has.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Some(credentials)
}

/// The part of the path that no event changes, up to a slash.
fn folder(path: &str) -> String {
    match path.find('{') {
        Some(at) => path[..=path[..at].rfind('/').unwrap_or(0)].to_owned(),
        None if path.ends_with('/') => path.to_owned(),
        None => format!("{path}/"),
    }
}

/// Whether a segment is `.` or `..`, also encoded: servers and the URL parser would leave the folder by it.
fn has_dots(path: &str) -> bool {
    path.split('/').any(|segment| {
        let plain: Cow<'_, str> = percent_decode_str(segment).decode_utf8_lossy();
        plain == "." || plain == ".."
    })
}
