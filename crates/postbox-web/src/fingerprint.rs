//! What makes two requests the same, and how long names are kept short.

use std::borrow::Cow;
use std::fmt::Write as _;

use axum::http::{Method, Uri};
use postbox_core::idempotency::{Call, Fingerprint};
use ring::digest::{Context, SHA256, digest};

/// The beginning of a name that is known by its hash. What begins so by itself is hashed, too: else it could pass for another.
const HASHED: &str = "sha256:";

/// Method, target and body. The target too: a route such as `/orders/{id}/pay` is that of many orders, and a key that was
/// used for one of them must not pay another.
pub(crate) fn of(method: &Method, uri: &Uri, body: &[u8]) -> Fingerprint {
    let mut context = Context::new(&SHA256);
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    for part in [method.as_str(), target] {
        // With its length, so that no two lists of parts are the same bytes.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    context.update(body);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    Fingerprint::new(bytes)
}

/// A principal that fits into the table: a long one is known by its hash.
pub(crate) fn principal(name: &str) -> Cow<'_, str> {
    fitting(name, Call::PRINCIPAL_LIMIT)
}

/// A route that fits into the table, likewise.
pub(crate) fn route(method: &Method, path: &str) -> String {
    fitting(&format!("{method} {path}"), Call::ROUTE_LIMIT).into_owned()
}

fn fitting(name: &str, limit: usize) -> Cow<'_, str> {
    if name.len() <= limit && !name.chars().any(char::is_control) && !name.starts_with(HASHED) {
        return Cow::Borrowed(name);
    }
    let mut hash = HASHED.to_owned();
    for byte in digest(&SHA256, name.as_bytes()).as_ref() {
        let _ = write!(hash, "{byte:02x}");
    }
    Cow::Owned(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_target_and_body_make_the_fingerprint() {
        let of = |method, uri: &str, body: &str| of(&method, &uri.parse().unwrap(), body.as_bytes());
        let first = of(Method::POST, "/orders/1?a=b", "tea");
        assert_eq!(first, of(Method::POST, "/orders/1?a=b", "tea"));
        assert_eq!(first, of(Method::POST, "http://shop/orders/1?a=b", "tea"), "whatever the host");
        for other in [
            of(Method::PATCH, "/orders/1?a=b", "tea"),
            of(Method::POST, "/orders/2?a=b", "tea"),
            of(Method::POST, "/orders/1?a=c", "tea"),
            of(Method::POST, "/orders/1?a=b", "teas"),
            of(Method::POST, "/orders/1?a=", "btea"),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn names_that_do_not_fit_are_known_by_their_hash() {
        assert_eq!(principal("acme"), "acme");
        let (long, control) = (principal(&"p".repeat(300)).into_owned(), principal("a\nb").into_owned());
        assert!(long.starts_with("sha256:") && long.len() == 7 + 64 && long != control);
        assert_ne!(principal(&long), long, "nobody can be called as somebody else is known");
        assert_eq!(route(&Method::POST, "/orders"), "POST /orders");
        assert_eq!(route(&Method::POST, &"/x".repeat(300)).len(), 71);
    }
}
