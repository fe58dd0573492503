//! Kinds of values that say where something is: URLs, addresses, paths of the server.

use std::net::SocketAddr;

use super::{Kind, Shape, as_read, as_written, one};
use crate::config::text::{GivenSink, Secret, shown};

/// The URL of a database.
pub(in crate::config) const fn database_url() -> Kind<Secret> {
    Kind {
        shape: Shape::Text,
        secret: true,
        accepts: || {
            "a URL such as postgres://user:password@host:5432/database, mysql://user:password@host:3306/database or \
             sqlite:path/to/file.db".to_owned()
        },
        parse: url,
        canonical: as_written,
    }
}

/// The URL of a database server, or nothing.
pub(in crate::config) const fn direct_url() -> Kind<Option<Secret>> {
    Kind {
        shape: Shape::Text,
        secret: true,
        accepts: || "a URL such as postgres://user:password@host:5432/database".to_owned(),
        parse: |items| if items.is_empty() { Ok(None) } else { url(items).map(Some) },
        canonical: as_written,
    }
}

fn url(items: &[String]) -> Result<Secret, String> {
    let text = one(items)?;
    if scheme(text).is_none() {
        return Err("is not a URL".to_owned());
    }
    Ok(Secret::new(text))
}

/// A sink's URL or a name from `[sinks]`, or nothing.
pub(in crate::config) const fn sink() -> Kind<Option<GivenSink>> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "a sink's URL such as stdout: or file:out.jsonl, or a name from [sinks]".to_owned(),
        parse: |items| {
            if items.is_empty() { Ok(None) } else { one(items).map(|text| Some(GivenSink::new(text))) }
        },
        canonical: as_written,
    }
}

/// The scheme of a URL, without its colon.
pub(in crate::config) fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once(':')?;
    let starts = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    (starts && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))).then_some(scheme)
}

/// An address to listen on, or nothing. `:9000` is `127.0.0.1:9000`: what is not asked for is not exposed.
pub(in crate::config) const fn listen() -> Kind<Option<SocketAddr>> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "an IP address and port such as 0.0.0.0:9000, or :9000 for this machine only".to_owned(),
        parse: |items| {
            if items.is_empty() {
                return Ok(None);
            }
            let text = one(items)?;
            let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':'));
            let address = port.map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
            address.parse().map(Some).map_err(|_| "is not an address with a port".to_owned())
        },
        canonical: |address, _| address.iter().map(ToString::to_string).collect(),
    }
}

/// A path of the program's HTTP server that is not one of its own.
pub(in crate::config) const fn http_path() -> Kind<String> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "a path such as /metrics: / and then letters, digits, and any of / . _ ~ -".to_owned(),
        parse: |items| {
            let text = one(items)?;
            let valid =
                text.len() <= 256 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._~-".contains(&b));
            match text {
                "/healthz" | "/readyz" => Err("is taken by the health checks".to_owned()),
                _ if !text.starts_with('/') => Err("does not start with /".to_owned()),
                _ if !valid => Err("has characters that a path of this server cannot have".to_owned()),
                _ => Ok(text.to_owned()),
            }
        },
        canonical: as_written,
    }
}

/// The path that everything is below: `/`, or a path without a slash at its end.
pub(in crate::config) const fn base_path() -> Kind<String> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "/ or a path such as /postbox: letters, digits, and any of / . _ ~ -".to_owned(),
        parse: |items| {
            let text = one(items)?;
            let valid = text.len() <= 256
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._~-".contains(&b))
                && !text.split('/').any(|part| part == "." || part == "..");
            match text.trim_end_matches('/') {
                _ if !text.starts_with('/') => Err("does not start with /".to_owned()),
                _ if !valid || text.contains("//") => {
                    Err("has characters that a path of this server cannot have".to_owned())
                }
                "" => Ok("/".to_owned()),
                path => Ok(path.to_owned()),
            }
        },
        canonical: as_read,
    }
}

/// Names of this server, as browsers have them in `Host`.
pub(in crate::config) const fn hosts() -> Kind<Vec<String>> {
    Kind {
        shape: Shape::List,
        secret: false,
        accepts: || {
            "host names such as postbox.example.org, without scheme and port, with a comma between two"
                .to_owned()
        },
        parse: |items| {
            let valid = |item: &str| {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-' || b == b'_';
                (!item.is_empty() && item.len() <= 253 && item.bytes().all(plain))
                    || item.parse::<std::net::IpAddr>().is_ok()
            };
            match items.iter().find(|item| !valid(item)) {
                Some(item) => Err(format!("has {} in it, which is not a host name", shown(item))),
                None => Ok(items.iter().map(|item| item.to_ascii_lowercase()).collect()),
            }
        },
        canonical: as_written,
    }
}

/// Where traces are: an address of the web, with a place for the id.
pub(in crate::config) const fn trace_url() -> Kind<Option<String>> {
    Kind {
        shape: Shape::Text,
        secret: false,
        accepts: || "an address such as https://traces.example/trace/{trace_id}".to_owned(),
        parse: |items| {
            if items.is_empty() {
                return Ok(None);
            }
            let text = one(items)?;
            match text {
                // A page makes a link of it, and nothing else than a page of the web may be behind one.
                _ if !text.starts_with("https://") && !text.starts_with("http://") => {
                    Err("does not start with https:// or http://".to_owned())
                }
                _ if !text.contains("{trace_id}") => Err("has no {trace_id}".to_owned()),
                _ if text.len() > 1024 || text.contains(|c: char| c.is_control() || c.is_whitespace()) => {
                    Err("has characters that an address cannot have, or too many".to_owned())
                }
                _ => Ok(Some(text.to_owned())),
            }
        },
        canonical: as_written,
    }
}
