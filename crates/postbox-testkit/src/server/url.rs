//! The address of a PostgreSQL server, apart from the database.

use std::net::{SocketAddr, ToSocketAddrs};

/// `postgres://user@host:port/…?query` in parts, to be put together for any database and through any proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    /// With the password, if there is one; without the `@`.
    user: String,
    host: String,
    pub(crate) port: u16,
    /// With the `?`, or empty.
    query: String,
}

impl ServerUrl {
    /// A server on this machine that trusts everybody.
    pub(crate) fn local(port: u16) -> Self {
        Self { user: "postgres".to_owned(), host: "127.0.0.1".to_owned(), port, query: String::new() }
    }

    /// Reads a URL; its database is left out.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        // Never quote the URL itself: it may hold a password.
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))
            .ok_or("the URL does not start with postgres://")?;
        let (rest, query) = rest.find('?').map_or((rest, ""), |at| rest.split_at(at));
        let authority = rest.split_once('/').map_or(rest, |(authority, _)| authority);
        let (user, address) = authority.rsplit_once('@').unwrap_or(("postgres", authority));
        // The colon of a port stands behind the brackets of an IPv6 address.
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| "the URL's port is not a number")?)
            }
            _ => (address, 5432),
        };
        if host.is_empty() {
            return Err("the URL names no host".to_owned());
        }
        Ok(Self { user: user.to_owned(), host: host.to_owned(), port, query: query.to_owned() })
    }

    /// The URL of one database.
    pub(crate) fn database(&self, name: &str) -> String {
        let Self { user, host, port, query } = self;
        format!("postgres://{user}@{host}:{port}/{name}{query}")
    }

    /// The same server, reached through another address.
    pub(crate) fn through(&self, proxy: SocketAddr) -> Self {
        Self { host: proxy.ip().to_string(), port: proxy.port(), ..self.clone() }
    }

    /// Where the server listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        (host, self.port)
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .unwrap_or_else(|| panic!("cannot resolve {host}"))
    }
}

#[cfg(test)]
mod tests {
    use super::ServerUrl;

    #[test]
    fn parts_are_put_together_again() {
        let url = ServerUrl::parse("postgres://me:s%40cret@db.local:6000/postgres?sslmode=disable").unwrap();
        assert_eq!(url.port, 6000);
        assert_eq!(url.database("t"), "postgres://me:s%40cret@db.local:6000/t?sslmode=disable");
        let proxied = url.through("127.0.0.1:7".parse().unwrap());
        assert_eq!(proxied.database("t"), "postgres://me:s%40cret@127.0.0.1:7/t?sslmode=disable");
    }

    #[test]
    fn what_is_left_out_has_its_usual_value() {
        assert_eq!(
            ServerUrl::parse("postgresql://[::1]").unwrap().database("t"),
            "postgres://postgres@[::1]:5432/t"
        );
        assert_eq!(ServerUrl::parse("postgres://h/db").unwrap().port, 5432);
        assert_eq!(ServerUrl::local(9).addr(), "127.0.0.1:9".parse().unwrap());
    }

    #[test]
    fn errors_do_not_show_the_password() {
        for url in ["mysql://u:secret@h/", "postgres://u:secret@h:port/", "postgres://u:secret@:1/"] {
            let error = ServerUrl::parse(url).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
