//! What all private brokers have in common: an address, and a process that can be stopped and started again.

use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::instance::{Instance, Launch};
use super::options::ServerOptions;
use super::tls::Certificates;

/// Another process may take a free port between our look and the server's.
const PORT_TRIES: usize = 5;

/// Where our servers listen: below the ports that the system gives to clients. A client that tries again and again to
/// reach a stopped server would be given the server's own port one day, connect to itself, and keep the server out.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A broker for tests: a private one, or one that a variable names.
///
/// A private one listens on a free port of 127.0.0.1 and keeps its data in a temporary folder. Processes and folder are gone
/// when this value is, or when this process is.
#[derive(Debug)]
pub struct Broker {
    url: String,
    also: Option<String>,
    addr: SocketAddr,
    instance: Option<Instance>,
}

/// What a kind of broker wants: how it is started, and how it is reached then.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) launch: Launch,
    pub(crate) url: String,
    /// A second URL, of whatever else the broker offers.
    pub(crate) also: Option<String>,
    pub(crate) addr: SocketAddr,
}

impl Broker {
    /// Starts what `plan` makes of a folder in `root`, anew where somebody else was quicker to take a port.
    pub(crate) fn start(
        plan: fn(&Path, &ServerOptions) -> Result<Plan, String>,
        root: &Path,
        options: &ServerOptions,
    ) -> Result<Self, String> {
        let mut last = String::new();
        for _ in 0..PORT_TRIES {
            let mut reached = None;
            let started = Instance::start(root, |dir| {
                let Plan { launch, url, also, addr } = plan(dir, options)?;
                reached = Some((url, also, addr));
                Ok(launch)
            });
            match (started, reached) {
                (Ok(instance), Some((url, also, addr))) => {
                    return Ok(Self { url, also, addr, instance: Some(instance) });
                }
                (Ok(_), None) => return Err("a plan without an address".to_owned()),
                (Err(error), _) => last = error,
            }
            let words = last.to_lowercase();
            if !["in use", "eaddrinuse", "failed to bind"].iter().any(|sign| words.contains(sign)) {
                break;
            }
        }
        Err(last)
    }

    /// A broker that somebody else started and will stop: its URL, and a second one after a space, if there is one.
    pub(crate) fn at(urls: &str) -> Result<Self, String> {
        let mut urls = urls.split_whitespace().map(str::to_owned);
        let url = urls.next().unwrap_or_default();
        Ok(Self { addr: address(&url)?, url, also: urls.next(), instance: None })
    }

    /// Its URL, with what is needed to log in.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The second URL, where this kind of broker has one.
    pub(crate) fn also(&self) -> Option<&str> {
        self.also.as_deref()
    }

    /// The value of the variable by which other programs find this broker.
    pub fn urls(&self) -> String {
        [Some(self.url.as_str()), self.also()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Its URL with another address in it: a proxy's.
    pub fn url_through(&self, proxy: SocketAddr) -> String {
        self.url.replacen(&self.addr.to_string(), &proxy.to_string(), 1)
    }

    /// Where it listens: a proxy's upstream.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Stops it in good order; nothing listens any more on return.
    pub fn stop(&self) {
        self.own().end(Signal::TERM);
    }

    /// Stops it as a crash would.
    pub fn kill(&self) {
        self.own().end(Signal::KILL);
    }

    /// Starts it after a stop, on the same port and with the same data; it serves on return.
    pub fn start_again(&self) {
        self.own().start_again().unwrap_or_else(|error| panic!("{error}"));
    }

    /// The private broker's folder, or none for one of somebody else's.
    pub fn dir(&self) -> Option<&Path> {
        self.instance.as_ref().map(Instance::dir)
    }

    /// Where its tools may put what they need while they run.
    pub(crate) fn folder(&self) -> PathBuf {
        self.dir().map_or_else(std::env::temp_dir, Path::to_owned)
    }

    /// The certificate of the authority that vouches for a private broker with TLS: a file for clients to trust.
    pub fn authority(&self) -> Option<PathBuf> {
        self.dir().map(|dir| Certificates::of(dir).authority).filter(|file| file.exists())
    }

    /// The private broker's process, none while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.instance.as_ref().and_then(Instance::pid)
    }

    /// What the private broker has said since its last start.
    pub fn log(&self) -> String {
        self.instance.as_ref().map(Instance::log).unwrap_or_default()
    }

    fn own(&self) -> &Instance {
        // Other tests live on a shared broker: stopping it under them must be an error, not an accident.
        self.instance.as_ref().expect("only a private broker can be stopped: use start()")
    }
}

/// The type of a broker around [`Broker`]: started on its own, or shared by all who can live with that.
macro_rules! server {
    ($(#[$doc:meta])* $name:ident, $env:literal, $plan:path, $root:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            broker: $crate::server::broker::Broker,
        }

        impl $name {
            /// Names the server that tests share; `cargo xtask` sets it for those that are slow to start.
            pub const URL_ENV: &str = $env;

            /// Starts a private server.
            pub fn start() -> Self {
                Self::with(&$crate::server::ServerOptions::default())
            }

            /// Like `start`, with the reason instead of a panic; see [`broker_or_skip!`](crate::broker_or_skip).
            pub fn try_start() -> Result<Self, String> {
                Self::try_with(&$crate::server::ServerOptions::default())
            }

            /// Starts a private server with options.
            pub fn with(options: &$crate::server::ServerOptions) -> Self {
                Self::try_with(options).unwrap_or_else(|error| panic!("{error}"))
            }

            /// Like `with`, with the reason instead of a panic.
            pub fn try_with(options: &$crate::server::ServerOptions) -> Result<Self, String> {
                $crate::server::broker::Broker::start($plan, &$root(options), options).map(|broker| Self { broker })
            }

            /// The server that all tests of this process share, without options: the one that the variable names, else a
            /// private one. It is never stopped, and has what other tests have put there.
            pub fn shared() -> &'static Self {
                Self::try_shared().unwrap_or_else(|error| panic!("{error}"))
            }

            /// Like `shared`, with the reason instead of a panic.
            pub fn try_shared() -> Result<&'static Self, String> {
                static SHARED: std::sync::OnceLock<Result<$name, String>> = std::sync::OnceLock::new();
                SHARED
                    .get_or_init(|| match std::env::var(Self::URL_ENV) {
                        Ok(urls) => $crate::server::broker::Broker::at(&urls)
                            .map(|broker| Self { broker })
                            .map_err(|error| format!("{}: {error}", Self::URL_ENV)),
                        Err(_) => Self::try_start(),
                    })
                    .as_ref()
                    .map_err(Clone::clone)
            }
        }

        impl std::ops::Deref for $name {
            type Target = $crate::server::broker::Broker;

            fn deref(&self) -> &Self::Target {
                &self.broker
            }
        }
    };
}
pub(crate) use server;

/// A program, where packages put it.
pub(crate) fn find_program(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")])
        .map(|folder| folder.join(name))
        .find(|program| program.exists())
        .ok_or_else(|| format!("no {name} found: run `cargo xtask test`, which installs it"))
}

/// A free place to listen.
pub(crate) fn free_addr() -> Result<SocketAddr, String> {
    let span = usize::from(PORTS.end - PORTS.start);
    for attempt in 0..1000_u32 {
        // Each hasher has keys of its own: as good as random numbers.
        let random = usize::try_from(RandomState::new().hash_one(attempt) >> 33).unwrap_or_default() % span;
        let port = PORTS.start + u16::try_from(random).unwrap_or_default();
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(addr).is_ok() {
            return Ok(addr);
        }
    }
    Err("no free port".to_owned())
}

/// The host and port of a URL, which is not quoted in errors: it may hold a password.
fn address(url: &str) -> Result<SocketAddr, String> {
    let (_, rest) = url.split_once("://").ok_or("not a URL")?;
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    let mut found = address.to_socket_addrs().map_err(|error| format!("the URL's host and port: {error}"))?;
    found.next().ok_or_else(|| "the URL's host has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Broker, PORTS, free_addr};

    #[test]
    fn a_broker_of_somebody_elses_has_its_urls() {
        let broker = Broker::at("pulsar://u:s%40@127.0.0.1:9/x?y=@1 http://127.0.0.1:8").unwrap();
        assert_eq!((broker.port(), broker.also()), (9, Some("http://127.0.0.1:8")));
        assert_eq!(broker.urls(), "pulsar://u:s%40@127.0.0.1:9/x?y=@1 http://127.0.0.1:8");
        assert_eq!(broker.url_through("127.0.0.1:7".parse().unwrap()), "pulsar://u:s%40@127.0.0.1:7/x?y=@1");
        assert!(broker.dir().is_none() && broker.pid().is_none());
    }

    #[test]
    fn errors_do_not_show_the_password() {
        for url in
            ["secret", "nats://u:secret@", "nats://u:secret@127.0.0.1", "nats://u:secret@127.0.0.1:port"]
        {
            let error = Broker::at(url).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn ports_are_not_those_of_clients() {
        assert!(PORTS.contains(&free_addr().unwrap().port()));
    }
}
