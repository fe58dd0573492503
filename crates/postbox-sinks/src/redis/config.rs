//! [`RedisConfig`]: the URL and options of a Redis sink, checked.

use std::time::Duration;

use crate::address::Address;
use crate::destination::Destination;
use crate::encode::{Binding, Encoding};
use crate::options::{Options, Reader, Secret};
use crate::tls::TlsFiles;
use crate::url::SinkError;

/// Redis takes no longer value, unless it is told to.
const MOST_BYTES: u64 = 512 * 1024 * 1024;

/// What a Redis sink is told.
#[derive(Debug, Clone)]
pub(super) struct RedisConfig {
    pub(super) address: Address,
    pub(super) encrypted: bool,
    pub(super) tls: TlsFiles,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: i64,
    pub(super) destination: Destination,
    pub(super) encoding: Encoding,
    pub(super) max_payload: Option<usize>,
    pub(super) maxlen: Option<u64>,
    pub(super) wait_replicas: Option<u64>,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
}

impl RedisConfig {
    /// Reads and checks URL and options; nothing is connected.
    pub(super) fn new(url: &str, mut options: Options) -> Result<Self, SinkError> {
        let mut address = Address::parse(url, &mut options)?;
        let mut options = Reader::new(url, options);
        if address.hosts.len() > 1 {
            return Err(SinkError::new(
                url,
                "it names several hosts: one is needed, clusters are not supported",
            ));
        }
        let encrypted = address.scheme == "rediss";
        let (user, password) = address.take_login(&mut options);
        if user.is_some() && password.is_none() {
            options.problem("user", "is given without a password", "add password");
        }
        let database = database(&mut address, &mut options);
        let config = Self {
            encrypted,
            tls: TlsFiles::from_options(&mut options, encrypted, "rediss"),
            user,
            password,
            database,
            destination: Destination::from_options(&address, &mut options),
            encoding: Encoding::from_options(Binding::REDIS, &mut options),
            max_payload: options.size("max_payload", 1, MOST_BYTES),
            maxlen: options.number("maxlen", 1..=u64::MAX / 2),
            wait_replicas: options.number("wait_replicas", 1..=100),
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

/// The number of the database: the option `db`, or what a URL of Redis begins its path with. The rest of the path is the
/// destination's.
fn database(address: &mut Address, options: &mut Reader) -> i64 {
    let option = options.number("db", 0..=1_000_000);
    let (first, rest) = address.path.split_once('/').unwrap_or((&address.path, ""));
    let path = first.parse::<u32>().ok();
    if path.is_some() {
        address.path = rest.to_owned();
    }
    if path.is_some() && option.is_some() {
        options.problem("db", "is given, and a database in the URL's path too", "keep one of the two");
    }
    path.map(i64::from).or(option.and_then(|number| i64::try_from(number).ok())).unwrap_or(0)
}
