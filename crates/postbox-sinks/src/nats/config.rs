//! [`NatsConfig`]: the URL and options of a NATS sink, checked.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Address;
use crate::destination::Destination;
use crate::encode::{Binding, Encoding};
use crate::options::{Options, Reader, Secret};
use crate::tls::TlsFiles;
use crate::url::SinkError;

/// The schemes with TLS; `tls` is how NATS itself writes it.
const ENCRYPTED: [&str; 2] = ["nats+tls", "tls"];

/// What a NATS sink is told.
#[derive(Debug, Clone)]
pub(super) struct NatsConfig {
    pub(super) address: Address,
    pub(super) encrypted: bool,
    pub(super) tls: TlsFiles,
    pub(super) login: Login,
    pub(super) destination: Destination,
    pub(super) encoding: Encoding,
    pub(super) domain: Option<String>,
    pub(super) name: String,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
}

/// How the sink says who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Login {
    /// Not at all.
    None,
    /// By user and password.
    Password(String, Secret),
    /// By a token.
    Token(Secret),
    /// By the seed of an nkey.
    Nkey(Secret),
    /// By a file of credentials, which is read at each connection.
    Creds(PathBuf),
}

impl NatsConfig {
    /// Reads and checks URL and options; nothing is connected.
    pub(super) fn new(url: &str, mut options: Options) -> Result<Self, SinkError> {
        let mut address = Address::parse(url, &mut options)?;
        let mut options = Reader::new(url, options);
        let encrypted = ENCRYPTED.contains(&address.scheme.as_str());
        let config = Self {
            encrypted,
            tls: TlsFiles::from_options(&mut options, encrypted, ENCRYPTED[0]),
            login: login(&mut address, &mut options),
            destination: Destination::from_options(&address, &mut options),
            encoding: Encoding::from_options(Binding::NATS, &mut options),
            domain: options.text("domain"),
            name: options.text("name").unwrap_or_else(|| "postbox".to_owned()),
            timeout: options.duration("timeout", 100, 60_000).unwrap_or(Duration::from_secs(5)),
            connect_timeout: options
                .duration("connect_timeout", 100, 60_000)
                .unwrap_or(Duration::from_secs(5)),
            address,
        };
        options.finish()?;
        Ok(config)
    }
}

/// The one way to log in that is given; two are a mistake.
fn login(address: &mut Address, options: &mut Reader) -> Login {
    let (user, password) = address.take_login(options);
    let mut ways = Vec::new();
    match (user, password) {
        (Some(user), Some(password)) => ways.push(Login::Password(user, password)),
        // As all clients of NATS have it: a user alone is a token.
        (Some(token), None) => ways.push(Login::Token(Secret::new(token))),
        (None, Some(_)) => options.problem("password", "is given without a user", "add user"),
        (None, None) => {}
    }
    ways.extend(options.secret("token").map(Login::Token));
    ways.extend(options.secret("nkey").map(Login::Nkey));
    ways.extend(options.file("creds").map(Login::Creds));
    if ways.len() > 1 {
        options.problem(
            "user",
            "and others of user, token, nkey and creds are given",
            "keep one way to log in",
        );
    }
    ways.into_iter().next().unwrap_or(Login::None)
}
