//! [`Address`]: the parts of a sink's URL.

use std::fmt;

use crate::options::{Options, Reader, Secret};
use crate::url::{SinkError, default_port};

/// The URL of a broker: `scheme://user:password@host:port,host:port/path?option=value`.
///
/// Several hosts are separated by commas. In user, password and path `%40` is an `@`, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// In small letters.
    pub scheme: String,
    /// The user, if there is one.
    pub user: Option<String>,
    /// The password, if there is one.
    pub password: Option<Secret>,
    /// The hosts: one at least.
    pub hosts: Vec<Host>,
    /// What follows the first slash; empty if nothing does.
    pub path: String,
}

/// A host and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// A name or an address; IPv6 without its brackets.
    pub name: String,
    /// The port, if there is one.
    pub port: Option<u16>,
}

impl Host {
    /// `host:port`, with brackets where they are needed.
    pub fn with_port(&self, default: u16) -> String {
        let port = self.port.unwrap_or(default);
        if self.name.contains(':') {
            format!("[{}]:{port}", self.name)
        } else {
            format!("{}:{port}", self.name)
        }
    }
}

impl Address {
    /// Takes a URL apart. Its query becomes options, beside those that there are.
    ///
    /// # Errors
    /// When it is no such URL, or an option is given both here and there.
    pub fn parse(url: &str, options: &mut Options) -> Result<Self, SinkError> {
        Self::take_apart(url, options).map_err(|problem| SinkError::new(url, problem))
    }

    fn take_apart(url: &str, options: &mut Options) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it lacks ://")?;
        if rest.contains(|c: char| c.is_control() || c.is_whitespace()) {
            return Err("it holds white space or a control character".to_owned());
        }
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let (user, password) = match credentials.map(|both| both.split_once(':').unwrap_or((both, ""))) {
            Some((user, password)) => (Some(decode(user)?), Some(decode(password)?)),
            None => (None, None),
        };
        let mut address = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.is_empty()).map(Secret::new),
            hosts: Vec::new(),
            path: decode(path)?,
        };
        for host in hosts.split(',') {
            address.hosts.push(host_of(host)?);
        }
        add_query(query, options)?;
        Ok(address)
    }

    /// Takes user and password out: those of the URL, or the options `user` and `password`. In both places they are a mistake.
    pub fn take_login(&mut self, options: &mut Reader) -> (Option<String>, Option<Secret>) {
        let user = (self.user.take(), options.text("user"));
        let password = (self.password.take(), options.secret("password"));
        (one_of("user", user, options), one_of("password", password, options))
    }

    /// The port where none is named: the one of its scheme.
    pub fn default_port(&self) -> u16 {
        default_port(&self.scheme).unwrap_or_default()
    }

    /// The hosts as `host:port`.
    pub fn hosts_with_port(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.with_port(self.default_port())).collect()
    }
}

/// Without credentials.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        for (at, host) in self.hosts.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
            match host.port {
                Some(port) => write!(f, "{comma}{name}:{port}")?,
                None => write!(f, "{comma}{name}")?,
            }
        }
        if self.path.is_empty() { Ok(()) } else { write!(f, "/{}", self.path) }
    }
}

/// What the URL says, or the option.
fn one_of<T>(name: &str, (url, option): (Option<T>, Option<T>), options: &mut Reader) -> Option<T> {
    if url.is_some() && option.is_some() {
        options.problem(name, "is given, and in the URL too", "keep one of the two");
    }
    url.or(option)
}

fn host_of(text: &str) -> Result<Host, String> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, after) = rest.split_once(']').ok_or("a [ of an IPv6 address lacks its ]")?;
            (name, after.strip_prefix(':').or_else(|| after.is_empty().then_some("")))
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, Some("")),
        },
    };
    let hint = "in a user or password write @ as %40, : as %3A, / as %2F and ? as %3F";
    if name.is_empty() {
        return Err(format!("it has no host, or an empty one; {hint}"));
    }
    let port = match port {
        Some("") => None,
        Some(port) => Some(port.parse().map_err(|_| format!("the port is not a number; {hint}"))?),
        None => return Err(format!("something else than a port follows a host; {hint}")),
    };
    Ok(Host { name: name.to_owned(), port })
}

/// Adds what a query says to the options.
pub(crate) fn add_query(query: &str, options: &mut Options) -> Result<(), String> {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
        let name = decode(name)?;
        if options.insert(name.clone(), decode(value)?) {
            return Err(format!("option {name} is given twice: keep one of the two"));
        }
    }
    Ok(())
}

/// Text with `%40` and the like.
pub(crate) fn decode(text: &str) -> Result<String, String> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("it has a % that no two hex digits follow: write % itself as %25".to_owned());
        };
        out.push(u8::try_from(high * 16 + low).unwrap_or_default());
    }
    String::from_utf8(out).map_err(|_| "its percent-encoded text is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_a_url() {
        let mut options = Options::new().set("timeout", "5s");
        let url = "KAFKA://app%40x:p%2Fw%3a@one:9092,[::1]:9093,three/a.{topic}?acks=all&x=%20&flag";
        let address = Address::parse(url, &mut options).unwrap();
        assert_eq!((address.scheme.as_str(), address.user.as_deref()), ("kafka", Some("app@x")));
        assert_eq!(address.password.as_ref().map(Secret::reveal), Some("p/w:"));
        assert_eq!(address.hosts_with_port(), ["one:9092", "[::1]:9093", "three:9092"]);
        assert_eq!(address.path, "a.{topic}");
        assert_eq!(address.to_string(), "kafka://one:9092,[::1]:9093,three/a.{topic}");
        assert!(!format!("{address:?}").contains("p/w"));
        assert_eq!(format!("{options:?}"), r#"{"acks": "all", "flag": "true", "timeout": "5s", "x": " "}"#);
        let address = Address::parse("nats://h", &mut Options::new()).unwrap();
        assert_eq!((address.user, address.password, address.path.as_str()), (None, None, ""));
    }

    #[test]
    fn a_login_is_in_the_url_or_in_the_options() {
        let login = |url: &str, mut options: Options| {
            let mut address = Address::parse(url, &mut options).unwrap();
            let mut options = Reader::new(url, options);
            let login = address.take_login(&mut options);
            options.finish().map(|()| login).map_err(|error| error.to_string())
        };
        let both = Ok((Some("me".to_owned()), Some(Secret::new("Zq9"))));
        let options = || Options::new().set("user", "me").set("password", "Zq9");
        assert_eq!(login("nats://me:Zq9@h", Options::new()), both);
        assert_eq!(login("nats://h", options()), both);
        assert_eq!(login("nats://me@h?password=Zq9", Options::new()), both);
        assert_eq!(login("nats://h", Options::new()), Ok((None, None)));
        let text = login("nats://me:Zq9@h", options()).unwrap_err();
        for name in ["user", "password"] {
            assert!(text.contains(&format!("option {name} is given, and in the URL too")), "{text}");
        }
        assert!(!text.contains("Zq9"), "{text}");
    }

    #[test]
    fn what_is_no_url_is_refused_with_a_reason_and_without_secrets() {
        for (url, reason) in [
            ("nats:h", "it lacks ://"),
            ("nats://", "it has no host"),
            ("nats://app:Zq9@", "it has no host"),
            ("nats://a,,b", "it has no host"),
            ("nats://h:port", "the port is not a number"),
            ("nats://h:70000", "the port is not a number"),
            ("nats://app:Zq9/x@h", "the port is not a number"),
            ("nats://[::1", "lacks its ]"),
            ("nats://[::1]x", "something else than a port"),
            ("nats://h h", "white space"),
            ("nats://h?x=%zz", "no two hex digits"),
            ("nats://h?x=%ff", "not UTF-8"),
            ("nats://h?password=Zq9&password=Zq9", "option password is given twice"),
        ] {
            let text = Address::parse(url, &mut Options::new()).unwrap_err().to_string();
            assert!(text.contains(reason) && !text.contains("Zq9"), "{url}: {text}");
        }
    }
}
