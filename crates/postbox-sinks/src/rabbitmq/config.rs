//! [`RabbitConfig`]: the URL and options of a RabbitMQ sink, checked.

use std::time::Duration;

use crate::address::Address;
use crate::destination::Destination;
use crate::encode::{Binding, Encoding};
use crate::options::{Options, Reader, Secret};
use crate::tls::TlsFiles;
use crate::url::SinkError;

/// The longest text that AMQP has for names.
pub(super) const LONGEST_NAME: usize = 255;
/// The least that newer brokers accept.
const LEAST_FRAME: u64 = 8 << 10;

/// What a RabbitMQ sink is told.
#[derive(Debug, Clone)]
pub(super) struct RabbitConfig {
    pub(super) address: Address,
    pub(super) encrypted: bool,
    pub(super) tls: TlsFiles,
    pub(super) auth: Auth,
    pub(super) vhost: String,
    pub(super) exchange: String,
    pub(super) destination: Destination,
    pub(super) encoding: Encoding,
    pub(super) mandatory: bool,
    pub(super) name: String,
    /// In bytes; 0 is what the broker says.
    pub(super) frame_max: u32,
    /// In seconds; 0 is what the broker says.
    pub(super) heartbeat: u16,
    pub(super) connections: usize,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
}

/// How the sink says who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Auth {
    /// By user and password.
    Plain(String, Secret),
    /// By the client's certificate.
    External,
}

impl RabbitConfig {
    /// Reads and checks URL and options; nothing is connected.
    pub(super) fn new(url: &str, mut options: Options) -> Result<Self, SinkError> {
        let mut address = Address::parse(url, &mut options)?;
        let mut options = Reader::new(url, options);
        let encrypted = address.scheme == "amqps";
        let tls = TlsFiles::from_options(&mut options, encrypted, "amqps");
        let seconds =
            options.duration("heartbeat", 1_000, 600_000).map_or(0, |heartbeat| heartbeat.as_secs());
        let limit = |options: &mut Reader, name, default| {
            options.duration(name, 100, 60_000).unwrap_or(Duration::from_secs(default))
        };
        let config = Self {
            encrypted,
            auth: auth(&mut address, &tls, &mut options),
            tls,
            vhost: vhost(&address, &mut options),
            exchange: name(&mut options, "exchange").unwrap_or_default(),
            destination: options.template("destination").unwrap_or_default().into(),
            encoding: Encoding::from_options(Binding::AMQP, &mut options),
            mandatory: options.switch("mandatory").unwrap_or(true),
            name: name(&mut options, "name").unwrap_or_else(|| "postbox".to_owned()),
            frame_max: options
                .size("frame_max", LEAST_FRAME, 16 << 20)
                .map_or(0, |bytes| u32::try_from(bytes).unwrap_or_default()),
            heartbeat: u16::try_from(seconds).unwrap_or_default(),
            connections: options
                .number("connections", 1..=256)
                .map_or(4, |number| usize::try_from(number).unwrap_or(1)),
            timeout: limit(&mut options, "timeout", 5),
            connect_timeout: limit(&mut options, "connect_timeout", 5),
            address,
        };
        options.finish()?;
        Ok(config)
    }
}

fn auth(address: &mut Address, tls: &TlsFiles, options: &mut Reader) -> Auth {
    let (user, password) = address.take_login(options);
    let external = options.choice("auth", &[("plain", false), ("external", true)]).unwrap_or(false);
    match (external, user, password) {
        (true, None, None) => {
            if tls.client.is_none() {
                options.problem("auth", "= \"external\" needs a certificate", "add tls_cert and tls_key");
            }
            Auth::External
        }
        (true, ..) => {
            options.problem(
                "auth",
                "= \"external\" is given, and a user or password too",
                "keep one of the two",
            );
            Auth::External
        }
        (false, None, Some(_)) => {
            options.problem("password", "is given without a user", "add user");
            Auth::External
        }
        // As all clients of RabbitMQ have it.
        (false, user, password) => Auth::Plain(
            user.unwrap_or_else(|| "guest".to_owned()),
            password.unwrap_or_else(|| Secret::new("guest")),
        ),
    }
}

/// The URL's path; `/` where there is none, or where it is that itself, written as `%2F`.
fn vhost(address: &Address, options: &mut Reader) -> String {
    match address.path.as_str() {
        "" => "/".to_owned(),
        path if path.len() > LONGEST_NAME => {
            options.problem("vhost", "(the URL's path) is too long", "use 255 bytes at most");
            String::new()
        }
        path => path.to_owned(),
    }
}

fn name(options: &mut Reader, option: &'static str) -> Option<String> {
    let name = options.text(option)?;
    if name.len() > LONGEST_NAME {
        options.problem(option, "is too long", "use 255 bytes at most");
        return None;
    }
    Some(name)
}
